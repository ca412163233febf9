"""The operators on PyTorch's DTensors: each process computes a shard of D from its shards of the operands.

For each dimension of the mesh, D is sharded as the larger of A and B is; if that one is not sharded along an axis of D,
as the other is. If A or B is sharded along K, each process holds partial sums of D. In all other cases D is replicated.
Operands with other placements are redistributed first.

DTensor's sharding rules (``register_sharding``) do not support operators that return lists, so this module replaces
DTensor's dispatch of the operators when it is imported. It imports ``torch.distributed.tensor``; gemmill imports it
only after the program has done so (:func:`gemmill.runtime.torch.gradients.autograd.shard`).
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
"""The axis that a dimension of a mesh shards: an axis of D, K, or None."""
_WITH_ROWS = ("a_scale", "a_zero", "c")
"""Tensors that may have a value for each row of A."""


def dispatch(_: Any, operator: Any, __: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    """Compute a call with DTensors. Raises OperandError if another tensor of several elements is not a DTensor."""
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
    if epilogue.gates_halves:  # a shard of columns has parts of one half
        allowed = tuple(axis for axis in allowed if axis != len(shape) - 1)
    axes = [_axis_in_shards(tensors, i, shape, allowed, epilogue.unit_columns) for i in range(mesh.ndim)]
    with torch.no_grad():
        local = {
            name: x.redistribute(mesh, [_placement(name, x, extents, shape, axis) for axis in axes]).to_local()
            for name, x in tensors.items()
        }
        if "c" in local and any(axis == "K" and at for axis, at in zip(axes, mesh.get_coordinate(), strict=True)):
            local["c"] = torch.zeros_like(local["c"])  # only one of the partial sums adds C
        arguments |= {name: x for name, x in local.items() if name in arguments}
        if expression is not None:
            arguments["operands"] = [local[name] for name in arguments["names"] if name in local]
        shards = operator(*arguments.values(), **kwargs)
        placements = [[*map(partial(_of_output, x, shape), axes)] for x in (None, *epilogue.outputs)]
        distributed = [
            DTensor.from_local(x, mesh, placed, run_check=False, shape=torch.Size(out.shape), stride=_packed(out.shape))
            for x, placed, out in zip(shards if row.several else [shards], placements, outs, strict=True)
        ]
    return distributed if row.several else distributed[0]


def _distributed(name: str, x: torch.Tensor, mesh: Any) -> Any:
    if isinstance(x, DTensor):
        return x
    if x.numel() == 1:
        return DTensor.from_local(x, mesh, [Replicate()] * mesh.ndim, run_check=False)
    raise OperandError(
        f"{name} {tuple(x.shape)} is not a DTensor but other tensors are; all must be: pass "
        f"distribute_tensor({name}, mesh, placements)"
    )


def _extents(tensors: Mapping[str, Any], epilogue: Epilogue, shape: Extents) -> dict[str, Extents]:
    """The extents of tensors along D's axes. Scales of blocks or of groups along K, zero points, offsets and counts
    have no such extents and are left out."""
    a, b = tensors["a"], tensors["b"]
    extents: dict[str, Extents] = {"a": (*a.shape[:-1], 1), "b": (*b.shape[:-2], 1, b.shape[-1])}
    kinds = {x.name: x.kind for x in epilogue.operands} | {"c": "matrix"}
    kinds |= {x: "matrix" for x in SCALES if x not in kinds and x in tensors and _broadcasts(tensors[x].shape, shape)}
    for name in tensors.keys() & kinds.keys():
        operand_shape = tuple(tensors[name].shape)
        extents[name] = {
            "matrix": operand_shape,
            "row": (*operand_shape, 1),
            "column": (*operand_shape[:-1], 1, *operand_shape[-1:]),
            "batch": (*operand_shape, 1, 1),
            "scalar": (),
        }[kinds[name]]
    return extents


def _axes_of_products(
    tensors: Mapping[str, Any], extents: dict[str, Extents], shape: Extents, is_narrow: bool
) -> tuple[tuple[Axis, ...], dict[str, Extents]]:
    """The axes along which a product without an expression can be sharded, and its tensors' extents along D's axes.

    Groups of rows can be sharded along columns and K. With narrow weights, or tensors without such extents, only rows
    can be sharded.
    """
    rank, m = len(shape), shape[-2]
    if not tensors.keys().isdisjoint(("offsets", "counts")):
        is_alone = tensors.keys() <= {"a", "b", "offsets", "counts"} and tensors["b"].ndim == 3
        return (rank - 1, "K") if is_alone else (), {"b": (1, 1, shape[-1])}
    if is_narrow or extents.keys() != tensors.keys():
        with_rows = [x for x in _WITH_ROWS if x in tensors and tensors[x].ndim == 2 and tensors[x].shape[0] == m]
        return (0,) if rank == 2 else (), dict.fromkeys(("a", *with_rows), (m, 1))
    if "c" in tensors and not tensors.keys().isdisjoint(SCALES):  # scales multiply partial sums, C is added once
        return tuple(range(rank)), extents
    return (*range(rank), "K"), extents


def _axis_in_shards(
    tensors: Mapping[str, Any], dimension: int, shape: Extents, allowed: Sequence[Axis], unit_columns: int
) -> Axis:
    """The axis that one dimension of the mesh shards."""
    a, b = tensors["a"], tensors["b"]
    factors = sorted([(a, a.ndim - 1), (b, b.ndim - 2)], key=lambda factor: factor[0].numel(), reverse=True)
    placed = [(x, k, x.placements[dimension]) for x, k in factors]
    shards = [(x, k, placement.dim) for x, k, placement in placed if type(placement) is Shard]
    for x, k, place in shards:
        axis: int = place + len(shape) - x.ndim
        if place == k or axis not in allowed or shape[axis] == 1:
            continue
        unit = unit_columns if axis == len(shape) - 1 else 1  # columns of B that stay together
        if unit == 1 or shape[axis] % (unit * x.device_mesh.size()) == 0:
            return axis
    return "K" if "K" in allowed and any(place == k for _, k, place in shards) else None


def _placement(name: str, x: Any, extents: Mapping[str, Extents], shape: Extents, axis: Axis) -> Any:
    """The placement that an operand needs along one dimension of the mesh."""
    if axis == "K":
        return {"a": Shard(x.ndim - 1), "b": Shard(x.ndim - 2)}.get(name, Replicate())
    along_d = extents.get(name, ())
    at = -1 if axis is None else axis - len(shape) + len(along_d)
    return Shard(min(at, x.ndim - 1)) if at >= 0 and along_d[at] != 1 else Replicate()


def _of_output(output: Assignment | None, shape: Extents, axis: Axis) -> Any:
    """The placement of D (``output`` is None) or of a further output of an expression.

    A further output is sharded as D is. If it reduces D along the sharded axis, it is a partial sum, maximum or
    minimum.
    """
    if axis is None:
        return Replicate()
    if axis == "K":
        return Partial()
    behind = axis - (len(shape) - 2)  # 0 for rows, 1 for columns, negative for batch extents
    if output is None or output.kind in ("matrix", "block") or (behind < 0 and output.kind != "scalar"):
        return Shard(axis)
    if (output.kind, behind) in (("row", 0), ("column", 1)):
        return Shard(len(shape) - 2)  # the last axis of both, after the batch axes
    return Partial(output.role)


def _broadcasts(scale: Extents, shape: Extents) -> bool:
    """Whether a scale has one value for all of D, for each row, or for each column."""
    padded = (*[1] * (len(shape) - len(scale)), *scale)
    return 1 in padded[-2:] and all(x in (1, extent) for x, extent in zip(padded, shape, strict=True))


def _packed(shape: Extents) -> Extents:
    strides: Extents = torch.empty(shape, device="meta").stride()
    return strides


for _name in OPERATORS:
    torch.library.register_torch_dispatch(f"gemmill::{_name}", DTensor, dispatch, lib=LIBRARY)
