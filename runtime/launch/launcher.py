"""One kernel bound to one memory layout: parameters encoded once, then nothing but ``cuLaunchKernelEx``. What is kept
for all calls of one signature."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

from gemmill.library.decompositions import workspace_layout
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.decompositions.workspace_layout import WorkspaceSize
from gemmill.library.epilogues.grammar import MAX_NODES
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.launch import LaunchSpec
from gemmill.library.problem import GemmProblem
from gemmill.runtime import driver
from gemmill.runtime.launch import tma
from gemmill.runtime.launch.kernel import Kernel
from gemmill.runtime.launch.parameters import ParameterBlock, encode_descriptors, scalars, write_argument
from gemmill.runtime.operands.bound_arguments import BoundArgument
from gemmill.runtime.operands.call_keywords import OPERANDS, PLACES
from gemmill.runtime.operands.gemm import Addresses, Gemm
from gemmill.runtime.select.choice import Choice
from gemmill.runtime.select.kernels.faults import realigned

if TYPE_CHECKING:
    from gemmill.runtime.launch.realign import RealignedOperand


def grid_ctas(spec: LaunchSpec, problem: GemmProblem, max_clusters: int, sm_count: int | None = None) -> int:
    """CTAs of a persistent launch: a cluster for each cluster tile, but no more than the GPU holds at a time.

    With ``sm_count``, no more CTAs than that: an SM may hold several, but CTAs spread before they share one.
    """
    size = spec.cluster_ctas
    if sm_count is not None:
        if sm_count < size:
            raise UnsupportedProblemError(f"sm_count is {sm_count}; {spec.entry} runs in clusters of {size} SMs")
        if spec.k_decomposition and spec.k_decomposition.reduction:
            raise UnsupportedProblemError(
                f"sm_count is {sm_count}; the second kernel of {spec.entry}, which sums its slices of K, keeps to no "
                "bound: take a stream kernel"
            )
        max_clusters = min(max_clusters, sm_count // size)
    tiles = workspace_layout.cluster_tiles(spec, problem)
    units = tiles * (spec.k_decomposition.splits if spec.k_decomposition else 1)
    if units > workspace_layout.INT32_MAX - 2 * max_clusters:  # pingpong looks two strides of the grid ahead
        raise UnsupportedProblemError(
            f"{spec.entry}: {units} output tiles; kernels count up to 2^31: split the problem"
        )
    if problem.batching == "grouped":  # a group begins a tile of its own, and may end one
        begun = problem.m // (spec.tile[0] * spec.cluster[0]) + problem.batch
        tiles = min(tiles, begun * -(-problem.n // (spec.tile[1] * spec.cluster[1])))
    shares = spec.k_decomposition is not None
    clusters = workspace_layout.clusters(spec, problem, tiles, max_clusters) if shares else min(tiles, max_clusters)
    return clusters * size


class Launches(Protocol):
    """What is launched again and again: a kernel, or where D is empty what resets outputs of an epilogue."""

    def launch(self, stream: int, addresses: Addresses) -> None:
        """Launch on a stream, on operands at some addresses, aligned as those it was made for."""


@dataclass(frozen=True, eq=False)
class PreparedCall:
    """What a call needs for its launch, whichever tensors of its signature it has; it holds none of them."""

    problem: GemmProblem
    """What it solves."""
    kernel: SlicedKernel | None
    """Its kernel and the slices of K of the launch; None where D is empty."""
    choice: Choice | None
    """Why its kernel was selected; None where the caller named the kernel or D is empty."""
    memory: Callable[[Addresses], None]
    """Refuses addresses at which what is written lies where something else is, or nothing at all."""
    new_launcher: Callable[[], Launches]
    """Makes a launcher of its own for a plan, so that plans on other tensors of the signature do not move its addresses
    to and fro."""

    def __str__(self) -> str:
        if self.kernel is None:
            return f"{self.problem}: D is empty, and no kernel is launched"
        why = "the call names it" if self.choice is None else self.choice.why
        return f"{self.problem} goes to {self.kernel}: {why}"

    @cached_property
    def launcher(self) -> Launches:
        """The launcher that calls of the signature share, made for the first."""
        return self.new_launcher()


_UNKNOWN: Addresses = (-1,) * (len(OPERANDS) + MAX_NODES)
"""No addresses, as many as there can be."""


class Resets:
    """Sets outputs of reductions to what they start from: before each launch, and where D is empty instead of one."""

    def __init__(
        self, device: int, arguments: Sequence[BoundArgument], memory: Callable[[Addresses], None] | None = None
    ) -> None:
        self._device = device
        self._memory = memory
        """Refuses addresses that no call may have, unless whoever launches has asked already."""
        self._fills = tuple(
            (len(OPERANDS) + i, *argument.reset) for i, argument in enumerate(arguments) if argument.reset
        )

    def launch(self, stream: int, addresses: Addresses) -> None:
        """Fill the outputs on a stream, unless the addresses are refused."""
        if self._memory is not None:
            self._memory(addresses)
        self.fill(stream, addresses)

    def fill(self, stream: int, addresses: Addresses) -> None:
        """Fill the outputs on a stream."""
        for index, word, count in self._fills:
            if count:
                driver.fill(self._device, stream, addresses[index], word, count)


class Launcher:
    """One kernel bound to one memory layout; addresses may change from launch to launch. Threads may share it.

    The kernel must serve the problem as it is: see :func:`gemmill.runtime.select.kernels.faults.needs_swap`. ``memory``
    refuses addresses that no call may have.
    """

    def __init__(
        self,
        gemm: Gemm,
        kernel: Kernel,
        sm_count: int | None,
        *,
        memory: Callable[[Addresses], None],
    ) -> None:
        self._memory = memory
        self.gemm = gemm
        """What it computes."""
        spec = kernel.spec
        names = realigned(kernel.config, gemm.problem)
        self.realigned = frozenset(getattr(gemm, name).name for name in names)
        """Operands that are copied into aligned memory before each launch, as the caller calls them."""
        if names and sm_count is not None:
            raise UnsupportedProblemError(
                f"sm_count is {sm_count}; {spec.entry} needs {' and '.join(sorted(self.realigned))} aligned to "
                f"{tma.ALIGNMENT} bytes, and copying them keeps to no bound: pass aligned operands, or leave it out"
            )
        self._addresses = gemm.addresses
        moved: dict[int, RealignedOperand] = {}
        if names:
            from gemmill.runtime.launch.realign import realign  # as few launches need it

            gemm, into = realign(gemm, names)
            moved = {PLACES[getattr(gemm, operand.name).name]: operand for operand in into}
        self.kernel = kernel
        self.ctas = grid_ctas(spec, gemm.problem, kernel.max_clusters, sm_count)
        """CTAs of a launch."""
        self._block = block = ParameterBlock(spec.params_bytes)  # the prepared launch points into it
        placed = {f"epilogue.{x.name}": (len(OPERANDS) + i, x) for i, x in enumerate(gemm.arguments)}
        descriptors = [*encode_descriptors(gemm, kernel, block, placed)]
        self._descriptors = tuple(x for x in descriptors if x.place not in moved)
        staged = {box.operand: placed.pop(box.operand)[1] for box in spec.boxes if box.operand in placed}
        for name, layout, value in scalars(gemm, staged.values()):
            if name in spec.offsets:
                block.write(spec.offsets[name], layout, value)
        for _, argument in placed.values():
            write_argument(argument, gemm.problem, spec, block)
        pointers = [(PLACES[operand.name], f"{name}_pointer") for name, operand in gemm.located.items()]
        pointers += [(place, member) for member, (place, _) in placed.items()]
        self._pointers = tuple([(at, block.integer(spec.offsets[x])) for at, x in pointers if x in spec.offsets])
        self._resets = Resets(kernel.device, gemm.arguments) if any(x.reset for x in gemm.arguments) else None
        self._in_workspace = None
        if spec.k_decomposition or moved:
            from gemmill.runtime.launch.workspace_launch import WorkspaceLaunch  # likewise

            following = (x for x in descriptors if x.place in moved)
            self._in_workspace = WorkspaceLaunch(gemm, kernel, block, self.ctas, moved, following)
        self._prepared = kernel.prepare(self.ctas, block.arguments)
        self._lock = threading.Lock()

    @property
    def workspace(self) -> WorkspaceSize:
        """Bytes of workspace that a launch takes."""
        return self._in_workspace.size if self._in_workspace else WorkspaceSize(0, 0)

    def launch(self, stream: int, addresses: Addresses) -> None:
        """Launch on a stream of the kernel's GPU. The addresses must be aligned as the problem says."""
        with self._lock:
            if addresses is not self._addresses and addresses != self._addresses:
                self._memory(addresses)
                before, self._addresses = self._addresses, _UNKNOWN  # should one be refused
                for index, descriptor, shift in self._descriptors:
                    if addresses[index] != before[index]:
                        tma.replace_address(descriptor, addresses[index] + shift, self.kernel.device)
                for index, pointer in self._pointers:
                    pointer.value = addresses[index]
                self._addresses = addresses
            if self._resets is not None:
                self._resets.launch(stream, addresses)
            if self._in_workspace is None:
                self._prepared.launch(stream)
            else:
                self._in_workspace.launch(stream, self._prepared, addresses)
