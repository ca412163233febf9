"""What is said of where calls go: to whoever asks each time, and of slow ones once a process and kind."""

from __future__ import annotations

import warnings

import pytest
from tests.cases.exporter import on_gpu

import gemmill
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.runtime.api import explain
from gemmill.runtime.launch.launcher import PreparedCall


@pytest.fixture(autouse=True)
def said(monkeypatch: pytest.MonkeyPatch) -> set[str]:
    nothing: set[str] = set()
    monkeypatch.setattr(explain, "_warned_kinds", nothing)
    return nothing


def problem(b: str = "bf16", a_major: str = "k") -> gemmill.GemmProblem:
    return gemmill.GemmProblem(m=512, n=512, k=512, a="bf16", b=b, a_major=a_major)


def test_one_warning_a_process_for_each_kind() -> None:
    registry = gemmill.Registry(gpu="H200")
    mixed, strided, both = (registry.select(problem(*x)) for x in (("f16",), ("bf16", "any"), ("f16", "any")))
    with pytest.warns(
        gemmill.SlowPathWarning, match=r"512x512x512 bf16\*f16 tn: predicted .* convert b to bf16"
    ) as first:
        explain.warn_of(mixed)
    assert first[0].filename == __file__, "whoever calls is warned"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for again in (mixed, registry.select(problem())):
            explain.warn_of(again)
    with pytest.warns(gemmill.GemmillWarning, match="make a contiguous along K"):
        explain.warn_of(strided)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explain.warn_of(both)


def test_a_call_is_warned_of_when_it_is_made_ready() -> None:
    a, b, out = on_gpu((512, 512)), on_gpu((512, 512), "f16"), on_gpu((512, 512))
    registry = gemmill.Registry(gpu="H200")
    for call in (gemmill.matmul, gemmill.plan):
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            with pytest.raises(gemmill.SlowPathWarning, match="convert b to bf16"):
                call(a, b, out=out, registry=registry)


def test_explain_prints_with_every_call(capsys: pytest.CaptureFixture[str]) -> None:
    a, b, out = on_gpu((0, 512)), on_gpu((512, 512)), on_gpu((0, 512))
    for call in (gemmill.matmul, gemmill.matmul, gemmill.plan):
        call(a, b, out=out, explain=True)
        assert capsys.readouterr().out == "gemmill: 0x512x512 bf16 tt: D is empty, so there is no launch\n"
    gemmill.matmul(a, b, out=out)
    assert not capsys.readouterr().out


def test_a_prepared_call_says_where_it_goes() -> None:
    choice = gemmill.Registry(gpu="H200").select(problem("f16"))

    def nothing(_: object) -> None: ...

    told = str(PreparedCall(problem("f16"), choice.kernel, choice, nothing, lambda: pytest.fail("not launched")))
    assert told == f"512x512x512 bf16*f16 tn uses {choice.kernel}: {choice.why}"
    named = str(
        PreparedCall(problem(), SlicedKernel("some_kernel", 4), None, nothing, lambda: pytest.fail("not launched"))
    )
    assert named == "512x512x512 bf16 tn uses some_kernel in 4 slices: named by the call"
