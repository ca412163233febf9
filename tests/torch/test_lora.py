"""Products of low-rank adapters by operators on the CPU: values, gradients, compiled programs."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from benchmarks.lora import SCALE, loop  # noqa: E402

import gemmill.torch  # noqa: E402
from gemmill.library.errors import OperandError  # noqa: E402
from gemmill.runtime.torch.experts import Routed  # noqa: E402

IDS = torch.tensor([2, 0, -1, 2, 4, 0, 3], dtype=torch.int32)
"""Adapter 1 has no token; tokens 2 and 4 have no adapter."""


def operands(dtype: Any = torch.float64) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"x": (7, 24), "a": (4, 8, 24), "b": (4, 16, 8), "y": (7, 16), "scale": (7,)}
    drawn = {name: torch.randn(shape, dtype=torch.float64, generator=generator) for name, shape in shapes.items()}
    return {name: x.to(dtype).requires_grad_() for name, x in drawn.items()}


def plain(x: Any, a: Any, b: Any, y: Any, scale: Any) -> Any:
    """The definition, token after token."""
    rows = []
    for token, adapter in enumerate(IDS.tolist()):
        row = y[token].double()
        if 0 <= adapter < len(a):
            row = row + scale[token].double() * (b[adapter].double() @ (a[adapter].double() @ x[token].double()))
        rows.append(row)
    return torch.stack(rows)


def test_values_and_gradients_are_those_of_the_definition() -> None:
    given = operands()
    x, a, b = (given[name] for name in "xab")
    found, wanted = gemmill.torch.lora(x, a, b, IDS, y=given["y"], scale=given["scale"]), plain(**given)
    torch.testing.assert_close(found, wanted)
    g = torch.randn(wanted.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    leaves = [*given.values()]
    for x, y in zip(torch.autograd.grad(found, leaves, g), torch.autograd.grad(wanted, leaves, g), strict=True):
        torch.testing.assert_close(x, y)


def test_layers_may_share_a_routing() -> None:
    given = operands()
    x, a, b = (given[name] for name in "xab")
    routed = Routed.of(IDS[:, None], 4)
    places = torch.where(routed.used, routed.places, -1)
    routing = gemmill.Routing(routed.offsets, routed.rows.int(), places.int())
    found = gemmill.torch.lora(x, a, b, routing, scale=0.5)
    wanted = plain(x, a, b, torch.zeros(7, 16), torch.full((7,), 0.5))
    torch.testing.assert_close(found, wanted)


def test_types_of_bf16() -> None:
    given = operands(torch.bfloat16)
    x, a, b = (given[name] for name in "xab")
    assert gemmill.torch.lora(x, a, b, IDS.long(), scale=2.0).dtype == torch.bfloat16
    found = gemmill.torch.lora(x, a, b, IDS, y=given["y"].float(), scale=given["scale"])
    assert found.dtype == torch.float32
    torch.testing.assert_close(found.double(), plain(**given), rtol=0.02, atol=0.4)
    found.sum().backward()
    assert all(leaf.grad.dtype == torch.bfloat16 and leaf.grad.isfinite().all() for leaf in given.values())


def test_meta_tensors_have_the_shape_of_the_result() -> None:
    given = {name: x.detach().to("meta") for name, x in operands(torch.bfloat16).items()}
    routing = gemmill.Routing(*(torch.empty(n, dtype=torch.int32, device="meta") for n in ((4,), (7,), (7, 1))))
    assert gemmill.torch.lora(given["x"], given["a"], given["b"], routing).shape == (7, 16)


def test_the_loop_of_the_benchmark_gives_what_the_definition_gives() -> None:
    x, a, b, y, _ = (tensor.detach() for tensor in operands().values())
    run, out = loop(x, a, b, IDS, y)
    for _ in range(2):
        run()
        torch.testing.assert_close(out, plain(x, a, b, y, torch.full((7,), SCALE)))


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"adapter_ids": IDS[:, None]}, r"adapter_ids has shape \(7, 1\); .* it must have shape \(7,\)"),
        ({"adapter_ids": IDS.float()}, "adapter_ids is torch.float32; it must be int32"),
        ({"scale": torch.ones(1)}, r"scale has shape \(1,\)"),
        ({"y": torch.ones(1, 16)}, r"y has shape \(1, 16\)"),
        ({"b": torch.ones(4, 8, 16)}, r"b has shape \(4, 8, 16\)"),
    ],
)
def test_tensors_that_would_broadcast_are_refused(changed: dict[str, Any], says: str) -> None:
    given = {**operands(), "adapter_ids": IDS, **changed}
    with pytest.raises(OperandError, match=says):
        gemmill.torch.lora(**given)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"adapter_ids": None}, "adapter_ids is a NoneType; it must be a PyTorch tensor"),
        ({"a": torch.ones(4, 8, 24)}, "a is f32; x, a and b must all be bf16 or all f16"),
        ({"scale": torch.ones(7, dtype=torch.int32)}, "scale is s32; it must be bf16, f16 or f32"),
        ({"b": torch.ones(4, 15, 8).bfloat16(), "y": None}, "N is 15; it must be a multiple of 8"),
    ],
)
def test_what_the_kernels_do_not_take_is_refused(changed: dict[str, Any], says: str) -> None:
    given = {**operands(torch.bfloat16), "adapter_ids": IDS, **changed}
    for function in (gemmill.torch.lora, torch.compile(gemmill.torch.lora, backend="eager")):
        with pytest.raises(OperandError, match=says):
            function(**given)
