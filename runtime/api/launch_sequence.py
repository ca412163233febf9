"""Launches one after another on the tensors of one call and on memory between them, as a plan or for later calls."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from gemmill.library.errors import GemmillError
from gemmill.runtime.launch.plan import Plan
from gemmill.runtime.launch.routing import TokenLaunch
from gemmill.runtime.operands.experts import Piece
from gemmill.runtime.operands.overlap import MemoryCheck
from gemmill.runtime.operands.tensors import TensorView


class Addresses:
    """The addresses that launches take, for other tensors like those they were made for. It holds no tensors."""

    def __init__(self, pieces: Mapping[str, Piece], names: Sequence[Collection[str]]) -> None:
        """
        Args:
            pieces: Tensors in the memory between the launches.
            names: For each launch, the tensors that it takes in order, by keyword; pieces after a dot, as ``.rows``.
        """
        self._pieces = [(f".{name}", piece.offset) for name, piece in pieces.items()]
        self._names = names

    def of(self, tensors: Mapping[str, TensorView]) -> list[tuple[int, ...]]:
        """Return the addresses for each launch; 0 for a tensor that a launch does not have. The memory between the
        launches is the tensor ``.``."""
        at = {name: tensor.ptr for name, tensor in tensors.items()}
        for name, offset in self._pieces:
            at[name] = at["."] + offset
        return [tuple([at.get(name, 0) for name in names]) for names in self._names]


class SharedLaunches:
    """Launches for all tensors with the same layouts, at any addresses. It holds no tensors; threads may share it."""

    def __init__(
        self, launches: Collection[Any], addresses: Addresses, tensors: Mapping[str, TensorView], check: MemoryCheck
    ) -> None:
        """``tensors`` are those of one call, the memory between the launches among them as ``.``; ``check`` refuses
        some of their addresses."""
        self.memory_bytes = tensors["."].shape[0]
        """Bytes of the memory between the launches."""
        self._launches, self._addresses, self._names, self._check = launches, addresses, tuple(tensors), check
        self._lock = threading.Lock()

    def launch(self, stream: int, tensors: Mapping[str, TensorView]) -> None:
        """Launch on a stream, on other tensors."""
        self._check(tuple([tensors[name].ptr for name in self._names]))
        with self._lock:
            for launch, addresses in zip(self._launches, self._addresses.of(tensors), strict=True):
                launch.launch(stream, addresses)


class PlanOfLaunches:
    """Launches on given tensors. Calling the plan only launches.

    A plan keeps its tensors alive until you close it, with :meth:`close` or at the end of a ``with`` block. Use it from
    one thread at a time.
    """

    _made_by: str
    """The function that makes such plans."""

    def __init__(self, launches: Sequence[TokenLaunch | Plan], out: Any, held: Any, stream: Callable[[], int]) -> None:
        """``held`` keeps the memory alive."""
        self.out = out
        """The tensor that it writes."""
        self._launches, self._held, self._stream = launches, held, stream

    def __call__(self) -> None:
        """Launch on the stream of the function that made the plan, or on PyTorch's current one."""
        if self._held is None:
            raise GemmillError(f"this plan is closed: make a new one with {self._made_by}")
        stream = self._stream()
        for launch in self._launches:
            if isinstance(launch, Plan):
                launch()
            else:
                launch.launch(stream)

    def close(self) -> None:
        """Release tensors and parameters; later calls raise an error. Running launches finish."""
        for launch in self._launches:
            if isinstance(launch, Plan):
                launch.close()
        self._held = self.out = None

    def __enter__(self) -> Any:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
