"""``gemmill.Plan``: a prepared call on given tensors, which only launches."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any, TypeVar

from gemmill.library.errors import GemmillError, OperandError
from gemmill.library.input.keywords import unexpected
from gemmill.runtime.launch import tma
from gemmill.runtime.launch.launcher import Launcher, Launches, PreparedCall
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.call_keywords import OPERANDS
from gemmill.runtime.operands.tensors import TABLES, PreparedOperand, Tensor, TensorView, unpacked, view, view_table

T = TypeVar("T")


class Plan:
    """A GEMM on given tensors, selected, compiled, loaded and encoded. Calling the plan only launches.

    :func:`gemmill.plan` makes plans. A plan keeps its tensors alive until you close it, with :meth:`close` or at the
    end of a ``with`` block. ``rebind`` replaces tensors.

    Example:
        >>> plan = gemmill.plan(a, b, out=d)
        >>> plan()
        >>> plan.rebind(a=a2)
        >>> plan()
    """

    def __init__(self, call: GemmCall, prepared: PreparedCall, stream: Callable[[], int]) -> None:
        prepared.memory(call.addresses)
        launcher = prepared.new_launcher()
        each = getattr(launcher, "each", launcher)  # of a batch that is launched in parts
        kernel = each if isinstance(each, Launcher) else None
        self.problem = prepared.problem
        """The problem."""
        self.choice = prepared.choice
        """The selection and its reason; None where the caller named the kernel or D is empty."""
        self.kernel = kernel.kernel.config if kernel else None
        """Config of its kernel; None where D is empty and nothing is launched."""
        self.slices = kernel.kernel.slices if kernel else 1
        """Slices of K of a launch of a split-K kernel; 1 for other kernels."""
        self.ctas = kernel.ctas if kernel else 0
        """CTAs of a launch, which is also the most SMs that it uses."""
        self.swap_ab = kernel.gemm.is_transposed if kernel else False
        """Whether the kernel runs the transposed problem, D^T = B^T A^T."""
        self.realigned: frozenset[str] = kernel.realigned if kernel else frozenset()
        """Which of ``a``, ``b`` and ``c`` are copied into aligned memory before each launch, because TMA cannot load
        them in place."""
        self.out = call.out
        """The tensor that it writes."""
        self._said, self._device = str(prepared), call.tensors["out"].device
        self._aligns = _alignments(kernel) if kernel else {}
        self._memory = prepared.memory
        self._call: GemmCall | None = call
        self._launcher: Launches | None = launcher
        self._stream = stream
        self._addresses = call.addresses

    def __repr__(self) -> str:
        if self._launcher is None:
            return f"<Plan of {self.problem}, closed>"
        where = f"; {self.ctas} CTAs on GPU {self._device}" if self.kernel else ""
        return f"<Plan of {self._said}{where}>"

    def __call__(self) -> None:
        """Launch on the stream given to :func:`gemmill.plan`, or on PyTorch's current one."""
        launcher = self._launcher
        if launcher is None:
            raise _closed()
        launcher.launch(self._stream(), self._addresses)

    def rebind(self, **given: Tensor | PreparedOperand | None) -> None:
        """Use other tensors from the next call on.

        Pass any of ``a``, ``b``, ``c``, ``out``, the scales, zero points, ``offsets``, ``counts``, ``rows``,
        ``addresses`` and operands of the epilogue, by name. Each must have the shape, strides, dtype and GPU of the
        tensor that it replaces.

        Raises:
            OperandError: a tensor does not fit; the plan is unchanged.
            KeywordError: the plan has no operand of this name; the plan is unchanged.
        """
        if self._call is None:
            raise _closed()
        arguments = self._call.arguments
        tensors, values = dict(self._call.tensors), dict(arguments.values)
        for name, tensor in given.items():
            if tensor is not None:
                new = self._rebound(name, tensor, tensors.get(name, values.get(name)))
                if name in tensors:
                    tensors[name] = new
                else:
                    values[name] = new
        arguments = arguments._replace(values=values)
        call = replace(self._call, tensors=tensors, arguments=arguments)
        if given.get("out") is not None:
            call = replace(call, out=given["out"])
        self._memory(call.addresses)
        self._call = call
        self._addresses = self._call.addresses
        self.out = self._call.out

    def _rebound(self, name: str, tensor: Any, old: TensorView | float | None) -> TensorView:
        """Read a tensor that replaces another; OperandError where it does not fit."""
        assert self._call is not None
        if isinstance(old, float):
            raise OperandError(
                f"{name}: this plan was made with a number, which cannot change: make a new plan, or make it with a "
                "tensor of one element and write to that"
            )
        if old is None and name not in OPERANDS:
            raise unexpected(name, [*OPERANDS, *self._call.arguments.values])
        if old is None:
            raise OperandError(
                f"{name}: this plan was made without {name}: make a new plan with gemmill.plan(..., {name}={name})"
            )
        options = self._call.options
        new = (view_table if name in TABLES else partial(view, may_be_complex=True))(tensor, name, self._stream())
        if {"a": options.a_dtype, "b": options.b_dtype}.get(name) is not None:  # its tensor does not have the dtype
            new = unpacked(name, new, old.dtype, old.shape[-2 if name == "b" and len(old.shape) > 1 else -1])
        if not new.same_layout(old):
            raise OperandError(f"{name} is {new}; the plan needs {old}: make a new plan with gemmill.plan")
        if (name == "out" or name in self._call.arguments.outputs) and not new.writable:
            raise OperandError(f"{name} is read-only: pass writable memory")
        align = self._aligns.get(name)
        if align and 0 not in new.shape and (new.ptr % align or new.ptr == 0):
            raise OperandError(
                f"{name}: its first element is at {new.ptr:#x}, but the kernel needs a multiple of {align} bytes: "
                f"start the view at an aligned element, pass {name}.clone(), or make a new plan with gemmill.plan"
            )
        return new

    def close(self) -> None:
        """Release tensors and parameters; later calls raise an error. Running launches finish."""
        self._call = None
        self._launcher = None
        self.out = None

    def __enter__(self) -> Plan:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def blocks(self) -> int:
        """Deprecated name of :attr:`ctas`."""
        return self._renamed("blocks", "ctas", self.ctas)

    @property
    def copied(self) -> frozenset[str]:
        """Deprecated name of :attr:`realigned`."""
        return self._renamed("copied", "realigned", self.realigned)

    @property
    def swapped(self) -> bool:
        """Deprecated name of :attr:`swap_ab`."""
        return self._renamed("swapped", "swap_ab", self.swap_ab)

    @staticmethod
    def _renamed(old: str, new: str, value: T) -> T:
        warnings.warn(f"Plan.{old} is deprecated: use {new}", DeprecationWarning, stacklevel=3)
        return value


def _closed() -> GemmillError:
    return GemmillError("this plan is closed: make a new one with gemmill.plan")


def _alignments(launcher: Launcher) -> dict[str, int]:
    """Return the alignment in bytes that each tensor's address must have, by the caller's name; 0 or no entry where any
    address is valid."""
    gemm, config = launcher.gemm, launcher.kernel.config
    moved = {box.operand for box in launcher.kernel.spec.boxes}
    aligns = {x.name: tma.ALIGNMENT for x in gemm.arguments if f"epilogue.{x.name}" in moved}
    for name, operand in gemm.operands.items():
        if (of_kernel := getattr(config, name, None)) is None:  # scales and zero points
            aligns[operand.name] = tma.ALIGNMENT if name in moved else 0
        else:
            loose = operand.name in launcher.converted or (name == "d" and gemm.problem.d_align < of_kernel.align)
            elements = 2 if operand.name in launcher.written_as_real else 1
            aligns[operand.name] = elements * of_kernel.type.bytes if loose else of_kernel.align
    return aligns
