"""Launches of kernels whose blocks sum parts of K: a workspace for the partial sums, and perhaps a second kernel."""

from __future__ import annotations

import ctypes
from dataclasses import replace
from typing import Protocol

from gemmill.runtime import parts, tma
from gemmill.runtime.driver import Kernel, PreparedLaunch
from gemmill.runtime.operands import Gemm
from gemmill.runtime.workspace import workspace


class Parameters(Protocol):
    """Where a kernel's parameter struct lies."""

    address: int

    @property
    def arguments(self) -> int:
        """Address of the ``void*`` that a launch takes as ``kernelParams``."""


class Exchange:
    """What a launch needs besides where blocks sum parts of K. One thread at a time."""

    def __init__(self, gemm: Gemm, kernel: Kernel, parameters: Parameters, blocks: int) -> None:
        spec, problem = kernel.spec, gemm.problem
        assert spec.parts
        self._kernel = kernel
        self._need = parts.need(spec, problem, blocks // spec.cluster_blocks)
        self._partials = ctypes.c_uint64.from_address(parameters.address + spec.offsets["partials"])
        self._flags = ctypes.c_uint64.from_address(parameters.address + spec.offsets["flags"])
        self._descriptor: tma.Descriptor | None = None
        self._reduce: PreparedLaunch | None = None
        if spec.parts.reduction:
            matrices = parts.partial_matrices(spec.parts, problem)
            (box,) = (box for box in spec.boxes if box.operand == "partials")
            extents = matrices.contiguous, matrices.strided, matrices.count
            strides = matrices.contiguous, matrices.contiguous * matrices.strided
            self._descriptor = tma.describe(box, tma.ALIGNMENT, *extents, *strides)
            self._descriptor_address = parameters.address + box.offset
            self._reduce = kernel.prepare_reduction(parts.reduction_blocks(spec, problem), parameters.arguments)

    def launch(self, stream: int, prepared: PreparedLaunch) -> None:
        """Launch on a stream with the workspace of that stream."""
        space = workspace(self._kernel.device, stream, self._need)
        with space.lock:
            space.reserve(self._need, self._kernel.spec.entry)
            if space.partials != self._partials.value and self._descriptor:
                replace(self._descriptor, address=space.partials).encode(self._descriptor_address, self._kernel.device)
            self._partials.value, self._flags.value = space.partials, space.flags
            prepared.launch(stream)
            if self._reduce:
                self._reduce.launch(stream)
