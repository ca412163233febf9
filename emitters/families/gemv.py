"""The source of a GEMV kernel: a thin instantiation of kernel/gemv.cuh around one PTX instruction."""

from __future__ import annotations

from gemmill.emitters.families import direct
from gemmill.emitters.families.direct import constants, launch_spec
from gemmill.emitters.families.mma_sync import mma_atom
from gemmill.library.config.fields import fields_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.families import gemv

__all__ = ["constants", "launch_spec", "text"]


def text(config: GemmConfig) -> str:
    """The source of a legal config's kernel."""
    members = f"  using Atom = ::Atom;\n  static constexpr int kBlocks = {gemv.blocks_per_sm(fields_of(config))};\n"
    return direct.text(config, header="gemv", kernel="Gemv", atom=mma_atom(config), members=members)
