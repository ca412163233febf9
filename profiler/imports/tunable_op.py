"""Problems of PyTorch's TunableOp: its files of untuned calls and of results, with one call per line."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gemmill.library.dtypes import FP8
from gemmill.profiler.imports import blas
from gemmill.profiler.imports.collector import Collector, Entry, Fields, Imported, LeftOut, TextFile, shown

_TYPE = r"(?:Float8_[a-z0-9]+|[A-Za-z0-9:<>]+)"
_CALL = re.compile(rf"(?:Scaled)?Gemm\w*TunableOp_{_TYPE}(?:_{_TYPE}){{0,2}}_[NT]{{2}},[nt]{{2}}_\d")
_OPERATOR = re.compile(rf"(\w*?)TunableOp_({_TYPE}(?:_{_TYPE}){{0,2}})_[NT]{{2}}")
_PARAMETERS = re.compile(
    r"([nt])([nt])_(\d+)_(\d+)_(\d+)(?:_B_(?P<batch>\d+))?(?:_ld_(\d+)_(\d+)_(\d+))?"
    r"(?:_rw_(?P<rowwise>[01])(?:_bias_(?P<bias>\w+))?)?"
)
_FACTOR = re.compile(r"\b(beta|activation): ([\w.+-]+)")
_FUNCTIONS: Mapping[str, str] = {"None": "", "RELU": "relu", "GELU": "gelu_tanh"}


def read(file: TextFile) -> Imported | None:
    """Problems of a file; None for other texts. A result has the calls of a file of untuned ones, and their times."""
    if "TunableOp_" not in file.text or not any(map(_CALL.match, file.lines)):
        return None
    into, seen = Collector(file.path), set[tuple[str, ...]]()
    for number, line in enumerate(file.lines, 1):
        if not line.strip() or line.startswith("Validator,"):
            continue
        with into.at(number) as entry:
            operator, _, rest = line.partition(",")
            call = operator, rest.partition(",")[0].strip()
            if call in seen:  # another kernel for the same call
                continue
            seen.add(call)
            entry.add(_problem(entry, *call, line))
    return into.result()


def _problem(entry: Entry, operator: str, parameters: str, line: str) -> Fields:
    """The problem of a call from the names of its operator and of its parameters."""
    named, match = _OPERATOR.fullmatch(operator), _PARAMETERS.fullmatch(parameters)
    if named is None or match is None:
        raise LeftOut(f"{shown(line)}: expected GemmTunableOp_BFloat16_TN,tn_4096_128_4096_ld_4096_4096_4096")
    kind, types = named[1], re.findall(_TYPE, named[2])
    if kind not in ("Gemm", "GemmAndBias", "GemmStridedBatched", "ScaledGemm"):
        raise LeftOut(f"the operator {shown(operator)} is not supported")
    is_tf32, factors = types[0] == "tf32", dict(_FACTOR.findall(line))
    names = ["Float" if is_tf32 else name for name in (types if len(types) == 3 else [types[0]] * 3)]
    bias = {"GemmAndBias": names[2], "ScaledGemm": match["bias"]}.get(kind)
    call = blas.BlasCall(
        extents={"m": match[3], "n": match[4], "k": match[5], "batch": match["batch"]},
        transposed_a=match[1] == "t",
        transposed_b=match[2] == "t",
        types={"a": names[0], "b": names[1], "c": names[2], "d": names[2]},
        computes_in="32F_FAST_TF32" if is_tf32 else "",
        beta=factors.get("beta"),
        leading=dict(zip("abcd", (match[7], match[8], match[9], match[9]), strict=True)),
        function=_function(entry, factors) if kind == "GemmAndBias" else "",
        bias=None if bias == "None" else bias,
        scales=dict.fromkeys("ab", match["rowwise"] == "1") if kind == "ScaledGemm" else {},
    )
    fields = call.problem(entry)
    if kind == "ScaledGemm" and fields.get("a") in FP8:
        entry.assume("use_fast_accum is not in the file; assuming False")
        fields = {**fields, "promote": 4}
    elif kind in ("Gemm", "GemmStridedBatched") and "beta" not in factors:
        entry.assume("beta is not in the file; assuming 0, so that C is not added")
    return fields


def _function(entry: Entry, factors: Mapping[str, str]) -> str:
    """The function of a call with a bias."""
    if (name := factors.get("activation")) is None:
        entry.assume("the activation of GemmAndBias is not in the file; assuming none")
        return ""
    if name not in _FUNCTIONS:
        raise LeftOut(f"the activation {shown(name)} is not supported; expected {', '.join(_FUNCTIONS)}")
    return _FUNCTIONS[name]
