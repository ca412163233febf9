"""Reads facts of a compiled kernel from its cubin, an ELF file."""

from __future__ import annotations

import io
import struct
from typing import Any

from gemmill.library.errors import CompileError, ToolchainError
from gemmill.runtime.compile.locate import way_out

try:
    from elftools.common.exceptions import ELFError
    from elftools.elf.elffile import ELFFile
except ImportError as error:
    raise ToolchainError(f"pyelftools cannot be imported ({error}); {way_out('pyelftools')}") from error

_INFO_VALUES = 0x04
"""Format of ``.nv.info`` attributes that carry a 16-bit size and that many bytes."""
_REGISTER_COUNT = 0x2F
"""``.nv.info`` attribute: index of a function's symbol, registers of a thread."""


class Cubin:
    """One parsed cubin.

    Raises:
        CompileError: the bytes are no ELF file.
    """

    def __init__(self, data: bytes) -> None:
        try:
            self._elf: Any = ELFFile(io.BytesIO(data))
        except ELFError as error:
            raise CompileError(f"the cubin is no ELF file: {error}") from error
        table: Any = self._elf.get_section_by_name(".symtab")
        symbols = () if table is None else table.iter_symbols()
        self._symbols = {symbol.name: (index, symbol) for index, symbol in enumerate(symbols)}

    def words(self, symbol: str) -> tuple[int, ...]:
        """The initial value of an array of 32-bit unsigned integers.

        Raises:
            CompileError: there is no such symbol.
        """
        entry = self._symbol(symbol)
        section = self._elf.get_section(entry["st_shndx"])
        start, size = entry["st_value"], entry["st_size"]
        return struct.unpack(f"<{size // 4}I", section.data()[start : start + size // 4 * 4])

    def registers(self, entry: str) -> int:
        """Registers of a thread of one kernel."""
        self._symbol(entry)
        index = self._symbols[entry][0]
        section = self._elf.get_section_by_name(".nv.info")
        data = b"" if section is None else section.data()
        position = 0
        while position < len(data):
            kind, attribute, size = struct.unpack_from("<BBH", data, position)
            position += 4
            if kind != _INFO_VALUES:
                continue
            if attribute == _REGISTER_COUNT:
                symbol, count = struct.unpack_from("<II", data, position)
                if symbol == index:
                    return int(count)
            position += size
        raise CompileError(f"the cubin does not tell how many registers {entry} uses")

    def code(self, entry: str) -> range:
        """Where in the file the instructions of one kernel are."""
        section = self._elf.get_section_by_name(f".text.{entry}")
        if section is None:
            raise CompileError(f"the cubin has no code of {entry}")
        return range(section["sh_offset"], section["sh_offset"] + section["sh_size"])

    def static_shared_bytes(self, entry: str) -> int:
        """Static shared memory of one kernel, with what the compiler reserves."""
        section = self._elf.get_section_by_name(f".nv.shared.{entry}")
        return 0 if section is None else int(section["sh_size"])

    def _symbol(self, name: str) -> Any:
        if name not in self._symbols:
            raise CompileError(f"the cubin has no symbol {name}")
        return self._symbols[name][1]
