"""Epilogues of PyTorch's DTensors: each process computes the shard of D that its shards of A and B give, and what the
expression writes beside it.

Rules of placements, as the other operators have, are not to be had for one that returns a list; so this takes the place
of DTensor's dispatch of it. Importing it does so.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from gemmill.library.epilogues.tree import Assignment, Epilogue
from gemmill.library.errors import OperandError
from gemmill.runtime.operands.epilogue_arguments import read_epilogue
from gemmill.runtime.torch.operators import LIBRARY
from gemmill.runtime.torch.outputs import d_shape, of_epilogue
from gemmill.runtime.torch.transforms.sharding import along

Extents = tuple[int, ...]


def dispatch(_: Any, operator: Any, __: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[DTensor]:
    """A call in which a tensor is a DTensor. Along each dimension of the mesh D is in shards as A is, else as B is;
    where neither is, or is sharded along K, all is whole. What lies otherwise is sent. OperandError where a tensor of
    several elements is no DTensor."""
    expression, a, b, operands, names = args
    given = dict(zip(names, (*operands, *kwargs.get("numbers", ())), strict=True))
    tensors = {"a": a, "b": b} | {name: x for name, x in given.items() if isinstance(x, torch.Tensor)}
    mesh = next(x.device_mesh for x in tensors.values() if isinstance(x, DTensor))
    tensors = {name: _distributed(name, x, mesh) for name, x in tensors.items()}
    epilogue = read_epilogue(expression)
    of_d = {name: kwargs.get(name) for name in ("out_dtype", "a_dtype", "b_dtype")}
    outs = of_epilogue(expression, a, b, given, **of_d)
    shape = outs[0].shape
    extents = _extents(tensors, epilogue)
    axes = _axes_of_d(tensors, mesh, epilogue) if extents.keys() == tensors.keys() else [None] * mesh.ndim
    with torch.no_grad():
        local = {
            name: x.redistribute(mesh, _placements(axes, along(extents.get(name, ()), shape, x.ndim))).to_local()
            for name, x in tensors.items()
        }
        made = operator(expression, local["a"], local["b"], [local[x] for x in names if x in local], names, **kwargs)
        placements = [_placements(axes, partial(_of_output, x, shape)) for x in (None, *epilogue.outputs)]
        return [
            DTensor.from_local(x, mesh, placed, run_check=False, shape=torch.Size(out.shape), stride=_packed(out.shape))
            for x, placed, out in zip(made, placements, outs, strict=True)
        ]


def _distributed(name: str, x: torch.Tensor, mesh: Any) -> Any:
    if isinstance(x, DTensor):
        return x
    if x.numel() == 1:
        return DTensor.from_local(x, mesh, [Replicate()] * mesh.ndim, run_check=False)
    raise OperandError(
        f"{name} {tuple(x.shape)} is no DTensor, and others are: pass distribute_tensor({name}, mesh, placements)"
    )


def _extents(tensors: Mapping[str, Any], epilogue: Epilogue) -> dict[str, Extents]:
    """Of tensors that go with D, their extents along its axes. None of scales of blocks, and of what tells groups
    apart, beside which no shards can be told."""
    a, b = tensors["a"], tensors["b"]
    found: dict[str, Extents] = {"a": (*a.shape[:-1], 1), "b": (*b.shape[:-2], 1, b.shape[-1])}
    kinds = {x.name: x.kind for x in epilogue.operands} | {"c": "matrix"}
    for name in tensors.keys() & kinds.keys():
        own = tuple(tensors[name].shape)
        found[name] = {
            "matrix": own,
            "row": (*own, 1),
            "column": (*own[:-1], 1, *own[-1:]),
            "batch": (*own, 1, 1),
            "scalar": (),
        }[kinds[name]]
    return found


def _axes_of_d(tensors: Mapping[str, Any], mesh: Any, epilogue: Epilogue) -> list[int | None]:
    """Which axis of D is in shards along each dimension of the mesh."""
    a, b = tensors["a"], tensors["b"]
    shape = d_shape(a, b)

    def axis(dimension: int) -> int | None:
        for x, k in ((a, a.ndim - 1), (b, b.ndim - 2)):
            placed = x.placements[dimension]
            if type(placed) is Shard and placed.dim != k:
                found: int = placed.dim + len(shape) - x.ndim
                pairs = epilogue.gated and found == len(shape) - 1  # columns 2 j and 2 j + 1 of B stay together
                if shape[found] > 1 and not (pairs and shape[found] % (2 * mesh.size())):
                    return found
        return None

    return [axis(dimension) for dimension in range(mesh.ndim)]


def _placements(axes: Sequence[int | None], placement: Callable[[int], Any]) -> list[Any]:
    """Placements on a mesh, along each dimension of which an axis of D is in shards, or none."""
    return [Replicate() if axis is None else placement(axis) for axis in axes]


def _of_output(output: Assignment | None, shape: Extents, axis: int) -> Any:
    """Placement of D, of None, or of what an expression writes beside it: in shards as D is, or, of what is made of
    elements along the axis of shards, parts of a sum, or of a greatest or least value."""
    behind = axis - (len(shape) - 2)  # 0 for rows, 1 for columns, less for batch extents
    if output is None or output.kind == "matrix" or (behind < 0 and output.kind != "scalar"):
        return Shard(axis)
    if (output.kind, behind) in (("row", 0), ("column", 1)):
        return Shard(len(shape) - 2)  # the last axis of both, behind those of the batch
    return Partial(output.role)


def _packed(shape: Extents) -> Extents:
    strides: Extents = torch.empty(shape, device="meta").stride()
    return strides


torch.library.register_torch_dispatch("gemmill::epilogue", DTensor, dispatch, lib=LIBRARY)
