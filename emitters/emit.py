"""A config to the CUDA C++ of its kernel, with everything the compiler checks and the launcher needs."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from gemmill.emitters import headers_digest
from gemmill.emitters.families import gemv, mma_sync, simt
from gemmill.emitters.families import wgmma as tma_wgmma
from gemmill.library.config.fields import fields_of
from gemmill.library.config.model import FamilyName, GemmConfig
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.errors import ConfigError
from gemmill.library.families.wgmma.warpgroups import multiply_add_chain
from gemmill.library.launch import LaunchSpec
from gemmill.library.legality.rules import verdicts

DEFINES: tuple[str, ...] = ("NDEBUG",)
"""Macros the headers need: an ``assert`` makes ptxas serialise WGMMA."""


@dataclass(frozen=True)
class EmittedSource:
    """The source of one kernel. Equal configs and headers give equal text, byte for byte."""

    name: str
    """Kernel name."""
    text: str
    """CUDA C++."""
    entry: str
    """``extern "C"`` symbol of the kernel."""
    constants: Mapping[str, int]
    """The facts that the kernel exports, as an array of ``gemmill::Fact`` called ``ENTRY_spec``, by name."""
    launch: LaunchSpec
    headers_digest: str
    """SHA-256 of the headers the text includes."""
    chain: int = 0
    """Multiply-adds by one register that its machine code issues together (``runtime/compile/patch/sass.py``); 0: as
    ptxas has it."""
    is_edited: bool = False
    """Whether somebody edited the text (:mod:`gemmill.emitters.page`); the name then tells of it."""

    @property
    def digest(self) -> str:
        """SHA-256 of the text."""
        return hashlib.sha256(self.text.encode()).hexdigest()


class Emitter(Protocol):
    """What a kernel family's module offers. All three are pure, and are called for legal configs only."""

    def launch_spec(self, config: GemmConfig) -> LaunchSpec:
        """The launch facts of the kernel."""

    def constants(self, launch: LaunchSpec) -> dict[str, int]:
        """What the kernel must export, by name."""

    def text(self, config: GemmConfig) -> str:
        """CUDA C++."""


_EMITTERS: Mapping[FamilyName, Emitter] = {"wgmma": tma_wgmma, "mma": mma_sync, "simt": simt, "gemv": gemv}


def emit(config: GemmConfig) -> EmittedSource:
    """The source of a config's kernel; ConfigError where a field's value or a legality rule refuses the config."""
    config = _legal(config)
    emitter = _EMITTERS[config.family]
    launch = emitter.launch_spec(config)
    return EmittedSource(
        name=kernel_name(config),
        text=emitter.text(config),
        entry=launch.entry,
        constants=emitter.constants(launch),
        launch=launch,
        headers_digest=headers_digest(),
        chain=multiply_add_chain(fields_of(config)),
    )


def facts(config: GemmConfig) -> tuple[LaunchSpec, Mapping[str, int]]:
    """The launch facts of a config's kernel, and what it must export; ConfigError as for :func:`emit`."""
    emitter = _EMITTERS[(config := _legal(config)).family]
    launch = emitter.launch_spec(config)
    return launch, emitter.constants(launch)


def launch_spec(config: GemmConfig) -> LaunchSpec:
    """The launch facts of a legal config's kernel."""
    return _EMITTERS[config.family].launch_spec(config)


def _legal(config: GemmConfig) -> GemmConfig:
    """A config that is legal; ConfigError for others."""
    name = kernel_name(config)
    config = parse_name(name)  # making a config checks nothing
    if broken := verdicts(config):
        raise ConfigError(f"{name}: " + "; ".join(f"[{v.rule}] {v.says}" for v in broken))
    return config
