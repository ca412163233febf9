"""The products of matrices in an ONNX graph, and their problems."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal, cast

from gemmill.library.dtypes import NAMES
from gemmill.library.errors import ProblemError
from gemmill.library.models.fields import Notes
from gemmill.library.models.onnx_file import Extent, Graph, Tensor, clean, read_graph
from gemmill.library.models.problems import TOKENS, Deployment, LayerProblem
from gemmill.library.problem import GemmProblem

_TYPES: Mapping[str, str] = MappingProxyType(
    {
        name: NAMES[name.lower()]
        for name in ("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE", "INT8", "UINT8", "FLOAT8E4M3FN", "FLOAT8E5M2")
    }
)
"""gemmill's type for each type of ONNX."""
_OTHERS = frozenset(
    {"Attention", "Conv", "ConvInteger", "ConvTranspose", "DeformConv", "GRU", "LSTM", "QLinearConv", "RNN"}
)
"""Operators that multiply, but not by a product of two matrices in the graph."""
_MULTIPLIES = re.compile(r"Attention|Conv|Gemm|MatMul|MoE", re.IGNORECASE)
"""Names of operators of other domains that multiply."""
_DOMAINS = ("", "ai.onnx")
"""Names of the domain of ONNX's own operators."""
_DEFAULTS: Mapping[str, object] = MappingProxyType(
    {"tp": 1, "ep": 1, "training": False, "separate": False, "quantization": "config", "images": None}
)
"""Defaults of the options that an ONNX graph does not take, since it has its products as they run."""


class _LeftOut(Exception):
    """A product has no problem; the text says why."""


@dataclass(frozen=True, slots=True)
class _Operand:
    """A or B as a stack of matrices; extents are factors."""

    tensor: Tensor
    free: tuple[Extent, ...]
    """M of A, N of B."""
    shared: tuple[Extent, ...]
    """K."""
    batch: tuple[Extent, ...]
    major: Literal["k", "mn"]


Read = Callable[[Any, Sequence[Tensor]], tuple[_Operand, _Operand]]
"""Reads the operands of a node."""


def onnx_problems(path: Path, deployment: Deployment, notes: Notes) -> list[LayerProblem]:
    """The problems of an ONNX graph, with each number of tokens.

    Where an operand is a weight and the rows of the other have a symbol, the rows are the number of tokens. Products
    of two activations need all their extents.

    Args:
        path: the file.
        deployment: values of symbols (``dims``), numbers of tokens and type.
        notes: collects what is assumed and left out.

    Raises:
        RecordError: the file cannot be read.
        ProblemError: it has no product, or an option does not apply.
    """
    for name, default in _DEFAULTS.items():
        if getattr(deployment, name) != default:
            raise ProblemError(f"--{name} is passed, but an ONNX graph has its products as they run; omit it")
    graph = read_graph(path, deployment.dims)
    found, missing, varies = dict[GemmProblem, dict[str, int]](), Counter[str](), False
    for node in graph.nodes:
        read = _READERS.get(node.op_type) if node.domain in _DOMAINS else None
        if read is None:
            if _multiplies(node):
                own = node.domain in _DOMAINS
                says = "which is no product of two matrices" if own else "whose operands gemmill does not read"
                missing[f"{clean(node.op_type)}, {says}"] += 1
            continue
        try:
            symbols, problems = _problems(node, read, graph.tensors, deployment, notes)
        except (_LeftOut, ProblemError) as error:
            missing[f"{node.op_type}: {error}"] += 1
            continue
        varies |= symbols
        for problem in problems:
            names = found.setdefault(problem, {})
            name = re.sub(r"(?<=[./_])\d+(?=[./_]|$)", "*", clean(node.name or next(iter(node.output), "")))
            names[name] = names.get(name, 0) + 1
    _note(graph, deployment, missing, varies, notes)
    if not found:
        raise ProblemError(f"no product of matrices is left: {'; '.join(notes.left_out) or 'the graph has none'}")
    return [LayerProblem(problem, sum(names.values()), tuple(names)) for problem, names in found.items()]


def _note(graph: Graph, deployment: Deployment, missing: Counter[str], varies: bool, notes: Notes) -> None:
    inside = sum(_multiplies(node) or node.op_type in _READERS for node in graph.nested)
    if inside:
        missing["products in branches, loops and functions"] += inside
    for text, count in missing.items():
        notes.leave_out(f"{count} x {text}")
    notes.assume("layers that read the same input stay apart, as in the graph")
    if not varies and deployment.tokens:
        notes.leave_out("the numbers of tokens, since the graph has all extents")
    elif varies and not deployment.tokens:
        notes.assume(f"{', '.join(map(str, TOKENS))} tokens; gemmill model --tokens passes others")


def _multiplies(node: Any) -> bool:
    if node.domain in _DOMAINS:
        return node.op_type in _OTHERS
    return bool(_MULTIPLIES.search(node.op_type))


def _problems(
    node: Any, read: Read, tensors: Mapping[str, Tensor], deployment: Deployment, notes: Notes
) -> tuple[bool, list[GemmProblem]]:
    """Whether the number of tokens is an extent, and the problem with each number."""
    inputs = [tensors.get(name, Tensor()) for name in node.input]
    a, b = read(node, inputs)
    weights = a.tensor.constant or b.tensor.constant
    batch, m, n, k = _broadcast(a, b), a.free, b.free, a.shared
    symbols = [str(extent) for extent in (*batch, *m, *n, *k, *b.shared) if isinstance(extent, str)]
    if symbols and not weights:
        raise _LeftOut(f"two activations with extents {_listed(symbols)}; --dims passes them")
    if not _known((*b.shared, *a.shared)):
        raise _LeftOut("K is not known")
    if prod(cast("tuple[int, ...]", b.shared)) != prod(cast("tuple[int, ...]", k)):
        raise _LeftOut("K of A differs from K of B")
    if not b.batch and (a.major == "k" or not a.batch):
        m, batch = (*batch, *m), ()
    if symbols and (not _known(batch) or (not _known(m) and not _known(n))):
        raise _LeftOut(f"extents {_listed(symbols)} are not known; --dims passes them")
    words = _words(node, a, b, tensors, deployment, notes)
    if node.op_type == "Gemm" and any(node.input[2:]):
        notes.leave_out("C of Gemm, which is added")
    if node.op_type == "Gemm" and any(each.name == "alpha" and each.f != 1 for each in node.attribute):
        notes.leave_out("alpha of Gemm, a factor of the product")
    if symbols:
        varying = " x ".join(str(extent) for extent in (n if _known(m) else m) if extent != 1)
        notes.assume(f"{varying} of products with weights is the number of tokens; --dims passes each")
    found = []
    for tokens in (deployment.tokens or TOKENS) if symbols else (0,):
        rows, columns, batches = (
            prod(cast("tuple[int, ...]", each)) if _known(each) else tokens for each in (m, n, batch)
        )
        depth = prod(cast("tuple[int, ...]", k))
        if not rows or not columns or not batches:
            raise _LeftOut("an extent is 0")
        found.append(GemmProblem(rows, columns, depth, batch=batches, **words))
    return bool(symbols), found


def _words(
    node: Any, a: _Operand, b: _Operand, tensors: Mapping[str, Tensor], deployment: Deployment, notes: Notes
) -> dict[str, Any]:
    """Types and majors."""
    types = []
    for operand in (a, b):
        if (dtype := _TYPES.get(operand.tensor.dtype)) is None:
            raise _LeftOut(f"an operand is {operand.tensor.dtype or 'of unknown type'}, which gemmill lacks")
        types.append(dtype)
        if operand.tensor.stored:
            notes.assume(f"operands in {operand.tensor.stored} are dequantised to {operand.tensor.dtype} beforehand")
    result = tensors.get(next(iter(node.output), ""), Tensor()).dtype
    d = _TYPES.get(result, "")
    if node.op_type in ("MatMulInteger", "QLinearMatMul"):
        d = "s32"
        if node.op_type == "QLinearMatMul":
            notes.leave_out("scales and zero points of QLinearMatMul; D is the sum in s32")
        elif any(node.input[2:]):
            notes.leave_out("zero points of MatMulInteger")
    if deployment.dtype is not None:
        types = [deployment.dtype if dtype in ("f32", "f16", "bf16") else dtype for dtype in types]
        d = deployment.dtype if d in ("f32", "f16", "bf16") else d
    return {"a": types[0], "b": types[1], "a_major": a.major, "b_major": b.major} | ({"d": d} if d else {})


def _broadcast(a: _Operand, b: _Operand) -> tuple[Extent, ...]:
    """The batch extents of both operands together."""
    batch = []
    for one, other in zip_longest(a.batch[::-1], b.batch[::-1], fillvalue=1):
        if 1 not in (one, other) and one != other:
            raise _LeftOut("batch extents of A and B differ")
        batch.append(other if one == 1 else one)
    return tuple(batch[::-1])


def _known(extents: tuple[Extent, ...]) -> bool:
    return all(isinstance(extent, int) for extent in extents)


def _listed(symbols: Sequence[str]) -> str:
    return " x ".join(dict.fromkeys(symbols))


def _extents(tensor: Tensor) -> tuple[Extent, ...]:
    if not tensor.extents:
        raise _LeftOut("the number of extents of an operand is not known")
    return tensor.extents


def _matmul(inputs: Sequence[Tensor]) -> tuple[_Operand, _Operand]:
    a, b = inputs
    rows, columns = _extents(a), _extents(b)
    if len(rows) == 1:
        rows = (1, *rows)
    if len(columns) == 1:
        columns = (*columns, 1)
    *batch_a, m, k = rows
    *batch_b, k_b, n = columns
    return (
        _Operand(a, (m,), (k,), _batch(batch_a), "mn" if a.swapped else "k"),
        _Operand(b, (n,), (k_b,), _batch(batch_b), "k" if b.swapped else "mn"),
    )


def _batch(extents: Sequence[Extent]) -> tuple[Extent, ...]:
    """Batch extents; none for a single matrix."""
    return () if all(extent == 1 for extent in extents) else tuple(extents)


def _gemm(node: Any, inputs: Sequence[Tensor]) -> tuple[_Operand, _Operand]:
    if len(inputs) < 2:
        raise _LeftOut("it lacks an input")
    operands = []
    for tensor, name, is_a in zip(inputs, ("transA", "transB"), (True, False), strict=False):
        extents = _extents(tensor)
        if len(extents) != 2:
            raise _LeftOut("an operand of Gemm has no two extents")
        transposed = any(each.name == name and each.i for each in node.attribute)
        rows, columns = extents[::-1] if transposed else extents
        free, shared = (rows, columns) if is_a else (columns, rows)
        k_contiguous = (is_a != transposed) != tensor.swapped
        operands.append(_Operand(tensor, (free,), (shared,), (), "k" if k_contiguous else "mn"))
    return operands[0], operands[1]


def _einsum(node: Any, inputs: Sequence[Tensor]) -> tuple[_Operand, _Operand]:
    equation = next((each.s.decode("ascii", "replace") for each in node.attribute if each.name == "equation"), "")
    match = re.fullmatch(r"([A-Za-z]{1,52}),([A-Za-z]{1,52})(?:->([A-Za-z]*))?", equation.replace(" ", ""))
    if match is None or len(inputs) != 2:
        raise _LeftOut(f"{clean(equation)!r} is no product of two matrices")
    a, b, out = match.groups()
    if out is None:
        out = "".join(sorted(letter for letter in a + b if (a + b).count(letter) == 1))
    batch = "".join(letter for letter in a if letter in b and letter in out)
    m = "".join(letter for letter in a if letter not in b)
    n = "".join(letter for letter in b if letter not in a)
    k = "".join(letter for letter in a if letter in b and letter not in out)
    orders = ((batch + m + k, batch + k + m), (batch + k + n, batch + n + k), (batch + m + n, batch + n + m))
    sound = all(letters in order for letters, order in zip((a, b, out), orders, strict=True))
    if not k or not sound or len({*a}) != len(a) or len({*b}) != len(b):
        raise _LeftOut(f"{clean(equation)!r} is no product of two matrices as they are stored")
    operands = []
    for tensor, letters, free in zip(inputs, (a, b), (m, n), strict=True):
        if len(letters) != len(_extents(tensor)):
            raise _LeftOut("the equation has another number of extents than an operand")
        extents = dict(zip(letters, _extents(tensor), strict=True))
        groups = [tuple(extents[letter] for letter in group) for group in (free, k, batch)]
        k_contiguous = (letters[-1] in k) != (tensor.swapped and len(letters) == 2)
        operands.append(_Operand(tensor, groups[0], groups[1], _batch(groups[2]), "k" if k_contiguous else "mn"))
    if n and out.endswith(m):  # D is stored with M contiguous: the product of the transposes
        operands.reverse()
    return operands[0], operands[1]


def _of(places: tuple[int, int]) -> Read:
    """Reads an operator whose operands, with semantics as in MatMul, are inputs at two places."""

    def read(_: Any, inputs: Sequence[Tensor]) -> tuple[_Operand, _Operand]:
        if len(inputs) <= max(places):
            raise _LeftOut("it lacks an input")
        return _matmul([inputs[place] for place in places])

    return read


_READERS: Mapping[str, Read] = MappingProxyType(
    {
        "MatMul": _of((0, 1)),
        "MatMulInteger": _of((0, 1)),
        "QLinearMatMul": _of((0, 3)),
        "Gemm": _gemm,
        "Einsum": _einsum,
    }
)
"""How the operands of each operator are read."""
