"""Logs of cuBLASLt and hipBLASLt, with one matmul per line, and of cuBLAS, with a block of lines per call."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping

from gemmill.library.dtypes import FP8
from gemmill.profiler.imports import blas
from gemmill.profiler.imports.collector import Collector, Entry, Fields, Imported, LeftOut, TextFile, shown

_MATMUL = re.compile(r"\[(Trace|Api)\]\[(?:cublasLt\w{0,9}Matmul|rocblaslt_matmul|hipblasLtMatmul)\] ")
_DESCRIPTOR = re.compile(r"\b([ABCD]|compute)[Dd]esc=\[([^\]]{0,2000})\]")
_PAIR = re.compile(r"(\w+)=(\S+)")
_CALL = re.compile(r"I! cuBLAS \(v[\d.]+\) function cublasStatus_t (\w+)\(")
_ARGUMENT = re.compile(r"i!\s+(\w+): type=[^;]*; val=(\S+)")
_MODE = re.compile(r"MathMode=(\w+)")
_GEMM = re.compile(r"cublas([A-Z])?(?:gemm|Gemm)(?:3m)?(\w*)")
_PRODUCT = re.compile(r"cublas[A-Z](?:ge|gb|sy|sb|sp|he|hb|hp|tr|tb|tp)(?:mv|mm|rk|r2k|rkx|r|r2|ru|rc)(?![a-z])")
_SCALES: Mapping[str, str] = {"VEC128_32F": "1x128", "BLK128x128_32F": "128x128"}
_NULL = re.compile(r"(?:0[xX])?0*|\(nil\)")
_NO_BLOCKS = ("SCALAR_32F", "OUTER_VEC_32F")
_MORE = re.compile(r"(?:[cd]Scale|amax)\w*Pointer")
"""Attributes of a matmul that a problem cannot contain."""
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
    into, lines = Collector(file.path), file.lines
    calls = ((number, _MATMUL.search(line)) for number, line in enumerate(lines, 1) if "Adesc=[" in line)
    levels = [(number, call[1]) for number, call in calls if call]
    complete = "Trace" if any(level == "Trace" for _, level in levels) else "Api"
    for number, level in levels:
        if level != complete:
            continue
        parts = {name: dict(_PAIR.findall(pairs)) for name, pairs in _DESCRIPTOR.findall(lines[number - 1])}
        if missing := [name for name in ("A", "B", "D", "compute") if name not in parts]:
            raise into.error(number, f"the line lacks {', '.join(missing)}desc; complete or remove it")
        with into.at(number) as entry:
            beta = re.search(r"\bbeta=(\S+)", lines[number - 1])
            fields = _of_matmul(entry, parts, beta[1] if beta else None)
            if fields.get("a") in FP8 and "a_scale" not in fields and _is_precise(lines[number - 1]):
                fields["promote"] = 4
            entry.add(fields)
    return into.result()


def _of_matmul(entry: Entry, parts: Mapping[str, Mapping[str, str]], beta: str | None) -> dict[str, int | str]:
    a, d, call = parts["A"], parts["D"], parts["compute"]
    for name, layout in parts.items():
        if "order" in layout and not layout["order"].endswith("COL"):
            raise LeftOut(f"the order {shown(layout['order'])} of {name} is not supported; it must be column-major")
    for name, value in call.items():
        if _MORE.fullmatch(name) or (name == "pointerMode" and "VECTOR" in value):
            entry.leave_out(f"{name} is not part of a problem")
    transposed_a = blas.is_transposed("transa", call.get("transa", call.get("transA", "N")))
    transposed_b = blas.is_transposed("transb", call.get("transb", call.get("transB", "N")))
    scales, blocks = _scales(call)
    function, bias = _epilogue(call, d)
    fields = blas.BlasCall(
        extents={
            "m": d.get("rows"),
            "n": d.get("cols"),
            "k": a.get("rows") if transposed_a else a.get("cols"),
            "batch": d.get("batchCount"),
        },
        transposed_a=transposed_a,
        transposed_b=transposed_b,
        types={name.lower(): parts[name].get("type") for name in "ABCD" if name in parts},
        computes_in=call.get("computeType", ""),
        beta=_beta(entry, beta),
        leading={name.lower(): parts[name].get("ld") for name in "ABCD" if name in parts},
        strides={name.lower(): parts[name].get("stridedBatchOffset") for name in "ABCD" if name in parts},
        function=function,
        bias=bias,
        scales=scales,
    ).problem(entry)
    if d.get("batchCount", "1") != "1":
        _note_shared(entry, {name: parts[name].get("stridedBatchOffset", "0") for name in "AB"})
    return dict(fields) | blocks


def _is_precise(line: str) -> bool:
    """Whether a matmul of cuBLASLt promotes its sums of fp8, as it does unless fast accumulation is set."""
    return "][cublasLt" in line and re.search(r"fastAccum\w*=[^0\s]", line) is None


def _scales(call: Mapping[str, str]) -> tuple[dict[str, bool], dict[str, int | str]]:
    """The scales of the library's A and B that are part of the epilogue, and the block scales of the problem."""
    scales, blocks = dict[str, bool](), dict[str, int | str]()
    for name, ours in (("a", "b_scale"), ("b", "a_scale")):
        mode = call.get(f"{name}ScaleMode", "SCALAR_32F")
        if mode in _SCALES:
            blocks[ours] = _SCALES[mode]
        elif mode not in _NO_BLOCKS:
            raise LeftOut(f"{name}ScaleMode {shown(mode)} is not supported; expected {' or '.join(_SCALES)}")
        elif mode == "OUTER_VEC_32F" or not _NULL.fullmatch(call.get(f"{name}ScalePointer", "0")):
            scales[name] = mode == "OUTER_VEC_32F"
    return scales, blocks


def _epilogue(call: Mapping[str, str], d: Mapping[str, str]) -> tuple[str, str | None]:
    """The function of a matmul's epilogue, and the type of its bias."""
    name = call.get("epilogue", "DEFAULT").removeprefix("EPILOGUE_")
    if name not in _FUNCTIONS:
        raise LeftOut(f"the epilogue {shown(name)} is not supported; expected one of {', '.join(_FUNCTIONS)}")
    function, has_bias = _FUNCTIONS[name]
    default = "R_16BF" if "_8F_" in d.get("type", "") else d.get("type")  # the default type of the bias
    return function, call.get("biasDataType", default) if has_bias else None


def _beta(entry: Entry, beta: str | None) -> str | None:
    """The factor of C, if it is a number."""
    if beta is not None and not re.fullmatch(r"[-+.\deE]+", beta):
        entry.assume("beta is an address in the log; assuming 0, so that C is not added")
        return None
    return beta


def _note_shared(entry: Entry, strides: Mapping[str, str | None]) -> None:
    """Note operands of a batch that all its matrices share."""
    for name, stride in strides.items():
        if stride == "0":
            entry.leave_out(f"{name} is one matrix for the whole batch; a problem has one for each")


def read_cublas(file: TextFile) -> Imported | None:
    """Problems of the GEMMs in a log, with notes on other products; None for other texts."""
    if "I! cuBLAS (v" not in file.text:
        return None
    into = Collector(file.path)
    for number, name, arguments in _calls(file.lines):
        with into.at(number) as entry:
            if match := _GEMM.match(name):
                entry.add(_of_call(entry, name, match, arguments))
            elif _PRODUCT.match(name):
                raise LeftOut(f"{name} is not supported; only GEMMs are")
    return into.result()


_LAYOUTS = (("ld", "abcc"), ("stride", "ABCC"))
"""Names of leading dimensions and strides in a log; D is C."""


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


def _of_call(entry: Entry, name: str, match: re.Match[str], arguments: Mapping[str, str]) -> Fields:
    letter, suffix = (match[1] or "").lower(), match[2]
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
    is_array = "Batched" in suffix and "Strided" not in suffix
    if "Strided" in suffix:
        _note_shared(entry, {key: arguments.get(f"stride{key}") for key in "AB"})
    layouts = {key: {x: arguments.get(f"{key}{y}") for x, y in zip("abcd", of, strict=True)} for key, of in _LAYOUTS}
    return blas.BlasCall(
        extents={key: arguments[key] for key in "mnk"} | {"batch": arguments.get("batchCount")},
        transposed_a=blas.is_transposed("transa", arguments["transa"]),
        transposed_b=blas.is_transposed("transb", arguments["transb"]),
        types={**types, "d": types["c"]},
        computes_in=computes_in,
        beta=_beta(entry, arguments.get("beta")),
        leading=layouts["ld"],
        strides=layouts["stride"],
        batching="array" if is_array else "",
    ).problem(entry)
