"""Problems of a file in any of the formats that are known, told apart by what it holds."""

from __future__ import annotations

import errno
import gzip
import io
import re
import zlib
from collections.abc import Sequence
from pathlib import Path

from gemmill.library.errors import RecordError
from gemmill.library.files import read_given
from gemmill.library.input import strict_json
from gemmill.profiler.imports import bench, csv_tables, cublas_log, lists, torch_log, vllm
from gemmill.profiler.imports.collector import Imported

MAX_BYTES = 64 << 20
"""Most bytes of a file."""
MAX_UNPACKED = 256 << 20
"""Most bytes that a compressed file may unpack to."""
_GZIP = b"\x1f\x8b"
_MOST_LINES = 2_000_000
_LONGEST = 20_000
"""Characters of a line that is read; of longer ones, patterns could take forever."""
_LOGGED = re.compile(r'\s*\[[^\[\]{}",]{0,200}\]\s*[^\s,\]]')
"""How lines of a log begin that are no JSON: with a time or a number in brackets."""


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
    if start in "[{" and not _LOGGED.match(text):
        return _of_json(path, text, k)
    return _of_text(path, text, m)


def _of_json(path: Path, text: str, k: Sequence[int]) -> Imported | None:
    if torch_log.looks_like_trace(text):
        return torch_log.read_trace(path, text)
    if '"BLOCK_SIZE_M"' in text and len(text) <= lists.MAX_JSON:
        try:
            value = strict_json.parse(text.encode())
        except ValueError as error:
            raise RecordError(f"{path}:{getattr(error, 'lineno', 1)}: no JSON: {error}") from None
        return vllm.read_experts(path, value, k) if vllm.looks_like_experts(value) else None
    return lists.read_json(path, text)


def _of_text(path: Path, text: str, m: Sequence[int]) -> Imported | None:
    if text.count("\n") > _MOST_LINES:
        raise RecordError(f"{path}:1: has more than {_MOST_LINES:,} lines; split it")
    lines = [line if len(line) <= _LONGEST else "" for line in text.split("\n")]
    if cublas_log.looks_like_lt(text):
        return cublas_log.read_lt(path, lines)
    if cublas_log.looks_like_cublas(text):
        return cublas_log.read_cublas(path, lines)
    if torch_log.looks_like_operators(text):
        return torch_log.read_operators(path, lines)
    if bench.looks_like_header(text):
        return bench.read_header(path, text)
    if vllm.looks_like_shapes(text):
        return vllm.read_shapes(path, text, m)
    if (found := csv_tables.read(path, lines)) is not None:
        return found
    if bench.looks_like_commands(text) and (found := bench.read_commands(path, lines)) is not None:
        return found
    if bench.looks_like_yaml(text) and (found := bench.read_yaml(path, text)) is not None:
        return found
    words = (line.lstrip() for line in lines)
    first = next((line for line in words if line and not line.startswith(("#", "---"))), "")
    return lists.read_yaml(path, text) if first.startswith(("-", "[")) else None


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
