"""Conversions of operands before a launch: kernels that write A, B or C of a GEMM to the workspace in another form."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

from gemmill.runtime import driver
from gemmill.runtime.launch.kernel import PreparedLaunch
from gemmill.runtime.launch.parameters import ParameterBlock

BEGIN = 256
"""Converted operands start at multiples of this many bytes."""


class ConversionKernel(NamedTuple):
    """A kernel that converts operands. Its parameters are jobs, one for each operand, which begin with the addresses of
    the operand and of its new form, and end with the index of its first CTA."""

    entry: str
    """Symbol."""
    text: Callable[[], str]
    """Returns the PTX."""
    job_bytes: int
    jobs: int
    """Most operands of a launch."""
    threads: int
    """Threads of a CTA."""
    purpose: str
    """What it does, for errors."""
    replaces: bool = True
    """Whether later kernels read what it writes in place of the operands."""

    def is_loaded(self, device: int) -> bool:
        """Whether it is loaded on a GPU, so that a launch can be prepared during a stream capture."""
        return (device, self.entry) in _kernels

    def load(self, device: int) -> Any:
        """Return it on a GPU."""
        if not self.is_loaded(device):
            _kernels[device, self.entry] = driver.compiled(device, self.text(), self.entry, self.purpose)
        return _kernels[device, self.entry]


_kernels: dict[tuple[int, str], Any] = {}
"""The kernels that a GPU needed. If two threads load one at once, the second does no harm."""


class ConvertedOperand(Protocol):
    """An operand, as a conversion reads and writes it."""

    @property
    def name(self) -> str:
        """``a``, ``b`` or ``c`` of the GEMM."""

    @property
    def offset(self) -> int:
        """Offset of the new form in its memory."""

    @property
    def end(self) -> int:
        """End of the new form in its memory."""

    @property
    def ctas(self) -> int:
        """CTAs of the kernel that convert it."""

    def job(self, begin: int) -> bytes:
        """Return its job, except for two addresses; ``begin`` is the first of its CTAs."""


class ConversionLaunch:
    """The launch that converts operands, by their index in the addresses. Use it from one thread at a time."""

    def __init__(
        self,
        device: int,
        kernel: ConversionKernel,
        operands: Mapping[int, ConvertedOperand],
        earlier: Mapping[int, ConvertedOperand],
    ) -> None:
        """``earlier`` conversions wrote some operands to the memory, where this one reads them."""
        block = ParameterBlock(kernel.jobs * kernel.job_bytes)
        ctas = at = 0
        self._sources = []
        self._moved = []
        for place, operand in operands.items():
            block.put(at, operand.job(ctas))
            ctas += operand.ctas
            self._moved.append((operand.offset, block.integer(at + 8)))
            if place in earlier:
                self._moved.append((earlier[place].offset, block.integer(at)))
            else:
                self._sources.append((place, block.integer(at)))
            at += kernel.job_bytes
        unused = struct.pack(f"<{kernel.job_bytes - 4}xI", ctas)
        for following in range(at, kernel.jobs * kernel.job_bytes, kernel.job_bytes):
            block.put(following, unused)
        self._block = block  # the prepared launch points into it
        loaded = kernel.load(device)
        self._prepared = PreparedLaunch(device, kernel.entry, loaded, ctas, kernel.threads, 0, block.arguments)

    def move(self, memory: int) -> None:
        """Write to this memory from now on."""
        for offset, pointer in self._moved:
            pointer.value = memory + offset

    def launch(self, stream: int, addresses: Sequence[int]) -> None:
        """Convert the operands at some addresses, on a stream of the GPU."""
        for place, source in self._sources:
            source.value = addresses[place]
        self._prepared.launch(stream)
