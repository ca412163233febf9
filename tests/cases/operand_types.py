"""Kernels whose epilogues read operands of every type of D, of each kind."""

from __future__ import annotations

from dataclasses import replace

from gemmill.library.config.names import parse_name
from gemmill.library.epilogues.parse import canonical

_BY_COLUMN = "p.f64[n] + q.s32[n] + r.s8[n] + t.u8[n] + u.e4m3[n] + v.e5m2[n] + w.bf16[n]"
_BY_ROW = _BY_COLUMN.replace("[n]", "[m]")
_ONES = "q.s32[batch] + r.s8[batch] + t.f64 + u.e4m3[batch] + v.e5m2 + w.f64[batch]"
_PINGPONG = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x128x64_2x1_pingpong_s4_m8_k1_linear"
_TERMS = (
    (_PINGPONG, _BY_COLUMN),
    (_PINGPONG, f"{_BY_ROW} + x.f64[m, n]"),
    (_PINGPONG, f"{_ONES} + x.s32[m, n]"),
    (_PINGPONG, f"{_ONES} + x.e4m3[m, n]"),
    ("sm90a_s8k16_s8k16_s32_none_s8n16_128x128x128_2x1_cooperative_s4_m8_splitk_linear", f"{_BY_COLUMN} + x.s8[m, n]"),
    ("sm90_f64k16_f64k16_f64_none_f64any8_64x64x16_1x1_multistage_s4_m8_k1_linear", f"{_BY_COLUMN} + x.f64[m, n]"),
    ("sm90_f32k16_f32k16_f32_none_f32any4_64x64x16_1x1_simt_s2_m8_k1_linear", f"{_ONES} + x.u8[m, n] + y.s32[m, n]"),
    ("sm90a_bf16k16_bf16k16_f32_none_bf16any2_8x16x1024_1x1_gemv_s4_m1_k1_linear", f"{_BY_ROW} + x.e5m2[m, n]"),
)
OF_EVERY_TYPE = tuple(replace(parse_name(name), epilogue=canonical(f"d = acc + {terms}")) for name, terms in _TERMS)
