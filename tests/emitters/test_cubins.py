"""Every member of the family compiles to what it should be: WGMMA on TMA-fed shared memory, nothing in local memory."""

from __future__ import annotations

import importlib.util
import re
import subprocess
from functools import cache
from pathlib import Path

import pytest

from gemmill.emitters.emit import emit
from gemmill.library.names import parse_name
from gemmill.runtime.compiler import Compiler

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
    "sm90a_u4k16s1x128z_bf16k16_f32_none_bf16m16_64x16x128_2x1_cooperative_s16_m8_k1_linear",
    "sm90a_e4m3k16_f16mn16_f32_f16n16_f16n16_128x256x64_1x1_cooperative_s3_m8_k1_linear",
    "sm90a_tf32mn16_tf32mn16_f32_none_f32n16_128x128x32_1x2_pingpong_s3_m8_k1_linear",
    # Parts of K; accumulators that leave no register to spare while others are added.
    "sm90a_f16k16_f16k16_f16_f32m4_f16n4_128x128x64_1x1_cooperative_s4_m8_k20split_linear",
    "sm90a_bf16k16_bf16k16_f32_none_f32m16_128x160x64_1x1_pingpong_s4_m8_k4fused_linear",
    "sm90a_bf16k16_bf16k16_f32_none_bf16n16_256x192x64_2x1_cooperative_s3_m8_k1stream_linear",
    "sm90a_bf16k16_bf16k16_f32_bf16n16_bf16n16_192x96x64_1x2_cooperative_s3_m8_k3fused_linear",
    "sm90a_bf16k16_bf16mn16_f32_none_bf16n16_128x256x64_1x2_cooperative_s4_m8grouped_k1_linear",
    "sm90a_bf16k16_bf16k16_f32_bf16n16_bf16n16_128x128x64_2x2_pingpong_s4_n1masked_k1_linear",
    "sm90a_bf16mn16_bf16mn16_f32_f32n16_f32n16_256x128x64_1x1_cooperative_s3_m8kgrouped_k1_linear",
]

INSTRUCTION = re.compile(r"^\s+/\*[0-9a-f]+\*/\s+(?:@!?U?P\d+ )?([A-Z0-9_]+)", re.MULTILINE)


@cache
def compiler() -> Compiler:
    return Compiler()


def disassembly(cubin: bytes, folder: Path) -> str:
    root = next(iter(importlib.util.find_spec("nvidia").submodule_search_locations))  # type: ignore[union-attr, arg-type]
    tool = next(Path(root).glob("*/bin/cuobjdump"))
    path = folder / "kernel.cubin"
    path.write_bytes(cubin)
    listing = subprocess.run([tool, "--dump-sass", path], capture_output=True, text=True, check=True, cwd=tool.parent)
    return listing.stdout


@pytest.mark.parametrize("name", SAMPLE)
def test_member_compiles_to_wgmma_and_tma(name: str, tmp_path: Path) -> None:
    config = parse_name(name)
    artifact = compiler().compile(emit(config), config)

    instructions = set(INSTRUCTION.findall(disassembly(artifact.cubin, tmp_path)))
    assert {"HGMMA", "UTMALDG", "UTMASTG"} <= instructions
    assert not instructions & {"LDL", "STL", "HMMA"}
    assert artifact.resources.spill_stores == artifact.resources.spill_loads == 0
