"""Emission of a config's kernel as CUDA C++, with the constants that are checked and the facts for the launcher."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from gemmill.emitters import direct_kernels, headers_digest, wgmma_kernels
from gemmill.library.config.model import FamilyName, GemmConfig
from gemmill.library.config.names import is_former, kernel_name, parse_name
from gemmill.library.errors import ConfigError
from gemmill.library.families.families import plan_of
from gemmill.library.families.kernel_plan import KernelPlan
from gemmill.library.launch import LaunchSpec
from gemmill.library.legality.rules import broken

SOURCE_FILE = "gemmill.cu"
"""The file name of every source in messages and line tables."""
DEFINES: tuple[str, ...] = ("NDEBUG",)
"""Macros that the headers need. Without NDEBUG, an ``assert`` makes ptxas serialise WGMMA."""


@dataclass(frozen=True)
class EmittedSource:
    """The source of one kernel. Equal configs and headers give identical text."""

    name: str
    """Kernel name."""
    text: str
    """CUDA C++."""
    entry: str
    """``extern "C"`` symbol of the kernel."""
    constants: Mapping[str, int]
    """The constants that the kernel exports by name, in an array of ``gemmill::Fact`` with the symbol
    ``ENTRY_spec``."""
    launch: LaunchSpec
    headers_digest: str
    """SHA-256 of the headers that the text includes."""
    chain: int = 0
    """Multiply-adds by one register that the machine code issues in sequence (``runtime/compile/patch/sass.py``); 0
    keeps ptxas's order."""
    is_edited: bool = False
    """Whether a user edited the text (:mod:`gemmill.emitters.edited_page`); the name then has a digest."""

    @property
    def digest(self) -> str:
        """SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


class Emitter(Protocol):
    """The interface of a kernel family's emitter: three pure functions, which are called only for legal configs."""

    def launch_spec(self, plan: Any) -> LaunchSpec:
        """The launch facts of the kernel."""

    def constants(self, launch: LaunchSpec) -> dict[str, int]:
        """The constants that the kernel must export, by name."""

    def text(self, plan: Any, launch: LaunchSpec) -> str:
        """The CUDA C++ source."""


_EMITTERS: Mapping[FamilyName, Emitter] = {
    "wgmma": wgmma_kernels,
    **dict.fromkeys(("mma", "simt", "gemv"), direct_kernels),
}


def emit(config: GemmConfig) -> EmittedSource:
    """The source of a config's kernel; ConfigError if a field is invalid or the config breaks a legality rule."""
    plan = _legal_plan(config)
    emitter = _EMITTERS[plan.config.family]
    launch = emitter.launch_spec(plan)
    return EmittedSource(
        name=kernel_name(config),
        text=emitter.text(plan, launch),
        entry=launch.entry,
        constants=emitter.constants(launch),
        launch=launch,
        headers_digest=headers_digest(),
        chain=plan.multiply_add_chain,
    )


def facts(config: GemmConfig) -> tuple[LaunchSpec, Mapping[str, int]]:
    """The launch facts of a config's kernel and its exported constants; ConfigError as for :func:`emit`."""
    launch = launch_spec(_legal_plan(config).config)
    return launch, _EMITTERS[config.family].constants(launch)


def launch_spec(config: GemmConfig) -> LaunchSpec:
    """The launch facts of a legal config's kernel."""
    return _EMITTERS[config.family].launch_spec(plan_of(config))


def _legal_plan(config: GemmConfig) -> KernelPlan:
    """The plan of a config; ConfigError if it is not legal."""
    name = kernel_name(config)
    if not is_former(name):  # no legal config has a former name
        parse_name(name)  # checks field values, which the constructor of a config does not
    if findings := broken(config):
        raise ConfigError(f"{name}: " + "; ".join(f"[{rule.id}] {finding}" for rule, finding in findings))
    return plan_of(config)
