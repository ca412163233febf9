"""``gemmill model`` of an ONNX graph, and without the package that reads it."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
from tests.cases.onnx_graphs import decoder
from tests.cli.test_cli import gemmill, process
from tests.cli.test_models import written

from gemmill.profiler.sweep.shape_suites import load_shapes


@pytest.mark.parametrize("name", ["decoder.onnx", "decoder.ONNX"])
def test_an_onnx_graph_has_a_suite_of_the_problems_of_its_json(name: str, tmp_path: Path) -> None:
    (path := tmp_path / name).write_bytes(decoder())
    (suite := tmp_path / "suite.yaml").write_text(gemmill("model", path, "--dims", "batch=2,seq=32").stdout)
    report = json.loads(gemmill("model", path, "--dims", "batch=2,seq=32", "--json").stdout)
    assert (report["name"], report["type"]) == ("decoder", "onnx")
    counts = load_shapes(suite).counts
    assert {str(shape.problem): count for shape, count in counts.items()} == {
        row["text"]: row["count"] for row in report["problems"]
    }
    assert gemmill("model", path, "--dims", "batch=2,sq=32").exit_code == 1
    whole = [row["text"] for row in json.loads(gemmill("model", path, "--json").stdout)["problems"]]
    rows = json.loads(gemmill("select", "--shapes", path, "--json").stdout)["items"]
    assert {row["text"] for row in rows} == {*whole}, "a command takes the graph itself"
    (bad := tmp_path / "bad.onnx").write_bytes(b"no graph")
    assert f"{bad}: the file is damaged, or is no ONNX graph" in gemmill("bench", "--shapes", bad).stderr
    assert "--dims is passed" in gemmill("model", written(tmp_path, "Llama-3.1-8B"), "--dims", "seq=32").stderr


@pytest.mark.slow
def test_without_the_package_its_extra_is_named(tmp_path: Path) -> None:
    (path := tmp_path / "decoder.onnx").write_bytes(decoder())
    (tmp_path / "onnx.py").write_text("raise ImportError('not here')")
    done = process("model", path, PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    output, errors = done.communicate()
    assert (done.returncode, output) == (1, "")
    assert "ONNX needs the package onnx (not here);" in errors
    assert "gemmill's extra 'onnx'" in errors
