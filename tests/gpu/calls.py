"""Calls drawn at random: views that may overlap, scales that may not fit, operands that may be gone.

    python -m tests.gpu.calls --calls 25000 --seed 1

Every call is foretold by what bytes its tensors have: what writes where another tensor lies, or twice at one place, and
what has no memory, must be refused; all else must give the right D, and change no other byte of the memory that it lies
in. After each refusal the GPU must still answer. Prints counts, and each fault with the seed that draws it alone; exits
with 1 if there is one.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

import gemmill
from gemmill.library.errors import UnsupportedProblemError

ELEMENTS = 1 << 19
"""Of an arena, in whose middle tensors are drawn: the rest is a guard."""
EXTENTS = (1, 8, 24, 64, 100, 128, 200)
EPILOGUES = (None, None, None, "d = relu(acc + bias[n])", "d = acc; aux = acc")


class Arena:
    """Memory full of small integers, of which tensors are views; exact sums, so that D has one right value."""

    def __init__(self, dtype: Any) -> None:
        values = torch.randint(-2, 3, (ELEMENTS,), generator=torch.Generator().manual_seed(0))
        self.fresh = values.to(torch.float32).to(dtype).cuda()
        self.memory = self.fresh.clone()
        self.bytes = dtype.itemsize

    def view(self, draw: random.Random, shape: tuple[int, int], near: int) -> Any:
        """A matrix of some strides around a place: mostly packed or padded rows or columns, at times far stranger."""
        rows, columns = shape
        kind = draw.random()
        pad = draw.choice((0, 0, 8, 16, 3))
        strides = (columns + pad, 1) if draw.random() < 0.5 else (1, rows + pad)
        if kind < 0.04:
            strides = (0, 1)
        elif kind < 0.08:
            strides = (draw.randint(1, 300), draw.randint(1, 300))
        offset = near + draw.choice((0, 0, 8, 64, draw.randint(0, 4000)))
        return self.memory.as_strided(shape, strides, offset)


def elements(tensor: Any) -> Any:
    """The places of a view's elements in its arena."""
    last = sum((extent - 1) * stride for extent, stride in zip(tensor.shape, tensor.stride(), strict=True))
    places = np.arange(tensor.storage_offset(), tensor.storage_offset() + last + 1)
    steps = [stride * 8 for stride in tensor.stride()]
    return np.lib.stride_tricks.as_strided(places, tensor.shape, steps).ravel()


@dataclass
class Drawn:
    """One call, and whether it must be refused."""

    tensors: dict[str, Any]
    options: dict[str, Any] = field(default_factory=dict)
    refused: str = ""
    """Why, if it must be."""


def draw_call(draw: random.Random, arenas: Sequence[Arena]) -> Drawn:
    """A product in one arena."""
    arena = draw.choice(arenas)
    m, n, k = (draw.choice(EXTENTS) for _ in range(3))
    apart = draw.random() < 0.5
    near = iter(ELEMENTS // 8 * i for i in (1, 2, 3, 4, 5)) if apart else iter(lambda: draw.randint(100, 90_000), None)
    call = Drawn({"a": arena.view(draw, (m, k), next(near)), "b": arena.view(draw, (k, n), next(near))})
    call.tensors["out"] = out = arena.view(draw, (m, n), next(near))
    epilogue = draw.choice(EPILOGUES)
    written = ["out"]
    if epilogue is None:
        call.options["alpha"] = draw.choice((1.0, -2.0))
        if draw.random() < 0.5:
            call.tensors["c"] = draw.choice((out, arena.view(draw, (m, n), next(near))))
            call.options["beta"] = draw.choice((0.0, 1.0, 2.0))
    else:
        call.options["epilogue"] = epilogue
        if "bias" in epilogue:
            call.tensors["bias"] = arena.memory[(at := next(near)) : at + n]
        else:
            call.tensors["aux"] = arena.view(draw, (m, n), next(near))
            written.append("aux")
    call.refused = overlap(call.tensors, written)
    return call


def overlap(tensors: dict[str, Any], written: Sequence[str]) -> str:
    """What is written twice, or while it is read; nothing if nothing is."""
    places = {name: elements(tensor) for name, tensor in tensors.items()}
    for name in written:
        own = np.unique(places[name])
        if own.size < places[name].size:
            return f"{name} overlaps itself"
        for other, theirs in places.items():
            equal = other == "c" and name == "out" and np.array_equal(theirs, places[name])
            if other != name and not equal and np.isin(theirs, own).any():
                return f"{name} overlaps {other}"
    return ""


def spoil(draw: random.Random, call: Drawn) -> None:
    """Make a call one that must be refused, by what happens to one of its tensors."""
    name = draw.choice(list(call.tensors))
    tensor = call.tensors[name]
    how = draw.choice(("freed", "cpu", "meta", "fake", "functional", "shape", "dtype"))
    if how == "freed":
        call.tensors[name] = tensor.clone()
        call.tensors[name].untyped_storage().resize_(0)
    elif how == "cpu":
        call.tensors[name] = tensor.cpu()
    elif how == "meta":
        call.tensors[name] = tensor.to("meta")
    elif how == "fake":
        from torch._subclasses.fake_tensor import FakeTensorMode

        call.tensors[name] = FakeTensorMode(allow_non_fake_inputs=True).from_tensor(tensor)
    elif how == "functional":
        call.tensors[name] = torch._to_functional_tensor(tensor)
    elif how == "shape":
        call.tensors[name] = tensor[..., :0] if tensor.shape[-1] == 1 else tensor[..., 1:]
    else:
        call.tensors[name] = tensor.to(torch.float64)
    call.refused = f"{name} is {how}"


def scaled_call(draw: random.Random, arena: Arena) -> Drawn:
    """e4m3 in scaled blocks, whose scales fit or do not."""
    m, n, k = draw.choice((64, 200)), draw.choice((128, 256)), draw.choice((256, 384))
    call = Drawn(
        {
            "a": torch.randint(-2, 3, (m, k), device="cuda").to(torch.float8_e4m3fn),
            "b": torch.randint(-2, 3, (n, k), device="cuda").to(torch.float8_e4m3fn).t(),
            "out": arena.memory.as_strided((m, n), (n, 1), ELEMENTS // 2),
            "a_scale": torch.full((m, k // 128), 2.0, device="cuda"),
            "b_scale": torch.full((k // 128, n // 128), 0.5, device="cuda"),
        },
        {"fast_accumulation": False},
    )
    which = draw.choice(("a_scale", "b_scale"))
    how = draw.choice(("", "", "shape", "dtype", "cpu", "freed", "missing"))
    scale = call.tensors[which]
    if how == "shape":
        call.tensors[which] = torch.cat([scale, scale])
    elif how == "dtype":
        call.tensors[which] = scale.to(torch.bfloat16)
    elif how == "cpu":
        call.tensors[which] = scale.cpu()
    elif how == "freed":
        scale.untyped_storage().resize_(0)
    elif how == "missing":
        del call.tensors[which]
    if how:
        call.refused = f"{which}: {how}"
    return call


def expected(call: Drawn) -> dict[str, Any]:
    """D and what else is written, as they must come out."""
    tensors, options = call.tensors, call.options
    out = tensors["out"]
    product = tensors["a"].double() @ tensors["b"].double()  # scales cancel out
    d = product * options.get("alpha", 1.0)
    if "c" in tensors:
        d = d + options.get("beta", 1.0) * tensors["c"].double()
    if "bias" in tensors:
        d = (product + tensors["bias"].double()).relu()
    values = {"out": d.float().to(out.dtype)}
    if "aux" in tensors:
        values["aux"] = product.float().to(tensors["aux"].dtype)
    return values


def by_matmul(call: Drawn, registry: Any) -> None:
    """The usual way in."""
    tensors = dict(call.tensors)
    gemmill.matmul(tensors.pop("a"), tensors.pop("b"), registry=registry, **tensors, **call.options)


def by_plan(call: Drawn, registry: Any) -> None:
    """A plan on the tensors."""
    tensors = dict(call.tensors)
    with gemmill.plan(tensors.pop("a"), tensors.pop("b"), registry=registry, **tensors, **call.options) as plan:
        plan()


def by_rebind(call: Drawn, registry: Any) -> None:
    """A plan on tensors that lie alike elsewhere, bound to these."""
    if "cuda" not in {x.device.type for x in call.tensors.values()} or call.refused.endswith(("shape", "dtype")):
        return by_plan(call, registry)
    elsewhere: dict[str, Any] = {}
    for name, x in call.tensors.items():
        if type(x) is not torch.Tensor or x.device.type != "cuda":
            return by_plan(call, registry)
        same = next((elsewhere[other] for other in elsewhere if call.tensors[other] is x), None)
        span = sum((extent - 1) * stride for extent, stride in zip(x.shape, x.stride(), strict=True)) + 1
        aligned = x.data_ptr() % 16 // x.element_size()
        memory = torch.zeros(span + aligned, dtype=x.dtype, device="cuda") if same is None else same
        elsewhere[name] = memory.as_strided(x.shape, x.stride(), aligned) if same is None else same
    with gemmill.plan(elsewhere.pop("a"), elsewhere.pop("b"), registry=registry, **elsewhere, **call.options) as plan:
        plan.rebind(**call.tensors)
        plan()
    return None


WAYS: tuple[Callable[[Drawn, Any], None], ...] = (by_matmul, by_matmul, by_plan, by_rebind)


def fault_of(call: Drawn, way: Callable[[Drawn, Any], None], arena: Arena, registry: Any, counts: Counter[str]) -> str:
    """What is wrong with how a call went; nothing if nothing is."""
    before = arena.memory.clone()
    wanted = expected(call) if not call.refused else {}
    try:
        way(call, registry)
    except gemmill.GemmillError as error:
        torch.cuda.synchronize()
        if not torch.equal(arena.memory.view(torch.uint8), before.view(torch.uint8)):
            return f"refused ({error}), and memory has changed"
        counts["refused as foretold" if call.refused else f"refused: {type(error).__name__}"] += 1
        if not call.refused and "overlap" not in str(error) and not isinstance(error, UnsupportedProblemError):
            return f"refused without need: {error}"
        return ""
    torch.cuda.synchronize()
    if call.refused:
        return f"not refused, though {call.refused}"
    after = arena.memory.clone()
    for name, values in wanted.items():
        tensor = call.tensors[name]
        if not torch.equal(tensor, values):
            return f"{name} is wrong"
        before.as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).copy_(tensor)
    if not torch.equal(after.view(torch.uint8), before.view(torch.uint8)):
        return "memory beside what is written has changed"
    counts["right"] += 1
    return ""


def main(arguments: Sequence[str] | None = None) -> int:
    """Draw calls and make them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calls", type=int, default=1000, metavar="N")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args(arguments)
    registry = gemmill.Registry(manifests=[Path(__file__).with_suffix(".yaml")])
    arenas = [Arena(torch.bfloat16), Arena(torch.float32)]
    counts: Counter[str] = Counter()
    faults = 0
    for number in range(given.calls):
        draw = random.Random(f"{given.seed} {number}")
        arena = arenas[0]
        if draw.random() < 0.15:
            call = scaled_call(draw, arena)
        else:
            call = draw_call(draw, arenas)
            arena = arenas[call.tensors["out"].dtype == torch.float32]
            if draw.random() < 0.15:
                spoil(draw, call)
        way = draw.choice(WAYS)
        if fault := fault_of(call, way, arena, registry, counts):
            faults += 1
            shapes = {name: (tuple(x.shape), tuple(x.stride()), str(x.dtype)) for name, x in call.tensors.items()}
            print(f"--seed {given.seed}, call {number}, {way.__name__}: {fault}\n  {shapes} {call.options}", flush=True)
        arena.memory.copy_(arena.fresh)
    print(f"{given.calls} calls: {dict(counts)}, {faults} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
