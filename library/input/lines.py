"""Files of lines, compressed or not, read a piece at a time: however large they claim to be, memory is bounded."""

from __future__ import annotations

import lzma
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

from gemmill.library.errors import RecordError
from gemmill.library.files import open_given

MAX_BYTES = 2 << 30
"""Most bytes of a file, and of what it decompresses to: two million records."""
MAX_LINES = 10_000_000
"""Most lines of a file."""
MAX_LINE_BYTES = 1 << 20
"""Most bytes of a line."""
MOST_NAMED = 5
"""Faults of a file that are named; others are counted."""
_MOST_FAULTS = 1000
"""Faults after which nothing more is read."""
_PIECE = 1 << 16
"""Bytes that are read, or decompressed, at a time."""
_DECOMPRESSOR_BYTES = 256 << 20
"""Memory that decompressing may take; ``xz -9`` makes files that take a quarter."""


class Faults:
    """What is wrong with a file, of which the first are named."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._named: list[str] = []
        self._count = 0

    def add(self, fault: str) -> None:
        """Note a fault; RecordError where there are so many that the file is of something else."""
        self._count += 1
        if self._count <= MOST_NAMED:
            self._named.append(fault)
        if self._count == _MOST_FAULTS:
            self._named.append(f"{self._path}: and so on: {self._count:,} faults, and not read further")
            raise RecordError("\n".join(self._named))

    def check(self) -> None:
        """Raises RecordError if there are faults."""
        if self._count > MOST_NAMED:
            self._named.append(f"{self._path}: and {self._count - MOST_NAMED:,} more faults")
        if self._named:
            raise RecordError("\n".join(self._named))


def read_lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """The lines of a file or a pipe that are not blank, with their numbers; of one whose name ends in ``.xz``, of what
    it decompresses to.

    Raises:
        RecordError: the file cannot be read, or holds more than the limits above.
    """
    total, number, rest = 0, 0, b""
    try:
        with open_given(path, MAX_BYTES) as file:
            for piece in _decompressed(file) if path.suffix == ".xz" else iter(lambda: file.read(_PIECE), b""):
                total += len(piece)
                *whole, rest = (rest + piece).split(b"\n")
                if number + len(whole) > MAX_LINES:
                    raise RecordError(f"{path}: has more than {MAX_LINES:,} lines; split it")
                if total > MAX_BYTES:
                    raise RecordError(f"{path}: has more than {MAX_BYTES:,} bytes; split it")
                for line in whole:
                    number += 1
                    if line and not line.isspace():
                        yield number, line
                if len(rest) > MAX_LINE_BYTES:
                    raise RecordError(f"{path}:{number + 1}:1: a line of more than {MAX_LINE_BYTES:,} bytes")
            if rest and not rest.isspace():
                yield number + 1, rest
    except lzma.LZMAError as error:
        if "memory" in str(error).lower():
            raise RecordError(f"{path}: decompressing it takes more than {_DECOMPRESSOR_BYTES:,} bytes") from None
        raise RecordError(f"{path}: its name ends in .xz, but it is not all compressed by xz") from None
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from None


def _decompressed(file: BinaryIO) -> Iterator[bytes]:
    """What xz streams hold, one after the other; LZMAError where one is cut short, or anything else follows."""
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
