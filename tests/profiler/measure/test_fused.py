"""Expressions on the CPU: operands are drawn, and D and every output is held against what is computed step by step."""

from __future__ import annotations

from typing import Any

import pytest

from gemmill.library.problem import GemmProblem
from gemmill.profiler.measure.operands import OperandSet, factors, make_operands
from gemmill.profiler.measure.verify import reference

torch = pytest.importorskip("torch")


def solve(problem: GemmProblem, o: OperandSet) -> dict[str, Any]:
    """What each expression is, by PyTorch in f32: D, and other outputs by name."""
    x, group = o.arguments, torch.arange(len(o.sizes)).repeat_interleave(torch.tensor(o.sizes, dtype=torch.int64))
    if problem.batching == "ngrouped":
        of_groups = zip(o.a, o.b.split(o.sizes, 1), strict=True)
        sums = torch.cat([a.float() @ b.float() for a, b in of_groups], 1)
    else:
        sums = o.a.float() @ o.b.float()
    gate, up = sums[..., 0::2], sums[..., 1::2]
    silu = torch.nn.functional.silu
    alpha, beta = factors(problem)
    of: dict[str, Any] = {
        "scaled": lambda: {"d": sums * x["sa"][..., None] * x["sb"][..., None, :]},
        "bias": lambda: {"d": torch.nn.functional.gelu(sums + x["bias"].float()[..., None, :])},
        "swiglu": lambda: {"d": silu(gate) * up},
        "rows": lambda: in_runs_of_rows(sums, x["r"]),
        "residual": lambda: {"d": sums + x["r"].float(), "aux": sums},
        "reduced": lambda: {
            "d": sums,
            "amax": sums.abs().max(),
            "top": sums.amax(-1),
            "cols": sums.sum(-2),
            "low": sums.amin((-2, -1)),
        },
        "one": lambda: {"d": sums + x["s"], "low": sums.amin()},
        "c": lambda: {"d": torch.relu(alpha * sums + beta * o.c.float())},
        "quantised": lambda: {"d": (sums * x["s"]).round().clamp(-128, 127)},
        "scaled blocks": lambda: in_blocks(sums),
        "of columns": lambda: {
            "d": sums * x["x"] + x["bias"].float()[group].T + x["r"] * x["s"][group],
            "top": torch.stack([part.amax(-1) for part in sums.split(o.sizes, 1)]),
            "cols": sums.sum(0),
        },
    }
    found: dict[str, Any] = of[next(name for name, p in PROBLEMS.items() if p is problem)]()
    return found


def in_runs_of_rows(sums: Any, r: Any) -> dict[str, Any]:
    """A gate of runs of eight rows, and what it gates."""
    gate, up = (x.flatten(1, 2) for x in sums.unflatten(1, (-1, 2, 8)).unbind(2))
    return {"d": torch.nn.functional.silu(gate) * r.float(), "aux": up}


def in_blocks(sums: Any) -> dict[str, Any]:
    """The sums of each block, divided by the least power of two that makes them at most 448, and these."""
    blocks = sums.unflatten(-1, (-1, 128))
    scales = torch.exp2(torch.log2(blocks.abs().amax(-1) / 448).ceil())
    return {"d": (blocks / scales[..., None]).flatten(-2), "s": scales}


PROBLEMS = {
    "scaled": GemmProblem(72, 40, 512, a="e4m3", epilogue="d = acc * sa[m] * sb[n]"),
    "bias": GemmProblem(72, 40, 512, batch=3, epilogue="d = gelu(acc + bias.bf16[n])"),
    "rows": GemmProblem(80, 40, 512, batch=2, epilogue="d = silu(gate8.m) * r[m, n]; aux = up8.m"),
    "swiglu": GemmProblem(72, 80, 512, a="f16", epilogue="d = silu(gate) * up"),
    "residual": GemmProblem(72, 40, 512, epilogue="aux.f16.n = acc; d = acc + r.bf16.n[m, n]"),
    "reduced": GemmProblem(
        72,
        40,
        64,
        batch=2,
        epilogue="d = acc; amax = max(abs(acc)); top[m] = max(acc); cols[n] = sum(acc); low[batch] = min(acc)",
    ),
    "of columns": GemmProblem(
        *(72, 60, 64),
        a="s8",
        b="bf16",
        d_major="m",
        batching="ngrouped",
        groups=3,
        epilogue="d = acc * x[n] + bias.bf16[m] + r[m, n] * s[batch]; top[m] = max(acc); cols[n] = sum(acc)",
    ),
    "one": GemmProblem(72, 40, 64, epilogue="d = acc + s[batch]; low[batch] = min(acc)"),
    "c": GemmProblem(72, 40, 512, c="bf16", epilogue="d = relu(alpha * acc + beta * c)"),
    "quantised": GemmProblem(72, 40, 64, a="s8", d="s8", epilogue="d = acc * s"),
    "scaled blocks": GemmProblem(
        72, 256, 64, a="e4m3", d="e4m3", epilogue="h = acc; s.ue8m0[m, n/128] = scale(h); d = h / s"
    ),
}


@pytest.mark.parametrize("name", PROBLEMS)
@pytest.mark.parametrize("chunk", [1 << 26, 1000])
def test_d_and_other_outputs_are_verified(name: str, chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmill.profiler.measure.verify.CHUNK", chunk)  # outputs are put together of parts
    problem = PROBLEMS[name]
    (operands,) = make_operands(problem, 1, "cpu", sets=1)
    expected = reference(problem, operands, *factors(problem))
    assert not expected.compare(operands.d, operands.arguments).passed, "D was never written"
    values = solve(problem, operands)
    tensors = {"d": operands.d, **operands.arguments}
    for output, value in values.items():
        tensors[output].copy_(value.reshape(tensors[output].shape))
    verdict = expected.compare(operands.d, operands.arguments)
    assert verdict.passed, verdict.says
    for output in values:
        before = tensors[output].clone()
        last = (-1,) * before.dim()
        tensors[output][last] = before[last].double() * 1.2 + 3
        verdict = expected.compare(operands.d, operands.arguments)
        assert verdict.says.startswith("1 of"), output
        assert f"; {'D' if output == 'd' else output}[" in verdict.says
        tensors[output].copy_(before)


@pytest.mark.parametrize("factor", [0.5, 2.0])
def test_another_power_of_two_is_a_wrong_scale(factor: float) -> None:
    problem = PROBLEMS["scaled blocks"]
    (operands,) = make_operands(problem, 1, "cpu", sets=1)
    expected = reference(problem, operands, *factors(problem))
    for output, value in solve(problem, operands).items():
        (operands.d if output == "d" else operands.arguments[output]).copy_(value)
    s = operands.arguments["s"]
    s[5, 1] = float(s[5, 1]) * factor
    assert expected.compare(operands.d, operands.arguments).says.startswith("1 of 144 elements exceed their bound; s[")


def test_sums_are_of_order_one() -> None:
    (operands,) = make_operands(PROBLEMS["swiglu"], 1, "cpu", sets=1)
    assert 0.5 < float((operands.a.float() @ operands.b.float()).std()) < 2
