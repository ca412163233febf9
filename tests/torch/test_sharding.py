"""Products of DTensors on a mesh of two processes, against those of whole tensors."""

from __future__ import annotations

import itertools
import re
import sys
from pathlib import Path
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
if not torch.distributed.is_available():
    pytest.skip("this PyTorch has no torch.distributed", allow_module_level=True)

from tests.torch.cases import wide  # noqa: E402

CALLS: dict[str, tuple[str, tuple[tuple[int, ...], ...]]] = {
    "mm": ("mm", ((4, 6), (6, 8))),
    "uneven mm": ("mm", ((3, 5), (5, 7))),
    "addmm": ("addmm", ((8,), (4, 6), (6, 8))),
    "bmm": ("bmm", ((2, 4, 6), (6, 8))),
    "bmm that broadcasts": ("bmm", ((2, 1, 4, 6), (3, 6, 8))),
    "baddbmm": ("baddbmm", ((4, 1), (2, 4, 6), (2, 6, 8))),
}


FORWARD: dict[str, list[tuple[Any, list[Any]]]] = {
    "scaled_mm": [
        ("S(0)", ["S(0)", "R", "S(0)", "R", "S(0)"]),
        ("S(1)", ["R", "S(1)", "R", "S(1)", "S(1)"]),
        ("R", ["R"] * 5),
    ],
    "scaled_mm, parts of sums": [("P", ["S(1)", "S(0)", "R", "R", None])],
    "scaled_mm, blocks": [("S(0)", ["S(0)", "R", "S(0)", "R", None]), ("R", ["R", "R", "R", "R", None])],
    "mixed_mm": [("S(0)", ["S(0)", "R", None, "R", None, "R", "S(0)"])],
    "grouped_mm": [
        ("S(1)", ["R", "S(2)", "R", None, None, None, None]),
        ("P", ["S(1)", "S(1)", "R", None, None, None, None]),
    ],
}
"""Placements of D, and of the tensors of :func:`given`, which need no communication."""


def given(name: str) -> tuple[list[Any], dict[str, Any]]:
    """Tensors by position, and keywords."""
    fp8 = torch.float8_e4m3fn
    match name:
        case "scaled_mm" | "scaled_mm, parts of sums":
            a, b = wide(4, 32, dtype=torch.float32).to(fp8), wide(16, 32, dtype=torch.float32).to(fp8).mT
            c = wide(4, 16, dtype=torch.float32) if name == "scaled_mm" else None
            scales = wide(4, 1, dtype=torch.float32), wide(1, 16, dtype=torch.float32)
            return [a, b, *scales, c], {"out_dtype": torch.float32}
        case "scaled_mm, blocks":
            a, b = wide(4, 256, dtype=torch.float32).to(fp8), wide(128, 256, dtype=torch.float32).to(fp8).mT
            scales = wide(4, 2, dtype=torch.float32), wide(2, 1, dtype=torch.float32)
            return [a, b, *scales, None], {"out_dtype": torch.float32}
        case "mixed_mm":
            a, weights = wide(4, 64, dtype=torch.bfloat16), torch.arange(16 * 32).reshape(16, 32).to(torch.uint8).mT
            scales, zeros = wide(2, 16, dtype=torch.bfloat16), wide(2, 16, dtype=torch.bfloat16)
            c = wide(4, 16, dtype=torch.bfloat16)
            return [a, weights, None, scales, None, zeros, c], {"b_dtype": "u4"}
    a, b = wide(6, 8, dtype=torch.bfloat16), wide(3, 8, 4, dtype=torch.bfloat16)
    return [a, b, torch.tensor([2, 2, 6], dtype=torch.int32), None, None, None, None], {"out_dtype": torch.float32}


def shards_multiply_as_the_whole(rank: int, mesh: Any) -> None:
    """Each way of :data:`FORWARD`, with nothing sent; D gathered is what whole tensors give."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
    from torch.distributed.tensor.debug import CommDebugMode

    placements = {"R": Replicate(), "P": Partial()} | {f"S({i})": Shard(i) for i in range(3)}
    for name, ways in FORWARD.items():
        tensors, keywords = given(name)
        call = getattr(torch.ops.gemmill, name.partition(",")[0])
        wanted = call(*tensors, **keywords)
        for of_d, of_tensors in ways:
            parts: list[Any] = []
            for x, way in zip(tensors, of_tensors, strict=True):
                axis = placements[way].dim if way and way.startswith("S") else None
                own = x if axis is None else x.chunk(2, axis)[rank].clone(memory_format=torch.preserve_format)
                parts.append(None if x is None else DTensor.from_local(own, mesh, [placements[way]], run_check=False))
            with CommDebugMode() as seen:
                d = call(*parts, **keywords)
            assert seen.get_total_counts() == 0, (name, of_d)
            assert d.placements == (placements[of_d],), (name, of_d, d.placements)
            torch.testing.assert_close(d.full_tensor(), wanted, rtol=2**-6, atol=2**-6)


def every_placement(rank: int, file: str) -> None:
    """Each call, with its gradients, of operands in all placements; in one of two processes."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor, init_device_mesh

    import gemmill.torch

    gemmill.torch.run_on_cpu()
    torch.distributed.init_process_group("gloo", init_method=f"file://{file}", rank=rank, world_size=2)
    mesh = init_device_mesh("cpu", (2,))
    for name, (operator, shapes) in CALLS.items():
        call = getattr(torch.ops.gemmill, operator)
        whole = [wide(*shape, dtype=torch.float32).requires_grad_() for shape in shapes]
        wanted = call(*whole)
        wanted.square().sum().backward()
        ways = [[Replicate(), *[Shard(axis) for axis in range(len(shape))]] for shape in shapes]
        for placements in itertools.product(*ways):
            parts = [
                distribute_tensor(x.detach(), mesh, [placement]).requires_grad_()
                for x, placement in zip(whole, placements, strict=True)
            ]
            d = call(*parts)
            assert torch.equal(d.full_tensor(), wanted), (name, placements)
            d.square().sum().backward()
            for x, y in zip(parts, whole, strict=True):
                assert torch.equal(x.grad.full_tensor(), y.grad), (name, placements)
    shards_multiply_as_the_whole(rank, mesh)
    _rows_stay_where_they_are(mesh)
    epilogues_of_shards(mesh)
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()


def _rows_stay_where_they_are(mesh: Any) -> None:
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

    import gemmill

    a, b = wide(4, 6, dtype=torch.float32), wide(6, 8, dtype=torch.float32)
    rows, weights = distribute_tensor(a, mesh, [Shard(0)]), distribute_tensor(b, mesh, [Replicate()])
    with CommDebugMode() as seen:
        d = gemmill.matmul(rows, weights)
        narrow = gemmill.matmul(rows, weights, out_dtype="bf16")
    assert seen.get_total_counts() == 0
    assert d.placements == (Shard(0),)
    assert (d.dtype, narrow.dtype, narrow.to_local().dtype) == (torch.float32, torch.bfloat16, torch.bfloat16)


EPILOGUES: dict[str, list[str]] = {
    "d = gelu(acc + bias[n]) * row[m] + r[m, n]": ["S(0)", "S(1)"],
    "t = acc + bias[n]; aux[m, n] = t; d = relu(t) * x": ["S(0)", "S(1)"],
    "top[m] = max(acc); all = sum(acc); low[n] = min(acc); d = acc + c": ["S(0)", "S(1)"],
    "d = silu(gate) * up": ["S(0)", "S(1)"],
}
"""Expressions, and placements of D that they can have without communication."""


def epilogues_of_shards(mesh: Any) -> None:
    """Each expression of :data:`EPILOGUES` on operands in all placements: D and what is written beside it are those of
    whole tensors, and nothing is sent where A and B are in shards of D's."""
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.debug import CommDebugMode

    import gemmill
    from gemmill.library.errors import OperandError

    a, b = wide(4, 6, dtype=torch.float32), wide(6, 8, dtype=torch.float32)
    more = {"bias": wide(8), "row": wide(4), "r": wide(4, 8), "c": wide(4, 8, dtype=torch.float32), "x": wide()}
    along = {"S(0)": {"row": 0, "r": 0, "c": 0}, "S(1)": {"bias": 0, "r": 1, "c": 1}, "R": {}}

    def placed(x: Any, axis: int | None) -> Any:
        return distribute_tensor(x, mesh, [Replicate() if axis is None else Shard(axis)])

    def call(a: Any, b: Any, expression: str, named: dict[str, Any]) -> Any:
        return torch.ops.gemmill.epilogue(expression, a, b, [*named.values()], [*named])

    for expression, ways in EPILOGUES.items():
        named = {name: x for name, x in more.items() if re.search(rf"\b{name}\b", expression.replace("[m, n]", ""))}
        wanted = call(a, b, expression, named)
        for of_a, of_b, way in itertools.product((None, 0, 1), (None, 0, 1), along):
            own = {name: placed(x, along[way].get(name)) for name, x in named.items()}
            factors = placed(a, of_a), placed(b, of_b)
            with CommDebugMode() as seen:
                found = call(*factors, expression, own)
            free = (of_a, of_b, way) in ((0, None, "S(0)"), (None, 1, "S(1)"))
            assert not (free and seen.get_total_counts()), (expression, way)
            assert not free or str(found[0].placements[0]) == way in ways, (expression, found[0].placements)
            for x, y in zip(found, wanted, strict=True):
                torch.testing.assert_close(x.full_tensor(), y, rtol=1e-5, atol=1e-5)
    whole = [x.clone().requires_grad_() for x in (a, b, more["bias"].float())]
    gemmill.matmul(whole[0], whole[1], epilogue="d = silu(acc + bias[n])", bias=whole[2]).square().sum().backward()
    for axes in ((0, None, None), (None, 1, 0), (1, 0, None)):
        parts = [placed(x.detach(), axis).requires_grad_() for x, axis in zip(whole, axes, strict=True)]
        d = gemmill.matmul(parts[0], parts[1], epilogue="d = silu(acc + bias[n])", bias=parts[2])
        d.square().sum().backward()
        for x, y in zip(parts, whole, strict=True):
            torch.testing.assert_close(x.grad.full_tensor(), y.grad, rtol=1e-5, atol=1e-5)
    try:
        gemmill.matmul(placed(a, 0), placed(b, None), epilogue="d = acc + bias[n]", bias=more["bias"])
    except OperandError as error:
        assert "bias (8,) is not a DTensor" in str(error)  # noqa: PT017 - in a process of its own
    else:
        raise AssertionError("a bias that is no DTensor was taken")


@pytest.mark.slow
def test_dtensors_are_multiplied_in_all_placements(tmp_path: Path) -> None:
    torch.multiprocessing.spawn(every_placement, (str(tmp_path / "store"),), nprocs=2)


def test_who_uses_no_dtensors_imports_none() -> None:
    import subprocess

    code = "import gemmill.torch, sys; assert 'torch.distributed.tensor' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=120)
