"""Problems of a file in any of the formats that are known, told apart by what it holds."""

from __future__ import annotations

import errno
import gzip
import io
import re
import zlib
from collections.abc import Callable, Sequence
from pathlib import Path

from gemmill.library.errors import RecordError
from gemmill.library.files import read_given
from gemmill.profiler.imports import bench, csv_tables, cublas_log, lists, torch_log, vllm
from gemmill.profiler.imports.collector import Imported, TextFile

MAX_BYTES = 64 << 20
"""Most bytes of a file."""
MAX_UNPACKED = 256 << 20
"""Most bytes that a compressed file may unpack to."""
_GZIP = b"\x1f\x8b"
_MOST_LINES = 2_000_000
_LOGGED = re.compile(r'\s*\[[^\[\]{}",]{0,200}\]\s*[^\s,\]]')
"""How lines of a log begin that are no JSON: with a time or a number in brackets."""
Reader = Callable[[TextFile], Imported | None]
"""What reads the problems of a text; None where it is in another format."""
JSON_READERS: tuple[Reader, ...] = (torch_log.read_trace, vllm.read_experts, lists.read_json)
TEXT_READERS: tuple[Reader, ...] = (
    cublas_log.read_lt,
    cublas_log.read_cublas,
    torch_log.read_operators,
    bench.read_header,
    vllm.read_shapes,
    csv_tables.read,
    bench.read_commands,
    bench.read_yaml,
    lists.read_yaml,
)
"""Those of texts that are no JSON: the first that takes one."""


def read_problems(path: Path, *, m: Sequence[int] = (), k: Sequence[int] = ()) -> Imported | None:
    """The problems of a file; None where it is in none of the formats.

    Args:
        path: its place: a file or a pipe, which is read to its end.
        m: extents M for formats that lack it.
        k: extents K for formats that lack it.

    Raises:
        RecordError: it cannot be read, or is in one of the formats and damaged; says where, and what to do.
    """
    try:
        content = read_given(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        if getattr(error, "errno", None) == errno.EFBIG:
            reason = f"{reason}; pack it with gzip, or split it"
        raise RecordError(f"{path}:1: cannot be read: {reason}") from None
    return problems_of(content, path, m=m, k=k)


def problems_of(content: bytes, path: Path, *, m: Sequence[int] = (), k: Sequence[int] = ()) -> Imported | None:
    """The problems of what a file holds that was read already, as :func:`read_problems`; the path is for messages, and
    for the one format that has extents in its name."""
    if content.startswith(_GZIP):
        content = _unpacked(path, content)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    start = text.lstrip()[:1]
    if not start:
        return None
    is_json = start in "[{" and not _LOGGED.match(text)
    if not is_json and text.count("\n") > _MOST_LINES:
        raise RecordError(f"{path}:1: has more than {_MOST_LINES:,} lines; split it")
    file = TextFile(path, text, m, k)
    contents = (read(file) for read in (JSON_READERS if is_json else TEXT_READERS))
    return next((imported for imported in contents if imported is not None), None)


def _unpacked(path: Path, content: bytes) -> bytes:
    """What a gzip file holds, as far as it may; RecordError where it is damaged or holds more."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            unpacked = file.read(MAX_UNPACKED + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise RecordError(f"{path}:1: cannot be unpacked: {error}; pack it anew") from None
    if len(unpacked) > MAX_UNPACKED:
        raise RecordError(f"{path}:1: unpacks to more than {MAX_UNPACKED:,} bytes; record less of the run")
    return unpacked
