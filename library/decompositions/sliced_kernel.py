"""A kernel and the slices of K of its launch: what is selected, measured, recorded, locked and launched.

The number of slices is an argument of the launch of split-K kernels, which are compiled, stored and packed once.
"""

from __future__ import annotations

from typing import NamedTuple

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import FORMER, SPLIT_K, kernel_name
from gemmill.library.decompositions.decomposition import MAX_SLICES, decomposition_of
from gemmill.library.errors import ConfigError

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
        others have replaced they are kept."""
        if slices > 1 or (former := FORMER.search(name)) is None:
            return cls(name, slices)
        if former[2] in ("anysplit", SPLIT_K):
            name = f"{name[: former.start()]}_{SPLIT_K}_{name[former.end() :]}"
        return cls(name, int(former[1]))


def choices_of_slices(config: GemmConfig) -> tuple[int, ...]:
    """The numbers of slices that are chosen among for a kernel."""
    return SLICES if decomposition_of(config).has_second_kernel else (1,)


def check_slices(config: GemmConfig, slices: int) -> None:
    """Refuse a number of slices that a kernel does not take.

    Raises:
        ConfigError: the kernel is no split-K kernel, or takes no so many.
    """
    if not decomposition_of(config).has_second_kernel and slices != 1:
        raise ConfigError(
            f"slices is {slices}, but {kernel_name(config)} is no split-K kernel: leave slices out, or name one "
            f"({SPLIT_K})"
        )
    if not 1 <= slices <= MAX_SLICES:
        raise ConfigError(f"slices is {slices}; {kernel_name(config)} takes 1 to {MAX_SLICES}")
