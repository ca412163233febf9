"""Read the problems of a file in any supported format, which is recognized by the content."""

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
"""Maximum size of a file."""
MAX_UNPACKED = 256 << 20
"""Maximum size of a compressed file after decompression."""
_GZIP = b"\x1f\x8b"
_MOST_LINES = 2_000_000
_LOGGED = re.compile(r'\s*\[[^\[\]{}",]{0,200}\]\s*[^\s,\]]')
"""The start of a log that is not JSON: a time or a number in brackets."""
Reader = Callable[[TextFile], Imported | None]
"""Reads the problems of a text; None if it is in another format."""
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
"""Readers of texts other than JSON; the first that accepts a text reads it."""


def read_problems(path: Path, *, m: Sequence[int] = (), k: Sequence[int] = ()) -> Imported | None:
    """The problems of a file; None if it is in none of the formats.

    Args:
        path: a file, or a pipe, which is read to its end.
        m: values of M for formats without M.
        k: values of K for formats without K.

    Raises:
        RecordError: the file cannot be read, or is damaged.
    """
    try:
        content = read_given(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        if getattr(error, "errno", None) == errno.EFBIG:
            reason = f"{reason}; compress it with gzip, or split it"
        raise RecordError(f"{path}:1: cannot read the file: {reason}") from None
    return problems_of(content, path, m=m, k=k)


def problems_of(content: bytes, path: Path, *, m: Sequence[int] = (), k: Sequence[int] = ()) -> Imported | None:
    """Like :func:`read_problems`, for the content of a file. The path is used in messages, and by the format that has
    extents in the name of the file."""
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
        raise RecordError(f"{path}:1: the file has more than {_MOST_LINES:,} lines; split it")
    file = TextFile(path, text, m, k)
    contents = (read(file) for read in (JSON_READERS if is_json else TEXT_READERS))
    return next((imported for imported in contents if imported is not None), None)


def _unpacked(path: Path, content: bytes) -> bytes:
    """The decompressed content of a gzip file; RecordError if it is damaged or too large."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            unpacked = file.read(MAX_UNPACKED + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise RecordError(f"{path}:1: cannot decompress the file: {error}; compress it again") from None
    if len(unpacked) > MAX_UNPACKED:
        raise RecordError(
            f"{path}:1: decompresses to more than {MAX_UNPACKED:,} bytes; record a shorter part of the run"
        )
    return unpacked
