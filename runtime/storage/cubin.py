"""Reads properties of a compiled kernel from its cubin, an ELF file, for example to check the kernels of a pack."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from gemmill.library.errors import CompileError

HEADER = struct.Struct("<4sBB10xHHIQQQIHHHHHH")
SECTION = struct.Struct("<IIQQQQIIQQ")
SYMBOL = struct.Struct("<IBBHQQ")
"""Structs of a file, a section and a symbol: headers and entries of 64-bit ELF, in the order of their fields."""
_INFO = struct.Struct("<BBH")
_WORDS = struct.Struct("<II")
_CUDA = 190
"""``e_machine`` of a cubin."""
NO_BITS = 8
"""Type of a section without bytes in the file."""
_INFO_VALUES = 0x04
"""Format of ``.nv.info`` attributes that carry a 16-bit size and that many bytes; others carry their value instead."""
_MAX_THREADS = 0x05
"""``.nv.info`` attribute: the extents of a CTA."""
_PARAMETER = 0x17
"""``.nv.info`` attribute of one parameter: its size from bit 18 of the third word."""
_REGISTER_COUNT = 0x2F
"""``.nv.info`` attribute: index of a function's symbol, registers of a thread."""


class _Section(NamedTuple):
    kind: int
    offset: int
    size: int
    link: int


class Cubin:
    """One parsed cubin.

    Raises:
        CompileError: the bytes are not a cubin, or a damaged one.
    """

    def __init__(self, data: bytes) -> None:
        self._data = data
        try:
            self._sections, self._names = self._read_sections()
            table = self._names.get(".symtab")
            symbols = () if table is None else self._read_symbols(table)
            self._symbols = {row[0]: (index, *row[1:]) for index, row in enumerate(symbols)}
        except (struct.error, ValueError, IndexError, OverflowError) as error:  # OverflowError: an offset of 2^63
            raise CompileError(f"the cubin is not an ELF file, or is damaged: {error}") from error

    def facts(self, symbol: str) -> dict[int, int]:
        """Return the facts that a kernel exports as an array of pairs: CRC-32 of a name, value.

        Raises:
            CompileError: there is no such symbol, or two facts have the same name.
        """
        _, place, start, size = self._symbol(symbol)
        data = self._bytes(self._sections[place])[start : start + size] if place < len(self._sections) else b""
        if len(data) != size or size % _WORDS.size:
            raise CompileError(f"{symbol} is truncated in the cubin")
        pairs = [*_WORDS.iter_unpack(data)]
        if len(facts := dict(pairs)) != len(pairs):
            raise CompileError(f"{symbol} has two facts with the same name")
        return facts

    def registers(self, entry: str) -> int:
        """Return the registers of a thread of one kernel."""
        index = self._symbol(entry)[0]
        for symbol, count in self._attributes(".nv.info", _REGISTER_COUNT, 2):
            if symbol == index:
                return count
        raise CompileError(f"the cubin has no register count of {entry}")

    def threads(self, entry: str) -> int:
        """Return the most threads of a CTA of one kernel."""
        for x, y, z in self._attributes(f".nv.info.{entry}", _MAX_THREADS, 3):
            return x * y * z
        raise CompileError(f"the cubin has no CTA size of {entry}")

    def params_bytes(self, entry: str) -> int:
        """Return the bytes of the parameters of one kernel."""
        return sum(word >> 18 for _, _, word in self._attributes(f".nv.info.{entry}", _PARAMETER, 3))

    def code(self, entry: str) -> range:
        """Return where in the file the instructions of one kernel are."""
        section = self._names.get(f".text.{entry}")
        if section is None or section.kind == NO_BITS:
            raise CompileError(f"the cubin has no code of {entry}")
        return range(section.offset, section.offset + section.size)

    def static_shared_bytes(self, entry: str) -> int:
        """Return the static shared memory of one kernel in bytes, including the compiler's reserve."""
        section = self._names.get(f".nv.shared.{entry}")
        return 0 if section is None else section.size

    def _symbol(self, name: str) -> tuple[int, int, int, int]:
        """Return the index of a symbol, the index of its section, its offset there and its size."""
        if name not in self._symbols:
            raise CompileError(f"the cubin has no symbol {name}")
        return self._symbols[name]

    def _attributes(self, section: str, attribute_kind: int, words: int) -> Iterator[tuple[int, ...]]:
        """Yield the first words of each ``.nv.info`` attribute of a kind."""
        data = self._bytes(self._names[section]) if section in self._names else b""
        position = 0
        try:
            while position < len(data):
                kind, attribute, size = _INFO.unpack_from(data, position)
                position += _INFO.size
                if kind == _INFO_VALUES:
                    if attribute == attribute_kind:
                        yield struct.unpack_from(f"<{words}I", data, position)
                    position += size
        except struct.error as error:
            raise CompileError(f"the cubin's {section} is damaged: {error}") from error

    def _read_sections(self) -> tuple[list[_Section], Mapping[str, _Section]]:
        magic, bits, order, _, machine, *_, table, _, _, _, _, size, count, names = HEADER.unpack_from(self._data)
        if (magic, bits, order, machine, size) != (b"\x7fELF", 2, 1, _CUDA, SECTION.size):
            raise ValueError("its header is not that of a cubin")
        rows = [SECTION.unpack_from(self._data, table + i * size) for i in range(count)]
        sections = [_Section(row[1], row[4], row[5], row[6]) for row in rows]
        for section in sections:
            if section.kind != NO_BITS and section.offset + section.size > len(self._data):
                raise ValueError("a section extends beyond the file")
        texts = self._bytes(sections[names])
        return sections, {text_at(texts, row[0]): section for row, section in zip(rows, sections, strict=True)}

    def _read_symbols(self, table: _Section) -> Iterator[tuple[str, int, int, int]]:
        texts = self._bytes(self._sections[table.link])
        for name, _, _, section, value, size in SYMBOL.iter_unpack(self._bytes(table)):
            yield text_at(texts, name), section, value, size

    def _bytes(self, section: _Section) -> bytes:
        return b"" if section.kind == NO_BITS else self._data[section.offset : section.offset + section.size]


def text_at(texts: bytes, start: int) -> str:
    """Return a text from a string table, by its offset; ValueError where it is not terminated."""
    return texts[start : texts.index(b"\0", start)].decode(errors="replace")
