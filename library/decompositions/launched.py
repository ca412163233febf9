"""Kernels whose launch says in how many slices K goes: one cubin, and a name for each number.

A manifest declares, and stores and packs hold, the kernel of one slice (``splitk``); what is selected, launched and
measured says the number (``k40splitk``).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import SPLIT_K, kernel_name
from gemmill.library.decompositions.decomposition import decomposition_of
from gemmill.library.errors import ConfigError

NUMBERS = (2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256)
"""Those that are chosen among: each at most half as many again as the one before."""
_SAID = re.compile(rf"_(?:k[0-9]+)?{SPLIT_K}_")


def compiled(config: GemmConfig) -> GemmConfig:
    """The kernel whose cubin a kernel is launched from: itself, but where the launch says the number of slices."""
    return with_number(config, 1) if decomposition_of(config).has_second_kernel else config


def compiled_name(name: str) -> str:
    """The same by name; whatever is no kernel's name is itself."""
    return _SAID.sub(f"_{SPLIT_K}_", name)


def says_number(name: str) -> bool:
    """Whether a name is that of a kernel whose launch says the number of slices."""
    return _SAID.search(name) is not None


def with_number(config: GemmConfig, splits: int) -> GemmConfig:
    """A kernel for launches of so many slices."""
    return replace(config, scheduler=replace(config.scheduler, splits=splits))


def in_slices(config: GemmConfig, slices: int) -> GemmConfig:
    """A split-K kernel for launches of so many slices.

    Raises:
        ConfigError: it is none, it has another number already, or takes no so many.
    """
    how, name = decomposition_of(config), kernel_name(config)
    if not how.has_second_kernel:
        raise ConfigError(
            f"slices is {slices}, but {name} is no split-K kernel: leave slices out, or name one (splitk)"
        )
    if not is_open(config) and config.scheduler.splits != slices:
        raise ConfigError(f"slices is {slices}, and the name {name} has another number: name {compiled_name(name)}")
    if slices not in how.splits:
        raise ConfigError(f"slices is {slices}; {name} takes {how.splits[0]} to {how.splits[-1]}")
    return with_number(config, slices)


def numbered(configs: Mapping[str, GemmConfig]) -> Mapping[str, GemmConfig]:
    """Kernels by name as they are launched: one that is declared for any number of slices is so with each of
    :data:`NUMBERS`."""
    found: dict[str, GemmConfig] = {}
    for name, config in configs.items():
        if is_open(config):
            found |= {kernel_name(own): own for own in (with_number(config, splits) for splits in NUMBERS)}
        else:
            found[name] = config
    return found


def is_open(config: GemmConfig) -> bool:
    """Whether the number of slices is yet to be said."""
    return config.scheduler.splits == 1 and decomposition_of(config).has_second_kernel
