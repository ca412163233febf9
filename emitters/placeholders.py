"""The placeholders that the source templates of all families share."""

from __future__ import annotations

from collections.abc import Iterator

from gemmill.library.config.field_table import TABLE
from gemmill.library.config.fields import READERS
from gemmill.library.config.model import GemmConfig
from gemmill.library.launch import LaunchSpec


def placeholders(config: GemmConfig, launch: LaunchSpec) -> dict[str, object]:
    """The values of placeholders by name: operands, tile, stages, members generated from fields, and symbols."""
    c = config.c or config.d
    return {
        "summary": f"{config.d.dtype} D = {config.a.dtype} A x {config.b.dtype} B, accumulated in {config.accumulator}",
        "a": config.a.loaded.cpp,
        "b": config.b.loaded.cpp,
        "c": config.c.type.cpp if config.c else "gemmill::None",
        "d": config.d.type.cpp,
        "major_a": config.a.major.upper(),
        "major_b": config.b.major.upper(),
        "major_c": c.major.upper(),
        "major_d": config.d.major.upper(),
        "tile_m": config.tile.m,
        "tile_n": config.tile.n,
        "tile_k": config.tile.k,
        "stages": config.stages,
        "fields": "\n".join(_members(config)),
        "spec_symbol": f"{launch.entry}_spec",
        "entry": launch.entry,
    }


def _members(config: GemmConfig) -> Iterator[str]:
    """The members of the kernel's ``Config`` that the table of fields declares."""
    for row in TABLE.values():
        if row.field.cpp:
            yield f"  static constexpr {row.field.cpp.format(str(READERS[row.name](config)).upper())};"
