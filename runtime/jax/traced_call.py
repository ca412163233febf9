"""A described call as a primitive of JAX, whose kernel is selected and compiled when JAX traces it; and its batches.

A batch of calls is one launch if the batch can be another extent of D; otherwise the calls run one after the other.
Kernels read arrays that are not batched with stride 0.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import jax
from jax import numpy as jnp
from jax.extend.core import Primitive
from jax.interpreters import ad, batching, mlir

from gemmill.library.epilogues.grammar import SCALES
from gemmill.library.errors import OperandError
from gemmill.runtime.api.prepare import kernel_for
from gemmill.runtime.jax import cpu_handler, ffi, gpu_handler
from gemmill.runtime.jax.derivative import Derivative, tangents_of
from gemmill.runtime.jax.description import Array, Description, abstract_call, read, results, written
from gemmill.runtime.jax.mesh_axes import axes_of, spread, types_of
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
    axes = axes_of(*map(jax.typeof, arrays))
    shapes = [Array.of(name, x) for name, x in zip(description.operands, arrays, strict=True)]
    _check_memory(description, shapes)
    call = written(_chosen(description, shapes))
    outputs: Arrays = tuple(_gemm.bind(*(spread(x, axes) for x in arrays), asked=description, call=call))
    return outputs


_gemm = Primitive("gemmill_gemm")
"""A described call. ``asked`` is the caller's description; ``call`` is the text for the handler, with the kernel."""
_gemm.multiple_results = True


def _make_call(*arrays: jax.Array, asked: Description, call: str) -> Arrays:
    """Make one foreign call of XLA."""
    shapes = [Array.of(name, x) for name, x in zip(asked.operands, arrays, strict=True)]
    outputs = results(asked, shapes)
    result_types = [jax.ShapeDtypeStruct(x.shape, x.numpy) for x in outputs]
    if any(scratch := read(call.encode()).scratch):
        result_types.append(jax.ShapeDtypeStruct((lent_bytes(scratch),), "uint8"))
    names, memory = asked.operands, _memory(asked)
    called = jax.ffi.ffi_call(
        ffi.TARGET,
        tuple(result_types),
        vmap_method="sequential",
        input_layouts=[_layout(len(x.shape), n in asked.turned) for n, x in zip(names, shapes, strict=True)],
        input_output_aliases={names.index(memory): 0} if memory else None,
    )
    computed: Arrays = called(*arrays, **{ffi.ATTRIBUTE: call})
    return computed[: len(outputs)]


def _types(*types: Any, asked: Description, call: str) -> Sequence[Any]:
    outputs = results(asked, [Array.of(name, x) for name, x in zip(asked.operands, types, strict=True)])
    return types_of([(x.shape, x.numpy) for x in outputs], axes_of(*types))


def _jvp(primals: Arrays, tangents: Arrays, *, asked: Description, call: str) -> tuple[Any, Any]:
    outputs = _gemm.bind(*primals, asked=asked, call=call)
    return outputs, tangents_of(run, asked, primals, tangents, outputs)


def _transpose(cotangents: Sequence[Any], *arrays: Any, asked: Description, call: str) -> Sequence[Any]:
    """For ``jax.linear_transpose``. JAX transposes derivatives by their own rule."""
    names = tuple(name for name, x in zip(asked.operands, arrays, strict=True) if ad.is_undefined_primal(x))
    if "epilogue" in asked.keywords or not ({*names} <= {"a", "c"} or {*names} <= {"b", "c"}):
        raise OperandError(
            f"the call is not known to be linear in {', '.join(names)}; jax.linear_transpose takes A or B of a call "
            "without an epilogue, and its C: use jax.vjp"
        )
    known = tuple(jnp.zeros(x.aval.shape, x.aval.dtype) if ad.is_undefined_primal(x) else x for x in arrays)
    of_names = Derivative(run, asked, names).transpose(known, tuple(map(ad.instantiate_zeros, cotangents)))
    gradients = dict(zip(names, of_names, strict=True))
    return [gradients.get(name) for name in asked.operands]


def _batched(arrays: Arrays, axes: Sequence[int | None], *, asked: Description, call: str) -> tuple[Any, Any]:
    """The kernel of a batched launch is selected for the whole batch."""
    size = next(x.shape[axis] for x, axis in zip(arrays, axes, strict=True) if axis is not None)
    in_front = [x if axis is None else jnp.moveaxis(x, axis, 0) for x, axis in zip(arrays, axes, strict=True)]
    outputs = batched(run, asked, size, [axis is not None for axis in axes], in_front)
    return outputs, [0] * len(outputs)


_gemm.def_impl(_make_call)
_gemm.def_abstract_eval(_types)
ad.primitive_jvps[_gemm] = _jvp
ad.primitive_transposes[_gemm] = _transpose
batching.primitive_batchers[_gemm] = _batched
mlir.register_lowering(_gemm, mlir.lower_fun(_make_call, multiple_results=True))


def _memory(description: Description) -> str | None:
    """The operand in whose memory D is written, if any."""
    return "c" if description.into_c else "out" if "out" in description.operands else None


def _check_memory(description: Description, shapes: Sequence[Array]) -> None:
    """Raise OperandError unless this operand is like D."""
    name, d = _memory(description), results(description, shapes)[0]
    if name and (memory := shapes[description.operands.index(name)]) != Array(d.shape, d.numpy):
        raise OperandError(f"out is {memory.dtype} {memory.shape}; it must be like D, {d.numpy} {d.shape}")


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


ffi.register("CUDA", gpu_handler.launch)
ffi.register("cpu", cpu_handler.launch)
