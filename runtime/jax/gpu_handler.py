"""The handler on a GPU, which launches a kernel on XLA's stream with the arrays of a call frame.

gemmill prepares a call when JAX traces it. If another process traced the call, gemmill compiles the kernel when XLA
creates or loads the program, and loads it at the first execution. XLA may then be capturing its stream into a command
buffer. Loading uses no stream, so gemmill loads during the capture, in CUDA's relaxed mode. Handlers for the stages
before each execution would double the cost of each call, so there are none.
"""

from __future__ import annotations

import functools
import threading
from typing import NamedTuple

from gemmill.library.decompositions.workspace_layout import WorkspaceSize
from gemmill.library.dtypes import DTYPES
from gemmill.library.errors import OperandError
from gemmill.library.legality.quantities import TMA_ALIGN
from gemmill.runtime.api import caches
from gemmill.runtime.api.prepare import prepare
from gemmill.runtime.jax import ffi
from gemmill.runtime.jax.description import Array, Description, abstract_call, read, results
from gemmill.runtime.launch.launcher import Launcher, Launches, PreparedCall
from gemmill.runtime.launch.workspace import lent, while_capturing
from gemmill.runtime.operands.call import GemmCall


class ReadyCall(NamedTuple):
    """A prepared call, whose launch needs only addresses and a stream."""

    launcher: Launches
    places: tuple[int, ...]
    """The result of :func:`places_of` for the call."""
    scratch: WorkspaceSize | None
    """The workspace that XLA allocated as the last array; None if the call needs none."""


_ready: functools._lru_cache_wrapper[caches.Entry[ReadyCall]] = caches.entries()
_lock = threading.Lock()


def launch(frame: ffi.Frame) -> None:
    """Launch the call of a frame. In the stage INSTANTIATE, only compile its kernel."""
    if frame.stage == ffi.INSTANTIATE:
        if (kernel := read(frame.text).keywords.get("kernel")) is not None:
            caches.default_registry().get(kernel)
        return
    device, addresses = frame.device, (0, *[x.address for x in frame.buffers])
    ready, stream = _ready_call(frame, device), frame.stream
    wanted = tuple([addresses[place] for place in ready.places])
    if ready.scratch is None:
        ready.launcher.launch(stream, wanted)
    else:
        with lent(device, stream, addresses[-1], ready.scratch):
            ready.launcher.launch(stream, wanted)


def _ready_call(frame: ffi.Frame, device: int) -> ReadyCall:
    entry = _ready((frame.text, device, *[(x.dtype, x.dims, x.address % TMA_ALIGN) for x in frame.buffers]))
    ready = entry.value
    if ready is None:
        with _lock:
            ready = entry.value = entry.value or _prepared_call(read(frame.text), frame.buffers, device)
    return ready


def load(call: GemmCall) -> PreparedCall:
    """Prepare a call on its GPU, also while a stream is being captured there."""
    with while_capturing():
        return prepare(call)


def scratch_of(prepared: PreparedCall) -> WorkspaceSize:
    """The workspace of a call's launches, in bytes."""
    launcher = getattr(prepared.launcher, "each", prepared.launcher)
    return launcher.workspace if isinstance(launcher, Launcher) else WorkspaceSize(0, 0)


def places_of(description: Description, call: GemmCall) -> tuple[int, ...]:
    """For each address of a launch, the position of its operand or result, counted from 1; 0 for none."""
    # The address of D is that of the result, also if an operand provides its memory.
    names = ["" if name == "out" else name for name in description.operands] + [*description.results]
    at = {name: place for place, name in enumerate(names, 1)}
    return tuple(at.get(name, 0) if name else 0 for name in call.places)


def arrays_of(description: Description, buffers: list[ffi.Buffer]) -> list[Array]:
    """Shapes and dtypes of a call's operands. Raises OperandError if the arrays do not match the description."""
    result_names, scratch = description.results, any(description.scratch)
    names = (*description.operands, *result_names, *(("scratch",) if scratch else ()))
    if len(buffers) != len(names):
        raise OperandError(f"the call has {len(buffers)} arrays; expected {len(names)}: {', '.join(names)}")
    arrays = [_array(name, buffer) for name, buffer in zip(names, buffers, strict=True)]
    operands, outputs = arrays[: len(description.operands)], arrays[len(description.operands) :]
    expected_results = results(description, operands)
    for name, array, result in zip(result_names, outputs, expected_results, strict=False):
        if array != (expected := Array(result.shape, result.numpy)):
            raise OperandError(f"{name} is {array.dtype} {array.shape}; it must be {expected.dtype} {expected.shape}")
    return operands


def _array(name: str, buffer: ffi.Buffer) -> Array:
    table = {ffi.S64: "int64", ffi.U32: "uint32"}
    if (dtype := table.get(buffer.dtype)) is None:
        name_of_dtype = ffi.DTYPE_CODES.get(buffer.dtype)
        if name_of_dtype is None:
            raise OperandError(f"{name} has XLA's dtype {buffer.dtype}, which gemmill does not support")
        dtype = DTYPES[name_of_dtype].torch
    return Array(buffer.shape, dtype)


def _prepared_call(description: Description, buffers: list[ffi.Buffer], device: int) -> ReadyCall:
    arrays = arrays_of(description, buffers)
    aligns = [x.address % TMA_ALIGN for x in buffers[: len(arrays) + len(description.results)]]
    call = abstract_call(description, arrays, aligns, device)
    prepared = load(call)
    scratch = description.scratch if any(description.scratch) else None
    return ReadyCall(prepared.launcher, places_of(description, call), scratch)
