"""Every result that lives as long as the process is found, and forgotten at once."""

from __future__ import annotations

from gemmill.library.config.names import parse_name
from gemmill.library.process_caches import clear_process_caches, process_caches

KERNEL = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x32x64_1x1_pingpong_s4_m1_k1_linear"


def test_what_is_remembered_is_found_and_forgotten() -> None:
    config = parse_name(KERNEL)
    assert any(cache.cache_info().currsize for cache in process_caches().values())
    clear_process_caches()
    assert not any(cache.cache_info().currsize for cache in process_caches().values())
    assert parse_name(KERNEL) == config
