"""What is done to machine code: issue control of multiply-adds by one register, and nothing else."""

from __future__ import annotations

import struct
from itertools import groupby

import pytest

from gemmill.emitters.emit import emit
from gemmill.library.config.names import parse_name
from gemmill.library.errors import CompileError
from gemmill.runtime.compile.compiler import Compiler
from gemmill.runtime.compile.patch.sass import chain_multiply_adds
from gemmill.runtime.storage.cubin import Cubin

pytestmark = pytest.mark.slow

SCALED = "sm90a_e4m3k16s1x128_e4m3k16s128x128_f32p4_none_bf16n16_{}_k1_linear"
PAIRS = "256x128x128_1x1_cooperative_s3_m8"
TRIOS = "192x128x128_1x1_cooperative_s4_m4"
ISSUE = 1 << 45 | 0xF << 58
"""Yield and reuse bits of an instruction's high half."""

Instruction = tuple[int, int]


def code_of(cubin: bytes, entry: str) -> list[Instruction]:
    code = Cubin(cubin).code(entry)
    return list(struct.iter_unpack("<QQ", cubin[code.start : code.stop]))


def multiplier(instruction: Instruction) -> int | None:
    """The register Rb of an FFMA without a predicate."""
    return instruction[0] >> 32 & 0xFF if instruction[0] & 0xFFFF == 0x7223 else None


@pytest.mark.parametrize("tail", [PAIRS, TRIOS])
def test_chains_of_the_length_that_the_kernel_asks_for(tail: str) -> None:
    config = parse_name(SCALED.format(tail))
    source = emit(config)
    code = code_of(Compiler().compile(config=config, source=source).cubin, source.entry)
    length = source.chain
    runs = [list(run) for shared, run in groupby(code, multiplier) if shared is not None]
    assert max(len(run) for run in runs) >= 32  # a thread has as many sums to a scale in each 64 rows
    for run in runs:
        kept = [high >> 59 & 1 for _, high in run[:-1]]
        assert kept == [int(index % length != length - 1) for index in range(len(kept))]
        assert [high >> 45 & 1 for _, high in run[:-1]] == kept


def test_nothing_but_issue_control_changes() -> None:
    source = emit(parse_name(SCALED.format(PAIRS)))
    cubin = Compiler().compile(source=source, config=parse_name(source.name)).cubin
    code = Cubin(cubin).code(source.entry)
    other = chain_multiply_adds(cubin, code, 3)
    assert other != cubin
    assert (other[: code.start], other[code.stop :]) == (cubin[: code.start], cubin[code.stop :])
    for before, after in zip(code_of(cubin, source.entry), code_of(other, source.entry), strict=True):
        mask = 0 if multiplier(before) is None else ISSUE
        assert (before[0], before[1] & ~mask) == (after[0], after[1] & ~mask)
    assert chain_multiply_adds(other, code, 8) == cubin


def test_a_multiplier_that_is_overwritten_is_read_anew() -> None:
    source = emit(parse_name(SCALED.format(PAIRS)))
    cubin = bytearray(Compiler().compile(source=source, config=parse_name(source.name)).cubin)
    code = Cubin(bytes(cubin)).code(source.entry)
    longest = max(
        (
            list(run)
            for shared, run in groupby(code[::16], lambda at: multiplier(struct.unpack_from("<QQ", cubin, at)))
            if shared is not None
        ),
        key=len,
    )
    third = longest[2]
    cubin[third + 2] = cubin[third + 4]  # Rd is Rb
    cubin[third + 15] &= ~8  # ptxas would not keep what is overwritten
    patched = chain_multiply_adds(bytes(cubin), code, 8)
    kept = [patched[at + 15] >> 3 & 1 for at in longest]
    assert kept[:6] == [1, 1, 0, 1, 1, 1]
    assert chain_multiply_adds(patched, code, 8) == patched


def test_kernels_without_block_scales_stay_as_ptxas_made_them() -> None:
    source = emit(parse_name("sm90a_e4m3k16_e4m3k16_f32p4_none_bf16n16_128x128x128_1x1_cooperative_s4_m8_k1_linear"))
    assert source.chain == 0
    options = Compiler().provenance(source, parse_name(source.name)).options
    assert not any(option.startswith("chain") for option in options)


def test_a_missing_kernel_is_named() -> None:
    source = emit(parse_name(SCALED.format(TRIOS)))
    cubin = Compiler().compile(source=source, config=parse_name(source.name)).cubin
    with pytest.raises(CompileError, match="no code of absent"):
        Cubin(cubin).code("absent")
