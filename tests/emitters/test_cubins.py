"""Every member of the family compiles to what it should be: WGMMA on TMA-fed shared memory, nothing in local memory."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from tests.cases.operand_types import OF_EVERY_TYPE
from tests.cases.sample import sample

from gemmill.emitters.emit import emit
from gemmill.emitters.peak_rate import MEASURED_DTYPES, emit_peak_rate, peak_rate_config
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import parse_name
from gemmill.library.dtypes import DTypeName
from gemmill.library.epilogues.parse import canonical
from gemmill.library.families.gemv import GemvPlan
from gemmill.library.families.wgmma.wgmma_plan import WgmmaPlan
from gemmill.library.legality.quantities import SM_REGISTERS
from gemmill.library.legality.rules import broken, legal
from gemmill.runtime.compile.compiler import Compiler

pytestmark = pytest.mark.slow

# Together these cover: both schedules, every tile M, wide, odd and narrow N, tile K from 32 to 128 with each swizzle,
# every cluster, all four majors of A and B, both dtypes and accumulators, D in three dtypes and both majors, C or none;
# groups.
SAMPLE = [
    "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear",
    "sm90a_bf16k16_bf16mn16_f32_none_bf16n16_256x128x64_1x2_cooperative_s4_n8_k1_linear",
    "sm90a_bf16mn16_bf16k16_f32_none_f32m16_192x192x64_1x1_cooperative_s3_m4_k1_linear",
    "sm90a_bf16mn16_bf16mn16_f32_bf16n16_bf16n16_256x112x32_2x2_cooperative_s4_n2_k1_linear",
    "sm90a_f16k16_f16k16_f16_none_f16m16_128x80x48_2x1_cooperative_s4_m4_k1_linear",
    "sm90a_f16mn16_f16mn16_f32_f32m16_f16n16_128x240x96_1x1_cooperative_s2_m1_k1_linear",
    "sm90a_bf16k16_bf16k16_f32_f32n16_f32n16_64x256x64_1x1_pingpong_s3_n1_k1_linear",
    "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x192x64_2x1_pingpong_s4_m16_k1_linear",
    "sm90a_f16mn16_f16k16_f16_f16m16_f16n16_128x16x128_1x2_pingpong_s4_m1_k1_linear",
    "sm90a_f16k16_f16mn16_f32_f32n16_f16m16_64x176x64_2x2_pingpong_s4_n8_k1_linear",
    "sm90a_bf16k16_bf16k16_f32_bf16m16_bf16m16_256x160x64_1x1_cooperative_s3_m2_k1_linear",
    "sm90a_bf16k16_bf16k16_f32_none_bf16m16_64x96x64_4x2_pingpong_s10_m8_k1_linear",
    "sm90a_bf16k16_bf16k16_f32_none_bf16n16_192x176x64_1x2_cooperative_s4_m8_k1_linear",
    "sm90a_bf16mn16_bf16k16_f32_none_bf16m16_64x8x64_1x1_pingpong_s16_m8_k1_linear",
    "sm90a_f16k16_f16k16_f16_f32n16_f16n16_128x24x128_1x2_cooperative_s4_n1_k1_linear",
    "sm90a_u4k16s1x128z_bf16k16_f32_none_bf16m16_64x16x128_2x1_cooperative_s16_m8_k1_linear",
    "sm90a_e4m3k16_f16mn16_f32_f16n16_f16n16_128x256x64_1x1_cooperative_s3_m8_k1_linear",
    "sm90a_tf32mn16_tf32mn16_f32_none_f32n16_128x64x32_1x2_pingpong_s3_m8_k1_linear",
    # A from registers, with as many accumulators beside its fragments as there may be.
    "sm90a_tf32mn16_tf32k16_f32_none_f32m16_128x256x32_2x1_cooperative_s4_m8_k1_linear",
    # No register to spare beside 192 accumulators, beside 176 with an m-major D, nor for any of four consumers.
    "sm90a_bf16k16_bf16k16_f32_none_bf16n16_256x192x64_1x2_cooperative_s3_m8_k1_linear",
    "sm90a_bf16mn16_bf16k16_f32_none_f32m16_256x176x64_2x1_cooperative_s3_m8_k1_linear",
    "sm90a_u4k16s1x64_bf16k16_f32_none_bf16m16_64x32x256_1x1_cooperative_s4_m8_k1_linear",
    # Four consumers of 64 rows each, with as many accumulators as these may have; sums that scales multiply.
    "sm90a_u4k16s1x32z_bf16k16_f32_none_bf16m16_256x32x128_1x1_cooperative_s5_m8_k1_linear",
    "sm90a_s4k16s1x128_e4m3k16_f32p4_none_bf16m16_128x128x128_2x1_cooperative_s7_m8_k1_linear",
    # Slices of K; accumulators that leave no register to spare while others are added.
    "sm90a_f16k16_f16k16_f16_f32m4_f16n4_128x128x64_1x1_cooperative_s4_m8_splitk_linear",
    "sm90a_bf16mn16_bf16mn16_f32_none_bf16n2_256x192x64_2x1_cooperative_s3_m8_splitk_linear",
    "sm90a_bf16k16_bf16k16_f32_none_bf16n16_256x128x64_2x1_cooperative_s4_m8_k1stream_linear",
    # Slices that one CTA adds, with as many accumulators of both kinds as there may be; slices in a tree.
    "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x192x64_2x1_cooperative_s4_m8_serial_linear",
    "sm90a_e4m3mn16_e4m3mn16_f32_f32n16_f32m16_256x96x128_1x2_cooperative_s2_m8_serial_linear",
    "sm90a_tf32k16_tf32mn16_f32_none_f32m16_64x192x32_4x1_pingpong_s5_m8_serial_linear",
    "sm90a_f16k16_f16mn16_f32_f32m16_e4m3n16_192x112x64_1x1_cooperative_s4_m8_serial_linear",
    "sm90a_bf16k16_bf16k16_f32_none_f32n4_128x128x64_1x1_cooperative_s6_m8_tree_linear",
    # Parts that CTAs of a cluster exchange: with as many accumulators as there may be.
    "sm90a_bf16k16_bf16k16_f32_none_bf16n16_256x128x64_1x1_cooperative_s3_m8_k2cluster_linear",
    "sm90a_s8k16_s8k16_s32_none_s32n16_128x256x64_1x1_cooperative_s4_m8_k4cluster_linear",
    "sm90a_bf16mn16_bf16k16_f32_bf16n16_bf16n16_64x192x64_1x1_pingpong_s3_m8_k2cluster_linear",
    # Promoted: the widest WGMMA there is, and where blocks exchange sums two halves in its place.
    "sm90a_e4m3k16_e4m3k16_f32p4_none_bf16n16_128x192x128_2x1_cooperative_s4_m8_k1_linear",
    "sm90a_e4m3k16_e4m3k16_f32p4_none_bf16n16_128x192x128_1x1_cooperative_s3_m8_k2cluster_linear",
    # An A that producer warps copy, with as many accumulators as there may be.
    "sm90a_bf16k2_bf16mn16_f32_none_bf16n16_256x64x64_1x1_cooperative_s4_m8_k1_linear",
    "sm90a_tf32k4_tf32k16_f32_none_f32m16_128x256x32_1x1_cooperative_s3_m8_splitk_linear",
    "sm90a_e5m2mn1_e4m3k16_f32_none_bf16m16_64x144x128_1x1_pingpong_s6_m8_k2cluster_linear",
    "sm90a_u8k1_s8k16_s32_none_s32m16_128x64x128_1x1_pingpong_s7_m8_k1_linear",
    # Scales of a byte: with as many rows as there may be, and as many stages under way.
    "sm90a_e4m3k16s1x128e8_e4m3k16s128x128e8_f32p4_none_bf16n16_256x128x128_1x2_cooperative_s3_m8_k1_linear",
    "sm90a_e4m3k16s1x128e8_e4m3k16s128x128e8_f32p4_none_bf16n16_64x64x128_2x1_pingpong_s12_m8_k1_linear",
    "sm90a_bf16k16_bf16mn16_f32_none_bf16n16_128x256x64_1x2_cooperative_s4_m8grouped_k1_linear",
    "sm90a_bf16k16_bf16k16_f32_bf16n16_bf16n16_128x128x64_2x2_pingpong_s4_n1masked_k1_linear",
    # No register to spare beside 192 accumulators: CTAs with other columns, and groups in the order of their blocks.
    "sm90a_bf16k16_bf16mn16_f32_none_bf16n16_256x192x64_2x1_cooperative_s3_n4masked_k1_linear",
    # Rows that producers copy: beside as many accumulators as there may be, and for most rows and a wide WGMMA.
    "sm90a_bf16k16_bf16mn16_f32_none_bf16n16_128x192x64_2x1_pingpong_s4_m8gatheredgrouped_k1_linear",
    "sm90a_f16k16_f16k16_f32_f16n16_f16n16_128x256x64_4x1_cooperative_s3_m8gatheredgrouped_k1_linear",
    "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8gatheredgrouped_k1_xdEsiluPgateQTup",
    "sm90a_e4m3k16_e4m3k16_f32p4_none_bf16n16_128x128x128_2x1_pingpong_s4_m8gatheredgrouped_k1_linear",
    "sm90a_e4m3k16s1x128_e4m3k16s128x128_f32p4_none_bf16n16_128x256x128_2x1_cooperative_s3_m8gatheredgrouped_k1_linear",
    # Columns that producers copy beside a narrow A: most of them; fewer than copy at once, with four consumers.
    "sm90a_u4k16s1x32z_bf16k16_f32_none_bf16m16_128x256x64_1x1_cooperative_s3_m8gatheredngrouped_k1_linear",
    "sm90a_e2m1k16s1x32e8_bf16k16_f32_none_bf16m16_64x8x256_1x1_cooperative_s4_m8gatheredngrouped_k1_linear",
    "sm90a_bf16mn16_bf16mn16_f32_f32n16_f32n16_256x128x64_1x1_cooperative_s3_m8kgrouped_k1_linear",
]

DIRECT = {
    "sm80_bf16k16_bf16mn8_f32_bf16n2_bf16n2_128x128x32_1x1_multistage_s4_m8_k1_linear": {"HMMA", "LDSM", "LDGSTS"},
    "sm80_bf16k4_bf16k4_f32_none_bf16any2_16x32x128_1x1_multistage_s4_m8_k1_linear": {"HMMA", "LDSM", "LDGSTS"},
    "sm90_bf16k2_bf16k2_f32_none_bf16n4_64x128x128_1x1_multistage_s3_m8_k1_linear": {"HMMA", "LDS", "LDGSTS", "SHF"},
    "sm80_s8k1_u8k2_s32_none_s32any4_128x256x64_1x1_multistage_s3_m8_k1_linear": {"IMMA", "LDS", "LDGSTS", "SHF"},
    "sm90_e4m3k2_e5m2k1_f32_none_f32any4_16x128x256_1x1_multistage_s3_m4_k1_linear": {"HMMA", "LDS", "LDGSTS", "SHF"},
    "sm80_f16mn2_f16any2_f32_none_f16any2_64x64x32_1x1_multistage_s3_m8_k1_linear": {"HMMA", "LDSM", "STS"},
    "sm86_s8k16_u8mn4_s32_none_s32n16_128x128x64_1x1_multistage_s2_m8_k1_linear": {"IMMA", "LDSM", "LDGSTS", "PRMT"},
    "sm89_e4m3k16_e5m2k16_f32_none_bf16n16_128x128x64_1x1_multistage_s3_m8_k1_linear": {"QMMA", "LDSM", "LDGSTS"},
    "sm90_tf32mn16_tf32k4_f32_f32n4_f32n4_64x64x16_1x1_multistage_s4_m8_k1_linear": {"HMMA", "LDSM", "LDGSTS"},
    "sm90_f64k16_f64mn8_f64_none_f64n8_128x128x8_1x1_multistage_s4_m8_k1_linear": {"DMMA", "LDGSTS"},
    # As many sums of f64 as there may be, beside words ahead.
    "sm90_f64mn16_f64mn16_f64_none_f64n16_128x128x16_1x1_multistage_s4_m8_k1_linear": {"DMMA", "LDGSTS"},
    "sm80_f64any8_f64k8_f64_none_f64any8_64x64x16_1x1_multistage_s2_m8_k1_linear": {"DMMA", "LDGSTS"},
    "sm120_bf16k16_bf16k16_f32_none_bf16n16_128x128x32_1x1_multistage_s4_m8_k1_linear": {"HMMA", "LDSM", "LDGSTS"},
    "sm120_e4m3k16_e4m3mn16_f32_none_bf16any2_64x64x64_1x1_multistage_s4_m8_k1_linear": {"QMMA", "LDSM", "LDGSTS"},
    "sm90_f32k16_f32mn16_f32_none_f32n16_128x128x8_1x1_simt_s2_m8_k1_linear": {"FFMA", "LDS", "STS"},
    "sm90_f32mn16_f32mn16_f32_f32any4_f32any4_128x128x8_1x1_simt_s2_m8_k1_linear": {"FFMA", "LDS", "STS"},
    "sm90_f32k16_f32k16_f32_none_f32n16_128x256x8_1x1_simt_s2_m8_k1_linear": {"FFMA", "LDS", "STS"},
    "sm80_f64any8_f64any8_f64_f64any8_f64any8_64x64x16_1x1_simt_s2_m8_k1_linear": {"DFMA", "LDS", "STS"},
    "sm86_s8any1_u8any1_s32_none_s32any4_64x64x16_1x1_simt_s2_m8_k1_linear": {"IMAD", "LDS", "STS"},
    "sm120_bf16any2_f16any2_f32_none_f32any4_64x64x16_1x1_simt_s2_m8_k1_linear": {"FFMA", "LDS", "STS"},
}
"""What kernels without TMA multiply and load with, on every architecture."""

# Every majorness and kind of load, C, both types of D; what FMAs convert and sum in.
SM70 = [
    "sm70_f16k16_f16k16_f32_f16n16_f16n16_128x128x32_1x1_multistage_s2_m8_k1_linear",
    "sm70_f16mn16_f16mn2_f32_none_f32n4_128x64x32_1x1_multistage_s2_m8_k1_linear",
    "sm70_f16any2_f16k4_f32_f32any4_f16any2_64x64x32_1x1_multistage_s2_m8_k1_linear",
    "sm70_f16k2_f16mn8_f32_none_f16m2_16x16x32_1x1_multistage_s2_m8_k1_linear",
    "sm70_f16k16_f16mn16_f32_none_f16n16_32x32x64_1x1_multistage_s2_m8_k1_linear",
    "sm70_f32k16_f32mn16_f32_none_f32n16_128x128x8_1x1_simt_s2_m8_k1_linear",
    "sm70_bf16any2_s8any1_f32_none_f16any2_64x64x16_1x1_simt_s2_m8_k1_linear",
    "sm70_u8k1_s8mn1_s32_none_s8n1_64x64x16_1x1_simt_s2_m8_k1_linear",
    "sm70_f64any8_f64any8_f64_f64any8_f64any8_64x64x16_1x1_simt_s2_m8_k1_linear",
]

# Both layouts of B, every alignment of it, A gathered and in vectors, both types, C, D in f32, one warp and thirty-two.
GEMV = [
    "sm90a_bf16k16_bf16k16_f32_none_bf16any2_8x16x1024_1x1_gemv_s4_m1_k1_linear",
    "sm90a_f16k16_f16k16_f32_f32any4_f32any4_8x32x128_1x1_gemv_s2_m1_k1_linear",
    "sm90a_bf16any2_bf16k16_f32_none_bf16n16_8x16x1024_1x1_gemv_s4_m1_k1_linear",
    "sm90a_bf16k8_bf16k8_f32_none_bf16any2_8x16x1024_1x1_gemv_s16_m1_k1_linear",
    "sm90a_bf16k2_bf16k4_f32_none_bf16any2_8x16x64_1x1_gemv_s4_m1_k1_linear",
    "sm90a_bf16any2_bf16k2_f32_none_bf16any2_8x16x128_1x1_gemv_s8_m1_k1_linear",
    "sm90a_bf16k16_bf16mn16_f32_bf16any2_bf16any2_8x64x512_1x1_gemv_s8_m1_k1_linear",
    "sm90a_f16any2_f16mn16_f32_none_f16any2_8x128x64_1x1_gemv_s4_m1_k1_linear",
    "sm90a_bf16k16_bf16mn8_f32_none_bf16any2_8x32x512_1x1_gemv_s8_m1_k1_linear",
    "sm80_bf16any2_bf16mn2_f32_none_bf16any2_8x16x128_1x1_gemv_s8_m1_k1_linear",
]

QUICK = frozenset(sample([*SAMPLE, *DIRECT, *SM70, *GEMV]))
"""Those that between them have what all have; the others are compiled by ``make test-heavy``."""


def each(names: Iterable[str]) -> pytest.MarkDecorator:
    """Run a test on every kernel, those outside the sample in the heavy tier."""
    marked = [pytest.param(name, marks=() if name in QUICK else pytest.mark.heavy) for name in names]
    return pytest.mark.parametrize("name", marked)


WGMMA = {"bf16": "HGMMA", "f16": "HGMMA", "tf32": "HGMMA", "e4m3": "QGMMA", "s8": "IGMMA"}
"""What the tensor cores multiply B's types with."""
INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+ )?([A-Z0-9_]+)", re.MULTILINE)


def disassembly(cubin: bytes, folder: Path) -> str:
    root = next(iter(importlib.util.find_spec("nvidia").submodule_search_locations))  # type: ignore[union-attr, arg-type]
    tool = next(Path(root).glob("*/bin/cuobjdump"))
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    listing = subprocess.run([tool, "--dump-sass", path], capture_output=True, text=True, check=True, cwd=tool.parent)
    return listing.stdout


@each(SAMPLE)
def test_member_compiles_to_wgmma_and_tma(name: str, compiler: Compiler, tmp_path: Path) -> None:
    config = parse_name(name)
    artifact = compiler.compile(emit(config), config)

    instructions = set(INSTRUCTION.findall(disassembly(artifact.cubin, tmp_path)))
    # Tiles of eight columns go from registers to memory.
    store = "STG" if WgmmaPlan(config).columns_d == 8 and config.c is None else "UTMASTG"
    assert {WGMMA[config.b.dtype], "UTMALDG", store} <= instructions
    assert ("STAS" in instructions) == (config.scheduler.decomposition == "cluster")
    assert not instructions & {"LDL", "STL", "HMMA"}
    assert artifact.resources.spill_stores == artifact.resources.spill_loads == 0


@pytest.mark.parametrize(
    ("name", "epilogue"),
    [
        (
            "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x192x64_1x2_cooperative_s4_m8_k1_linear",
            "d = gelu(alpha * acc * per_row[m] * columns[n] + bias[n])",
        ),
        pytest.param(
            "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x96x64_1x1_pingpong_s6_m8grouped_k1_linear",
            "d = gelu(acc * per_row[m] * columns[n] + bias[n]); amax = max(abs(d))",
            marks=pytest.mark.heavy,
        ),
        pytest.param(
            "sm90_e4m3any1_e4m3any1_f32_none_bf16any2_64x64x32_1x1_multistage_s4_m8_k1_linear",
            "d = silu(acc + bias[n])",
            marks=pytest.mark.heavy,
        ),
        pytest.param(
            "sm90a_e4m3k16s1x128_e4m3k16s128x128_f32p4_none_bf16n16_128x256x128_2x1_cooperative_s3_m8masked_k1_linear",
            "d = gelu(gate + x[n]) * up",
            marks=pytest.mark.heavy,
        ),
        (
            "sm90a_bf16k16_bf16k16_f32_none_bf16n16_256x80x64_1x2_cooperative_s4_m8_serial_linear",
            "d = gelu(acc + bias[n]); amax = max(abs(d))",
        ),
        ("sm80_s8mn1_s8mn8_s32_none_bf16m16_64x128x128_1x1_multistage_s4_m4_k1_linear", "d = acc + bias[n]"),
    ],
)
def test_as_many_sums_as_rules_allow_beside_an_expression_do_not_spill(
    name: str, epilogue: str, compiler: Compiler
) -> None:
    config = replace(parse_name(name), epilogue=canonical(epilogue))
    assert legal(config)
    wider = replace(config, tile=replace(config.tile, m=2 * config.tile.m, n=2 * config.tile.n))
    assert not legal(wider)
    resources = compiler.compile(emit(config), config).resources
    assert resources.spill_stores == resources.spill_loads == 0


OF_ROWS = "g = min(gate8.m + bg.bf16[m], limit); d = (clamp(up8.m + bu.bf16[m], -limit, limit) + 1) * silu(g)"


@pytest.mark.parametrize(
    "name",
    [
        "sm90a_u4k16s1x128z_bf16k16_f32_none_bf16m16_64x16x256_1x1_cooperative_s12_m8_k1_linear",
        "sm90a_u4k16s1x32z_f16k16_f32_none_f16m16_128x192x64_2x1_cooperative_s6_m8_k1_linear",
        pytest.param(
            "sm90a_u4k16s1x128z_bf16k16_f32_none_bf16m16_128x256x64_1x1_cooperative_s5_m8_k1_linear",
            marks=pytest.mark.heavy,
        ),
        pytest.param(
            "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear",
            marks=pytest.mark.heavy,
        ),
        pytest.param(
            "sm90a_e4m3k16_bf16k16_f32_none_f32m16_64x64x64_1x1_pingpong_s8_m8_k1_linear", marks=pytest.mark.heavy
        ),
    ],
)
def test_a_gate_of_rows_does_not_spill(name: str, compiler: Compiler) -> None:
    config = replace(parse_name(name), epilogue=canonical(OF_ROWS))
    assert legal(config)
    resources = compiler.compile(emit(config), config).resources
    assert resources.spill_stores == resources.spill_loads == 0


@pytest.mark.parametrize(
    ("name", "epilogue"),
    [
        ("128x256x64_2x1_cooperative_s4_m8gatheredgrouped", "d = silu(gate_half) * up_half"),
        ("64x256x64_2x1_pingpong_s4_m8grouped", "d = silu(gate_half + x[n]) * (up_half + y[n])"),
    ],
)
def test_a_gate_of_halves_does_not_spill(name: str, epilogue: str, compiler: Compiler) -> None:
    config = parse_name(f"sm90a_bf16k16_bf16k16_f32_none_bf16n16_{name}_k1_linear")
    config = replace(config, epilogue=canonical(epilogue))
    assert legal(config)
    resources = compiler.compile(emit(config), config).resources
    assert resources.spill_stores == resources.spill_loads == 0


GPT_OSS = (
    "g = min(gate8 + bg[n], limit); u = clamp(up8 + bu[n], -limit, limit); h = (u + 1) * g * sigmoid(1.702 * g); "
    "s.ue8m0[m, n/128] = scale(h); d = h / s"
)
SILU = "h = silu(gate8) * up8; s[m, n/128] = scale(h); d = h / s"
SILU_OF_HALVES = "h = silu(gate_half) * up_half; s[m, n/128] = scale(h); d = h / s"
BLOCKS = "sm90a_e4m3k16s1x128_e4m3k16s128x128_f32p4_none_e4m3n16_"


@pytest.mark.parametrize(
    ("name", "epilogue"),
    [
        (f"{BLOCKS}128x256x128_2x1_cooperative_s3_m8_k1_linear", SILU),
        (f"{BLOCKS}64x256x128_2x1_pingpong_s4_m8grouped_k1_linear", GPT_OSS),
        (f"{BLOCKS}128x256x128_2x1_cooperative_s3_m8grouped_k1_linear", SILU_OF_HALVES),
        pytest.param(f"{BLOCKS}64x256x128_2x1_pingpong_s4_m8_k1_linear", SILU, marks=pytest.mark.heavy),
        pytest.param(
            f"{BLOCKS.replace('x128_', 'x128e8_')}64x256x128_1x1_pingpong_s4_m8grouped_k1_linear",
            GPT_OSS.replace("gate8", "gate_half").replace("up8", "up_half"),
            marks=pytest.mark.heavy,
        ),
        pytest.param(
            "sm90a_bf16k16_bf16k16_f32_none_e4m3n16_128x256x64_1x1_cooperative_s3_m8masked_k1_linear",
            "h = silu(gate8 * p[n] + x[n]) * (up8 * q[n] + y[n]); t[m] = sum(h); s[m, n/128] = scale(h); d = h / s",
            marks=pytest.mark.heavy,
        ),
        pytest.param(f"{BLOCKS}128x256x128_1x2_cooperative_s3_m8masked_k1_linear", GPT_OSS, marks=pytest.mark.heavy),
        pytest.param(
            "sm90a_bf16k16_bf16k16_f32_none_e4m3n16_128x256x64_2x1_cooperative_s4_m8grouped_k1_linear",
            SILU.replace("gate8", "gate").replace("up8", "up"),
            marks=pytest.mark.heavy,
        ),
    ],
)
def test_a_tile_that_quantises_d_does_not_spill(name: str, epilogue: str, compiler: Compiler) -> None:
    config = replace(parse_name(name), epilogue=canonical(epilogue))
    assert legal(config)
    resources = compiler.compile(emit(config), config).resources
    assert resources.spill_stores == resources.spill_loads == 0


@pytest.mark.parametrize("config", OF_EVERY_TYPE, ids=lambda config: f"{config.schedule} {config.epilogue}")
def test_operands_of_every_type(config: GemmConfig, compiler: Compiler) -> None:
    assert legal(config)
    resources = compiler.compile(emit(config), config).resources
    assert resources.spill_stores == resources.spill_loads == 0


@pytest.mark.parametrize("slices", ["k1", "splitk"])
def test_an_s32_d_with_integers_computes_in_integers(slices: str, compiler: Compiler) -> None:
    name = f"sm90a_s8k16_s8k16_s32_none_s32n16_128x128x128_2x1_cooperative_s4_m8_{slices}_linear"
    text = "d = where(acc > 0, min(max(acc * s.s8, abs(x.u8[m]), 3), bias.s32[n]), clamp(relu(-acc), 1, y.s32[m, n]))"
    config = replace(parse_name(name), epilogue=canonical(text))
    assert legal(config)
    source = emit(config)
    assert "using Compute = int32_t;" in source.text
    compiler.compile(source, config)
    for inexact in ("d = acc * 0.5", "d = acc + bias[n]", "d = acc / 2", "d = acc; aux = acc", "d = relu(alpha * acc)"):
        assert [x.id for x, _ in broken(replace(config, epilogue=canonical(inexact)))] == ["epilogue-integers"]


@pytest.mark.parametrize(
    "dtype",
    [pytest.param(dtype, marks=[pytest.mark.heavy] * (dtype in ("f16", "tf32"))) for dtype in MEASURED_DTYPES],
)
def test_peak_rates_are_wgmmas_and_nothing_that_could_hold_them_back(
    dtype: DTypeName, compiler: Compiler, tmp_path: Path
) -> None:
    config = peak_rate_config(dtype)
    artifact = compiler.compile(emit_peak_rate(config), config)
    assert artifact.resources.spill_stores == artifact.resources.spill_loads == 0
    instructions = INSTRUCTION.findall(disassembly(artifact.cubin, tmp_path))
    assert instructions.count(WGMMA[dtype]) == 4, "a stage is 128 bytes along K"
    first = instructions.index(WGMMA[dtype])
    loop = instructions[first : instructions.index("BRA", first)]
    assert not set(loop) & {"LDG", "LDS", "LDL", "STG", "STS", "STL", "BAR"}
    assert not set(instructions) & {"LDL", "STL"}


@each(DIRECT)
def test_kernels_without_tma_compile_to_what_their_architecture_has(
    name: str, compiler: Compiler, tmp_path: Path
) -> None:
    config = parse_name(name)
    artifact = compiler.compile(emit(config), config)
    instructions = set(INSTRUCTION.findall(disassembly(artifact.cubin, tmp_path)))
    assert DIRECT[name] <= instructions
    assert not instructions & {"LDL", "STL", "HGMMA", "UTMALDG"}


@each(SM70)
def test_kernels_of_sm_70_compile_where_cuda_still_does(name: str, compiler: Compiler, tmp_path: Path) -> None:
    config = parse_name(name)
    source = emit(config)
    if compiler.toolchain.versions["nvrtc"].startswith("12."):
        assert compiler.compile(source, config).resources.spill_stores == 0
    # Disassemblers have dropped it too. The same text for sm_90 has neither cp.async nor ldmatrix.
    later = compiler.compile(source, replace(config, arch="sm90"))
    instructions = set(INSTRUCTION.findall(disassembly(later.cubin, tmp_path)))
    assert {"LDG", "STS", "LDS"} <= instructions
    assert not instructions & {"LDGSTS", "LDSM", "LDL", "STL"}


def test_gemv_gathers_no_more_elements_than_registers_hold(compiler: Compiler) -> None:
    config = parse_name("sm90a_e4m3any1_e4m3k16_f32_none_bf16any2_8x32x512_1x1_gemv_s8_m1_k1_linear")
    assert compiler.compile(emit(config), config).resources.spill_stores == 0
    assert not legal(replace(config, stages=16))
    assert legal(replace(config, stages=16, a=config.b))


@each(GEMV)
def test_gemv_loads_vectors_into_mmas(name: str, compiler: Compiler, tmp_path: Path) -> None:
    config = parse_name(name)
    artifact = compiler.compile(emit(config), config)

    listing = disassembly(artifact.cubin, tmp_path)
    assert {"HMMA", "LDG"} <= set(INSTRUCTION.findall(listing))
    assert not {"LDL", "STL"} & set(INSTRUCTION.findall(listing))
    width = {16: ".128", 8: ".64", 4: "", 2: ".U16"}[config.b.align]
    streams = re.findall(rf"LDG\.E(?:\.NA)?\.LTC128B{width}(?: |\.[A-Z]+ )", listing)
    assert streams
    assert len(streams) % config.stages == 0, "every vector of B is one load"
    blocks = GemvPlan(config).ctas_per_sm
    assert artifact.resources.registers * artifact.launch.threads * blocks <= SM_REGISTERS
