"""Lists with one problem per line: gemmill's own lines, extents as ``64x128x64``, and tables of numbers without a
header.
"""

from __future__ import annotations

import re

from gemmill.library.errors import ProblemError
from gemmill.library.input.problem_words import FIELDS
from gemmill.library.problem import GemmProblem
from gemmill.profiler.imports.collector import Collector, Fields, Imported, LeftOut, TextFile, extent, shown

_LINE = re.compile(r"\d{1,18}(?:x\d{1,18}){2,3}(?:\s|$)")
_NUMBERS = re.compile(
    "|".join(rf"\d{{1,18}}(?:{between}\d{{1,18}}){{2,3}}\s*[,;]?" for between in (r"\s*,\s*", r"\s*;\s*", r"\s+"))
)
"""Three or four numbers with one separator; `1,024 128 64` has two, so its comma is part of a number."""
_SIZES = re.compile(r"\ssizes=(\S+)")
_FORMS = "expected `64 128 64`, `64,128,64`, `64x128x64` or a problem such as `64x128x64 bf16 tn`"


def is_line(text: str) -> bool:
    """Whether a text is the line of a problem or its extents, as ``str`` of a problem writes them."""
    return _LINE.match(text) is not None


def read_line(text: str) -> Fields:
    """The problem of a line. A line that is more than extents has all keywords, with gemmill's defaults.

    LeftOut if the line is invalid.
    """
    text = text.strip()
    if _LINE.fullmatch(text):
        return _extents(text.split("x"))
    found = _SIZES.search(text)
    try:
        problem = GemmProblem.from_text(_SIZES.sub("", text))
    except ProblemError as error:
        raise LeftOut(str(error)) from None
    fields = {name: value for name in FIELDS if (value := getattr(problem, name)) is not None}
    fields.setdefault("c_dtype", "none")
    return fields | ({"sizes": found[1]} if found else {})


def _extents(numbers: list[str]) -> Fields:
    return {key: extent(key, value) for key, value in zip(("m", "n", "k", "batch"), numbers, strict=False)}


def read(file: TextFile) -> Imported | None:
    """Problems of a list; None for other texts. Empty lines and those that begin with # are skipped."""
    lines = [(number, line.strip()) for number, line in enumerate(file.lines, 1)]
    lines = [(number, line) for number, line in lines if line and not line.startswith("#")]
    if not lines or not (is_line(lines[0][1]) or _NUMBERS.fullmatch(lines[0][1])):
        return None
    into = Collector(file.path)
    for number, line in lines:
        with into.at(number) as entry:
            if is_line(line):
                entry.add(read_line(line))
            elif _NUMBERS.fullmatch(line):
                entry.add(_extents(re.findall(r"\d+", line)))
            else:
                raise LeftOut(f"{shown(line)}: {_FORMS}")
    return into.result()
