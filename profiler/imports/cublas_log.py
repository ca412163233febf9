"""Logs of cuBLASLt and hipBLASLt, with one matmul per line, and of cuBLAS, with a block of lines per call."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gemmill.profiler.imports import blas
from gemmill.profiler.imports.blas import dtype, epilogue
from gemmill.profiler.imports.collector import Collector, Fields, Imported, LeftOut, TextFile, extent, shown

_MATMUL = re.compile(r"\[(Trace|Api)\]\[(?:cublasLt\w{0,9}Matmul|rocblaslt_matmul|hipblasLtMatmul)\] ")
_DESCRIPTOR = re.compile(r"\b([ABCD]|compute)[Dd]esc=\[([^\]]{0,2000})\]")
_PAIR = re.compile(r"(\w+)=(\S+)")
_CALL = re.compile(r"I! cuBLAS \(v[\d.]+\) function cublasStatus_t (\w+)\(")
_ARGUMENT = re.compile(r"i!\s+(\w+): type=[^;]*; val=(\S+)")
_MODE = re.compile(r"MathMode=(\w+)")
_GEMM = re.compile(r"cublas([A-Z])?(?:gemm|Gemm)(?:3m)?(\w*)")
_SCALES: Mapping[str, str] = {"VEC128_32F": "1x128", "BLK128x128_32F": "128x128"}
_NO_BLOCKS = ("SCALAR_32F", "OUTER_VEC_32F")
_FUNCTIONS: Mapping[str, tuple[str, bool]] = {
    "DEFAULT": ("", False),
    "BIAS": ("", True),
    "RELU": ("relu", False),
    "RELU_BIAS": ("relu", True),
    "GELU": ("gelu_tanh", False),
    "GELU_BIAS": ("gelu_tanh", True),
}
"""The function of each cuBLASLt epilogue, and whether it adds a bias first."""


def read_lt(file: TextFile) -> Imported | None:
    """Problems of the matmuls in a log; None for other texts. If calls are logged on two levels, only the complete
    level (trace) counts."""
    if "desc=[type=" not in file.text or _MATMUL.search(file.text) is None:
        return None
    into, lines = Collector(file.path, "a log of cuBLASLt or hipBLASLt"), file.lines
    calls = ((number, _MATMUL.search(line)) for number, line in enumerate(lines, 1) if "Adesc=[" in line)
    levels = [(number, call[1]) for number, call in calls if call]
    complete = "Trace" if any(level == "Trace" for _, level in levels) else "Api"
    for number, level in levels:
        if level != complete:
            continue
        parts = {name: dict(_PAIR.findall(pairs)) for name, pairs in _DESCRIPTOR.findall(lines[number - 1])}
        if missing := [name for name in ("A", "B", "D", "compute") if name not in parts]:
            raise into.error(number, f"the line lacks {', '.join(missing)}desc; complete or remove it")
        with into.at(number):
            beta = re.search(r"\bbeta=(\S+)", lines[number - 1])
            into.add(_of_matmul(parts, beta[1] if beta else None), number)
    return into.result()


def _of_matmul(parts: Mapping[str, Mapping[str, str]], beta: str | None) -> Fields:
    a, d, call = parts["A"], parts["D"], parts["compute"]
    for name, layout in parts.items():
        if "order" in layout and not layout["order"].endswith("COL"):
            raise LeftOut(f"the order {shown(layout['order'])} of {name} is not supported; it must be column-major")
    transposed_a = blas.is_transposed("transa", call.get("transa", call.get("transA", "N")))
    transposed_b = blas.is_transposed("transb", call.get("transb", call.get("transB", "N")))
    k = a.get("rows") if transposed_a else a.get("cols")
    extents = {"m": d.get("rows"), "n": d.get("cols"), "k": k, "batch": d.get("batchCount")}
    types = {name.lower(): parts[name].get("type") for name in "ABCD" if name in parts}
    fields = dict(
        blas.problem(
            extents,
            transposed_a=transposed_a,
            transposed_b=transposed_b,
            types=types,
            computes_in=call.get("computeType", ""),
            beta=beta,
        )
    )
    for ours, theirs in (("a_scale", "bScaleMode"), ("b_scale", "aScaleMode")):
        if (mode := call.get(theirs)) and mode not in _NO_BLOCKS:
            if mode not in _SCALES:
                raise LeftOut(f"{theirs} {shown(mode)} is not supported; expected {' or '.join(_SCALES)}")
            fields[ours] = _SCALES[mode]
    name = call.get("epilogue", "DEFAULT").removeprefix("EPILOGUE_")
    if name not in _FUNCTIONS:
        raise LeftOut(f"the epilogue {shown(name)} is not supported; expected one of {', '.join(_FUNCTIONS)}")
    function, has_bias = _FUNCTIONS[name]
    default = "R_16BF" if "_8F_" in d.get("type", "") else d.get("type")  # the default type of the bias
    bias = dtype(call.get("biasDataType", default), "the bias") if has_bias else None
    if text := epilogue(function, bias, adds_c="c" in fields):
        fields["epilogue"] = text
    return fields


def read_cublas(file: TextFile) -> Imported | None:
    """Problems of the GEMMs in a log, without notes on other functions; None for other texts."""
    if "I! cuBLAS (v" not in file.text:
        return None
    into = Collector(file.path, "a log of cuBLAS")
    for number, name, arguments in _calls(file.lines):
        if (match := _GEMM.match(name)) is None:
            continue
        with into.at(number):
            into.add(_of_call(name, match[1] or "", match[2], arguments), number)
    return into.result()


def _calls(lines: list[str]) -> Iterator[tuple[int, str, dict[str, str]]]:
    """Line, function and arguments of each call."""
    start, name, arguments = 0, "", dict[str, str]()
    for number, line in enumerate(lines, 1):
        if match := _CALL.search(line):
            if name:
                yield start, name, arguments
            start, name, arguments = number, match[1], {}
        elif match := _ARGUMENT.search(line):
            arguments[match[1]] = match[2]
        elif match := _MODE.search(line):
            arguments["MathMode"] = match[1]
    if name:
        yield start, name, arguments


def _of_call(name: str, letter: str, suffix: str, arguments: Mapping[str, str]) -> Fields:
    letter = letter.lower()
    if letter and letter not in blas.LETTERS:
        raise LeftOut(f"{name}: complex numbers and this type are not supported")
    if "Grouped" in suffix:
        raise LeftOut(f"{name}: the log does not contain the arrays that define the groups")
    for argument in ("m", "n", "k", "transa", "transb"):
        if argument not in arguments:
            raise LeftOut(f"{name}: missing {argument}")
    types: dict[str, object] = {key: arguments.get(f"{key.upper()}type", "").partition("(")[0] for key in "abc"}
    if letter in blas.LETTERS:
        types = {key: types[key] or blas.LETTERS[letter] for key in "abc"}
    computes_in = arguments.get("computeType", "").partition("(")[0].removeprefix("CUDA_R_")
    if "TF32" in arguments.get("MathMode", "") and types["a"] in ("CUDA_R_32F", "f32_r"):
        computes_in = "32F_FAST_TF32"
    elif not computes_in and letter:
        computes_in = blas.LETTERS[letter]
    batch = arguments.get("batchCount")
    return blas.problem(
        {key: extent(key, arguments[key]) for key in "mnk"} | {"batch": batch},
        transposed_a=blas.is_transposed("transa", arguments["transa"]),
        transposed_b=blas.is_transposed("transb", arguments["transb"]),
        types={**types, "d": types["c"]},
        computes_in=computes_in,
        beta=arguments.get("beta"),
        batching="array" if "Batched" in suffix and "Strided" not in suffix else "",
    )
