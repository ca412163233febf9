"""Launches that need a workspace: of kernels whose CTAs sum slices of K through partial sums, possibly with a second
kernel, and of kernels whose operands are converted first: realigned, or split into components."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence

from gemmill.library.decompositions.workspace_layout import (
    WorkspaceSize,
    partial_matrices,
    reduction_ctas,
    workspace_size,
)
from gemmill.library.legality.quantities import align_up
from gemmill.runtime.launch import tma
from gemmill.runtime.launch.conversion import BEGIN, ConversionKernel, ConversionLaunch, ConvertedOperand
from gemmill.runtime.launch.kernel import Kernel, PreparedLaunch
from gemmill.runtime.launch.parameters import EncodedDescriptor, ParameterBlock
from gemmill.runtime.launch.workspace import workspace
from gemmill.runtime.operands.gemm import Gemm


class WorkspaceLaunch:
    """What a launch needs besides its prepared launch where it uses a workspace. Use it from one thread at a time.

    The workspace holds partial sums, followed by the ``converted`` operands, by their index in the addresses, with the
    kernels that convert them. Their ``descriptors`` and ``pointers`` follow them there. Flags have separate memory.
    """

    def __init__(
        self,
        gemm: Gemm,
        kernel: Kernel,
        parameters: ParameterBlock,
        ctas: int,
        converted: Sequence[tuple[ConversionKernel, Mapping[int, ConvertedOperand]]],
        descriptors: Iterable[EncodedDescriptor],
        pointers: Iterable[tuple[int, ctypes.c_uint64, int]],
    ) -> None:
        spec, problem = kernel.spec, gemm.problem
        self._kernel = kernel
        self._conversions: list[ConversionLaunch] = []
        operands: dict[int, ConvertedOperand] = {}
        for conversion, group in converted:
            self._conversions.append(ConversionLaunch(kernel.device, conversion, group, operands.copy()))
            operands |= group if conversion.replaces else {}
        self._moved = tuple((pointer, operands[place].offset + shift) for place, pointer, shift in pointers)
        self._following = tuple((x.address, operands[x.place].offset + x.shift) for x in descriptors)
        size = workspace_size(spec, problem, ctas // spec.cluster_ctas) if spec.has_workspace else WorkspaceSize(0, 0)
        self._converted_at = align_up(size.buffer, BEGIN)
        """Offset of the converted operands."""
        ends = (self._converted_at + operand.end for operand in operands.values())
        self.size = size._replace(buffer=max(ends, default=size.buffer))
        """Bytes that a launch needs."""
        self._buffer = 0
        self._pointers: tuple[ctypes.c_uint64, ...] = ()
        self._descriptor: tma.Descriptor | None = None
        self._reduce: PreparedLaunch | None = None
        if spec.has_workspace:
            self._pointers = tuple(parameters.integer(spec.offsets[name]) for name in ("partials", "flags"))
        if spec.k_decomposition and spec.k_decomposition.reduction:
            partials = partial_matrices(spec.k_decomposition, problem)
            (box,) = (box for box in spec.boxes if box.operand == "partials")
            extents = partials.contiguous, partials.strided, partials.matrices
            strides = partials.contiguous, partials.contiguous * partials.strided
            self._descriptor = tma.describe(box, tma.ALIGNMENT, *extents, *strides)
            self._descriptor_address = parameters.address + box.offset
            self._reduce = kernel.prepare_reduction(reduction_ctas(spec, problem), parameters.arguments)

    def launch(self, stream: int, prepared: PreparedLaunch, addresses: Sequence[int]) -> None:
        """Launch on a stream with the workspace of that stream, on operands at some addresses."""
        device = self._kernel.device
        space = workspace(device, stream, self.size)
        with space.lock:
            space.reserve(self.size, self._kernel.spec.entry)
            if space.buffer != self._buffer:
                if self._descriptor:
                    self._descriptor._replace(address=space.buffer).encode(self._descriptor_address, device)
                for descriptor, offset in self._following:
                    tma.replace_address(descriptor, space.buffer + self._converted_at + offset, device)
                for pointer, offset in self._moved:
                    pointer.value = space.buffer + self._converted_at + offset
                for conversion in self._conversions:
                    conversion.move(space.buffer + self._converted_at)
                self._buffer = space.buffer
            for pointer, address in zip(self._pointers, (space.buffer, space.flags), strict=False):
                pointer.value = address
            for conversion in self._conversions:
                conversion.launch(stream, addresses)
            prepared.launch(stream)
            if self._reduce:
                self._reduce.launch(stream)
