"""The source of a SIMT kernel: a thin instantiation of kernel/simt.cuh."""

from __future__ import annotations

from gemmill.emitters.families import direct
from gemmill.emitters.families.direct import constants, launch_spec
from gemmill.library.config.model import GemmConfig

__all__ = ["constants", "launch_spec", "text"]


def text(config: GemmConfig) -> str:
    """The source of a legal config's kernel."""
    return direct.text(config, header="simt", kernel="SimtGemm")
