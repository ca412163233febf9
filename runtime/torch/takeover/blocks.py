"""The ``enabled`` blocks that are active, and the ``bits`` that hold."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from gemmill.library.bits import ANY, fault_of
from gemmill.library.errors import OperandError


@dataclass(eq=False, slots=True)
class Block:
    """One ``enabled`` block."""

    bits: str


class Blocks:
    """Active blocks of all threads, the last one entered last. Its ``bits`` hold, in all threads."""

    def __init__(self) -> None:
        self.active: list[Block] = []
        self.bits = ANY
        self._lock = threading.Lock()

    def enter(self, bits: str | None = None) -> Block:
        """Add a block. ``bits`` is as in :func:`gemmill.matmul`; None means those that hold now.

        Raises OperandError if ``bits`` has an invalid value.
        """
        if bits is not None and (fault := fault_of(bits)):
            raise OperandError(fault)
        with self._lock:
            block = Block(self.bits if bits is None else bits)
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
        self.bits = self.active[-1].bits if self.active else ANY

    @contextlib.contextmanager
    def within(self, bits: str | None = None) -> Iterator[None]:
        """Add a block while a ``with`` block runs."""
        block = self.enter(bits)
        try:
            yield
        finally:
            self.leave(block)


ENABLED = Blocks()
"""The blocks of ``gemmill.torch.enabled`` and ``install``."""
