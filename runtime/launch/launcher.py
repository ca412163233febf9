"""One kernel bound to one memory layout, with encoded parameters: a launch is only ``cuLaunchKernelEx``. This is the
state that all calls with one signature share."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Protocol

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
    from gemmill.runtime.launch.conversion import ConversionKernel, ConvertedOperand


def grid_ctas(spec: LaunchSpec, problem: GemmProblem, max_clusters: int, sm_count: int | None = None) -> int:
    """Return the CTAs of a persistent launch: a cluster for each cluster tile, but at most as many as the GPU holds at
    a time.

    ``sm_count`` limits the number of CTAs. An SM may hold several, but CTAs spread over free SMs first.
    """
    size = spec.cluster_ctas
    if sm_count is not None:
        if sm_count < size:
            raise UnsupportedProblemError(
                f"sm_count is {sm_count}; {spec.entry} runs in clusters of {size} SMs: raise sm_count, or use another "
                "kernel"
            )
        if spec.k_decomposition and spec.k_decomposition.reduction:
            raise UnsupportedProblemError(
                f"sm_count is {sm_count}; it does not limit the second kernel of {spec.entry}, which sums its slices "
                "of K: use a stream-K kernel"
            )
        max_clusters = min(max_clusters, sm_count // size)
    tiles = workspace_layout.cluster_tiles(spec, problem)
    units = tiles * workspace_layout.work_units(spec)
    if units > workspace_layout.INT32_MAX - 2 * max_clusters:  # pingpong computes two strides of the grid ahead
        raise UnsupportedProblemError(
            f"{spec.entry}: {units} output tiles; at most 2^31 are supported: split the problem"
        )
    if problem.batching in ("grouped", "ngrouped"):  # a group starts with a new tile, and may end with a partial one
        extents = problem.m, problem.n
        of_groups = 0 if problem.batching == "grouped" else 1
        tile, other = (spec.tile[i] * spec.cluster[i] for i in (of_groups, 1 - of_groups))
        begun = extents[of_groups] // tile + problem.batch
        tiles = min(tiles, begun * -(-extents[1 - of_groups] // other))
    shares = spec.k_decomposition is not None
    clusters = workspace_layout.clusters(spec, problem, tiles, max_clusters) if shares else min(tiles, max_clusters)
    return clusters * size


class Launches(Protocol):
    """Something that is launched repeatedly: a kernel, or, where D is empty, the reset of an epilogue's outputs."""

    def launch(self, stream: int, addresses: Addresses) -> None:
        """Launch on a stream, on operands at other addresses with the same alignment."""


@dataclass(frozen=True, eq=False)
class PreparedCall:
    """Everything that a call needs for its launch, for any tensors with its signature; it holds no tensors."""

    problem: GemmProblem
    """The problem of the call."""
    kernel: SlicedKernel | None
    """The kernel and the slices of K of the launch; None where D is empty."""
    choice: Choice | None
    """The selection and its reason; None where the caller named the kernel or D is empty."""
    memory: Callable[[Addresses], None]
    """Refuses addresses where outputs overlap other tensors, and missing addresses."""
    new_launcher: Callable[[], Launches]
    """Makes a separate launcher for a plan. Plans on different tensors of one signature would otherwise keep changing
    the addresses in a shared launcher."""

    def __str__(self) -> str:
        if self.kernel is None:
            return f"{self.problem}: D is empty, so there is no launch"
        why = "named by the call" if self.choice is None else self.choice.why
        return f"{self.problem} uses {self.kernel}: {why}"

    @cached_property
    def launcher(self) -> Launches:
        """The launcher that all calls with this signature share, made for the first."""
        return self.new_launcher()


def _converted(
    gemm: Gemm, kernel: Kernel, names: Sequence[str]
) -> tuple[Gemm, list[tuple[ConversionKernel, Mapping[int, ConvertedOperand]]]]:
    """Return the GEMM with operands as they will lie in the workspace, and the conversions that move them there: those
    ``names`` are realigned, complex operands are written as real ones, and split f32 is split."""
    conversions: list[tuple[ConversionKernel, Mapping[int, ConvertedOperand]]] = []
    end = 0

    def add(conversion: ConversionKernel, operands: Sequence[ConvertedOperand]) -> None:
        conversions.append((conversion, {PLACES[getattr(gemm, x.name).name]: x for x in operands}))

    # The imports are deferred: few launches need them.
    if names:
        from gemmill.runtime.launch import realign

        gemm, copies = realign.realign(gemm, names)
        add(realign.kernel_of(kernel.device), copies)
        end = copies[-1].end
    if gemm.a.real_form or gemm.b.real_form:
        from gemmill.runtime.launch import real_forms

        gemm, written = real_forms.as_real(gemm, end)
        if gemm.problem.k:
            add(real_forms.kernel_of(gemm.a.dtype), written)
        end = written[-1].end
    if kernel.config.a.type.component:
        from gemmill.runtime.launch import split

        gemm, parts = split.split(gemm, end)
        scales = [part.magnitudes for part in parts if part.magnitudes]
        kernels = split.kernels_of(gemm.problem.a_dtype)
        for conversion, operands in zip(kernels, (scales, parts)[-len(kernels) :], strict=True):
            if gemm.problem.k and operands:
                add(conversion, operands)
    return gemm, conversions


_BOUND = 256
"""Most bound launches that a launcher keeps; layers of a model share one, with different weights. With more, it starts
anew."""
_UNKNOWN: Addresses = (-1,) * (len(OPERANDS) + MAX_NODES)
"""Placeholder for unknown addresses, of the maximum length."""


class Resets:
    """Sets outputs of reductions to their start values: before each launch, or instead of one where D is empty."""

    def __init__(
        self, device: int, arguments: Sequence[BoundArgument], memory: Callable[[Addresses], None] | None = None
    ) -> None:
        self._device = device
        self._memory = memory
        """Refuses invalid addresses; None where the caller has checked them already."""
        self._fills = tuple(
            (len(OPERANDS) + i, *argument.reset) for i, argument in enumerate(arguments) if argument.reset
        )

    def launch(self, stream: int, addresses: Addresses) -> None:
        """Check the addresses and fill the outputs on a stream."""
        if self._memory is not None:
            self._memory(addresses)
        self.fill(stream, addresses)

    def fill(self, stream: int, addresses: Addresses) -> None:
        """Fill the outputs on a stream."""
        for index, word, count in self._fills:
            if count:
                driver.fill(self._device, stream, addresses[index], word, count)


def _pointers(gemm: Gemm, placed: Mapping[str, tuple[int, BoundArgument]]) -> list[tuple[int, str, int]]:
    """Return the parameters that are addresses: the place of the address, the parameter, and the bytes added to it."""
    pointers = [(PLACES[operand.name], f"{name}_pointer", 0) for name, operand in gemm.located.items()]
    pointers += [(place, member, 0) for member, (place, _) in placed.items()]
    for name, operand in (("a", gemm.a), ("b", gemm.b)):
        if operand.magnitudes is not None:
            pointers.append((PLACES[operand.name], f"{name}_scale_pointer", operand.magnitudes))
    return pointers


class Launcher:
    """One kernel bound to one memory layout; addresses may change between launches. Threads may share it.

    The kernel must support the problem directly, not its transpose: see
    :func:`gemmill.runtime.select.kernels.faults.needs_swap`. ``memory`` refuses invalid addresses.
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
        """The GEMM that it computes."""
        spec = kernel.spec
        names = realigned(kernel.config, gemm.problem)
        self.realigned = frozenset(getattr(gemm, name).name for name in names)
        """The caller's names of the operands that are copied into aligned memory before each launch."""
        dtype = kernel.config.a.type
        self.split = frozenset(x.name for x in (gemm.a, gemm.b) if dtype.component and x.dtype != dtype.name)
        """The caller's names of the operands that are split into components before each launch."""
        self.written_as_real = frozenset(x.name for x in (gemm.a, gemm.b) if x.real_form)
        """The caller's names of the complex operands that are written as real ones before each launch."""
        self.converted = self.realigned | self.split | self.written_as_real
        """The caller's names of all of these."""
        if self.converted and sm_count is not None:
            raise self._unlimited(spec.entry, sm_count)
        self._addresses = gemm.addresses
        gemm, conversions = _converted(gemm, kernel, names)
        self.kernel = kernel
        self.ctas = grid_ctas(spec, gemm.problem, kernel.max_clusters, sm_count)
        """CTAs of a launch."""
        self._block = block = ParameterBlock(spec.params_bytes)  # the prepared launch points into it
        placed = {f"epilogue.{x.name}": (len(OPERANDS) + i, x) for i, x in enumerate(gemm.arguments)}
        descriptors = [*encode_descriptors(gemm, kernel, block, placed)]
        converted = {place for _, operands in conversions for place in operands}
        self._descriptors = tuple(x for x in descriptors if x.place not in converted)
        staged = {box.operand: placed.pop(box.operand)[1] for box in spec.boxes if box.operand in placed}
        for name, layout, value in scalars(gemm, staged.values()):
            if name in spec.offsets:
                block.write(spec.offsets[name], layout, value)
        for _, argument in placed.values():
            write_argument(argument, gemm.problem, spec, block)
        pointers = _pointers(gemm, placed)
        integers = [(at, block.integer(spec.offsets[x]), shift) for at, x, shift in pointers if x in spec.offsets]
        self._pointers = tuple(x for x in integers if x[0] not in converted)
        self._resets = Resets(kernel.device, gemm.arguments) if any(x.reset for x in gemm.arguments) else None
        self._in_workspace = None
        if spec.k_decomposition and "splits" in spec.offsets:
            block.write(spec.offsets["splits"], "i", spec.k_decomposition.splits)
        if spec.has_workspace or conversions:
            from gemmill.runtime.launch.workspace_launch import WorkspaceLaunch  # deferred: few launches need it

            following = (x for x in descriptors if x.place in converted)
            moved = (x for x in integers if x[0] in converted)
            self._in_workspace = WorkspaceLaunch(gemm, kernel, block, self.ctas, conversions, following, moved)
        self._prepared = kernel.prepare(self.ctas, block.arguments)
        self._bound: dict[tuple[int, Addresses], tuple[Callable[[], tuple[Any]], ParameterBlock]] = {}
        """Launches by stream and addresses, with their parameters: a program that allocates D at each call meets the
        same ones again. Nothing changes a bound launch, so threads need no lock to repeat it."""
        self._lock = threading.Lock()

    def _unlimited(self, entry: str, sm_count: int) -> UnsupportedProblemError:
        """Return the error for a limit of SMs where operands are converted first."""
        forms = "in components" if self.split else f"aligned to {tma.ALIGNMENT} bytes"
        return UnsupportedProblemError(
            f"sm_count is {sm_count}; it does not limit the copy of {' and '.join(sorted(self.converted))}, which "
            f"{entry} needs {'as a real matrix' if self.written_as_real else forms}: "
            f"{'pass aligned operands, or ' if self.converted == self.realigned else ''}leave out sm_count"
        )

    @property
    def workspace(self) -> WorkspaceSize:
        """Bytes of workspace that a launch needs."""
        return self._in_workspace.size if self._in_workspace else WorkspaceSize(0, 0)

    def _encode(self, addresses: Addresses) -> None:
        """Check addresses, and encode them into the parameters."""
        self._memory(addresses)
        before, self._addresses = self._addresses, _UNKNOWN  # in case one is refused
        for index, descriptor, shift in self._descriptors:
            if addresses[index] != before[index]:
                tma.replace_address(descriptor, addresses[index] + shift, self.kernel.device)
        for index, pointer, shift in self._pointers:
            pointer.value = addresses[index] + shift

    def launch(self, stream: int, addresses: Addresses) -> None:
        """Launch on a stream of the kernel's GPU. The addresses must have the alignment in the problem."""
        bound = self._bound.get((stream, addresses))
        if bound is None:
            self._launch_changed(stream, addresses)
            return
        (status,) = bound[0]()
        if status:
            self._prepared.relaunch(status, bound[0])

    def _launch_changed(self, stream: int, addresses: Addresses) -> None:
        """Launch with the shared parameters, after changing their addresses; bind the launch if nothing else belongs
        to it."""
        with self._lock:
            if addresses is not self._addresses and addresses != self._addresses:
                self._encode(addresses)
                self._addresses = addresses
            if self._resets is not None:
                self._resets.launch(stream, addresses)
            if self._in_workspace is not None:
                self._in_workspace.launch(stream, self._prepared, addresses)
                return
            self._prepared.launch(stream)
            if self._resets is None:
                if len(self._bound) == _BOUND:
                    self._bound.clear()
                block = self._block.copy()
                self._bound[stream, addresses] = self._prepared.bind(stream, block.arguments), block
