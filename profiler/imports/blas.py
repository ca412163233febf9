"""Convert names of dtypes, epilogues and BLAS calls of other libraries to gemmill's problems.

BLAS is column-major: it computes C (m x n) = op(A) (m x k) op(B) (k x n). Read as row-major, the same bytes are the
product of the transposes. Therefore the B of BLAS becomes A and its A becomes B, m becomes N and n becomes M, and D is
row-major, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gemmill.library.dtypes import DTYPES, NAMES, DTypeName
from gemmill.profiler.imports.collector import Fields, LeftOut, extent, shown

_PREFIXES = ("torch.", "c10::", "cuda_", "hip_", "r_")


def dtype(word: object, what: str) -> DTypeName:
    """The dtype for a word of another library; LeftOut if gemmill does not support it."""
    key = word.strip().lower().replace(" ", "_") if isinstance(word, str) else ""
    for prefix in _PREFIXES:
        key = key.removeprefix(prefix)
    name = NAMES.get(key)
    if name is None or DTYPES[name].is_scale:
        raise LeftOut(f"the type of {what}, {shown(word)}, is not supported; expected {', '.join(DTYPES)}")
    return name


def compute(word: str) -> tuple[DTypeName | None, bool]:
    """The accumulator of a BLAS compute type, or None if it has none, and whether f32 operands are used as TF32."""
    key = word.strip().lower().removeprefix("cublas_").removeprefix("compute_").removeprefix("c_")
    key = key.replace("_pedantic", "")
    if "tf32" in key or "xf32" in key:
        return "f32", True
    if not key:
        return None, False
    first = key.removeprefix("cuda_r_").partition("_fast")[0]
    return dtype(
        first.removesuffix("_f16_r").removesuffix("_bf16_r") if first.startswith("f32_") else first, "sums"
    ), False


_SUFFIX: Mapping[str, str] = MappingProxyType({name: f".{name}" for name in DTYPES} | {"f32": ""})


def epilogue(function: str, bias: DTypeName | None, *, adds_c: bool = False) -> str | None:
    """The epilogue that adds a bias of N elements and applies a function; None without both."""
    if not function and bias is None:
        return None
    value = "alpha * acc" + (" + beta * c" if adds_c else "") + (f" + bias{_SUFFIX[bias]}[n]" if bias else "")
    return f"d = {function}({value})" if function else f"d = {value}"


LETTERS: Mapping[str, str] = {"s": "f32_r", "d": "f64_r", "h": "f16_r"}
"""Types by the letter in the name of a BLAS function."""


def is_transposed(name: str, value: object) -> bool:
    """Whether an operation is a transpose: ``T``, ``OP_T``, ``CUBLAS_OP_T(1)``, or ``C``, which is equal for reals."""
    word = str(value).strip().upper().removeprefix("CUBLAS_").removeprefix("OP_").partition("(")[0]
    if word not in ("N", "T", "C"):
        raise LeftOut(f"{name} is {shown(value)}; it must be N, T or C")
    return word != "N"


def adds_c(beta: object) -> bool:
    """Whether C is added: beta is a number other than 0."""
    try:
        return float(str(beta)) != 0
    except ValueError:  # missing, or an address
        return False


def problem(
    extents: Mapping[str, object],
    *,
    transposed_a: bool,
    transposed_b: bool,
    types: Mapping[str, object],
    computes_in: str = "",
    beta: object = None,
    batching: str = "",
) -> Fields:
    """The problem of a BLAS call.

    Args:
        extents: ``m``, ``n``, ``k`` and optionally ``batch`` of the call.
        transposed_a: whether op(A) is a transpose.
        transposed_b: whether op(B) is a transpose.
        types: types of ``a`` to ``d`` with their names in BLAS, as far as known.
        computes_in: compute type; empty if unknown.
        beta: factor of C.
        batching: batching of the problem; empty for a strided batch.
    """
    fields: dict[str, int | str] = {
        "m": extent("n", extents.get("n")),
        "n": extent("m", extents.get("m")),
        "k": extent("k", extents.get("k")),
        "a_major": "mn" if transposed_b else "k",
        "b_major": "k" if transposed_a else "mn",
        "d_major": "n",
    }
    if extents.get("batch") is not None:
        fields["batch"] = extent("batch", extents["batch"])
    accumulator, is_tf32 = compute(computes_in)
    for ours, theirs in (("a", "b"), ("b", "a"), ("d", "d")):
        if types.get(theirs):
            name: DTypeName = dtype(types[theirs], theirs.upper())
            fields[ours] = "tf32" if is_tf32 and name == "f32" and ours != "d" else name
    if adds_c(beta) and (word := types.get("c") or types.get("d")):
        fields |= {"c": dtype(word, "C"), "c_major": "n"}
    if accumulator:
        fields["accumulator"] = accumulator
    if batching:
        fields["batching"] = batching
    return fields
