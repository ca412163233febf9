"""Convert names of dtypes, epilogues and BLAS calls of other libraries to gemmill's problems.

BLAS is column-major: it computes C (m x n) = op(A) (m x k) op(B) (k x n). Read as row-major, the same bytes are the
product of the transposes. Therefore the B of BLAS becomes A and its A becomes B, m becomes N and n becomes M, and D is
row-major, as in PyTorch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import gcd
from types import MappingProxyType

from gemmill.library.dtypes import DTYPES, NAMES, DTypeName
from gemmill.profiler.imports.collector import Entry, Fields, LeftOut, extent, shown, whole

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


_INDEX: Mapping[str, str] = MappingProxyType({"a": "[m]", "b": "[n]"})
"""The index of scales of rows of A and of columns of B."""


def epilogue(function: str, bias: DTypeName | None, scales: Mapping[str, bool], *, adds_c: bool = False) -> str:
    """The epilogue that scales the sums, adds C and a bias of N elements, and applies a function; empty without all
    but C.

    ``scales`` are those of A and B: whether each row or column has one.
    """
    if not (function or bias or scales):
        return ""
    factors = "".join(f" * {name}_scale{_INDEX[name] if vector else ''}" for name, vector in sorted(scales.items()))
    suffix = f".{bias}" if bias != "f32" else ""
    value = f"alpha * acc{factors}" + (" + beta * c" if adds_c else "") + (f" + bias{suffix}[n]" if bias else "")
    return f"d = {function}({value})" if function else f"d = {value}"


@dataclass(frozen=True, slots=True, kw_only=True)
class BlasCall:
    """A call of a BLAS library, with its own names of operands: its A is B of the problem."""

    extents: Mapping[str, object]
    """``m``, ``n``, ``k`` and optionally ``batch``."""
    transposed_a: bool
    transposed_b: bool
    types: Mapping[str, object] = field(default_factory=dict)
    """Types of ``a`` to ``d``, as far as known."""
    computes_in: str = ""
    """Compute type; empty if unknown."""
    beta: object = None
    """Factor of C."""
    leading: Mapping[str, object] = field(default_factory=dict)
    """Leading dimensions of ``a`` to ``d``, as far as known."""
    strides: Mapping[str, object] = field(default_factory=dict)
    """Batch strides of ``a`` to ``d``, as far as known."""
    batching: str = ""
    """Batching of the problem; empty for a strided batch."""
    function: str = ""
    """The function of the epilogue, with gemmill's name."""
    bias: object = None
    """Type of a bias with one element for each row of the library's D, None without a bias."""
    scales: Mapping[str, bool] = field(default_factory=dict)
    """Scales of ``a`` and ``b`` that are part of the epilogue: whether each row or column has one."""

    def problem(self, entry: Entry) -> Fields:
        """The problem of the call."""
        fields: dict[str, int | str] = {
            "m": extent("n", self.extents.get("n")),
            "n": extent("m", self.extents.get("m")),
            "k": extent("k", self.extents.get("k")),
            "a_major": "mn" if self.transposed_b else "k",
            "b_major": "k" if self.transposed_a else "mn",
            "d_major": "n",
        }
        if self.extents.get("batch") is not None:
            fields["batch"] = extent("batch", self.extents["batch"])
        accumulator, is_tf32 = compute(self.computes_in)
        for ours, theirs in _OPERANDS.items():
            if self.types.get(theirs) and ours != "c":
                name = dtype(self.types[theirs], theirs.upper())
                fields[ours] = "tf32" if is_tf32 and name == "f32" and ours != "d" else name
        if adds_c(self.beta) and (word := self.types.get("c") or self.types.get("d")):
            fields |= {"c": dtype(word, "C"), "c_major": "n"}
        elif adds_c(self.beta):
            entry.leave_out("C: its type is not in the file")
        if accumulator:
            fields["accumulator"] = accumulator
        if "fast_16" in self.computes_in.lower() and "f32" in (fields.get("a"), fields.get("b")):
            entry.leave_out(f"compute type {self.computes_in}: a problem cannot say that f32 is converted to 16 bits")
        if self.batching:
            fields["batching"] = self.batching
        bias = None if self.bias is None else dtype(self.bias, "the bias")
        scales = {_OPERANDS[name]: vector for name, vector in self.scales.items()}
        if text := epilogue(self.function, bias, scales, adds_c="c" in fields):
            fields["epilogue"] = text
        return fields | self._alignments(fields)

    def _alignments(self, fields: Fields) -> dict[str, int]:
        """The alignments that leading dimensions and batch strides imply, where they differ from packed operands."""
        m, n, k, batch = (int(fields.get(name, 1)) for name in ("m", "n", "k", "batch"))
        alignments = {}
        for ours, theirs in _OPERANDS.items():
            ld, stride = whole(self.leading.get(theirs)), whole(self.strides.get(theirs)) or 0
            if ours not in fields or not ld:
                continue
            row, column = {"a": (m, k), "b": (n, k)}.get(ours, (m, n))
            inner, outer = (column, row) if fields[f"{ours}_major"] in ("k", "n") else (row, column)
            bits = DTYPES[str(fields[ours])].bits
            elements = gcd(ld if outer > 1 else 0, stride if batch > 1 else 0)
            aligned = gcd(128, elements * bits) // 8 or 1
            packed = gcd(128, inner * bits if outer > 1 or batch > 1 else 0) // 8 or 1
            if aligned != packed:
                alignments[f"{ours}_align"] = aligned
        return alignments


_OPERANDS: Mapping[str, str] = MappingProxyType({"a": "b", "b": "a", "c": "c", "d": "d"})
"""The operand of a BLAS call for each of the problem."""
