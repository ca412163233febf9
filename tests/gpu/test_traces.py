"""Traces of programs on the GPU: their problems are those for which gemmill selects kernels when it takes over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

from tests.gpu.test_takeover import SCALED, SERVED, attempt  # noqa: E402
from torch.profiler import ProfilerActivity, profile  # noqa: E402

from gemmill.library.problem import GemmProblem  # noqa: E402
from gemmill.profiler.imports.file_formats import read_problems  # noqa: E402
from gemmill.runtime.torch.takeover.aten import Arguments, Call, Unserved  # noqa: E402
from gemmill.runtime.torch.takeover.kernel_backend import gemm_call  # noqa: E402
from gemmill.runtime.torch.takeover.overrides import Takeover  # noqa: E402

CALLS = {**{name: call for name, (_, call) in SERVED.items()}, **{f"scales {name}": SCALED[name] for name in SCALED}}


@pytest.mark.parametrize("name", CALLS)
def test_a_trace_has_the_problems_that_a_takeover_asks_for(name: str, tmp_path: Path) -> None:
    wanted: list[GemmProblem] = []

    def collect(call: Call, given: Arguments, _: list[str]) -> Any:
        empty = torch.empty_strided(call.shape, call.strides, dtype=call.dtype, device="cuda")
        wanted.append(gemm_call(call, given, given[call.out] if call.out else empty).problem)
        raise Unserved("collected", always=False)

    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as recorded:
        attempt(CALLS[name])  # recorded also where this version of PyTorch lacks the form
    recorded.export_chrome_trace(str(tmp_path / "trace.json"))
    with Takeover(backend=collect).within():  # a new one, which knows no call yet
        attempt(CALLS[name])
    found = read_problems(tmp_path / "trace.json")
    assert found is not None
    assert [GemmProblem.from_dict(each.fields) for each in found.problems] == [*dict.fromkeys(wanted)]
    assert not found.left_out
