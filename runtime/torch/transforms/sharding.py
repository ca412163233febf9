"""Operators on PyTorch's DTensors: each process computes the shard of D that its shards of the operands give.

Along each dimension of a mesh D is in shards as the larger of A and B is, else as the other is. Where one is in shards
along K, processes hold parts of D's sums. Otherwise all is whole. What lies otherwise is sent.

DTensor's own rules of placements (``register_sharding``) take no operator that returns a list, so this takes the place
of its dispatch. Importing the module does so. It imports ``torch.distributed.tensor``, and is therefore imported where
a program has done that (:func:`gemmill.runtime.torch.gradients.autograd.shard`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

from gemmill.library.epilogues.grammar import SCALES
from gemmill.library.epilogues.parse import PLAIN
from gemmill.library.epilogues.tree import Assignment, Epilogue
from gemmill.library.errors import OperandError
from gemmill.runtime.operands.epilogue_arguments import read_epilogue
from gemmill.runtime.torch.operators import LIBRARY, OPERATORS

Extents = tuple[int, ...]
Axis = int | Literal["K"] | None
"""What is in shards along a dimension of a mesh: an axis of D, K, or nothing."""
_WITH_ROWS = ("a_scale", "a_zero", "c")
"""Tensors that may have the rows of A."""


def dispatch(_: Any, operator: Any, __: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """A call in which a tensor is a DTensor; OperandError where another of several elements is none."""
    schema = operator._schema
    row = OPERATORS[schema.name.partition("::")[2]]
    arguments = dict(zip((x.name for x in schema.arguments), args, strict=False))
    outs = row.outputs(**arguments, **kwargs)
    shape = outs[0].shape
    tensors = {name: x for name, x in arguments.items() if isinstance(x, torch.Tensor)}
    tensors |= zip(arguments.get("names", ()), arguments.get("operands", ()), strict=False)
    mesh = next(x.device_mesh for x in tensors.values() if isinstance(x, DTensor))
    tensors = {name: _distributed(name, x, mesh) for name, x in tensors.items()}
    expression = arguments.get("expression")
    epilogue = PLAIN if expression is None else read_epilogue(expression)
    extents = _extents(tensors, epilogue, shape)
    if expression is not None:
        allowed: tuple[Axis, ...] = tuple(range(len(shape))) if extents.keys() == tensors.keys() else ()
    else:
        allowed, extents = _axes_of_products(tensors, extents, shape, "b_dtype" in kwargs)
    axes = [_axis_in_shards(tensors, i, shape, allowed, epilogue.gated) for i in range(mesh.ndim)]
    with torch.no_grad():
        local = {
            name: x.redistribute(mesh, [_placement(name, x, extents, shape, axis) for axis in axes]).to_local()
            for name, x in tensors.items()
        }
        if "c" in local and any(axis == "K" and at for axis, at in zip(axes, mesh.get_coordinate(), strict=True)):
            local["c"] = torch.zeros_like(local["c"])  # one of the parts of a sum has C
        arguments |= {name: x for name, x in local.items() if name in arguments}
        if expression is not None:
            arguments["operands"] = [local[name] for name in arguments["names"] if name in local]
        made = operator(*arguments.values(), **kwargs)
        placements = [[*map(partial(_of_output, x, shape), axes)] for x in (None, *epilogue.outputs)]
        distributed = [
            DTensor.from_local(x, mesh, placed, run_check=False, shape=torch.Size(out.shape), stride=_packed(out.shape))
            for x, placed, out in zip(made if row.several else [made], placements, outs, strict=True)
        ]
    return distributed if row.several else distributed[0]


def _distributed(name: str, x: torch.Tensor, mesh: Any) -> Any:
    if isinstance(x, DTensor):
        return x
    if x.numel() == 1:
        return DTensor.from_local(x, mesh, [Replicate()] * mesh.ndim, run_check=False)
    raise OperandError(
        f"{name} {tuple(x.shape)} is no DTensor, and others are: pass distribute_tensor({name}, mesh, placements)"
    )


def _extents(tensors: Mapping[str, Any], epilogue: Epilogue, shape: Extents) -> dict[str, Extents]:
    """The extents of tensors along D's axes. None of scales of blocks or of groups along K, of zero points, and of what
    tells groups apart."""
    a, b = tensors["a"], tensors["b"]
    extents: dict[str, Extents] = {"a": (*a.shape[:-1], 1), "b": (*b.shape[:-2], 1, b.shape[-1])}
    kinds = {x.name: x.kind for x in epilogue.operands} | {"c": "matrix"}
    kinds |= {x: "matrix" for x in SCALES if x not in kinds and x in tensors and _broadcasts(tensors[x].shape, shape)}
    for name in tensors.keys() & kinds.keys():
        own_shape = tuple(tensors[name].shape)
        extents[name] = {
            "matrix": own_shape,
            "row": (*own_shape, 1),
            "column": (*own_shape[:-1], 1, *own_shape[-1:]),
            "batch": (*own_shape, 1, 1),
            "scalar": (),
        }[kinds[name]]
    return extents


def _axes_of_products(
    tensors: Mapping[str, Any], extents: dict[str, Extents], shape: Extents, is_narrow: bool
) -> tuple[tuple[Axis, ...], dict[str, Extents]]:
    """What of a product without an expression may be in shards, and the extents of its tensors along D's axes: of
    groups of rows columns and K; beside what has no such extents, and of narrow weights, rows."""
    rank, m = len(shape), shape[-2]
    if not tensors.keys().isdisjoint(("offsets", "counts")):
        is_alone = tensors.keys() <= {"a", "b", "offsets", "counts"} and tensors["b"].ndim == 3
        return (rank - 1, "K") if is_alone else (), {"b": (1, 1, shape[-1])}
    if is_narrow or extents.keys() != tensors.keys():
        with_rows = [x for x in _WITH_ROWS if x in tensors and tensors[x].ndim == 2 and tensors[x].shape[0] == m]
        return (0,) if rank == 2 else (), dict.fromkeys(("a", *with_rows), (m, 1))
    if "c" in tensors and not tensors.keys().isdisjoint(SCALES):  # parts of sums are scaled, and C is added once
        return tuple(range(rank)), extents
    return (*range(rank), "K"), extents


def _axis_in_shards(
    tensors: Mapping[str, Any], dimension: int, shape: Extents, allowed: Sequence[Axis], gated: bool
) -> Axis:
    """What is in shards along a dimension of the mesh."""
    a, b = tensors["a"], tensors["b"]
    factors = sorted([(a, a.ndim - 1), (b, b.ndim - 2)], key=lambda factor: factor[0].numel(), reverse=True)
    placed = [(x, k, x.placements[dimension]) for x, k in factors]
    shards = [(x, k, placement.dim) for x, k, placement in placed if type(placement) is Shard]
    for x, k, place in shards:
        axis: int = place + len(shape) - x.ndim
        if place == k or axis not in allowed or shape[axis] == 1:
            continue
        is_of_pairs = gated and axis == len(shape) - 1  # columns 2 j and 2 j + 1 of B stay together
        if not (is_of_pairs and shape[axis] % (2 * x.device_mesh.size())):
            return axis
    return "K" if "K" in allowed and any(place == k for _, k, place in shards) else None


def _placement(name: str, x: Any, extents: Mapping[str, Extents], shape: Extents, axis: Axis) -> Any:
    """Placement of an operand along a dimension of a mesh."""
    if axis == "K":
        return {"a": Shard(x.ndim - 1), "b": Shard(x.ndim - 2)}.get(name, Replicate())
    along_d = extents.get(name, ())
    at = -1 if axis is None else axis - len(shape) + len(along_d)
    return Shard(min(at, x.ndim - 1)) if at >= 0 and along_d[at] != 1 else Replicate()


def _of_output(output: Assignment | None, shape: Extents, axis: Axis) -> Any:
    """Placement of D, of None, or of what an expression writes beside it: in shards as D is, or, of what is made of
    elements along the axis of shards, parts of a sum, or of a greatest or least value."""
    if axis is None:
        return Replicate()
    if axis == "K":
        return Partial()
    behind = axis - (len(shape) - 2)  # 0 for rows, 1 for columns, less for batch extents
    if output is None or output.kind == "matrix" or (behind < 0 and output.kind != "scalar"):
        return Shard(axis)
    if (output.kind, behind) in (("row", 0), ("column", 1)):
        return Shard(len(shape) - 2)  # the last axis of both, behind those of the batch
    return Partial(output.role)


def _broadcasts(scale: Extents, shape: Extents) -> bool:
    """Whether scales are one for all, one for each row, or one for each column."""
    padded = (*[1] * (len(shape) - len(scale)), *scale)
    return 1 in padded[-2:] and all(x in (1, extent) for x, extent in zip(padded, shape, strict=True))


def _packed(shape: Extents) -> Extents:
    strides: Extents = torch.empty(shape, device="meta").stride()
    return strides


for _name in OPERATORS:
    torch.library.register_torch_dispatch(f"gemmill::{_name}", DTensor, dispatch, lib=LIBRARY)
