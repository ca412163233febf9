"""Problems as keywords with defaults, and as a line of text.

``4096x7168x2048 e4m3*e5m2 tn d=f16 grouped=64 epilogue='d = silu(acc)'`` consists of M, N, K and, for strided batches,
their number; the types of A and B (one type if they are equal); their majors in BLAS notation (``t`` is a K-major A,
``n`` a K-major B); and the keywords that differ from the defaults.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping
from math import gcd
from operator import index
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, SupportsIndex, get_args

from gemmill.library.config.batchings import GROUPED_EXTENT, MASKED, OFFSETS
from gemmill.library.config.model import BatchingName, MajorAB, MajorCD, RowsName, ScaleName, SymmetryName
from gemmill.library.config.scales import MX_SCALE, scales_sums
from gemmill.library.dtypes import (
    DTYPES,
    SPLIT,
    SPLIT_PROMOTION,
    DTypeName,
    default_accumulator,
    default_output,
    find_dtype,
    unknown,
)
from gemmill.library.e2m1 import MX_BLOCK
from gemmill.library.epilogues.misspelt import check_names
from gemmill.library.epilogues.parse import LINEAR, is_gated, pairs_rows, parse, spelling
from gemmill.library.errors import ExpressionError, KeywordError, ProblemError
from gemmill.library.wording import one_of, suggest

if TYPE_CHECKING:
    from gemmill.library.problem import GemmProblem

MAX_EXTENT = (1 << 31) - 4096
"""Largest extent: kernels use int32, and round extents up to whole clusters of tiles."""
_LAYOUTS: Mapping[str, tuple[MajorAB, MajorAB]] = MappingProxyType(
    {"tn": ("k", "k"), "tt": ("k", "mn"), "nn": ("mn", "k"), "nt": ("mn", "mn")}
)
"""Majors of A and B in the notation of BLAS and CUTLASS."""
_SHORT = MappingProxyType({"a": "a_dtype", "b": "b_dtype", "c": "c_dtype", "d": "d_dtype", "acc": "accumulator"})
"""Short keywords of fields."""
_NO_C = (("c", "none"), ("c_dtype", "none"))
"""Explicit statements that a problem has no C, for example to override a default of a suite."""
_GROUPS = (*GROUPED_EXTENT, "array", "nested")
"""Batchings that a line of text names with the number of groups."""
_MAJORS: Mapping[str, tuple[tuple[str, ...], Mapping[str, str]]] = MappingProxyType(
    {
        "a_major": (get_args(MajorAB), {"m": "mn"}),
        "b_major": (get_args(MajorAB), {"n": "mn"}),
        "c_major": (get_args(MajorCD), {}),
        "d_major": (get_args(MajorCD), {}),
    }
)
"""The allowed values of each major, and synonyms."""
FIELDS = (
    *("m", "n", "k", "batch", "a_dtype", "a_major", "b_dtype", "b_major", "accumulator", "d_dtype", "d_major"),
    *("c_dtype", "c_major", "a_align", "b_align", "c_align", "d_align", "a_scale", "b_scale", "promote"),
    *("batching", "epilogue", "expected_rows", "rows", "symmetry"),
)
"""Fields of a problem, in order."""
KEYWORDS = (*FIELDS, *_SHORT, "groups")
_NAMES = (*KEYWORDS, *_GROUPS)
"""The names before ``=`` in the line of a problem."""


def checked(given: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a problem from keywords. Keywords that are omitted or None have defaults.

    Raises:
        ProblemError: names the keyword, its value and the allowed values.
    """
    if unknown_words := [word for word in given if word not in KEYWORDS]:
        word = unknown_words[0]
        hint = suggest(word, KEYWORDS) or ";"
        raise KeywordError(f"unknown keyword {word!r} of a problem{hint} keywords: {', '.join(KEYWORDS)}")
    words = {word: value for word, value in given.items() if value is not None and (word, value) not in _NO_C}
    for short, field in _SHORT.items():
        if short in words:
            if field in words:
                raise ProblemError(f"{short} and {field} are the same keyword; pass one of them")
            words[field] = words.pop(short)
    fields: dict[str, Any] = {name: _extent(name, words.get(name)) for name in ("m", "n", "k")}
    if "groups" in words:
        if "batch" in words or words.get("batching", "strided") == "strided":
            raise ProblemError(
                f"groups is {words['groups']!r}; it replaces batch only if batching is {one_of(_GROUPS)}"
            )
        words["batch"] = words["groups"]
    for name, usual in _USUAL.items():
        fields[name] = _READ[name](name, words[name]) if name in words else usual(fields)
    if fields["c_major"] and not fields["c_dtype"]:
        raise ProblemError(
            f"c_major is {words['c_major']!r}, but there is no C; pass the type of C as c, or omit c_major"
        )
    a, b = fields["a_dtype"], fields["b_dtype"]
    if a != b and (split := {a, b}.intersection(SPLIT)):
        raise ProblemError(f"a is {a} and b is {b}; with {min(split)}, which splits f32, both must be {min(split)}")
    if "e2m1" in (a, b) and fields["k"] % MX_BLOCK:
        raise ProblemError(f"k is {fields['k']}; with e2m1 it must be a multiple of {MX_BLOCK}")
    for name, usual_align in aligns(fields).items():
        fields[name] = _align(name, words.get(name, usual_align))
    check_expected_rows(fields["expected_rows"], fields["batching"], fields["m"], fields["n"])
    if fields["rows"] != "stored" and fields["batching"] not in OFFSETS:
        raise ProblemError(
            f"rows is {fields['rows']}, but batching is {fields['batching']}; omit rows, or use batching "
            f"{one_of(OFFSETS)}"
        )
    if fields["symmetry"] != "general":
        _check_symmetric(fields)
    return {name: fields[name] for name in FIELDS}


def _check_symmetric(fields: Mapping[str, Any]) -> None:
    """Raises ProblemError if D cannot be symmetric."""
    for one, other in (("m", "n"), ("a_dtype", "b_dtype")):
        if fields[one] != fields[other]:
            values = f"{one} is {fields[one]} and {other} is {fields[other]}"
            raise ProblemError(f"D is symmetric, but {values}; they must be equal")
    if fields["batching"] not in ("strided", "nested"):
        raise ProblemError(f"D is symmetric, but batching is {fields['batching']}; it must be strided or nested")


def check_expected_rows(rows: int | None, batching: str, m: int, n: int) -> None:
    """Raises ProblemError if a batch has no masked groups, or if their capacity is less than ``rows``."""
    if rows is None:
        return
    if batching not in MASKED:
        raise ProblemError(
            f"expected_rows is {rows}, but batching is {batching}; omit expected_rows, or use batching masked"
        )
    along, capacity = ("m", m) if batching == "masked" else ("n", n)
    if not 1 <= rows <= capacity:
        raise ProblemError(
            f"expected_rows is {rows}; it must be from 1 to {along} = {capacity}, the capacity of a group"
        )


def check_epilogue(text: object) -> None:
    """Raises ProblemError if an operand of an epilogue, which comes without arguments, looks like a misspelt word."""
    if isinstance(text, str):
        try:
            check_names(text)
        except ExpressionError as error:
            raise ProblemError(f"epilogue is {text!r:.200}: {error}") from None


def merged(words: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """``words`` updated with ``over``; short and long forms of a keyword count as the same."""
    taken = {_SHORT.get(word, word) for word in over} | ({"batch"} if "groups" in over else set())
    return {word: value for word, value in words.items() if _SHORT.get(word, word) not in taken} | dict(over)


def aligns(fields: Mapping[str, Any]) -> dict[str, int]:
    """Alignments of operands without padding whose base addresses are multiples of 16 bytes."""
    m, n, k, batch = (fields[name] for name in ("m", "n", "k", "batch"))
    columns = n // 2 if is_gated(fields["epilogue"]) else n
    rows = m // 2 if pairs_rows(fields["epilogue"]) else m
    places = {"a": (m, k), "b": (n, k), "c": (rows, columns), "d": (rows, columns)}
    alignments = {}
    for operand, (row, column) in places.items():
        dtype = fields[f"{operand}_dtype"]
        contiguous, strided = (column, row) if fields[f"{operand}_major"] in ("k", "n") else (row, column)
        has_strides = dtype is not None and (strided > 1 or batch > 1)
        bits = contiguous * DTYPES[dtype].bits if has_strides else 0
        # A row with an odd number of 4-bit elements is padded to a whole byte.
        alignments[f"{operand}_align"] = gcd(16 * 8, bits) // 8 or 1
    return alignments


def words_of(problem: GemmProblem) -> dict[str, Any]:
    """The keywords of a problem without those that have their default; all values can be written as JSON."""
    fields = {name: getattr(problem, name) for name in FIELDS}
    defaults = {name: default(fields) for name, default in _USUAL.items()} | aligns(fields)
    words: dict[str, Any] = {"m": problem.m, "n": problem.n, "k": problem.k}
    names = {field: short for short, field in _SHORT.items() if short != "acc"}
    for name in FIELDS[3:]:
        if fields[name] != defaults[name]:
            word = "groups" if name == "batch" and problem.batching != "strided" else names.get(name, name)
            words[word] = fields[name]
    return words


def text_of(problem: GemmProblem) -> str:
    """The line of a problem."""
    words = words_of(problem)
    extents = [words.pop(name) for name in "mnk"]
    if "batch" in words:
        extents.append(words.pop("batch"))
    a, b = words.pop("a", problem.a_dtype), words.pop("b", problem.b_dtype)
    parts = ["x".join(map(str, extents)), a if a == b else f"{a}*{b}"]
    majors = problem.a_major, problem.b_major
    if layout := [name for name, majors_of_layout in _LAYOUTS.items() if majors_of_layout == majors]:
        parts += layout
        words.pop("a_major", None), words.pop("b_major", None)
    if (batching := words.pop("batching", None)) is not None:
        parts.append(f"{batching}={words.pop('groups', problem.batch)}")
    import shlex  # imported here, because texts of problems are rarely needed

    parts += [f"{name}={shlex.quote(str(value))}" for name, value in words.items()]
    return " ".join(parts)


def read_text(text: str) -> dict[str, Any]:
    """The keywords of a problem's line.

    Raises:
        ProblemError: names the invalid part of the line.
    """
    import shlex

    try:
        extents, *rest = shlex.split(text)
    except ValueError as error:
        reason = "is empty" if "unpack" in str(error) else f"cannot be parsed: {error}"
        raise ProblemError(f"the problem {reason}; write for example '4096x4096x4096 bf16 tn'") from None
    if not re.fullmatch(r"\d{1,10}(x\d{1,10}){2,3}", extents):
        raise ProblemError(f"the extents are {extents!r}; write MxNxK or MxNxKxBATCH, for example 4096x4096x4096")
    words: dict[str, Any] = dict(zip(("m", "n", "k", "batch"), map(int, extents.split("x")), strict=False))
    for part in rest:
        name, equals, value = part.partition("=")
        if equals and name not in _NAMES:
            raise KeywordError(f"unknown name in {part!r}{suggest(name, _NAMES) or ';'} names: {', '.join(_NAMES)}")
        settings = (
            _part(part) if not equals else {"batching": name, "groups": value} if name in _GROUPS else {name: value}
        )
        for word, setting in settings.items():
            if word in words:
                raise ProblemError(f"{part!r} sets {word} a second time")
            is_number = isinstance(setting, str) and setting.isdecimal() and len(setting) < 12
            words[word] = int(setting) if is_number else setting
    return words


def _part(part: str) -> dict[str, Any]:
    """The keywords of a part without a name: types or majors."""
    if part in _LAYOUTS:
        return dict(zip(("a_major", "b_major"), _LAYOUTS[part], strict=True))
    a, _, b = part.partition("*")
    if find_dtype(a) and (not b or find_dtype(b)):
        return {"a": a, "b": b or a}
    meant = unknown(b if find_dtype(a) else a) or suggest(part, _LAYOUTS)
    raise ProblemError(
        f"{part!r}{meant or ';'} it must be a type such as bf16 or s4*bf16, one of {', '.join(_LAYOUTS)}, or "
        "NAME=VALUE with a name such as d, c, accumulator, a_scale, grouped or epilogue"
    )


def _extent(name: str, value: object) -> int:
    if not isinstance(value, SupportsIndex) or isinstance(value, bool) or not 0 <= index(value) <= MAX_EXTENT:
        bits = value.bit_length() if isinstance(value, int) else 0  # Python cannot print more than 4,300 digits
        value_text = f"a number of {bits} bits" if bits > 64 else f"{value!r:.80}"
        raise ProblemError(f"{name} is {value_text}; it must be a whole number from 0 to {MAX_EXTENT:,}")
    return index(value)


def _dtype(name: str, value: object) -> DTypeName:
    if isinstance(value, str) and (dtype := find_dtype(value)):
        return dtype
    text = str(value)
    if not isinstance(value, str) and (dtype := find_dtype(text)):  # torch.bfloat16
        return dtype
    raise ProblemError(
        f"{name.removesuffix('_dtype')} is {value!r:.80}{unknown(text) or ';'} it must be {one_of([*DTYPES])}"
    )


def _major(name: str, value: object) -> str:
    allowed, others = _MAJORS[name]
    return _word(name, others.get(value, value) if isinstance(value, str) else value, allowed)


def _word(name: str, value: object, allowed: Collection[str]) -> str:
    if not isinstance(value, str) or value not in allowed:
        hint = suggest(value, allowed) if isinstance(value, str) else ""
        raise ProblemError(f"{name} is {value!r:.80}{hint or ';'} it must be {one_of([*allowed])}")
    return value


def _scale(name: str, value: object) -> str:
    return _word(name, value, get_args(ScaleName))


def _batching(name: str, value: object) -> str:
    return _word(name, value, get_args(BatchingName))


def _rows(name: str, value: object) -> str:
    return _word(name, value, get_args(RowsName))


def _symmetry(name: str, value: object) -> str:
    return _word(name, value, get_args(SymmetryName))


def _promote(name: str, value: object) -> int:
    if type(value) is not int or value not in (0, SPLIT_PROMOTION, 4):
        raise ProblemError(f"{name} is {value!r:.80}; it must be 0 or 4, or {SPLIT_PROMOTION} for split f32")
    return value


def _align(name: str, value: object) -> int:
    if type(value) is not int or value not in (1, 2, 4, 8, 16):
        raise ProblemError(f"{name} is {value!r:.80}; it must be 1, 2, 4, 8 or 16 bytes")
    return value


def _epilogue(name: str, value: object) -> str:
    if not isinstance(value, str):
        raise ProblemError(f"{name} is {value!r:.80}; it must be a str such as 'd = silu(acc + bias[n])'")
    try:
        return LINEAR if value == LINEAR else spelling(parse(value))
    except ExpressionError as error:
        raise ProblemError(f"{name} is {value!r:.200}: {error}") from None


def _usual_promote(fields: Mapping[str, Any]) -> int:
    """Two levels where scales multiply sums, and for split f32."""
    if fields["a_dtype"] in SPLIT:
        return SPLIT_PROMOTION
    has_blocks = "none" not in (fields["a_scale"], fields["b_scale"])
    return 4 if has_blocks or scales_sums(fields["a_dtype"], fields["b_dtype"]) else 0


def _wider(fields: Mapping[str, Any]) -> DTypeName:
    """The wider of A's and B's types."""
    a: DTypeName
    b: DTypeName
    a, b = fields["a_dtype"], fields["b_dtype"]
    return b if DTYPES[b].bits > DTYPES[a].bits else a


def _output(fields: Mapping[str, Any]) -> DTypeName:
    wider = _wider(fields)
    return default_output(wider)


_USUAL: Mapping[str, Callable[[Mapping[str, Any]], Any]] = MappingProxyType(
    {
        "batching": lambda _: "strided",
        "batch": lambda _: 1,
        "a_dtype": lambda _: "bf16",
        "b_dtype": lambda fields: fields["a_dtype"],
        "c_dtype": lambda _: None,
        "accumulator": lambda fields: default_accumulator(_wider(fields)),
        "d_dtype": _output,
        "a_major": lambda _: "k",
        "b_major": lambda _: "k",
        "d_major": lambda _: "n",
        "c_major": lambda fields: fields["d_major"] if fields["c_dtype"] else None,
        "a_scale": lambda fields: MX_SCALE if fields["a_dtype"] == "e2m1" else "none",
        "b_scale": lambda fields: MX_SCALE if fields["b_dtype"] == "e2m1" else "none",
        "promote": _usual_promote,
        "epilogue": lambda _: LINEAR,
        "expected_rows": lambda _: None,
        "rows": lambda _: "stored",
        "symmetry": lambda _: "general",
    }
)
"""The default of each field as a function of the fields before it; :func:`aligns` computes those of alignments."""
_READ: Mapping[str, Callable[[str, object], Any]] = MappingProxyType(
    {
        **dict.fromkeys(("batch", "expected_rows"), _extent),
        **dict.fromkeys(("a_dtype", "b_dtype", "c_dtype", "d_dtype", "accumulator"), _dtype),
        **dict.fromkeys(_MAJORS, _major),
        **dict.fromkeys(("a_scale", "b_scale"), _scale),
        "promote": _promote,
        "batching": _batching,
        "rows": _rows,
        "symmetry": _symmetry,
        "epilogue": _epilogue,
    }
)
"""Converts and checks the value of a field; ProblemError if it is invalid."""
