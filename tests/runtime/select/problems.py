"""Problems and kernels that tests of selection share."""

from __future__ import annotations

from gemmill.library.arch import GPUS
from gemmill.library.problem import GemmProblem

H200 = GPUS["NVIDIA H200"]
KERNELS = (
    "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear",
    "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x128x64_2x1_pingpong_s6_m8_k1_linear",
    "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x192x64_2x1_cooperative_s4_m8_k1_linear",
)


def problem(m: int, n: int, k: int, batch: int = 1) -> GemmProblem:
    return GemmProblem(m, n, k, batch, a_align=16, b_align=16, c_align=16, d_align=16)
