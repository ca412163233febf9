"""What ``python -m benchmarks lora`` prints."""

from __future__ import annotations

from benchmarks.lora import BY_IDS, LOOP, OURS, TRITON, line

CASE = {"tokens": 64, "rank": 16, "adapters": 8}


def test_a_row_has_times_and_ratios() -> None:
    us = {OURS: 5.0, BY_IDS: 6.0, LOOP: 60.0, TRITON: 7.5}
    text = line({**CASE, "us": us, "failed": {}})
    for figure in ("64 tokens", "rank  16", "8 adapters", "5.0 us, by ids    6.0", f"{LOOP} 12.00", f"{TRITON} 1.50"):
        assert figure in text


def test_a_row_names_what_failed() -> None:
    failed = {TRITON: "ModuleNotFoundError: No module named 'triton'"}
    text = line({**CASE, "us": {OURS: 5.0, BY_IDS: 6.0, LOOP: 60.0}, "failed": failed})
    assert text.endswith(f"{TRITON} failed: ModuleNotFoundError: No module named 'triton'")
