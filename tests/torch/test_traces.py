"""Traces of PyTorch: the problem of a call is the one for which gemmill selects a kernel when it takes over."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tests.torch.cases import FP8, wide  # noqa: E402
from tests.torch.test_takeover import CALLS, SCALES  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402
from torch.utils._python_dispatch import TorchDispatchMode  # noqa: E402

from gemmill.library.problem import GemmProblem  # noqa: E402
from gemmill.profiler.imports.file_formats import problems_of  # noqa: E402
from gemmill.runtime.api.read import read_call  # noqa: E402
from gemmill.runtime.operands.tensors import TensorView, dtype_named  # noqa: E402
from gemmill.runtime.torch.takeover.aten import ROWS  # noqa: E402
from gemmill.runtime.torch.takeover.blocks import Setting  # noqa: E402
from gemmill.runtime.torch.takeover.kernel_backend import operands_of  # noqa: E402

A, B = wide(64, 256).to(FP8), wide(144, 256).to(FP8).mT
BF16 = {"out_dtype": torch.bfloat16}


def _scaled(form: str, **more: Any) -> Callable[[], Any]:
    """A scaled product of 64 x 256 by 256 x 144."""
    scales = {
        "of all": SCALES["of all"],
        "of rows and columns": (wide(64, 1, dtype=torch.float32), wide(1, 144, dtype=torch.float32)),
        "of blocks": (wide(64, 2, dtype=torch.float32), wide(2, 2, dtype=torch.float32)),
    }
    return lambda: torch._scaled_mm(A, B, *scales[form], **BF16, **more)


PADDED = torch.zeros(64, 24, dtype=torch.bfloat16)
RECORDED: dict[str, Callable[[], Any]] = {
    **{name: call for name, (_, call) in CALLS.items()},
    **{f"scales {form}": _scaled(form) for form in ("of all", "of rows and columns")},
    **{f"scales {form}, bias": _scaled(form, bias=wide(144)) for form in ("of all", "of rows and columns")},
    "fast accumulation": _scaled("of all", use_fast_accum=True),
    "rows with padding": lambda: torch.mm(PADDED[:, :19], wide(19, 16)),
    "rows with less alignment": lambda: torch.mm(PADDED[:, 1:17], wide(16, 16)),
    "a batch that shares B": lambda: torch.bmm(wide(2, 64, 16), wide(1, 16, 32).expand(2, 16, 32)),
    "a batch that shares A": lambda: torch.bmm(wide(1, 64, 16).expand(2, 64, 16), wide(2, 16, 32)),
}


class Asked(TorchDispatchMode):  # type: ignore[misc]  # PyTorch is not installed where mypy runs
    """Collects the problems of the calls that gemmill would take over."""

    def __init__(self) -> None:
        super().__init__()
        self.problems: list[GemmProblem] = []

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = function._schema.name.removeprefix("aten::") + (
            f".{function._schema.overload_name}" if function._schema.overload_name else ""
        )
        if row := ROWS.get(name):
            names = [argument.name for argument in function._schema.arguments]
            given = dict(zip(names, args, strict=False)) | (kwargs or {})
            call = row.read(row, given, Setting())
            out = given[call.out] if call.out else torch.empty_strided(call.shape, call.strides, dtype=call.dtype)
            tensors = {key: _view(x) for key, x in {**operands_of(call, given), "out": out}.items()}
            self.problems.append(read_call({**call.values, **tensors}).problem)
        return function(*args, **(kwargs or {}))


def _view(tensor: Any) -> TensorView:
    return TensorView(0, tuple(tensor.shape), tensor.stride(), dtype_named(tensor.dtype, "tensor"), 0)


@pytest.mark.parametrize("name", RECORDED)
def test_a_trace_has_the_problems_that_a_takeover_asks_for(name: str, tmp_path: Path) -> None:
    with Asked() as asked:
        RECORDED[name]()
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        RECORDED[name]()
    recorded.export_chrome_trace(str(tmp_path / "trace.json"))
    found = problems_of((tmp_path / "trace.json").read_bytes(), tmp_path / "trace.json")
    assert found is not None
    problems = [GemmProblem.from_dict(each.fields) for each in found.problems]
    assert problems == asked.problems
    assert not found.left_out


def test_a_product_inside_of_another_counts_once(tmp_path: Path) -> None:
    """The reference of _scaled_mm on the CPU calls mm."""
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        for _ in range(3):
            RECORDED["scales of all"]()
    recorded.export_chrome_trace(str(tmp_path / "trace.json"))
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert sum(event.get("name") == "aten::mm" for event in events)
    found = problems_of((tmp_path / "trace.json").read_bytes(), tmp_path / "trace.json")
    assert found is not None
    assert [(each.count, each.fields["a"]) for each in found.problems] == [(3, "e4m3")]
