"""Kernels that tests share: for those on a GPU, the sanitiser, golden texts and benchmarks, without torch or a GPU.

``kernels.yaml`` has them by group, each with an id; the name of a kernel says all else and stays what it is.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import pytest
import yaml

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import parse_name


@dataclass(frozen=True)
class KernelCase:
    """A kernel that is worth testing."""

    id: str
    """Short, unique within its group; what a test with this kernel is called."""
    reason: str
    """What it has that others have not."""
    name: str
    """Kernel name."""

    @cached_property
    def config(self) -> GemmConfig:
        """The kernel."""
        return parse_name(self.name)


def _read() -> dict[str, tuple[KernelCase, ...]]:
    groups = yaml.safe_load(Path(__file__).with_name("kernels.yaml").read_text())
    return {
        group: tuple(
            KernelCase(label, part["reason"], name) for part in parts for label, name in part["kernels"].items()
        )
        for group, parts in groups.items()
    }


KERNELS = _read()
"""Cases by group."""
BASE = KERNELS["base"]
"""One plain kernel of each schedule and tile M of a warpgroup: for tests where the kernel hardly matters."""
WGMMA = BASE + KERNELS["wgmma"]
"""Every member of the WGMMA family of one data type at least once."""
DIRECT = KERNELS["direct"]
"""Members of the families without TMA: every type, majorness and kind of copy at least once."""
GOLDEN = KERNELS["golden"]
"""Kernels whose source text is kept: every schedule with every decomposition of K and kind of batch that it has."""


def configs(cases: Iterable[KernelCase]) -> tuple[GemmConfig, ...]:
    """The kernels of cases."""
    return tuple(case.config for case in cases)


def each(cases: Iterable[KernelCase]) -> pytest.MarkDecorator:
    """Run a test on every kernel, as its argument ``config``."""
    return pytest.mark.parametrize("config", [pytest.param(case.config, id=case.id) for case in cases])
