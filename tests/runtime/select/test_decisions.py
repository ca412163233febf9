"""Records become decisions: the least time of each kernel that was verified."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import pytest
from tests.runtime.select.problems import H200, problem

from gemmill.library.config.model import GemmConfig
from gemmill.library.errors import RecordError
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.decisions import read_decisions

RECORD: dict[str, object] = {
    "kernel": "",
    "digest": "ab" * 32,
    "problem": asdict(problem(1024, 1024, 1024)),
    "gpu": "NVIDIA H200",
    "driver": "580.159",
    "cuda": "13.0",
    "torch": "2.11.0",
    "gemmill": "0.1.0",
    "commit": "",
    "time": "2026-11-21T00:00:00Z",
    "stage": "final",
    "us": 7.0,
    "verified": True,
}


def test_records_become_decisions(kernels: dict[str, GemmConfig], tmp_path: Path) -> None:
    one, two, three = [*kernels][:3]
    rows: list[dict[str, object]] = [
        {"kernel": one},
        {"kernel": two, "us": 6.0},
        {"kernel": one, "us": 5.0},
        {"kernel": three, "us": 1.0, "verified": False},
        {"kernel": three, "us": None, "stage": "failed"},
        {"kernel": "cublas", "us": 2.0, "digest": ""},
    ]
    path = tmp_path / "records.jsonl"
    path.write_text("".join(json.dumps(RECORD | row) + "\n" for row in rows) + '{"kernel": "half')
    decisions = read_decisions([path])
    assert [(decision.kernel, decision.us) for decision in decisions] == [(one, 5.0), (two, 6.0)]
    assert Registry(records=[path], gpu=H200).select(problem(1024, 1024, 1024)).name == one
    with pytest.raises(RecordError, match=r"none\.jsonl"):
        read_decisions([tmp_path / "none.jsonl"])
