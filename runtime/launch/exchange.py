"""Launches that take a workspace: of kernels whose blocks sum parts of K, which leave partial sums there and may have a
second kernel, and of those before which operands are copied."""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from gemmill.library.decompositions import parts
from gemmill.library.decompositions.parts import WorkspaceSize
from gemmill.library.legality.resources import align_up
from gemmill.runtime.launch import tma
from gemmill.runtime.launch.copies import BEGIN, Copy, CopyLaunch
from gemmill.runtime.launch.kernel import Kernel, PreparedLaunch
from gemmill.runtime.launch.parameters import Described, ParameterBlock
from gemmill.runtime.launch.workspace import workspace
from gemmill.runtime.operands.gemm import Gemm


class Exchange:
    """What a launch needs besides where it takes a workspace. One thread at a time.

    ``copies`` are of the operands at some places, whose ``descriptors`` follow them.
    """

    def __init__(
        self,
        gemm: Gemm,
        kernel: Kernel,
        parameters: ParameterBlock,
        blocks: int,
        copies: Mapping[int, Copy],
        descriptors: Iterable[Described],
    ) -> None:
        spec, problem = kernel.spec, gemm.problem
        self._kernel = kernel
        self._copies = CopyLaunch(kernel.device, copies) if copies else None
        self._copied = tuple((x.address, copies[x.place].offset + x.shift) for x in descriptors)
        need = parts.need(spec, problem, blocks // spec.cluster_blocks) if spec.parts else WorkspaceSize(0, 0)
        self._behind = align_up(need.buffer, BEGIN)
        """Where copies begin."""
        ends = (self._behind + copy.end for copy in copies.values())
        self._need = need._replace(buffer=max(ends, default=need.buffer))
        self._buffer = 0
        self._pointers: tuple[ctypes.c_uint64, ...] = ()
        self._descriptor: tma.Descriptor | None = None
        self._reduce: PreparedLaunch | None = None
        if spec.parts:
            self._pointers = tuple(parameters.integer(spec.offsets[name]) for name in ("partials", "flags"))
        if spec.parts and spec.parts.reduction:
            matrices = parts.partial_matrices(spec.parts, problem)
            (box,) = (box for box in spec.boxes if box.operand == "partials")
            extents = matrices.contiguous, matrices.strided, matrices.count
            strides = matrices.contiguous, matrices.contiguous * matrices.strided
            self._descriptor = tma.describe(box, tma.ALIGNMENT, *extents, *strides)
            self._descriptor_address = parameters.address + box.offset
            self._reduce = kernel.prepare_reduction(parts.reduction_blocks(spec, problem), parameters.arguments)

    def launch(self, stream: int, prepared: PreparedLaunch, addresses: Sequence[int]) -> None:
        """Launch on a stream with the workspace of that stream, on operands at some addresses."""
        device = self._kernel.device
        space = workspace(device, stream, self._need)
        with space.lock:
            space.reserve(self._need, self._kernel.spec.entry)
            if space.buffer != self._buffer:
                if self._descriptor:
                    replace(self._descriptor, address=space.buffer).encode(self._descriptor_address, device)
                for descriptor, offset in self._copied:
                    tma.replace_address(descriptor, space.buffer + self._behind + offset, device)
                if self._copies:
                    self._copies.move(space.buffer + self._behind)
                self._buffer = space.buffer
            for pointer, address in zip(self._pointers, (space.buffer, space.flags), strict=False):
                pointer.value = address
            if self._copies:
                self._copies.launch(stream, addresses)
            prepared.launch(stream)
            if self._reduce:
                self._reduce.launch(stream)
