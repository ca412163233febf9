"""What ``python -m benchmarks moe`` compiles ahead of time, and what it prints."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.moe import FORMATS, Layer, lines, problems
from tests.cases.exporter import on_gpu

from gemmill.runtime.api.expert_layer import bind_layer
from gemmill.runtime.operands.narrow_experts import elements_of
from gemmill.runtime.operands.tensors import view

CASE = {"layer": "Qwen3-30B", "format": "bf16", "tokens": 64, "distribution": "zipf"}
ROW: dict[str, Any] = {
    **CASE,
    "regime": "burst",
    "us": {"gemmill": [300.0, 310.0, 320.0], "PyTorch": [620.0] * 3},
    "ratios": {"PyTorch": (2.0, 1.9, 2.1)},
    "tflops": 15.6,
    "of_dram": 0.96,
    "errors": {"gemmill": 0.003, "PyTorch": 0.004},
    "failed": {"Triton": "ImportError: No module named 'triton'\nfurther lines"},
    "kernels": {"FC1": "first", "FC2": "second"},
}


def test_a_row_has_times_ratios_and_what_failed() -> None:
    first, failed = lines(ROW)
    for figure in ("310.0 us", "15.6 TFLOP/s", "96% of 4 TB/s", "PyTorch    620.0 us 2.000 (1.900 to 2.100)"):
        assert figure in first
    assert "eager" not in first
    assert failed.strip() == "Triton failed: ImportError: No module named 'triton'"


def test_bursts_have_parts_errors_and_choices() -> None:
    us = ROW["us"] | {"gemmill, eager": [350.0] * 3}
    first, parts, errors, choices = lines({**ROW, "us": us, "parts": {"FC1": 200.0, "FC2": 100.0}, "failed": {}})
    assert "310.0 us (350.0 eager), " in first
    assert parts.strip() == "FC1 200.0, FC2 100.0 us alone"
    assert errors.strip() == "errors gemmill 3.0e-03, PyTorch 4.0e-03"
    assert "first, second" in choices


def test_a_case_that_failed_has_its_error() -> None:
    (line,) = lines({**CASE, "error": "OutOfMemoryError: CUDA out of memory\nmore"})
    assert line.endswith("failed: OutOfMemoryError: CUDA out of memory")


@pytest.mark.parametrize("form", FORMATS)
def test_kernels_are_compiled_for_the_products_of_the_layer(form: str) -> None:
    bytes_of_row, dtype = FORMATS[form].w_dtype is not None, FORMATS[form].dtype
    inner = 128 if dtype == "e4m3" else 96
    shapes = {"x": (64, 256), "w1": (16, 2 * inner, 256 >> bytes_of_row), "w2": (16, 256, inner >> bytes_of_row)}
    tensors = {name: on_gpu(shape, "u8" if bytes_of_row and name != "x" else dtype) for name, shape in shapes.items()}
    tensors |= {"topk_ids": on_gpu((64, 8), "s32"), "topk_weights": on_gpu((64, 8), "f32"), "out": on_gpu((64, 256))}
    if dtype == "e4m3":
        scales = {"x_scale": (64, 2), "w1_scale": (16, 2, 2), "w2_scale": (16, 2, 1)}
        tensors |= {name: on_gpu(shape, "f32") for name, shape in scales.items()}
    elif form == "mxfp4":
        tensors |= {"w1_scale": on_gpu((16, 8, 192), "ue8m0"), "w2_scale": on_gpu((16, 3, 256), "ue8m0")}
    elif bytes_of_row:
        tensors |= {f"w1_{kind}": on_gpu((16, 2, 192)) for kind in ("scale", "zero")}
        tensors |= {f"w2_{kind}": on_gpu((16, 1, 256)) for kind in ("scale", "zero")}
    views = {name: view(x, name) for name, x in tensors.items()}
    if w_dtype := FORMATS[form].w_dtype:
        views = elements_of(views, w_dtype)
    layer = bind_layer(views, FORMATS[form].activation, {}, {"stream": 0}, lambda shape, dtype: on_gpu(shape, dtype))
    assert problems(Layer(256, inner, 16, 8), 64, FORMATS[form]) == [layer.first.problem, layer.second.problem]
