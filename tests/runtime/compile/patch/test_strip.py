"""Cubins without the variables that nothing reads: all else bit for bit, or the cubin as it is and the reason why."""

from __future__ import annotations

import io
import logging
import random
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
from elftools.elf.elffile import ELFFile
from hypothesis import given
from hypothesis import strategies as st
from tests.cases.kernels import DIRECT, GOLDEN, KernelCase

from gemmill.emitters.edited_page import edited
from gemmill.emitters.emit import EmittedSource, emit
from gemmill.library.config.names import parse_name
from gemmill.library.errors import CompileError
from gemmill.runtime.compile.compiler import Compiler
from gemmill.runtime.compile.disassembly import disassembled
from gemmill.runtime.compile.patch.strip import stripped
from gemmill.runtime.storage.cubin import Cubin

pytestmark = pytest.mark.slow

GONE = {".nv.global", ".nv.global.init", ".nv.constant4", ".rela.nv.constant4", ".rel.nv.constant4"}
REWRITTEN = {".symtab", ".strtab"}
FAMILIES = (
    *("cooperative", "pingpong-f16-sums", "cooperative-splitk", "cooperative-stream", "cooperative-grouped"),
    *("block-scales", "mixed-u4-zero-points", "multistage-s8", "simt", "gemv", "gemv-gathered"),
)
"""Cases of every family, of one code and of two, of old ABIs of cubins and of new ones."""
CASES = [case for case in GOLDEN if case.id in FAMILIES]
SM120 = "sm120_bf16k16_bf16k16_f32_none_bf16n16_128x128x32_1x1_multistage_s4_m8_k1_linear"
SMALL = "sm90_bf16k2_bf16k2_f32_none_bf16n4_16x32x64_1x1_multistage_s2_m8_k1_linear"


@dataclass(frozen=True)
class Made:
    """What NVRTC makes of a kernel."""

    source: EmittedSource
    cubin: bytes
    ptx: str


def made(name: str) -> Made:
    config = parse_name(name)
    source = emit(config)
    code = Compiler()._code(source, config, lineinfo=False)
    return Made(source, code.cubin, code.ptx)


@pytest.fixture(scope="module")
def small() -> Made:
    return made(SMALL)


def sections(cubin: bytes) -> list[tuple[str, bytes, int, int]]:
    """Name, content, size and flags of every section, by number."""
    found = ELFFile(io.BytesIO(cubin)).iter_sections()
    return [(s.name, b"" if s["sh_type"] == "SHT_NOBITS" else s.data(), s["sh_size"], s["sh_flags"]) for s in found]


def symbols(cubin: bytes) -> list[tuple[str, tuple[object, ...]]]:
    """Name and fields of every symbol, by number."""
    table: Any = ELFFile(io.BytesIO(cubin)).get_section_by_name(".symtab")
    return [
        (s.name, tuple(s.entry[field] for field in ("st_shndx", "st_value", "st_size"))) for s in table.iter_symbols()
    ]


def test_the_cases_are_all_families() -> None:
    assert {case.id for case in CASES} == set(FAMILIES)
    assert {case.config.schedule for case in CASES} == {case.config.schedule for case in (*GOLDEN, *DIRECT)}


@pytest.mark.parametrize(
    "case",
    [pytest.param(case, id=case.id, marks=[pytest.mark.heavy] * (index % 3 > 0)) for index, case in enumerate(CASES)],
)
def test_all_that_stays_is_what_it_was_bit_for_bit(case: KernelCase) -> None:
    kernel = made(case.name)
    after = stripped(kernel.cubin, kernel.ptx)
    assert len(after) < 0.5 * len(kernel.cubin)

    for old, new in zip(sections(kernel.cubin), sections(after), strict=True):
        if old[0] in GONE:
            assert new == ("", b"", 0, 0)
        elif old[0] not in REWRITTEN:
            assert new == old
    numbers = {number for number, section in enumerate(sections(kernel.cubin)) if section[0] in GONE}
    for was, now in zip(symbols(kernel.cubin), symbols(after), strict=True):
        assert now == (("", ("SHN_UNDEF", 0, 0)) if was[1][0] in numbers else was)

    before, read = Cubin(kernel.cubin), Cubin(after)
    entry = kernel.source.entry
    for fact in ("registers", "threads", "params_bytes", "static_shared_bytes"):
        assert getattr(read, fact)(entry) == getattr(before, fact)(entry)
    assert read.facts(f"{entry}_spec") == before.facts(f"{entry}_spec")
    code, was_code = read.code(entry), before.code(entry)
    assert after[code.start : code.stop] == kernel.cubin[was_code.start : was_code.stop]
    assert code.start % 128 == 0
    listing = disassembled(after)
    assert listing == disassembled(kernel.cubin)
    assert "c[0x4]" not in listing
    assert stripped(after, kernel.ptx) == after


def test_segments_load_what_sections_hold(small: Made) -> None:
    after = ELFFile(io.BytesIO(stripped(small.cubin, small.ptx)))
    loaded = [s for s in after.iter_segments() if s["p_type"] == "PT_LOAD"]
    for section in after.iter_sections():
        if section["sh_flags"] & 2 and section["sh_type"] != "SHT_NOBITS":
            start, stop = section["sh_offset"], section["sh_offset"] + section["sh_size"]
            assert [s for s in loaded if s["p_offset"] <= start and stop <= s["p_offset"] + s["p_filesz"]], section.name


def test_variables_that_a_page_reads_stay_with_all_others_and_it_is_said(caplog: pytest.LogCaptureFixture) -> None:
    config = parse_name(SMALL)
    head, entry, body = emit(config).text.rpartition('extern "C"')
    signature, brace, rest = body.partition("{")
    use = "if (threadIdx.x == 4095) table[threadIdx.y] = 1;"
    source = edited(config, f"{head}__device__ int table[64];\n{entry}{signature}{brace}{use}{rest}")
    with caplog.at_level(logging.INFO, "gemmill.runtime.compile.compiler"):
        artifact = Compiler().compile(source, config)
    assert {".nv.global", ".nv.constant4"} < {section[0] for section in sections(artifact.cubin)}
    assert f"{source.name}: unused variables stay in its cubin: table occurs 2 times in the PTX" in caplog.text


def test_a_second_form_of_the_code_is_left_alone() -> None:
    kernel = made(SM120)
    with pytest.raises(CompileError, match=r"the layout of the cubin is unknown: \.nv\.merc\.\S+ "):
        stripped(kernel.cubin, kernel.ptx)


def test_ptx_of_another_kernel_lets_nothing_go(small: Made) -> None:
    with pytest.raises(CompileError, match=r"occurs 0 times in the PTX"):
        stripped(small.cubin, ".version 8.8")


def cut(data: bytes, chance: random.Random) -> Iterator[bytes]:
    """Bytes cut short, and with fields of their headers changed."""
    yield data[: chance.randrange(len(data))]
    tables = [range(64), range(int.from_bytes(data[40:48], "little"), len(data))]
    for _ in range(20):
        changed = bytearray(data)
        for _ in range(chance.randint(1, 3)):
            place = chance.choice(chance.choice(tables))
            changed[place] = chance.choice([0, 1, 0x7F, 0xFF, changed[place] ^ 1 << chance.randrange(8)])
        yield bytes(changed)


@given(st.randoms(use_true_random=False))
def test_what_is_damaged_is_refused_or_keeps_its_code(small: Made, chance: random.Random) -> None:
    entry = small.source.entry
    for damaged in cut(small.cubin, chance):
        try:
            before, after = Cubin(damaged), stripped(damaged, small.ptx)
            code = before.code(entry)
        except CompileError:
            continue
        now = Cubin(after).code(entry)
        assert after[now.start : now.stop] == damaged[code.start : code.stop]
