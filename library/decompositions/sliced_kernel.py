"""A kernel together with the number of slices of K: the unit of selection, measurement, records, locks and launches.

The number of slices is a launch argument of ``splitk``, ``serial`` and ``tree`` kernels, which are compiled, stored and
packed once.
"""

from __future__ import annotations

from typing import NamedTuple

from gemmill.library.config.domains import one_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import FORMER, SPLIT_K, kernel_name
from gemmill.library.decompositions.decomposition import MAX_SLICES, decomposition_of
from gemmill.library.errors import ConfigError
from gemmill.library.input.strict_json import RowError

SLICES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""The numbers of slices that the selector considers. Each is at most 1.5 times the next smaller one, from 2 on."""


class SlicedKernel(NamedTuple):
    """A kernel and the number of slices of K of its launch."""

    name: str
    """Kernel name."""
    slices: int = 1
    """Slices of K; 1 except for kernels whose launch sets the number."""

    def __str__(self) -> str:
        return self.name if self.slices == 1 else f"{self.name} in {self.slices} slices"

    @classmethod
    def recorded(cls, name: str, slices: int = 1) -> SlicedKernel:
        """The kernel of a record in a file. Former names of split-K kernels contain the number of slices; names of
        kernels that have since been replaced are kept. RowError if the number of slices is out of range."""
        if slices == 1 and (former := FORMER.search(name)):
            slices = int(former[1])
            if former[2] in ("anysplit", SPLIT_K):
                name = f"{name[: former.start()]}_{SPLIT_K}_{name[former.end() :]}"
        if not 1 <= slices <= MAX_SLICES:
            raise RowError(f"{name:.200}: slices is {slices}; it must be from 1 to {MAX_SLICES}")
        return cls(name, slices)


def in_each_number(name: str, config: GemmConfig) -> list[SlicedKernel]:
    """A kernel with each number of slices that the selector considers."""
    supported = decomposition_of(config)
    considered = [slices for slices in SLICES if slices in supported.slices] if supported.has_slices else [1]
    return [SlicedKernel(name, slices) for slices in considered]


def check_slices(config: GemmConfig, slices: int) -> None:
    """Check the number of slices for a kernel.

    Raises:
        ConfigError: the kernel does not support the number.
    """
    supported = decomposition_of(config)
    if slices in supported.slices:
        return
    match supported.slices:
        case range(start=least, stop=end):
            rule = f"it must be from {least} to {end - 1}"
        case (1,):
            rule = f"omit slices, or use a split-K kernel ({SPLIT_K})"
        case numbers:
            rule = f"it must be {one_of(numbers)}"
    raise ConfigError(f"slices is {slices} for {kernel_name(config)}; {rule}")
