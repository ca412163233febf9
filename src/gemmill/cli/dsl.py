"""The options of CuTe DSL's Hopper GEMM example (dense_gemm.py), for ``gemmill bench``: a tile and a cluster instead
of a kernel, and the example's spelling of options."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from typer.core import TyperCommand

from gemmill.cli.options import numbers
from gemmill.library.errors import ManifestError, UnsupportedProblemError
from gemmill.library.manifest.kernelset import KernelSet
from gemmill.library.manifest.load import load_manifest
from gemmill.library.problem import GemmProblem

WORDS = {
    "--a_dtype": "--a-dtype",
    "--b_dtype": "--b-dtype",
    "--c_dtype": "--d-dtype",
    "--acc_dtype": "--accumulator",
    "--a_major": "--a-major",
    "--b_major": "--b-major",
    "--c_major": "--d-major",
    "--tile_shape_mnk": "--tile",
    "--cluster_shape_mn": "--cluster",
}
"""The example's options and the equivalent ones of gemmill. The example's C is the output, which is D here."""


class DslCommand(TyperCommand):
    """A command that also accepts the example's options."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Translate the example's options, and parse the command line."""
        parted = [arg.partition("=") for arg in args]
        return super().parse_args(ctx, [f"{WORDS.get(name, name)}{is_}{value}" for name, is_, value in parted])


def _numbers(count: int, example: str) -> Any:
    def read(text: str) -> tuple[int, ...]:
        parts = numbers(text)
        if len(parts) != count or not all(len(part) < 6 and 0 < int(part) < 1 << 16 for part in parts):
            raise typer.BadParameter(f"{text!r:.80} must be {count} numbers from 1 to 65,535, such as {example}")
        return tuple(map(int, parts))

    return read


TileShape = Annotated[
    Any,
    typer.Option(
        parser=_numbers(3, "128,256,64"),
        metavar="M,N,K",
        help="Run the best legal kernel with this CTA tile, in elements, instead of the selected kernel.",
    ),
]
ClusterShape = Annotated[
    Any,
    typer.Option(parser=_numbers(2, "2,1"), metavar="M,N", help="With --tile: cluster size in CTAs. Default: 1,1."),
]


def kernels_of(problem: GemmProblem, tile: tuple[int, ...], cluster: tuple[int, ...]) -> KernelSet:
    """All legal kernels for a problem's formats with this CTA tile, in elements, and cluster, in CTAs.

    Raises:
        UnsupportedProblemError: the rules refuse all of them; the message lists the rules.
    """
    formats = {
        x: {"dtype": getattr(problem, f"{x}_dtype"), "major": getattr(problem, f"{x}_major")}
        for x in ("a", "b", "c", "d")
        if getattr(problem, f"{x}_dtype")
    }
    declaration = {
        **formats,
        "accumulator": problem.accumulator,
        "tile": dict(zip("mnk", tile, strict=True)),
        "cluster": "x".join(map(str, cluster)),
        "schedule": ["cooperative", "pingpong"],
        "scheduler": {"raster": ["m", "n"], "swizzle_size": 8},
    }
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "tile.yaml"
        path.write_text(yaml.safe_dump({"name": "tile", "sets": [declaration]}), encoding="utf-8")
        try:
            return load_manifest(path)
        except ManifestError as error:
            why = "; ".join(line.partition("sets[0]")[2].lstrip(".: ") for line in str(error).splitlines())
            raise UnsupportedProblemError(f"no legal kernel has the tile {'x'.join(map(str, tile))}: {why}") from None
