"""Calls of every operator, with what they give by plain float64 arithmetic."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from gemmill.library.e2m1 import VALUES, from_fragment_order

torch: Any = pytest.importorskip("torch")


class Case(NamedTuple):
    """A call of an operator."""

    operator: str
    tensors: dict[str, Any]
    """By the names of the schema; lists of them too."""
    keywords: dict[str, Any]
    expected: Callable[..., Any]
    """Of the tensors, in float64."""

    def functional(self) -> Any:
        """The overload that returns D."""
        return getattr(torch.ops.gemmill, self.operator).default

    def mutating(self) -> Any:
        """The overload that writes D."""
        return getattr(torch.ops.gemmill, f"{self.operator}_out").default


def wide(*shape: int, dtype: Any = None, seed: int = 0) -> Any:
    """Random values, small integers, so that sums are exact."""
    made = torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(sum(shape) + seed))
    return made.to(dtype or torch.bfloat16)


def double(x: Any) -> Any:
    return x.to(torch.float64)


def product(a: Any, b: Any, **_: Any) -> Any:
    return double(a) @ double(b)


def _packed(values: Any) -> Any:
    """(K, N) of 4 bits as (K / 2, N) of bytes, contiguous along K."""
    return (values[0::2] + 16 * values[1::2]).to(torch.uint8).mT.contiguous().mT


def _groups_expected(a: Any, b: Any, offsets: Any) -> Any:
    starts = [0, *offsets.tolist()]
    spans = [*itertools.pairwise(starts)]
    if b.dim() == 3:
        return torch.cat([product(a[i:j], b[g]) for g, (i, j) in enumerate(spans)])
    return torch.stack([product(a[:, i:j], b[i:j]) for i, j in spans])


def _slots_expected(a: Any, b: Any, counts: Any, **_: Any) -> Any:
    rows = torch.arange(a.shape[1])[None, :, None] < counts[:, None, None]
    return product(a, b) * rows


def _weights_expected(a: Any, b: Any, a_scale: Any, b_scale: Any, a_zero: Any, b_zero: Any) -> Any:
    values = torch.stack((b & 15, b >> 4), dim=1).flatten(0, 1)
    spread = [double(x).repeat_interleave(32, 0) for x in (b_zero, b_scale)]
    return double(a) @ ((double(values) - spread[0]) * spread[1])


def _e2m1_expected(a: Any, b: Any, a_scale: Any, b_scale: Any) -> Any:
    codes = from_fragment_order(b.mT.int(), torch).long()
    values = torch.tensor(VALUES, dtype=torch.float64)[codes].mT
    return double(a) @ (values * double(b_scale).repeat_interleave(32, 0))


def _blocks_expected(a: Any, b: Any, a_scale: Any, b_scale: Any) -> Any:
    scaled_a = double(a) * double(a_scale).repeat_interleave(128, 1)[:, : a.shape[1]]
    of_b = double(b_scale).repeat_interleave(128, 0).repeat_interleave(128, 1)
    return scaled_a @ (double(b) * of_b[: b.shape[0], : b.shape[1]])


def _epilogue_expected(a: Any, b: Any, operands: Any) -> Any:
    aux = product(a, b) + double(operands[0])
    d = aux.relu() * 2
    return [d, aux, d.amax(1), d.amax(0), d.amax()]


def _ends(*values: int) -> Any:
    return torch.tensor(values, dtype=torch.int32)


FP8 = torch.float8_e4m3fn


def _blocks_of(h: torch.Tensor) -> list[torch.Tensor]:
    blocks = h.unflatten(-1, (-1, 128))
    scales = (blocks.abs().amax(-1) / 448).clamp(min=2.0**-40)
    return [(blocks / scales[..., None]).flatten(-2), scales]


CASES: dict[str, Case] = {
    "mm": Case("mm", {"a": wide(5, 7), "b": wide(7, 3)}, {}, product),
    "mm of f64 by alpha": Case(
        "mm",
        {"a": wide(5, 7, dtype=torch.float64), "b": wide(7, 3, dtype=torch.float64)},
        {"alpha": 0.5},
        lambda a, b: 0.5 * (a @ b),
    ),
    "mm in f32": Case("mm", {"a": wide(5, 7), "b": wide(3, 7).mT}, {"out_dtype": torch.float32}, product),
    "mm of integers": Case("mm", {"a": wide(5, 7, dtype=torch.int8), "b": wide(7, 3, dtype=torch.int8)}, {}, product),
    "mm of fp8": Case("mm", {"a": wide(5, 16).to(FP8), "b": wide(16, 16).to(FP8).mT}, {}, product),
    "mm of no rows": Case("mm", {"a": wide(0, 7), "b": wide(7, 3)}, {}, product),
    "mm of no K": Case("mm", {"a": wide(5, 0), "b": wide(0, 3)}, {}, product),
    "mm with options": Case("mm", {"a": wide(5, 7), "b": wide(7, 3)}, {"options": "tf32=True;sm_count=100"}, product),
    "addmm": Case(
        "addmm",
        {"c": wide(3), "a": wide(5, 7), "b": wide(7, 3)},
        {"alpha": 2.0, "beta": 0.5},
        lambda c, a, b: 2 * product(a, b) + 0.5 * double(c),
    ),
    "addmm to a column": Case(
        "addmm",
        {"c": wide(5, 1), "a": wide(7, 5).mT, "b": wide(7, 3)},
        {},
        lambda c, a, b: product(a, b) + double(c),
    ),
    "bmm": Case("bmm", {"a": wide(2, 5, 7), "b": wide(2, 7, 3)}, {}, product),
    "bmm of one weight": Case("bmm", {"a": wide(4, 2, 5, 7)[:, 0], "b": wide(3, 7).mT}, {}, product),
    "bmm of expanded views": Case(
        "bmm",
        {"a": wide(2, 1, 5, 7), "b": wide(1, 7, 3).expand(4, 7, 3)},
        {"alpha": 2.0},
        lambda a, b: 2 * product(a, b),
    ),
    "bmm of no matrices": Case("bmm", {"a": wide(0, 5, 7), "b": wide(0, 7, 3)}, {}, product),
    "baddbmm": Case(
        "baddbmm",
        {"c": wide(5, 3), "a": wide(2, 5, 7), "b": wide(2, 7, 3)},
        {"beta": 2.0},
        lambda c, a, b: product(a, b) + 2 * double(c),
    ),
    "scaled_mm of rows and columns": Case(
        "scaled_mm",
        {
            "a": wide(5, 16).to(FP8),
            "b": wide(16, 16).to(FP8).mT,
            "a_scale": wide(5, 1, dtype=torch.float32),
            "b_scale": wide(1, 16, dtype=torch.float32),
        },
        {"out_dtype": torch.float32},
        lambda a, b, a_scale, b_scale: product(a, b) * double(a_scale) * double(b_scale),
    ),
    "scaled_mm of one value, and C": Case(
        "scaled_mm",
        {
            "a": wide(5, 16).to(FP8),
            "b": wide(16, 16).to(FP8).mT,
            "a_scale": wide(1, seed=1, dtype=torch.float32),
            "b_scale": None,
            "c": wide(16, dtype=torch.float32),
        },
        {"out_dtype": torch.float32, "alpha": 2.0, "options": "fast_accumulation=False"},
        lambda a, b, a_scale, b_scale, c: 2 * product(a, b) * double(a_scale) + double(c),
    ),
    "scaled_mm of blocks": Case(
        "scaled_mm",
        {
            "a": wide(5, 208).to(FP8),
            "b": wide(136, 208).to(FP8).mT,
            "a_scale": wide(5, 2, dtype=torch.float32),
            "b_scale": wide(2, 2, dtype=torch.float32),
        },
        {},
        _blocks_expected,
    ),
    "mixed_mm of s8": Case("mixed_mm", {"a": wide(5, 64), "b": wide(16, 64, dtype=torch.int8).mT}, {}, product),
    "mixed_mm of u4 with zero points": Case(
        "mixed_mm",
        {
            "a": wide(5, 64),
            "b": _packed(wide(64, 16).abs()),
            "a_scale": None,
            "b_scale": wide(2, 16, seed=1),
            "a_zero": None,
            "b_zero": wide(2, 16, seed=2),
        },
        {"b_dtype": "u4"},
        _weights_expected,
    ),
    "mixed_mm of e2m1": Case(
        "mixed_mm",
        {
            "a": wide(5, 64),
            "b": (wide(16, 32).int() * 37 & 255).byte().mT,
            "a_scale": None,
            "b_scale": (2.0 ** -wide(2, 16).float().abs()).to(torch.float8_e8m0fnu),
        },
        {"b_dtype": "e2m1"},
        _e2m1_expected,
    ),
    "grouped_mm of rows": Case(
        "grouped_mm", {"a": wide(6, 8), "b": wide(3, 8, 8), "offsets": _ends(2, 2, 6)}, {}, _groups_expected
    ),
    "grouped_mm of gathered rows": Case(
        "grouped_mm",
        {
            "a": wide(4, 8),
            "b": wide(3, 8, 8),
            "offsets": _ends(2, 2, 6),
            **dict.fromkeys(("counts", "a_scale", "b_scale", "c")),
            "rows": torch.tensor([3, 0, 3, 1, 9, -1], dtype=torch.int32),  # the last two are outside: the last row
        },
        {},
        lambda a, b, offsets, rows, **_: _groups_expected(a[[3, 0, 3, 1, 3, 3]], b, offsets),
    ),
    "grouped_mm of u4 with zero points": Case(
        "grouped_mm",
        {
            "a": wide(6, 64),
            "b": torch.stack([_packed(wide(64, 16, seed=g).abs()) for g in range(3)]).mT.contiguous().mT,
            "offsets": _ends(2, 2, 6),
            **dict.fromkeys(("counts", "a_scale")),
            "b_scale": wide(3, 2, 16, seed=1),
            **dict.fromkeys(("c", "rows")),
            "b_zero": wide(3, 2, 16, seed=2),
        },
        {"b_dtype": "u4"},
        lambda a, b, offsets, b_scale, b_zero, **_: torch.cat(
            [
                _weights_expected(a[begin:end], b[g], None, b_scale[g], None, b_zero[g])
                for g, (begin, end) in enumerate(itertools.pairwise([0, *offsets.tolist()]))
            ]
        ),
    ),
    "grouped_mm of gathered rows beside s8": Case(
        "grouped_mm",
        {
            "a": wide(4, 64),
            "b": wide(3, 16, 64, dtype=torch.int8).mT,
            "offsets": _ends(2, 2, 6),
            **dict.fromkeys(("counts", "a_scale", "b_scale", "c")),
            "rows": torch.tensor([3, 0, 3, 1, 9, -1], dtype=torch.int32),
        },
        {},
        lambda a, b, offsets, **_: _groups_expected(a[[3, 0, 3, 1, 3, 3]], b, offsets),
    ),
    "grouped_mm of gathered rows with scales of blocks": Case(
        "grouped_mm",
        {
            "a": wide(4, 208).to(FP8),
            "b": wide(3, 136, 208).to(FP8).mT,
            "offsets": _ends(2, 2, 6),
            "counts": None,
            "a_scale": wide(4, 2, dtype=torch.float32),
            "b_scale": wide(3, 2, 2, dtype=torch.float32),
            "c": None,
            "rows": torch.tensor([3, 0, 3, 1, 9, -1], dtype=torch.int32),
        },
        {},
        lambda a, b, offsets, a_scale, b_scale, **_: torch.cat(
            [
                _blocks_expected(a[rows], b[g], a_scale[rows], b_scale[g])
                for g, rows in enumerate(([3, 0], [], [3, 1, 3, 3]))
            ]
        ),
    ),
    "grouped_mm along K": Case(
        "grouped_mm",
        {"a": wide(16, 8).mT, "b": wide(16, 8), "offsets": _ends(3, 3, 16)},
        {"out_dtype": torch.float32},
        _groups_expected,
    ),
    "grouped_mm along K of gathered columns": Case(
        "grouped_mm",
        {
            "a": wide(5, 8).mT,
            "b": wide(16, 8),
            "offsets": _ends(3, 3, 15),
            **dict.fromkeys(("counts", "a_scale", "b_scale", "c")),
            "rows": torch.tensor([3, 0, 3, 1, 9, -1, *range(5), *range(5)], dtype=torch.int32),
        },
        {},
        lambda a, b, offsets, **_: _groups_expected(a[:, [3, 0, 3, 1, 4, 4, *range(5), *range(5)]], b, offsets),
    ),
    "grouped_mm in slots": Case(
        "grouped_mm",
        {"a": wide(2, 5, 8), "b": wide(2, 8, 8), "offsets": None, "counts": _ends(3, 5)},
        {},
        lambda a, b, offsets, counts: _slots_expected(a, b, counts),
    ),
    "epilogue": Case(
        "epilogue",
        {"a": wide(5, 7), "b": wide(7, 3), "operands": [wide(3)]},
        {
            "expression": "aux.bf16 = acc + x[n]; d = relu(aux) * s; top[m] = max(d); high[n] = max(d); most = max(d)",
            "names": ["x", "s"],
            "numbers": [2.0],
            "out_dtype": torch.float32,
        },
        _epilogue_expected,
    ),
    "epilogue of pairs": Case(
        "epilogue",
        {"a": wide(2, 5, 7), "b": wide(7, 6), "operands": [wide(5, 1, dtype=torch.float32)]},
        {"expression": "d = gate * up", "names": ["a_scale"]},
        lambda a, b, operands: [
            (product(a, b) * double(operands[0]))[..., 0::2] * (product(a, b) * double(operands[0]))[..., 1::2]
        ],
    ),
    "epilogue that scales blocks": Case(
        "epilogue",
        {"a": wide(5, 7, dtype=FP8), "b": wide(7, 256, dtype=FP8), "operands": []},
        {
            "expression": "h = acc; s[m, n/128] = scale(h); d = h / s",
            "names": [],
            "out_dtype": FP8,
        },
        lambda a, b, operands: _blocks_of(product(a, b)),
    ),
    "epilogue of groups": Case(
        "epilogue",
        {"a": wide(6, 8), "b": wide(3, 8, 8), "operands": [_ends(2, 2, 6), wide(6, 8)]},
        {"expression": "d = acc + x[m, n]", "names": ["offsets", "x"]},
        lambda a, b, operands: [_groups_expected(a, b, operands[0]) + double(operands[1])],
    ),
}
"""By what is special about each."""


def positional(case: Case, out: Any = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments of a case by position, and by keyword, as the schema of either form has them."""
    overload = case.functional() if out is None else case.mutating()
    given = {**case.tensors, **case.keywords} | ({} if out is None else {"out": out})
    names = [x.name for x in overload._schema.arguments if not x.kwarg_only]
    known = {x.name for x in overload._schema.arguments}
    by_position = [given.get(name) for name in names]
    while by_position and by_position[-1] is None:
        by_position.pop()
    return tuple(by_position), {name: x for name, x in given.items() if name in known and name not in names}
