"""Problems by extents, and types with majors, as tests have them."""

from __future__ import annotations

from collections.abc import Sequence

from gemmill.library.problem import GemmProblem

Format = tuple[str, str]
"""A type and a major."""


def plain(extents: Sequence[int], a: Format, b: Format, accumulator: str, c: Format | None, d: Format) -> GemmProblem:
    """The problem of M, N, K and batch on operands without padding."""
    return GemmProblem(
        *extents,
        a=a[0],
        a_major=a[1],
        b=b[0],
        b_major=b[1],
        accumulator=accumulator,
        c=c and c[0],
        c_major=c and c[1],
        d=d[0],
        d_major=d[1],
    )
