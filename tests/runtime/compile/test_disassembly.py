"""Disassembly: instructions counted by class, and what is said where it fails."""

from __future__ import annotations

import pytest

from gemmill.library.errors import ToolchainError
from gemmill.runtime.compile.disassembly import CLASSES, OTHERS, class_of, counts, disassembled
from gemmill.runtime.storage.artifact import Artifact

OPCODES = {
    "tensor cores": ("HGMMA", "QGMMA", "IGMMA", "HMMA", "IMMA", "DMMA", "WARPGROUP"),
    "TMA": ("UTMALDG", "UTMASTG", "STAS"),
    "shared memory": ("LDS", "LDSM", "STSM"),
    "global memory": ("LDG", "LDGSTS", "STG", "RED"),
    "local memory": ("LDL", "STL"),
    "constants": ("LDC", "ULDC"),
    "barriers": ("SYNCS", "BAR", "LDGDEPBAR"),
    "conversions": ("F2FP", "I2F", "F2I"),
    "floating point": ("FFMA", "HADD2", "DFMA", "FSETP", "MUFU"),
    "moves": ("MOV", "S2UR", "CS2R", "R2UR"),
    "warps": ("SHFL", "ELECT", "USETMAXREG"),
    "integers": ("IMAD", "UIADD3", "LOP3", "USHF", "VIADD", "FLO", "ISETP"),
    "control": ("BRA", "EXIT", "NOP"),
}


def test_opcodes_are_of_the_class_that_a_reader_expects() -> None:
    assert [*OPCODES] == [*CLASSES]
    assert {opcode: class_of(opcode) for of in OPCODES.values() for opcode in of} == {
        opcode: name for name, of in OPCODES.items() for opcode in of
    }


@pytest.mark.slow
def test_every_instruction_of_a_kernel_is_counted_once(artifact: Artifact) -> None:
    listing = disassembled(artifact.cubin)
    found = counts(listing)
    assert sum(found.values()) == sum(line.lstrip().startswith("/*") for line in listing.splitlines())
    assert found["tensor cores"] >= 8
    assert found["TMA"] >= 3
    assert found["local memory"] == found[OTHERS] == 0


def test_a_cubin_that_the_disassembler_does_not_read_is_an_error() -> None:
    with pytest.raises(ToolchainError, match=r"nvdisasm cannot disassemble the cubin"):
        disassembled(b"no cubin at all")
