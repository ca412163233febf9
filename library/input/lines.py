"""Reading of line-based files, compressed or not, in pieces, with bounded memory."""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gemmill.library.errors import RecordError
from gemmill.library.files import ending, open_given

MAX_BYTES = 2 << 30
"""Most bytes of a file, compressed and decompressed: about two million records."""
MAX_LINES = 10_000_000
"""Most lines of a file."""
MAX_LINE_BYTES = 1 << 20
"""Most bytes of a line."""
MOST_NAMED = 5
"""Faults of a file that an error lists; further faults are only counted."""
_MOST_FAULTS = 1000
"""Faults after which reading stops."""
_PIECE = 1 << 16
"""Bytes that are read or decompressed at a time."""
_DECOMPRESSOR_BYTES = 256 << 20
"""Most memory for decompression; files of ``xz -9`` need a quarter of it."""


class Faults:
    """The faults of a file. An error lists the first ones and counts the others."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._named: list[str] = []
        self._count = 0

    def add(self, fault: str) -> None:
        """Add a fault; RecordError after so many faults that the file is probably of another kind."""
        self._count += 1
        if self._count <= MOST_NAMED:
            self._named.append(fault)
        if self._count == _MOST_FAULTS:
            self._named.append(f"{self._path}: {self._count:,} faults; reading stopped here")
            raise RecordError("\n".join(self._named))

    def check(self) -> None:
        """Raises RecordError if there are faults."""
        if self._count > MOST_NAMED:
            self._named.append(f"{self._path}: and {self._count - MOST_NAMED:,} more faults")
        if self._named:
            raise RecordError("\n".join(self._named))


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The non-blank lines of a file or pipe with their numbers. A file whose name ends in ``.xz`` is decompressed.

    Raises:
        RecordError: the file cannot be read, or exceeds the limits above.
    """
    total, number, rest = 0, 0, b""
    try:
        with open_given(path, MAX_BYTES) as file:
            for piece in _decompressed(file) if ending(path) == ".xz" else iter(lambda: file.read(_PIECE), b""):
                total += len(piece)
                *whole, rest = (rest + piece).split(b"\n")
                if number + len(whole) > MAX_LINES:
                    raise RecordError(f"{path}: the file has more than {MAX_LINES:,} lines; split it")
                if total > MAX_BYTES:
                    raise RecordError(f"{path}: the file has more than {MAX_BYTES:,} bytes; split it")
                for line in whole:
                    number += 1
                    if line and not line.isspace():
                        yield number, line
                if len(rest) > MAX_LINE_BYTES:
                    raise RecordError(f"{path}:{number + 1}:1: the line has more than {MAX_LINE_BYTES:,} bytes")
            if rest and not rest.isspace():
                yield number + 1, rest
    except lzma.LZMAError as error:
        if "memory" in str(error).lower():
            raise RecordError(f"{path}: decompression needs more than {_DECOMPRESSOR_BYTES:,} bytes") from None
        raise RecordError(f"{path}: the name ends in .xz, but the content is not valid xz data") from None
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from None


def _decompressed(file: BinaryIO) -> Iterator[bytes]:
    """The decompressed data of concatenated xz streams; LZMAError if a stream is truncated or followed by other
    data."""
    decompressor: lzma.LZMADecompressor | None = None
    behind = b""
    while data := behind or file.read(_PIECE):
        decompressor = decompressor or lzma.LZMADecompressor(memlimit=_DECOMPRESSOR_BYTES)
        yield decompressor.decompress(data, _PIECE)
        while not decompressor.needs_input and not decompressor.eof:
            yield decompressor.decompress(b"", _PIECE)
        behind = decompressor.unused_data
        if decompressor.eof:
            decompressor = None
    if decompressor is not None:
        raise lzma.LZMAError("cut short")
