"""Every result that lives as long as the process is found."""

from __future__ import annotations

from gemmill.library.config.names import parse_name
from gemmill.library.process_caches import process_caches

KERNEL = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x32x64_1x1_pingpong_s4_m1_k1_linear"


def test_what_is_remembered_is_found() -> None:
    parse_name(KERNEL)
    caches = process_caches()
    assert caches["gemmill.library.config.names.parse_name"].cache_info().currsize
    assert all(name.startswith("gemmill.") for name in caches)
