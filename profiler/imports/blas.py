"""What others call dtypes and what is done after a product, and BLAS calls as problems here.

BLAS is column-major: it computes C (m x n) = op(A) (m x k) op(B) (k x n). The same bytes read by rows are the product
of the transposes, so its B is A here and its A is B, m is N and n is M, and D is row-major as PyTorch's is.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from gemmill.library.dtypes import DTYPES, NAMES, DTypeName
from gemmill.profiler.imports.collector import Fields, LeftOut, extent, shown

_PREFIXES = ("torch.", "c10::", "cuda_", "hip_", "r_")


def dtype(word: object, what: str) -> DTypeName:
    """The dtype that a word of another library means; LeftOut where it is none that kernels here take."""
    key = word.strip().lower().replace(" ", "_") if isinstance(word, str) else ""
    for prefix in _PREFIXES:
        key = key.removeprefix(prefix)
    name = NAMES.get(key)
    if name is None or DTYPES[name].is_scale:
        raise LeftOut(f"the type of {what} is {shown(word)}; those here are {', '.join(DTYPES)}")
    return name


def compute(word: str) -> tuple[DTypeName | None, bool]:
    """The accumulator that a BLAS compute type means, if it says one, and whether it multiplies f32 as TF32."""
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
    """The epilogue that applies a function to a product, to which a bias of N elements was added; None for none."""
    if not function and bias is None:
        return None
    value = "alpha * acc" + (" + beta * c" if adds_c else "") + (f" + bias{_SUFFIX[bias]}[n]" if bias else "")
    return f"d = {function}({value})" if function else f"d = {value}"


LETTERS: Mapping[str, str] = {"s": "f32_r", "d": "f64_r", "h": "f16_r"}
"""Types by the letter in a function's name."""


def is_transposed(name: str, value: object) -> bool:
    """Whether an operation is a transpose: ``T``, ``OP_T``, ``CUBLAS_OP_T(1)``, or ``C``, the same for real numbers."""
    word = str(value).strip().upper().removeprefix("CUBLAS_").removeprefix("OP_").partition("(")[0]
    if word not in ("N", "T", "C"):
        raise LeftOut(f"{name} is {shown(value)}; allowed: N, T or C")
    return word != "N"


def adds_c(beta: object) -> bool:
    """Whether C is added: beta is a number that is not 0."""
    try:
        return float(str(beta)) != 0
    except ValueError:  # not said, or an address
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
        extents: its ``m``, ``n``, ``k`` and, where there is one, ``batch``.
        transposed_a: whether op(A) is a transpose.
        transposed_b: whether op(B) is.
        types: of ``a`` to ``d`` as BLAS calls them, where they are said.
        computes_in: its compute type, where that is said.
        beta: factor of C.
        batching: how the batch is found, unless at one stride.
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
    for here, there in (("a", "b"), ("b", "a"), ("d", "d")):
        if types.get(there):
            name: DTypeName = dtype(types[there], there.upper())
            fields[here] = "tf32" if is_tf32 and name == "f32" and here != "d" else name
    if adds_c(beta) and (word := types.get("c") or types.get("d")):
        fields |= {"c": dtype(word, "C"), "c_major": "n"}
    if accumulator:
        fields["accumulator"] = accumulator
    if batching:
        fields["batching"] = batching
    return fields
