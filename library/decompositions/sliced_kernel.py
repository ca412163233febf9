"""A kernel and the slices of K of its launch: what is selected, measured, recorded, locked and launched.

The number of slices is an argument of the launch of split-K kernels, which are compiled, stored and packed once.
"""

from __future__ import annotations

from typing import NamedTuple

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import FORMER, SPLIT_K, kernel_name
from gemmill.library.decompositions.decomposition import MAX_SLICES, decomposition_of
from gemmill.library.errors import ConfigError
from gemmill.library.input.strict_json import RowError

SLICES = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Numbers that are chosen among: each at most half as many again as the one before."""


class SlicedKernel(NamedTuple):
    """A kernel and the slices of K of its launch."""

    name: str
    """Kernel name."""
    slices: int = 1
    """Slices of K; 1 of all but split-K kernels."""

    def __str__(self) -> str:
        return self.name if self.slices == 1 else f"{self.name} in {self.slices} slices"

    @classmethod
    def recorded(cls, name: str, slices: int = 1) -> SlicedKernel:
        """What a file says of a kernel. Names of split-K kernels had the number of slices in the past; of those that
        others have replaced they are kept. RowError where no kernel takes so many slices."""
        if slices == 1 and (former := FORMER.search(name)):
            slices = int(former[1])
            if former[2] in ("anysplit", SPLIT_K):
                name = f"{name[: former.start()]}_{SPLIT_K}_{name[former.end() :]}"
        if not 1 <= slices <= MAX_SLICES:
            raise RowError(f"{name:.200}: slices is {slices}; it must be from 1 to {MAX_SLICES}")
        return cls(name, slices)


def in_each_number(name: str, config: GemmConfig) -> list[SlicedKernel]:
    """A kernel in each number of slices that is chosen among."""
    return [SlicedKernel(name, slices) for slices in (SLICES if decomposition_of(config).has_second_kernel else (1,))]


def check_slices(config: GemmConfig, slices: int) -> None:
    """Refuse a number of slices that a kernel does not take.

    Raises:
        ConfigError: it is no split-K kernel, or takes no so many.
    """
    most = MAX_SLICES if decomposition_of(config).has_second_kernel else 1
    if not 1 <= slices <= most:
        takes = f"1 to {most}" if most > 1 else f"one alone: leave slices out, or name a split-K kernel ({SPLIT_K})"
        raise ConfigError(f"slices is {slices}; {kernel_name(config)} takes {takes}")
