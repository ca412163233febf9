"""Problems of benchmarks: YAML files, logs and command lines of hipblaslt-bench and rocblas-bench, and the C++ headers
of DeepBench, which are lists of ``std::make_tuple(m, n, k, a_t, b_t)``.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Mapping

from gemmill.library.errors import ManifestError, RecordError
from gemmill.library.manifest.document import MAX_BYTES, read_document
from gemmill.profiler.imports import blas
from gemmill.profiler.imports.collector import (
    MAX_PROBLEMS,
    Collector,
    Entry,
    Fields,
    Imported,
    LeftOut,
    TextFile,
    extent,
    shown,
    whole,
)

_COMMAND = re.compile(r"(?:hipblaslt|rocblas)-bench\s(.*)")
_LOGGED = re.compile(r"\s*-\s*\{\s*rocblas_function\s*:")
_PAIR = re.compile(r"\b(\w{1,40})\s{0,9}:\s{0,9}(?:\"([^\"]*)\"|'([^']*)'|([^,{}\s]+))")
_SIGNS = ("rocblas_function", "matrix_size", "transa")
"""Beginnings of the keys, in lower case, that other lists lack."""
_INCLUDE = re.compile(r"^include:[ \t]*(\S*).*$", re.MULTILINE)
_ALIAS = re.compile(r"(?<=[\s\[,:])\*([A-Za-z_][\w-]*)")
_ANCHOR = re.compile(r"(?<=[\s\[,:])&([A-Za-z_][\w-]*)")
_TYPES = tuple(f"{name}_type" for name in ("a", "b", "c", "d", "compute", "bias", "activation"))
_LAYOUTS = tuple(name for x in "abcd" for name in (f"ld{x}", f"stride_{x}"))
_MORE = ("use_e", "gradient", "scalec", "scaled", "scalealpha_vector", "amaxd", "swizzlea", "swizzleb")
"""What a problem cannot contain."""
_KEYS = {
    *("m", "n", "k", "transa", "transb", "batch_count", "function", "rocblas_function", "call_count", "precision"),
    *("beta", "grouped_gemm", "bias_vector", "scalea", "scaleb", *_TYPES, *_LAYOUTS, *_MORE),
}
"""The keys of a call that are read, in lower case; the others do not change its problem."""
_OPTIONS: Mapping[str, str] = {
    **{f"-{name}": name for name in "mnk"},
    **{f"--size{name}": name for name in "mnk"},
    **{f"--transpose{name}": f"trans{name}" for name in "ab"},
    "--batch": "batch_count",
    "-f": "function",
    "-r": "precision",
    **{f"--{name}": name for name in _KEYS},
}
"""The keys of options, in lower case."""
_LETTER = re.compile(r"(?:rocblas_)?([a-z])gemm")
_FUNCTIONS: Mapping[str, str] = {
    **dict.fromkeys(("none", ""), ""),
    **{name: name for name in ("relu", "silu", "sigmoid")},
    "gelu": "gelu_tanh",
    "swish": "silu",
}
"""The functions of hipBLASLt with gemmill's names."""

Call = Mapping[str, object]


def read_commands(file: TextFile) -> Imported | None:
    """Problems of command lines, anywhere in a line, except comments; None if the text has no command lines."""
    text = file.text
    if not ("hipblaslt-bench" in text or "rocblas-bench" in text) or not (" -m " in text or "--sizem" in text):
        return None
    into = Collector(file.path)
    for number, line in enumerate(file.lines, 1):
        if line.lstrip().startswith("#") or (match := _COMMAND.search(line)) is None:
            continue
        call = _options(match[1].split())
        if "m" in call or "n" in call:
            with into.at(number) as entry:
                entry.add(problem(entry, call))
    result = into.result()
    return result if result.problems or result.left_out else None


def _options(words: list[str]) -> Call:
    """The keys of a command line. An option that another one follows has no value, and is set."""
    call: dict[str, object] = {}
    for option, value in itertools.zip_longest(words, words[1:], fillvalue="-"):
        key = _OPTIONS.get(option.lower()) if option.startswith("-") else None
        if key is not None:
            call[key] = "1" if re.match(r"--?[a-zA-Z]|-$", value) else value.strip("'\"")
    return call


def read_yaml(file: TextFile) -> Imported | None:
    """Problems of a benchmark's YAML: one mapping per line, as in logs, or definitions and tests. None for other
    texts."""
    text = file.text
    if not any(sign in text.lower() for sign in _SIGNS):
        return None
    into = Collector(file.path)
    lines = text.split("\n")
    logged = [line for line in lines if _LOGGED.match(line)]
    if logged and "Tests:" not in lines and all("}" in line for line in logged[:-1]):
        return _read_logged(into, lines)
    if len(text) > MAX_BYTES:
        raise into.error(1, f"has {len(text):,} characters; YAML can have at most {MAX_BYTES:,}; split the file")
    for number, written in enumerate(lines, 1):
        if match := _INCLUDE.match(written):
            with into.at(number):
                raise LeftOut(f"include: {shown(match[1])} is not read, so its definitions are missing")
    anchors = set(_ANCHOR.findall(text))
    plain = _INCLUDE.sub("#", text)
    plain = _ALIAS.sub(lambda alias: alias[0] if alias[1] in anchors else f'"*{alias[1]}"', plain)
    try:
        document = read_document(file.path, lambda *_: plain.encode())
    except ManifestError as error:
        if not logged and "matrix_size" not in text:  # another format
            return None
        raise RecordError(str(error)) from None
    root = document.data
    tests = root if isinstance(root, list) else root.get("Tests") if isinstance(root, dict) else None
    if not isinstance(tests, list):
        return None
    if tests is root and not any(
        key.startswith(_SIGNS) for test in tests if isinstance(test, dict) for key in _lower(test)
    ):
        return None  # a list whose comments or values have such a word
    remaining = MAX_PROBLEMS
    for index, test in enumerate(tests):
        location = (index,) if isinstance(root, list) else ("Tests", index)
        line = document.values[location][0]
        with into.at(line):
            if not isinstance(test, dict):
                raise LeftOut("a test must be a mapping")
            calls = _calls(into, test, line, remaining)
            remaining -= len(calls)
            for call in calls:
                with into.at(line) as entry:
                    entry.add(problem(entry, call), extent("call_count", call.get("call_count", 1)))
    return into.result()


def _read_logged(into: Collector, lines: list[str]) -> Imported:
    for number, line in enumerate(lines, 1):
        if not _LOGGED.match(line):
            continue
        if "}" not in line:
            raise into.error(number, "the mapping is not closed; complete or remove the line")
        pairs = ((key.lower(), double or single or bare) for key, double, single, bare in _PAIR.findall(line))
        call = {key: value for key, value in pairs if key in _KEYS}
        with into.at(number) as entry:
            entry.add(problem(entry, call), extent("call_count", call.get("call_count", 1)))
    return into.result()


def _calls(into: Collector, test: Mapping[str, object], line: int, most: int) -> list[Call]:
    """The calls of a test: all combinations of the values of its keys."""
    choices: list[list[Call]] = []
    for key, value in _lower(test).items():
        distinct: dict[str, Call] = {}
        for item in _functions(value) if key == "function" else _flat(value):
            read = {k: v for k, v in _lower(item).items() if k in _KEYS} if isinstance(item, dict) else None
            call = {key: item} if read is None else read
            if key in _KEYS or read is not None:
                distinct[repr(call)] = call
        if any(distinct.values()):
            choices.append([*distinct.values()])
    if math.prod(map(len, choices)) > most:
        raise into.error(line, f"the file has more than {MAX_PROBLEMS:,} problems; split it")
    return [{key: value for part in parts for key, value in part.items()} for parts in itertools.product(*choices)]


def _lower(mapping: Mapping[str, object]) -> dict[str, object]:
    """A mapping with its keys in lower case."""
    return {str(key).lower(): value for key, value in mapping.items()}


def _flat(value: object) -> list[object]:
    """The values of a list, flattened by one level; a single value as a list."""
    listed = value if isinstance(value, list) else [value]
    return [part for item in listed for part in (item if isinstance(item, list) else [item])]


def _functions(value: object) -> list[object]:
    """Calls of functions, which are given as names or as ``name: types``: one call for each type."""
    calls: list[object] = []
    for item in _flat(value):
        types_by_name = item if isinstance(item, dict) else {str(item): {}}
        for name, types in types_by_name.items():
            mappings = (mapping if isinstance(mapping, dict) else {} for mapping in _flat(types))
            calls += [{**mapping, "function": name} for mapping in mappings]
    return calls


def problem(entry: Entry, call: Call) -> Fields:
    """The problem of a call, with the keys of the benchmarks in lower case; LeftOut if it is not a GEMM of real
    numbers."""
    function = str(call.get("rocblas_function") or call.get("function") or "gemm")
    if "gemm" not in function and function != "matmul" and not function.startswith("*"):
        raise LeftOut(f"the function {shown(function)} is not supported; only GEMMs are")
    if _is_set(call, "grouped_gemm"):
        raise LeftOut("a grouped GEMM: the groups are not supported in this format")
    activation = str(call.get("activation_type") or "none").lower()
    if activation not in _FUNCTIONS:
        raise LeftOut(
            f"the activation {shown(activation)} is not supported; expected {', '.join(filter(None, _FUNCTIONS))}"
        )
    letter = _LETTER.match(function)
    if letter and letter[1] not in blas.LETTERS:
        raise LeftOut(f"{shown(function)}: complex numbers and this type are not supported")
    for key in _MORE:
        if _is_set(call, key):
            entry.leave_out(f"{key} is not part of a problem")
    common = call.get("precision") or (blas.LETTERS[letter[1]] if letter else None)
    types = {name: _unless_alias(call.get(f"{name}_type") or common) for name in "abcd"}
    has_bias = _is_set(call, "bias_vector")
    if has_bias and not (bias := _unless_alias(call.get("bias_type")) or types["d"]):
        raise LeftOut("the type of the bias is not in the file")
    return blas.BlasCall(
        extents={"m": call.get("m"), "n": call.get("n"), "k": call.get("k"), "batch": call.get("batch_count")},
        transposed_a=blas.is_transposed("transA", call.get("transa", "N")),
        transposed_b=blas.is_transposed("transB", call.get("transb", "N")),
        types=types,
        computes_in=str(_unless_alias(call.get("compute_type")) or ""),
        beta=call.get("beta"),
        leading={name: call.get(f"ld{name}") for name in "abcd"},
        strides={name: call.get(f"stride_{name}") for name in "abcd"},
        batching="array" if "batched" in function and "strided" not in function else "",
        function=_FUNCTIONS[activation],
        bias=bias if has_bias else None,
        scales=_scales(call),
    ).problem(entry)


def _is_set(call: Call, key: str) -> bool:
    return str(call.get(key, "0")).lower() not in ("0", "false", "none", "")


def _scales(call: Call) -> dict[str, bool]:
    """The scales of the library's A and B: 1 is one value, 2 one for each row or column."""
    scales = {}
    for name in "ab":
        kind = str(call.get(f"scale{name}") or "0").lower()
        if kind not in ("0", "1", "2", "scalar", "vector", "none"):
            raise LeftOut(f"scale{name.upper()} is {shown(kind)}; expected 0, 1 (one value) or 2 (a vector)")
        if kind not in ("0", "none"):
            scales[name] = kind in ("2", "vector")
    return scales


def _unless_alias(word: object) -> object:
    """A type; None if it is an alias that an included file defines."""
    return None if isinstance(word, str) and word.startswith("*") else word


_COMMENT = re.compile(r"//[^\n]*|/\*.*?(?:\*/|\Z)", re.DOTALL)
_TUPLE = re.compile(r"make_tuple\s*\(([^()]{0,400})(\)?)")
_BOOLS = {"true": True, "false": False, "1": True, "0": False}


def read_header(file: TextFile) -> Imported | None:
    """Problems of a header, column-major as in cuBLAS, without comments; None for other texts."""
    text = file.text
    if "make_tuple" not in text or "std::tuple" not in text:
        return None
    into = Collector(file.path)
    code = _COMMENT.sub(lambda comment: "\n" * comment[0].count("\n"), text)
    line = last = 0
    for match in _TUPLE.finditer(code):
        line, last = line + code.count("\n", last, match.start()), match.start()
        if not match[2]:
            raise into.error(line + 1, "the tuple is not closed; expected std::make_tuple(m, n, k, a_t, b_t)")
        with into.at(line + 1) as entry:
            values = [value.strip() for value in match[1].split(",")]
            if len(values) != 5 or values[3] not in _BOOLS or values[4] not in _BOOLS:
                raise LeftOut(f"a tuple of {len(values)} values; only GEMMs (m, n, k, a_t, b_t) are supported")
            if any(whole(value) is None for value in values[:3]):
                raise LeftOut(f"{shown(', '.join(values[:3]))}: m, n and k must be integers")
            call = blas.BlasCall(
                extents=dict(zip("mnk", values, strict=False)),
                transposed_a=_BOOLS[values[3]],
                transposed_b=_BOOLS[values[4]],
            )
            entry.add(call.problem(entry))
    return into.result()
