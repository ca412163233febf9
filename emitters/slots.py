"""What the templates of all families' sources have slots for."""

from __future__ import annotations

from gemmill.library.config.model import GemmConfig
from gemmill.library.launch import LaunchSpec


def slots(config: GemmConfig, launch: LaunchSpec) -> dict[str, object]:
    """Operands, tile, stages, order of tiles and symbols, by the names of their slots."""
    c = config.c or config.d
    return {
        "summary": f"{config.d.dtype} D = {config.a.dtype} A x {config.b.dtype} B, accumulated in {config.accumulator}",
        "a": config.a.type.cpp,
        "b": config.b.type.cpp,
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
        "raster": config.scheduler.raster.upper(),
        "swizzle": config.scheduler.swizzle_size,
        "spec_symbol": f"{launch.entry}_spec",
        "entry": launch.entry,
    }
