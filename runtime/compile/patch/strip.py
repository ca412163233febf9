"""Removes variables that no code reads from a cubin: four fifths of what NVRTC makes of CUTLASS's headers.

``-default-device``, which CUTLASS needs, turns every constexpr variable into a variable in device memory. There are a
thousand of them, each with a symbol, a place in ``.nv.constant4`` for its address and a relocation that writes it
there. Code has their values as immediates, but the driver allocates and relocates them anyway.

Nothing is renumbered: a removed section leaves an inactive header (``SHT_NULL``), and a removed symbol leaves an
undefined one without a name. So all references to sections and symbols by number, known or not, stay valid, and the
remaining sections keep their bytes.
"""

from __future__ import annotations

import re
import struct
from collections import Counter
from collections.abc import Iterator, Set
from typing import Any, NamedTuple

from gemmill.library.errors import CompileError
from gemmill.runtime.storage.cubin import HEADER, NO_BITS, SECTION, SYMBOL, Cubin, text_at

_VARIABLES = (".nv.global", ".nv.global.init")
_ADDRESSES = ".nv.constant4"
"""Constant bank with the addresses of variables: eight bytes each."""
_ADDRESS_BYTES = 8
_RELOCATIONS = {4: struct.Struct("<QQq"), 9: struct.Struct("<QQ")}
"""Relocations of a section, by its type: offset, and the index of a symbol in the high half of the second field."""
_SEGMENT = struct.Struct("<IIQQQQQQ")
_TABLES_AT = 32
"""Offset in the file's header of the offsets of the segment headers and of the section headers."""
_TABLES = struct.Struct("<QQ")
_TABLES_ALIGN = 8
_MOST_ALIGN = 4096
"""Largest alignment of a section, in bytes."""
_WRITE, _ALLOC = 1, 2
"""Flags of a section; ``_WRITABLE`` is the flag of a writable segment."""
_WRITABLE = 2
_TOKEN = re.compile(r"[\w$]+")


class _Section(NamedTuple):
    name: int
    kind: int
    flags: int
    address: int
    offset: int
    size: int
    link: int
    info: int
    align: int
    entry_bytes: int

    @property
    def file_bytes(self) -> int:
        return 0 if self.kind == NO_BITS else self.size


class _Segment(NamedTuple):
    kind: int
    flags: int
    offset: int
    address: int
    physical: int
    file_bytes: int
    bytes: int
    align: int

    @property
    def extent(self) -> tuple[int, int, int]:
        return self.offset, self.file_bytes, self.bytes


class _Symbol(NamedTuple):
    name: int
    info: int
    other: int
    section: int
    value: int
    size: int

    @property
    def is_section(self) -> bool:
        return self.info & 15 == 3


_NO_SECTION, _NO_SEGMENT, _NO_SYMBOL = _Section(*[0] * 10), _Segment(*[0] * 8), _Symbol(*[0] * 6)


def stripped(cubin: bytes, ptx: str) -> bytes:
    """Return a cubin without variables that no code reads; unchanged where it has none.

    Args:
        cubin: the cubin from NVRTC.
        ptx: its PTX. A variable whose name occurs there only once, in its declaration, is not read.

    Raises:
        CompileError: the variables must stay; says why: code reads one, or the bytes are not a cubin or have an unknown
            layout.
    """
    Cubin(cubin)  # raises for anything else
    try:
        return _Elf(cubin).stripped(ptx)
    except (struct.error, ValueError, IndexError, KeyError, OverflowError) as error:
        raise CompileError(f"the layout of the cubin is unknown: {error}") from error


class _Elf:
    """The tables of a cubin."""

    def __init__(self, cubin: bytes) -> None:
        self._cubin = cubin
        *_, segments, sections, _, size, segment_size, segment_count, _, count, names = HEADER.unpack_from(cubin)
        if (size, segment_size) != (HEADER.size, _SEGMENT.size):
            raise ValueError(f"its headers have unexpected sizes, {size} and {segment_size} bytes")
        self._sections = [_Section(*row) for row in _rows(SECTION, cubin, sections, count)]
        self._segments = [_Segment(*row) for row in _rows(_SEGMENT, cubin, segments, segment_count)]
        self._segments_at, texts = segments, self._bytes(names)
        self._names = [text_at(texts, section.name) for section in self._sections]
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._table = self._numbers[".symtab"]
        self._symbols = [_Symbol(*row) for row in SYMBOL.iter_unpack(self._bytes(self._table))]
        self._texts = self._bytes(self._sections[self._table].link)

    def stripped(self, ptx: str) -> bytes:
        """Return the file without unused variables."""
        going = {self._numbers[name] for name in (*_VARIABLES, _ADDRESSES) if name in self._numbers}
        if not going:
            return self._cubin
        self._check_layout()
        symbols = {number for number, symbol in enumerate(self._symbols) if symbol.section in going}
        self._check_symbols(symbols, ptx)
        going |= self._check_relocations(symbols)
        return self._file_without(going, symbols)

    def _check_layout(self) -> None:
        """Raise ValueError where the file has more than consecutive sections and one symbol table, such as the second
        form of sm_120's code, in sections that share bytes and texts with those of the first."""
        end = HEADER.size
        for number, section in enumerate(self._sections):
            if section.link == self._sections[self._table].link and number != self._table:
                raise ValueError(f"{self._names[number]} uses the string table of the symbols")
            if not section.kind:
                continue
            between = self._cubin[end : section.offset]
            if section.offset < end or section.align > _MOST_ALIGN or between.strip(b"\0"):
                raise ValueError(f"{self._names[number]} does not follow the section before it")
            end = max(end, section.offset + section.file_bytes)

    def _check_symbols(self, going: Set[int], ptx: str) -> None:
        """Raise CompileError where a symbol is not an unused variable in the PTX."""
        tokens = Counter(_TOKEN.findall(ptx))
        for symbol in (self._symbols[number] for number in going):
            name = text_at(self._texts, symbol.name)
            if not symbol.is_section and tokens[name] != 1:
                raise CompileError(f"{name} occurs {tokens[name]} times in the PTX; an unused variable occurs once")

    def _check_relocations(self, going: Set[int]) -> set[int]:
        """Return the relocation sections to remove: those of all addresses, and only those. CompileError where others
        need a removed symbol."""
        addresses = self._numbers.get(_ADDRESSES)
        variables = {self._numbers.get(name) for name in _VARIABLES}
        sections, places = set(), []
        for number, section in enumerate(self._sections):
            if section.kind not in _RELOCATIONS:
                continue
            rows = [(row[0], row[1] >> 32) for row in _RELOCATIONS[section.kind].iter_unpack(self._bytes(number))]
            if section.info == addresses:
                sections.add(number)
                places += [place for place, symbol in rows if self._symbols[symbol].section in variables]
            elif any(symbol in going for _, symbol in rows):
                raise CompileError(f"{self._names[number]} needs the address of a variable")
        size = 0 if addresses is None else self._sections[addresses].size
        if sorted(places) != [*range(0, size, _ADDRESS_BYTES)]:
            raise CompileError(f"{_ADDRESSES} holds more than one address of each variable")
        return sections

    def _file_without(self, going: Set[int], symbols: Set[int]) -> bytes:
        """Return the file without some sections and symbols."""
        texts, rows = bytearray(1), []
        for number, symbol in enumerate(self._symbols):
            if number in symbols:
                symbol = _NO_SYMBOL
            if symbol.name:
                name = self._texts[symbol.name : self._texts.index(b"\0", symbol.name) + 1]
                symbol = symbol._replace(name=len(texts))
                texts += name
            rows.append(SYMBOL.pack(*symbol))
        changed = {self._table: b"".join(rows), self._sections[self._table].link: bytes(texts)}
        data, sections = bytearray(self._cubin[: HEADER.size]), []
        for number, section in enumerate(self._sections):
            if number in going or not section.kind:
                sections.append(_NO_SECTION)
                continue
            content = changed.get(number, self._bytes(number))
            data += bytes(-len(data) % max(section.align, 1))
            size = section.size if section.kind == NO_BITS else len(content)
            sections.append(section._replace(offset=len(data), size=size))
            data += content
        data += bytes(-len(data) % _TABLES_ALIGN)
        sections_at = len(data)
        segments_at = sections_at + len(sections) * SECTION.size
        _TABLES.pack_into(data, _TABLES_AT, segments_at, sections_at)
        for row in sections:
            data += SECTION.pack(*row)
        for segment in self._segments:
            data += _SEGMENT.pack(*self._moved_segment(segment, sections, segments_at))
        return bytes(data)

    def _moved_segment(self, segment: _Segment, sections: list[_Section], segments_at: int) -> _Segment:
        """Return a segment with the new locations of its sections; ValueError where it is more than its sections."""
        if segment.offset == self._segments_at:  # the segment of these headers themselves
            return segment._replace(offset=segments_at)
        numbers = [number for number, section in enumerate(self._sections) if _is_in(section, segment)]
        if _extent([self._sections[number] for number in numbers]) != segment.extent:
            raise ValueError(f"its segment at {segment.offset} does not consist of whole sections")
        loaded = [sections[number] for number in numbers if sections[number].kind]
        if not loaded:
            return _NO_SEGMENT
        offset, file_bytes, count = _extent(loaded)
        return segment._replace(offset=offset, file_bytes=file_bytes, bytes=count)

    def _bytes(self, number: int) -> bytes:
        section = self._sections[number]
        return self._cubin[section.offset : section.offset + section.file_bytes]


def _rows(layout: struct.Struct, data: bytes, start: int, count: int) -> Iterator[tuple[Any, ...]]:
    return layout.iter_unpack(data[start : start + count * layout.size])


def _is_in(section: _Section, segment: _Segment) -> bool:
    """Whether a segment loads a section. A section without bytes in the file is where the segment ends there."""
    is_alike = section.flags & _ALLOC and bool(section.flags & _WRITE) == bool(segment.flags & _WRITABLE)
    end = section.offset + section.file_bytes
    return bool(is_alike and segment.offset <= section.offset and end <= segment.offset + segment.file_bytes)


def _extent(sections: list[_Section]) -> tuple[int, int, int]:
    """Return the offset, the bytes in the file and the bytes in memory of the segment of some sections."""
    if not sections:
        raise ValueError("a segment has no section")
    start = min(section.offset for section in sections)
    end = last = max(section.offset + section.file_bytes for section in sections)
    for section in sections:
        if section.kind == NO_BITS:
            last += -last % max(section.align, 1) + section.size
    return start, end - start, last - start
