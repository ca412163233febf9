"""``gemmill.Plan``: a call made ready on given tensors, so that calling it is nothing but a launch."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from gemmill.library.epilogues.parse import parse
from gemmill.library.errors import GemmillError, OperandError
from gemmill.library.problem import GemmProblem
from gemmill.runtime.launch import tma
from gemmill.runtime.launch.launcher import Launcher, Resets
from gemmill.runtime.operands.arguments import NO_ARGUMENTS, EpilogueArguments
from gemmill.runtime.operands.gemm import OPERANDS, Addresses
from gemmill.runtime.operands.overlap import refuse_shared_memory
from gemmill.runtime.operands.reading import as_words, unpacked, view
from gemmill.runtime.operands.tensors import TensorView
from gemmill.runtime.select.choice import Choice


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
