"""Prepares an overridden call: selects and loads its kernel, and makes the function that launches it."""

from __future__ import annotations

from collections.abc import Callable
from operator import itemgetter
from typing import Any

import torch

from gemmill.library.config.edited import plain_name
from gemmill.library.config.names import parse_name
from gemmill.library.dtypes import SPLIT
from gemmill.runtime.api.grouped import grouped_matmul
from gemmill.runtime.api.matmul import matmul
from gemmill.runtime.api.prepare import prepare
from gemmill.runtime.api.read import Declaration
from gemmill.runtime.api.streams import allocator, torch_stream
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.gemm import Addresses
from gemmill.runtime.torch.launches import AT_KERNEL
from gemmill.runtime.torch.takeover.aten import Arguments, Call, Unserved

Compute = Callable[[tuple[Any, ...]], Any]
"""Computes D from the tensors of a call."""
Backend = Callable[[Call, Arguments, list[str]], tuple[Compute, str]]
"""Prepares a call, given its arguments and the names of the tensors among them. Returns the function that computes this
call and all others with its signature, and the family of the kernel."""

_MATMUL, _GROUPED_MATMUL = Declaration.of(matmul), Declaration.of(grouped_matmul)
_TMA_ALIGN = 16
_address = torch.Tensor.data_ptr


def kernels(call: Call, arguments: Arguments, names: list[str]) -> tuple[Compute, str]:
    """Select, compile and load a kernel now; later calls only allocate D and launch. Raises :class:`Unserved`."""
    like, is_promised = arguments[names[0]], "bits" in call.values
    takes_unaligned = is_promised or call.values.get("precision") in SPLIT  # splitting reads any address
    unaligned = _by_matmul(call, like, names) if takes_unaligned else _refuse_unaligned
    if any(arguments[name].data_ptr() % _TMA_ALIGN for name in names):
        if takes_unaligned:
            return unaligned, "any alignment"
        raise _unaligned()
    gemm = gemm_call(call, arguments, arguments[call.out] if call.out else _empty(call, like)())
    majors = gemm.problem.a_major, gemm.problem.b_major, gemm.problem.c_major, gemm.problem.d_major
    if "any" in majors and not is_promised:
        raise Unserved("a matrix is contiguous along neither extent")  # PyTorch copies it; gemmill's kernel is slower
    prepared = prepare(gemm)
    compute = launching(call, like, names, gemm.places, prepared.launcher.launch, torch_stream(), unaligned)
    return compute, "" if prepared.kernel is None else parse_name(plain_name(prepared.kernel.name)).family


def launching(
    call: Call,
    like: torch.Tensor,
    names: list[str],
    places: tuple[str, ...],
    launch: Callable[[int, Addresses], None],
    stream: Callable[[int], int],
    unaligned: Compute,
) -> Compute:
    """Make the function that allocates D, unless the caller passes one, and launches the kernel.

    Args:
        call: the translated call.
        like: an operand; D is allocated on its device.
        names: names of the call's tensors, in the order in which the function receives them.
        places: names of gemmill's operands, in the order of the addresses of a launch.
        launch: launches the kernel on a stream, with the addresses.
        stream: returns the handle of a device's current stream.
        unaligned: computes calls with an address that the kernel does not support.
    """
    device, empty = like.get_device(), _empty(call, like)
    places_of = {name: names.index(argument) for name, argument in call.tensors.items()} | {"out": len(names)}
    given_out = names.index(call.out) if call.out else -1
    in_order = itemgetter(*[places_of.get(place, len(names) + 1) for place in places])

    def launched(tensors: tuple[Any, ...]) -> Any:
        d = empty() if given_out < 0 else tensors[given_out]
        pointers = [*map(_address, tensors), d.data_ptr(), 0]  # 0 is for places without a tensor
        bits = 0
        for pointer in pointers:
            bits |= pointer
        if bits % _TMA_ALIGN:
            return unaligned(tensors)
        launch(stream(device), in_order(pointers))
        return d

    return launched


def gemm_call(call: Call, arguments: Arguments, out: torch.Tensor) -> GemmCall:
    """The call of ``matmul`` or ``grouped_matmul``, with its tensors bound."""
    declaration = _GROUPED_MATMUL if call.grouped else _MATMUL
    return declaration.read({**operands_of(call, arguments), **call.values, "out": out})


def _unaligned() -> Unserved:
    return Unserved(f"an address is not aligned to {_TMA_ALIGN} bytes", always=False)


def _refuse_unaligned(_: tuple[Any, ...]) -> Any:
    raise _unaligned()


def _by_matmul(call: Call, like: torch.Tensor, names: list[str]) -> Compute:
    """Make the function that computes calls by ``matmul``, which supports any addresses."""
    multiply, empty = AT_KERNEL.grouped_matmul if call.grouped else AT_KERNEL.matmul, _empty(call, like)

    def computed(tensors: tuple[Any, ...]) -> Any:
        named = dict(zip(names, tensors, strict=True))
        d = named[call.out] if call.out else empty()
        multiply(**operands_of(call, named), **call.values, out=d)
        return d

    return computed


def operands_of(call: Call, arguments: Arguments) -> dict[str, Any]:
    """The tensors of a call by the names of ``matmul``'s arguments; a bias becomes a vector (N,)."""
    operands = {name: arguments[argument] for name, argument in call.tensors.items()}
    if "bias" in operands:
        operands["bias"] = operands["bias"][(0,) * (operands["bias"].dim() - 1)]
    return operands


def _empty(call: Call, like: torch.Tensor) -> Callable[[], torch.Tensor]:
    return allocator(call.shape, call.strides, call.dtype, like)
