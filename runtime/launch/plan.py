"""A GEMM made ready to launch: parameters encoded once, then nothing but ``cuLaunchKernelEx``."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gemmill.library.decompositions import parts
from gemmill.library.epilogues.parse import MAX_NODES, parse
from gemmill.library.errors import GemmillError, OperandError, UnsupportedProblemError
from gemmill.library.launch import LaunchSpec, TmaBox
from gemmill.library.problem import GemmProblem
from gemmill.runtime import driver
from gemmill.runtime.launch import tma
from gemmill.runtime.launch.kernel import Kernel
from gemmill.runtime.launch.parameters import Described, ParameterBlock
from gemmill.runtime.operands.arguments import NO_ARGUMENTS, EpilogueArguments
from gemmill.runtime.operands.bound_arguments import BoundArgument
from gemmill.runtime.operands.gemm import Gemm
from gemmill.runtime.operands.overlap import refuse_shared_memory
from gemmill.runtime.operands.reading import as_words, unpacked, view
from gemmill.runtime.operands.shapes import FOUND_BY
from gemmill.runtime.operands.tensors import TensorView
from gemmill.runtime.select.choice import Choice
from gemmill.runtime.select.kernels.faults import realigned

if TYPE_CHECKING:
    from gemmill.runtime.launch.copies import Copy

Addresses = tuple[int, ...]
"""Addresses of :data:`OPERANDS`, 0 where a GEMM lacks one; then of what is passed to the epilogue."""

OPERANDS = ("a", "b", "c", "out", "a_scale", "b_scale", "a_zero", "b_zero", "offsets", "counts", "addresses")
"""What the tensors of a GEMM are called."""
_UNKNOWN: Addresses = (-1,) * (len(OPERANDS) + MAX_NODES)
"""No addresses, as many as there can be."""
_INDEX = {name: index for index, name in enumerate(OPERANDS)}
FEW_ROWS = 64
"""Most rows of D that B is read for, or columns that A is, for the pace of memory to be what matters."""
_UNALIGNED_D = 31
"""The bit of ``batched`` that says so (kernel/params.cuh)."""
_STRIDED = (
    ("pointer", "Q", "ptr"),
    ("row_stride", "q", "row_stride"),
    ("column_stride", "q", "column_stride"),
    ("batch_stride", "q", "batch_stride"),
)
"""Parameters of an operand that is read through plain addresses: member, layout, attribute of the operand."""


def grid_blocks(spec: LaunchSpec, problem: GemmProblem, max_clusters: int, sm_count: int | None = None) -> int:
    """Blocks of a persistent launch: a cluster for each cluster tile, but no more than the GPU holds at a time.

    With ``sm_count``, no more blocks than that: an SM may hold several, but blocks spread before they share one.
    """
    size = spec.cluster_blocks
    if sm_count is not None:
        if sm_count < size:
            raise UnsupportedProblemError(f"sm_count is {sm_count}; {spec.entry} runs in clusters of {size} SMs")
        if spec.parts and spec.parts.reduction:
            raise UnsupportedProblemError(
                f"sm_count is {sm_count}; the kernel that adds up the parts of {spec.entry} keeps to no bound: take a "
                "fused or a stream kernel"
            )
        max_clusters = min(max_clusters, sm_count // size)
    tiles = parts.cluster_tiles(spec, problem)
    units = tiles * (spec.parts.splits if spec.parts else 1)
    if units > parts.INT32_MAX - 2 * max_clusters:  # pingpong looks two strides of the grid ahead
        raise UnsupportedProblemError(
            f"{spec.entry}: {units} output tiles; kernels count up to 2^31: split the problem"
        )
    if problem.batching == "grouped":  # a group begins a tile of its own, and may end one
        begun = problem.m // (spec.tile[0] * spec.cluster[0]) + problem.batch
        tiles = min(tiles, begun * -(-problem.n // (spec.tile[1] * spec.cluster[1])))
    clusters = parts.clusters(spec, problem, tiles, max_clusters) if spec.parts else min(tiles, max_clusters)
    return clusters * size


def is_empty(problem: GemmProblem) -> bool:
    """Whether D has no elements, so that nothing is to be launched."""
    return 0 in (problem.m, problem.n, problem.batch)


def _encode_descriptors(
    gemm: Gemm, kernel: Kernel, block: ParameterBlock, extras: Mapping[str, tuple[int, BoundArgument]]
) -> Iterator[Described]:
    """Writes the TMA descriptors; those that follow an operand."""
    problem = gemm.problem
    for box in kernel.spec.boxes:
        if box.operand == "partials":
            continue  # it has no address before the launch
        if box.operand in extras:
            place, extra = extras[box.operand]
            described = _describe_matrix(box, extra, problem, gemm.is_transposed)
            described.encode(block.address + box.offset, kernel.device)
            yield Described(place, block.address + box.offset, 0)
            continue
        operand = getattr(gemm, box.operand)
        # Without a K tile A and B are not read, and may have no address.
        unread = problem.k == 0 and box.operand not in ("c", "d")
        n = problem.d_columns if box.operand in ("c", "d") else problem.n
        sizes = {"m": problem.m, "n": n, "k": problem.k}
        extents = sizes[box.contiguous], -(-sizes[box.strided] // box.group)
        if not box.rows(extents[1]) or (box.operand == "d" and problem.d_align < tma.ALIGNMENT):
            continue
        name = gemm.name(box.operand)
        batch = problem.batch if operand.batch_stride else 1
        address = gemm.d.ptr & -tma.ALIGNMENT if unread else operand.ptr
        described = tma.describe(box, address, *extents, batch, operand.stride, operand.batch_stride, name)
        fetched = fetched_bytes(box, problem, described.strides[0])
        described.encode(block.address + box.offset, kernel.device, fetched)
        if not (unread or box.anywhere):
            yield Described(_INDEX[name], block.address + box.offset, described.address - address)


def fetched_bytes(box: TmaBox, problem: GemmProblem, stride: int) -> int:
    """Bytes by which L2 fetches an operand from memory, whose rows are ``stride`` bytes apart; "Few rows, few columns"
    in docs/kernels.md has why.

    Two lines where K is contiguous: a later stage finds the second in L2. One where the second is another tile's, where
    rows begin within sectors, and where an operand is multiplied with few rows or columns: fetching two costs memory up
    to a tenth of its pace.
    """
    met = problem.n if box.operand == "a" else problem.m
    if problem.batching == "grouped" and box.operand == "b":
        met //= problem.batch
    return 2 * tma.LINE if box.contiguous == "k" and met > FEW_ROWS and stride % tma.SECTOR == 0 else tma.LINE


def _factor_layout(problem: GemmProblem) -> str:
    """The type of alpha, beta and scalars of the epilogue."""
    return "i" if problem.d_dtype == "s32" else "d" if problem.accumulator == "f64" else "f"


def _scalars(
    gemm: Gemm, alpha: float, beta: float, staged: Iterable[BoundArgument]
) -> Iterator[tuple[str, str, float]]:
    """Parameters other than descriptors: member, layout, value. A kernel has some of them. TMA moves what is staged."""
    problem, factor = gemm.problem, _factor_layout(gemm.problem)
    for extent in ("m", "n", "k", "batch"):
        yield extent, "i", getattr(problem, extent)
    batched = [bool(x and x.batch_stride) for x in (gemm.a, gemm.b, gemm.c)] + [bool(x.strides[2]) for x in staged]
    unaligned = gemm.problem.d_align < tma.ALIGNMENT
    yield "batched", "I", sum(has << i for i, has in enumerate(batched)) | unaligned << _UNALIGNED_D
    for name, value in (("alpha", alpha), ("beta", beta)):
        yield name, factor, int(value) if factor == "i" else value
        yield f"{name}64", "d", value
    for name, operand in (("a", gemm.a), ("b", gemm.b), ("c", gemm.c), ("d", gemm.d)):
        if operand is not None:
            for member, layout, attribute in _STRIDED:
                yield f"{name}_{member}", layout, getattr(operand, attribute)
            if name in "cd":
                yield f"{name}_stride", "q", operand.stride
    yield "groups_pointer", "Q", gemm.groups
    for name, scale in (("a_scale", gemm.a_scale), ("b_scale", gemm.b_scale)):
        if scale is not None:
            yield f"{name}_pointer", "Q", scale.ptr
            yield f"{name}_stride", "q", scale.stride
            yield f"{name}_k_stride", "q", scale.k_stride
            yield f"{name}_batch_stride", "q", scale.batch_stride


def _write_extra(extra: BoundArgument, gemm: Gemm, spec: LaunchSpec, block: ParameterBlock) -> None:
    """Writes what is passed to the epilogue: an address, then strides or, of a scalar, its value."""
    at = spec.offsets[f"epilogue.{extra.name}"]
    block.write(at, "Q", extra.address)
    for i, stride in enumerate(extra.transposed if gemm.is_transposed else extra.strides):
        block.write(at + 8 + 8 * i, "q", stride)
    if not extra.strides:
        block.write(at + 8, _factor_layout(gemm.problem), extra.value)


def _pointed_at(gemm: Gemm, spec: LaunchSpec) -> Iterator[tuple[str, str]]:
    """The operands that a kernel finds by plain addresses, and what the caller calls them."""
    for operand in ("a", "b", "c", "d", "a_scale", "b_scale"):
        if f"{operand}_pointer" in spec.offsets and getattr(gemm, operand) is not None:
            yield operand, gemm.name(operand)
    if gemm.problem.batching != "strided":
        yield "groups", FOUND_BY[gemm.problem.batching]


def _operand_addresses(gemm: Gemm) -> Addresses:
    """The addresses of :data:`OPERANDS`."""
    operands = {gemm.name(x): getattr(gemm, x) for x in ("a", "b", "c", "d", "a_scale", "b_scale", "scale", "zero")}
    addresses = {name: operand.ptr if operand else 0 for name, operand in operands.items()}
    if gemm.problem.batching != "strided":
        addresses[FOUND_BY[gemm.problem.batching]] = gemm.groups
    return tuple(addresses.get(name, 0) for name in OPERANDS)


class Resets:
    """Sets outputs of reductions to what they start from: before each launch, and where D is empty instead of one."""

    def __init__(self, device: int, extras: Sequence[BoundArgument]) -> None:
        self._device = device
        self._fills = tuple((len(OPERANDS) + i, *extra.reset) for i, extra in enumerate(extras) if extra.reset)

    def launch(self, stream: int, addresses: Addresses) -> None:
        """Fill the outputs on a stream."""
        for index, word, count in self._fills:
            if count:
                driver.fill(self._device, stream, addresses[index], word, count)


class Launcher:
    """One kernel bound to one memory layout; addresses may change from launch to launch. Threads may share it.

    The kernel must serve the problem, or with ``swapped`` its transpose: see
    :func:`gemmill.runtime.select.kernels.faults.needs_swap`.
    """

    def __init__(
        self,
        gemm: Gemm,
        kernel: Kernel,
        alpha: float,
        beta: float,
        swapped: bool = False,
        sm_count: int | None = None,
        extras: Sequence[BoundArgument] = (),
    ) -> None:
        if swapped:
            gemm = gemm.transposed
        self.swapped = gemm.is_transposed
        """Whether the kernel's A is the caller's b."""
        spec = kernel.spec
        names = realigned(kernel.config, gemm.problem)
        self.copied = frozenset(map(gemm.name, names))
        """Operands that are copied into aligned memory before each launch, as the caller calls them."""
        if names and sm_count is not None:
            raise UnsupportedProblemError(
                f"sm_count is {sm_count}; {spec.entry} needs {' and '.join(sorted(self.copied))} aligned to "
                f"{tma.ALIGNMENT} bytes, and copying them keeps to no bound: pass aligned operands, or leave it out"
            )
        self._addresses: Addresses = (*_operand_addresses(gemm), *(extra.address for extra in extras))
        copies: dict[int, Copy] = {}
        if names:
            from gemmill.runtime.launch.copies import aligned  # as few launches need it

            gemm, into = aligned(gemm, names)
            copies = {_INDEX[gemm.name(copy.name)]: copy for copy in into}
        self.kernel = kernel
        self.blocks = grid_blocks(spec, gemm.problem, kernel.max_clusters, sm_count)
        """Blocks of a launch."""
        self._block = block = ParameterBlock(spec.params_bytes)  # the prepared launch points into it
        placed = {f"epilogue.{extra.name}": (len(OPERANDS) + i, extra) for i, extra in enumerate(extras)}
        descriptors = [*_encode_descriptors(gemm, kernel, block, placed)]
        self._descriptors = tuple(x for x in descriptors if x.place not in copies)
        staged = {box.operand: placed.pop(box.operand)[1] for box in spec.boxes if box.operand in placed}
        for name, layout, value in _scalars(gemm, alpha, beta, staged.values()):
            if name in spec.offsets:
                block.write(spec.offsets[name], layout, value)
        for _, extra in placed.values():
            _write_extra(extra, gemm, spec, block)
        pointers = [(_INDEX[name], f"{operand}_pointer") for operand, name in _pointed_at(gemm, spec)]
        pointers += [(place, member) for member, (place, _) in placed.items()]
        self._pointers = tuple((index, block.integer(spec.offsets[member])) for index, member in pointers)
        self._resets = Resets(kernel.device, extras) if any(extra.reset for extra in extras) else None
        self._exchange = None
        if spec.parts or copies:
            from gemmill.runtime.launch.exchange import Exchange  # likewise

            following = (x for x in descriptors if x.place in copies)
            self._exchange = Exchange(gemm, kernel, block, self.blocks, copies, following)
        self._prepared = kernel.prepare(self.blocks, block.arguments)
        self._lock = threading.Lock()

    def launch(self, stream: int, addresses: Addresses) -> None:
        """Launch on a stream of the kernel's GPU. The addresses must be aligned as the problem says."""
        with self._lock:
            if addresses is not self._addresses and addresses != self._addresses:
                before, self._addresses = self._addresses, _UNKNOWN  # should one be refused
                for index, descriptor, shift in self._descriptors:
                    if addresses[index] != before[index]:
                        tma.replace_address(descriptor, addresses[index] + shift, self.kernel.device)
                for index, pointer in self._pointers:
                    pointer.value = addresses[index]
                self._addresses = addresses
            if self._resets is not None:
                self._resets.launch(stream, addresses)
            if self._exchange is None:
                self._prepared.launch(stream)
            else:
                self._exchange.launch(stream, self._prepared, addresses)


def _describe_matrix(box: TmaBox, matrix: BoundArgument, problem: GemmProblem, is_transposed: bool) -> tma.Descriptor:
    """The descriptor of an epilogue's matrix."""
    row, column, outer = matrix.transposed if is_transposed else matrix.strides
    sizes = {"m": problem.m, "n": problem.d_columns}
    batch = problem.batch if outer else 1
    extents = sizes[box.contiguous], sizes[box.strided]
    stride = row if box.contiguous == "n" else column
    return tma.describe(box, matrix.address, *extents, batch, stride, outer, matrix.name)


def _moved(launcher: Launcher) -> frozenset[str]:
    """What the caller calls those beside A, B, C and D that TMA moves: matrices of the epilogue, scales of groups and
    their zero points."""
    narrow = "b" if launcher.swapped else "a"
    scaling = (f"{narrow}_{box.operand}" for box in launcher.kernel.spec.boxes if box.operand in ("scale", "zero"))
    return frozenset((*parse(launcher.kernel.config.epilogue).majors, *scaling))


class Plan:
    """A GEMM on given tensors, selected, compiled, loaded and encoded: calling it is nothing but a launch.

    It keeps its tensors alive until it is closed. Made by :func:`gemmill.plan`. ``told`` names the operands whose dtype
    the caller told, since their tensors do not.
    """

    def __init__(
        self,
        problem: GemmProblem,
        tensors: dict[str, TensorView],
        out: Any,
        choice: Choice | None,
        launcher: Launcher | Resets | None,
        stream: Callable[[], int],
        passed: EpilogueArguments = NO_ARGUMENTS,
        told: Collection[str] = (),
    ) -> None:
        self.problem = problem
        """What it solves."""
        self.choice = choice
        """Why its kernel was selected; None where the caller named the kernel or D is empty."""
        bound = launcher if isinstance(launcher, Launcher) else None
        self.kernel = bound.kernel.config if bound else None
        """Config of its kernel; None where D is empty and no kernel is launched."""
        self.blocks = bound.blocks if bound else 0
        """Blocks that a launch has, and so the most SMs that it uses."""
        self.swapped = bound.swapped if bound else False
        """Whether the kernel runs the transposed problem, D^T = B^T A^T."""
        self.copied = bound.copied if bound else frozenset()
        """Which of ``a``, ``b`` and ``c`` are copied into aligned memory before each launch: TMA cannot move them."""
        self.out = out
        """The tensor it writes."""
        self._moved = _moved(bound) if bound else frozenset()
        self._tensors = tensors
        self._told = told
        self._passed = passed
        self._launcher = launcher
        self._stream = stream
        self._addresses = self._current_addresses()
        self._closed = False

    def __call__(self) -> None:
        """Launch on the stream given to :func:`gemmill.plan`, or on PyTorch's current one."""
        launcher = self._launcher
        if launcher is not None:
            launcher.launch(self._stream(), self._addresses)
        elif self._closed:
            raise self._error()

    def rebind(
        self,
        *,
        a: Any = None,
        b: Any = None,
        c: Any = None,
        out: Any = None,
        a_scale: Any = None,
        b_scale: Any = None,
        a_zero: Any = None,
        b_zero: Any = None,
        offsets: Any = None,
        counts: Any = None,
        addresses: Any = None,
        **operands: Any,
    ) -> None:
        """Use other tensors, also those of the epilogue, from the next call on: each with the shape, strides, dtype and
        GPU of the one it replaces.

        OperandError where one has not; the plan is then unchanged.
        """
        if self._closed:
            raise self._error()
        tensors = dict(self._tensors)
        values = dict(self._passed.values)
        tensors |= {name: value for name, value in values.items() if not isinstance(value, float)}
        others = a_scale, b_scale, a_zero, b_zero, offsets, counts, addresses
        given = dict(zip(OPERANDS, (a, b, c, out, *others), strict=True)) | operands
        for name, tensor in given.items():
            if tensor is None:
                continue
            if isinstance(values.get(name), float):
                raise OperandError(
                    f"{name}: this plan was made with a number; for another make a new plan, or one with a "
                    "tensor of one element, which may be written to"
                )
            if name not in tensors:
                raise OperandError(
                    f"{name}: this plan was made without one; make a new plan with gemmill.plan(..., {name}={name})"
                )
            read = as_words(tensor, name) if name == "addresses" else tensor
            new, old = view(read, name, self._stream()), tensors[name]
            if name in self._told:
                new = unpacked(name, new, old.dtype, old.shape[-2 if name == "b" and len(old.shape) > 1 else -1])
            if not new.same_layout(old):
                raise OperandError(f"{name} is {new}; this plan is for {old}: make a new plan with gemmill.plan")
            if (name == "out" or name in self._passed.outputs) and not new.writable:
                raise OperandError(f"{name} is read-only")
            if 0 not in new.shape and (name in ("a", "b", "c", "out") or name in self._moved):
                self._check_address(name, new.ptr)
            tensors[name] = new
        passed = self._passed._replace(values={name: tensors.get(name, value) for name, value in values.items()})
        refuse_shared_memory(tensors["out"], passed)
        self._tensors = {name: tensor for name, tensor in tensors.items() if name not in values}
        self._passed = passed
        self._addresses = self._current_addresses()
        if out is not None:
            self.out = out

    def close(self) -> None:
        """Let go of tensors and parameters; a later call raises. Launches under way finish."""
        self._closed = True
        self._launcher = None
        self._tensors = {}
        self._passed = NO_ARGUMENTS
        self.out = None

    def __enter__(self) -> Plan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _check_address(self, name: str, address: int) -> None:
        """Refuse a tensor whose first element is less aligned than the kernel relies on."""
        known_as = {"out": "d"} | ({"a": "b", "b": "a"} if self.swapped else {})
        operand = getattr(self.kernel, known_as.get(name, name), None)
        align = tma.ALIGNMENT if name in self._moved else operand.align if operand is not None else 0
        if operand is not None and (name in self.copied or (name == "out" and self.problem.d_align < align)):
            align = operand.type.bytes
        if align and (address % align or address == 0):
            raise OperandError(
                f"{name}: its first element is at {address:#x}; the kernel needs a multiple of {align} bytes: "
                f"start the view at an aligned element, pass {name}.clone(), or make a new plan with gemmill.plan"
            )

    def _current_addresses(self) -> Addresses:
        own = (self._tensors[name].ptr if name in self._tensors else 0 for name in OPERANDS)
        return (*own, *self._passed.addresses)

    @staticmethod
    def _error() -> GemmillError:
        return GemmillError("this plan is closed; make a new one with gemmill.plan")
