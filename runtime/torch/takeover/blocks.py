"""The ``enabled`` blocks that are active, and the setting that holds."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from gemmill.library.bits import ANY, fault_of
from gemmill.library.errors import OperandError
from gemmill.runtime.operands.call_keywords import check_precision


class Setting(NamedTuple):
    """How products in a block are computed."""

    bits: str = ANY
    f32: str | None = None
    """The precision of float32 products; None: PyTorch's own settings decide."""


@dataclass(eq=False, slots=True)
class Block:
    """One ``enabled`` block."""

    setting: Setting


class Blocks:
    """Active blocks of all threads, the last one entered last. Its setting holds, in all threads."""

    def __init__(self) -> None:
        self.active: list[Block] = []
        self.setting = Setting()
        self._lock = threading.Lock()

    @property
    def bits(self) -> str:
        """The ``bits`` that hold."""
        return self.setting.bits

    def enter(self, bits: str | None = None, f32: str | None = None) -> Block:
        """Add a block. ``bits`` and ``f32`` are ``bits`` and ``precision`` of :func:`gemmill.matmul`; None means what
        holds now.

        Raises OperandError if one has an invalid value.
        """
        if bits is not None and (fault := fault_of(bits)):
            raise OperandError(fault)
        if f32 is not None:
            check_precision("f32", f32)
        with self._lock:
            now = self.setting
            block = Block(Setting(now.bits if bits is None else bits, now.f32 if f32 is None else f32))
            self.active.append(block)
            self._update()
        return block

    def leave(self, block: Block) -> None:
        """Remove a block that :meth:`enter` returned."""
        with self._lock:
            if block in self.active:
                self.active.remove(block)
            self._update()

    def clear(self) -> None:
        """Remove all blocks."""
        with self._lock:
            self.active.clear()
            self._update()

    def _update(self) -> None:
        self.setting = self.active[-1].setting if self.active else Setting()

    @contextlib.contextmanager
    def within(self, bits: str | None = None, f32: str | None = None) -> Iterator[None]:
        """Add a block while a ``with`` block runs."""
        block = self.enter(bits, f32)
        try:
            yield
        finally:
            self.leave(block)


ENABLED = Blocks()
"""The blocks of ``gemmill.torch.enabled`` and ``install``."""
