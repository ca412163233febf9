"""What computes a call that is served: a kernel, launched on the tensors of the call."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch

from gemmill.library.config.edited import plain_name
from gemmill.library.config.names import parse_name
from gemmill.runtime.api.grouped import grouped_matmul
from gemmill.runtime.api.matmul import matmul
from gemmill.runtime.api.prepare import prepare
from gemmill.runtime.api.read import Declaration
from gemmill.runtime.api.streams import allocator, torch_stream
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.gemm import Addresses
from gemmill.runtime.torch.takeover.aten import Arguments, Call, Unserved

Compute = Callable[[tuple[Any, ...]], Any]
"""D, of the tensors of a call."""
Backend = Callable[[Call, Arguments, list[str]], tuple[Compute, str]]
"""Makes a call ready, of its arguments and the names of the tensors among them: what computes it and others like it,
and the family of what that launches."""

_MATMUL, _GROUPED_MATMUL = Declaration.of(matmul), Declaration.of(grouped_matmul)
_TMA_ALIGN = 16
_address = torch.Tensor.data_ptr


def kernels(call: Call, arguments: Arguments, names: list[str]) -> tuple[Compute, str]:
    """By kernels: selected, compiled and loaded now, then nothing but an allocation and a launch."""
    if any(arguments[name].data_ptr() % _TMA_ALIGN for name in names):
        raise _unaligned()
    ours = gemm_call(call, arguments, arguments[call.out] if call.out else _empty(call, arguments[names[0]])())
    if "any" in (ours.problem.a_major, ours.problem.b_major, ours.problem.c_major, ours.problem.d_major):
        raise Unserved("contiguous along neither extent")  # which PyTorch copies first, and kernels are slow for
    prepared = prepare(ours)
    compute = launching(call, arguments[names[0]], names, ours.places, prepared.launcher.launch, torch_stream())
    return compute, "" if prepared.kernel is None else parse_name(plain_name(prepared.kernel.name)).family


def launching(
    call: Call,
    like: torch.Tensor,
    names: list[str],
    places: tuple[str, ...],
    launch: Callable[[int, Addresses], None],
    stream: Callable[[int], int],
) -> Compute:
    """What allocates a D, if none is given, and launches: an operand beside which D lies, the names of the call's
    tensors, what we call those at the addresses of a launch, a launcher and the current stream of a GPU."""
    device, empty = like.get_device(), _empty(call, like)
    places_of = {ours: names.index(theirs) for ours, theirs in call.tensors.items()} | {"out": len(names)}
    given_out = names.index(call.out) if call.out else -1
    in_order = itemgetter(*[places_of.get(place, len(names) + 1) for place in places])

    def launched(tensors: tuple[Any, ...]) -> Any:
        d = empty() if given_out < 0 else tensors[given_out]
        pointers = [*map(_address, tensors), d.data_ptr(), 0]  # the last for places that have no tensor
        bits = 0
        for pointer in pointers:
            bits |= pointer
        if bits % _TMA_ALIGN:
            raise _unaligned()
        launch(stream(device), in_order(pointers))
        return d

    return launched


def gemm_call(call: Call, arguments: Arguments, out: torch.Tensor) -> GemmCall:
    """The call of ``matmul`` or ``grouped_matmul`` that an operator stands for."""
    declaration = _GROUPED_MATMUL if call.grouped else _MATMUL
    return declaration.read({**operands_of(call, arguments), **call.values, "out": out})


def _unaligned() -> Unserved:
    return Unserved(f"an address that is not aligned to {_TMA_ALIGN} bytes", always=False)


def operands_of(call: Call, arguments: Arguments) -> dict[str, Any]:
    """The tensors of a call by the names that ``matmul`` has for them, a bias as a vector."""
    operands = {ours: arguments[theirs] for ours, theirs in call.tensors.items()}
    if "bias" in operands:
        operands["bias"] = operands["bias"][(0,) * (operands["bias"].dim() - 1)]
    return operands


def _empty(call: Call, like: torch.Tensor) -> Callable[[], torch.Tensor]:
    return allocator(call.shape, call.strides, call.dtype, like)
