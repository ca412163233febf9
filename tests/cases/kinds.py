"""Kinds of problems, each small: the table of docs/problems.md, whose rows tests run through every command."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from gemmill.library.config.fields import fields_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.problem import GemmProblem
from gemmill.profiler.baselines.cublas import lacking


class Kind(NamedTuple):
    """One row of the table."""

    name: str
    text: str
    """The line of its problem, but for the sizes of its groups."""
    sizes: str = ""

    @property
    def problem(self) -> GemmProblem:
        """The problem as it is asked for."""
        return GemmProblem.from_text(self.text)

    @property
    def measured(self) -> GemmProblem:
        """The problem as records have it: narrow weights are A."""
        return self.problem.with_narrow_a


KINDS = {
    kind.name: kind
    for kind in (
        Kind("plain", "256x512x256 bf16 tn"),
        Kind("C", "256x512x256 bf16 tn c=bf16"),
        Kind("batch", "256x512x256x4 bf16 tn"),
        Kind("broadcast batch: 4 x 256 rows, one B", "1024x512x256 bf16 tn"),
        Kind("fused", "256x512x256 bf16 tn epilogue='d = gelu(acc + bias.bf16[n])'"),
        Kind("gated", "256x512x256 bf16 tn epilogue='d = silu(gate) * up'"),
        Kind("grouped", "512x512x256 bf16 tn grouped=4", "zipf:1.1"),
        Kind("masked", "256x512x256 bf16 tn masked=4 expected_rows=128", "200,0,1,256"),
        Kind("kgrouped", "256x512x512 bf16 nt kgrouped=4", "zipf:1.1"),
        Kind("array", "256x512x256 bf16 tn array=4"),
        Kind("block-scaled", "256x512x512 e4m3 tn a_scale=1x128 b_scale=128x128"),
        Kind("block-scaled by powers of two", "256x512x512 e4m3 tn a_scale=1x128e8 b_scale=128x128e8"),
        Kind("row-scaled", "256x512x512 e4m3 tn epilogue='d = acc * a_scale[m] * b_scale[n]'"),
        Kind("narrow weights, group scales", "64x512x512 bf16*u4 tn b_scale=1x128"),
        Kind("narrow weights, zero points", "64x512x512 bf16*u4 tn b_scale=1x128z"),
        Kind("MXFP4 weights", "64x512x512 bf16*e2m1 tn"),
        Kind("narrow weights, grouped", "64x512x512 bf16*u4 tn grouped=4 b_scale=1x128", "zipf:1.1"),
        Kind("unaligned", "256x509x255 bf16 tn"),
    )
}
"""Rows of the table by name."""


def table() -> str:
    """The table as the docs have it."""
    head = ("kind", "as a line", "baseline")
    lines = [head, ("---",) * len(head)]
    for kind in KINDS.values():
        sizes = f" with `--sizes {kind.sizes}`" if kind.sizes else ""
        lines.append((kind.name, f"`{kind.text}`{sizes}", "none" if lacking(kind.measured) else "cuBLAS"))
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def suite(kinds: Iterable[Kind]) -> str:
    """A file of shapes with the problems of these kinds."""
    return json.dumps({"shapes": [_shape(kind) for kind in kinds]})


def _shape(kind: Kind) -> dict[str, Any]:
    types = {"a": kind.problem.a_dtype, "b": kind.problem.b_dtype, "d_major": kind.problem.d_major}
    majors = {"a_major": kind.problem.a_major, "b_major": kind.problem.b_major}
    return kind.problem.to_dict() | types | majors | ({"sizes": kind.sizes} if kind.sizes else {})


def manifest(configs: Iterable[GemmConfig]) -> str:
    """A manifest with just these kernels."""
    return json.dumps({"name": "kinds", "sets": [*map(_nested, configs)]})


def _nested(config: GemmConfig) -> Mapping[str, Any]:
    found: dict[str, Any] = {}
    for name, value in fields_of(config).items():
        group, _, leaf = name.partition(".")
        if group == "c" and config.c is None:
            continue
        if leaf:
            found.setdefault(group, {})[leaf] = value
        else:
            found[name] = value
    return found
