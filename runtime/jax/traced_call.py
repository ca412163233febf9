"""Traces a described call with JAX: selects and compiles its kernel, and defines ``vmap`` and gradients.

A batch of calls is one launch if the batch can be another extent of D; otherwise the calls run one after the other.
Kernels read arrays that are not batched with stride 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

import jax
from jax import numpy as jnp
from jax.custom_batching import custom_vmap

from gemmill.library.epilogues.grammar import SCALES
from gemmill.library.errors import OperandError
from gemmill.runtime.api.prepare import kernel_for
from gemmill.runtime.jax import cpu_handler, ffi, gpu_handler, gradients
from gemmill.runtime.jax.description import Array, Description, abstract_call, results, written
from gemmill.runtime.launch.workspace import lent_bytes


def batched(
    run: Callable[..., tuple[Any, ...]],
    description: Description,
    size: int,
    are_batched: Sequence[bool],
    arrays: Sequence[jax.Array],
) -> tuple[Any, ...]:
    """The outputs of a batch of calls, with the batch as the first extent."""
    names = description.operands
    kinds = {x.name: x.kind for x in description.epilogue.operands}
    together = not description.groups and all(x.kind != "scalar" for x in description.epilogue.outputs)
    if not together or any(y and kinds.get(name) == "scalar" for name, y in zip(names, are_batched, strict=True)):
        return _one_by_one(run, description, are_batched, arrays)
    unbatched = [Array.of(n, x)._replace(shape=x.shape[y:]) for n, x, y in zip(names, arrays, are_batched, strict=True)]
    rank = len(results(description, unbatched)[0].shape)
    operands: dict[str, Any] = {}
    for name, array, x, is_batched in zip(names, arrays, unbatched, are_batched, strict=True):
        kind = "matrix" if name in SCALES and len(x.shape) > 1 else kinds.get(name, "matrix")
        inner = {"row": 1, "column": 1, "batch": 0}.get(kind, 2)
        operands[name] = _behind(array, rank - 2 + inner) if is_batched else array
    if not (are_batched[0] or are_batched[1]):  # A or B must have the batch of D
        operands["a"] = jnp.broadcast_to(
            operands["a"], (size, *(1,) * (rank - len(unbatched[0].shape)), *unbatched[0].shape)
        )
    if "out" in operands and not are_batched[names.index("out")]:
        del operands["out"]  # it has memory for only one of the calls
        description = description.without("out")
    if description.into_c and not are_batched[names.index("c")]:
        operands["c"] = jnp.broadcast_to(operands["c"], (size, *operands["c"].shape))
    return run(description, *operands.values())


def _behind(array: jax.Array, rank: int) -> jax.Array:
    """Insert extents of 1 after the batch, so that ``rank`` extents follow it."""
    return array.reshape(array.shape[0], *(1,) * (rank + 1 - array.ndim), *array.shape[1:])


def _one_by_one(
    run: Callable[..., tuple[Any, ...]],
    description: Description,
    are_batched: Sequence[bool],
    arrays: Sequence[jax.Array],
) -> tuple[Any, ...]:
    def one(some: list[jax.Array]) -> tuple[Any, ...]:
        left = iter(some)
        return run(description, *(next(left) if y else x for x, y in zip(arrays, are_batched, strict=True)))

    stacked: tuple[Any, ...] = jax.lax.map(one, [x for x, y in zip(arrays, are_batched, strict=True) if y])
    return stacked


Arrays = tuple[Any, ...]


@partial(jax.jit, static_argnums=0, inline=True)
def run(description: Description, *arrays: jax.Array) -> Arrays:
    """Compute D and the further outputs. The function is jitted for eager calls: JAX traces a description with the same
    shapes, and gemmill selects its kernel, only once."""
    axes = frozenset[str]().union(*(_varying(x) for x in arrays))
    outputs: Arrays = _differentiable(description, *(_spread(x, axes) for x in arrays))
    return outputs


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def _differentiable(description: Description, *arrays: jax.Array) -> Arrays:
    outputs: Arrays = _batchable(description)(*arrays)
    return outputs


def _forward(description: Description, *arrays: jax.Array) -> tuple[Arrays, Arrays]:
    return run(description, *arrays), arrays


def _backward(description: Description, arrays: Arrays, of_results: Sequence[jax.Array]) -> Arrays:
    of_operands: Arrays = gradients.backward(run, description, arrays, tuple(of_results))
    return of_operands


_differentiable.defvjp(_forward, _backward)


@lru_cache(1024)
def _batchable(description: Description) -> Any:
    """The call as a function with a rule for ``vmap``. The kernel of a batched launch is selected for the whole
    batch."""
    call = custom_vmap(partial(_trace, description))

    def rule(size: int, are_batched: Sequence[bool], *arrays: jax.Array) -> tuple[Arrays, tuple[bool, ...]]:
        outputs = batched(run, description, size, are_batched, arrays)
        return outputs, (True,) * len(outputs)

    call.def_vmap(rule)
    return call


def _trace(description: Description, *arrays: jax.Array) -> Arrays:
    """Make one foreign call of XLA."""
    shapes = [Array.of(name, x) for name, x in zip(description.operands, arrays, strict=True)]
    outputs = results(description, shapes)
    into = "c" if description.into_c else "out" if "out" in description.operands else None
    if into and (memory := shapes[description.operands.index(into)]) != (
        d := Array(outputs[0].shape, outputs[0].numpy)
    ):
        raise OperandError(f"out is {memory.dtype} {memory.shape}; it must be like D, {d.dtype} {d.shape}")
    described = _chosen(description, shapes)
    result_types = [jax.ShapeDtypeStruct(x.shape, x.numpy) for x in outputs]
    if any(described.scratch):
        result_types.append(jax.ShapeDtypeStruct((lent_bytes(described.scratch),), "uint8"))
    names = described.operands
    called = jax.ffi.ffi_call(
        ffi.TARGET,
        tuple(result_types),
        vmap_method="sequential",
        input_layouts=[_layout(len(x.shape), n in described.turned) for n, x in zip(names, shapes, strict=True)],
        input_output_aliases={names.index(into): 0} if into else None,
    )
    computed = called(*arrays, **{ffi.ATTRIBUTE: written(described)})[: len(outputs)]
    axes = _varying(arrays[0])
    return tuple(_spread(x, axes) for x in computed)


def _chosen(description: Description, shapes: Sequence[Array]) -> Description:
    """The description with the name of its kernel. If JAX runs on GPUs, gemmill also compiles and loads the kernel, and
    the description has the size of its workspace. With symbolic extents the handler selects the kernel at run time."""
    if any(not isinstance(extent, int) for x in shapes for extent in x.shape):
        return description.but(explain=None)
    kernel = kernel_for(abstract_call(description, shapes))
    named = description if kernel is None else description.but(kernel=kernel.name, slices=kernel.slices)
    if jax.default_backend() == "gpu":
        named = named._replace(scratch=gpu_handler.scratch_of(gpu_handler.load(abstract_call(named, shapes))))
    return named.but(explain=None)


def _layout(rank: int, is_turned: bool) -> tuple[int, ...]:
    """The axes from major to minor, which tell XLA the layout."""
    axes = tuple(range(rank))
    return (*axes[:-2], rank - 1, rank - 2) if is_turned else axes


def _varying(x: Any) -> frozenset[str]:
    """The axes of a mesh along which an array in ``shard_map`` may differ."""
    kind = jax.typeof(x)
    named = getattr(kind, "manual_axis_type", None)  # since JAX 0.10
    axes: frozenset[str] = getattr(kind, "vma", frozenset()) if named is None else named.varying
    return axes


def _spread(x: Any, axes: frozenset[str]) -> Any:
    """Mark an array as varying along these axes of a mesh."""
    missing = tuple(axes - _varying(x))
    return jax.lax.pcast(x, missing, to="varying") if missing else x


ffi.register("CUDA", gpu_handler.launch)
ffi.register("cpu", cpu_handler.launch)
