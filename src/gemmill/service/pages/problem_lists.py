"""The problems of the explorer: a text with one problem a line, which a link contains.

A line is a problem, and optionally how often it occurs and its layer: ``16x6144x4096 bf16 tn count=32 # qkv_proj``. A
line ``[16 tokens]`` begins a pass, whose times are added up. Lines that begin with ``#`` are notes.
"""

from __future__ import annotations

import base64
import binascii
import re
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from gemmill.library.errors import ProblemError
from gemmill.library.models.fields import Notes
from gemmill.library.models.problems import TOKENS, Deployment, problems_of
from gemmill.library.problem import MAX_EXTENT, GemmProblem
from gemmill.library.wording import suggest
from gemmill.profiler.sweep.shape_suites import Shape, ShapeSuite, load_shapes, shipped_suites
from gemmill.service.bodies import malformed

MOST_PROBLEMS = 500
"""Maximum number of problems of a page: kernels for them are selected for each request."""
MOST_PASSES = 32
"""Maximum number of passes of a model."""
_CONFIG_SECONDS = 10.0
"""Time after which no further pass of a model is listed: configs can have thousands of layers."""
MOST_BYTES = 1 << 18
"""Maximum length of the text in a link, in UTF-8."""
MOST_LINE = 4096
"""Maximum length of a line."""
_READABLE = 1000
"""Length up to which a link contains a text as it is; longer texts are compressed."""
_LAYER = re.compile(r"\s#\s*")
"""What separates a problem from its layer."""


@dataclass(frozen=True)
class Entry:
    """A problem of a pass."""

    shape: Shape
    count: int = 1
    """How often it occurs in the pass."""
    layer: str = ""
    """The layers that it occurs in; empty if unknown."""

    @cached_property
    def problem(self) -> GemmProblem:
        """Its problem."""
        return self.shape.problem


@dataclass(frozen=True)
class Pass:
    """Problems that run one after the other."""

    name: str
    entries: tuple[Entry, ...]


@dataclass(frozen=True)
class ProblemList:
    """The problems of a page."""

    passes: tuple[Pass, ...] = ()
    notes: tuple[str, ...] = ()
    """What was assumed and left out."""
    suite: str = ""
    """The shipped suite that it is; empty for others."""

    @classmethod
    def from_text(cls, text: str) -> ProblemList:
        """Read a text; ProblemError names the line that is invalid."""
        lines = [line.strip() for line in text.splitlines()]
        notes = tuple(line.lstrip("# ") for line in lines if line.startswith("#"))
        _check_count(sum(line[:1] not in ("", "#", "[") for line in lines))  # before the time to read them
        passes: list[tuple[str, list[Entry]]] = []
        for number, line in enumerate(lines, 1):
            if not line or line.startswith("#"):
                continue
            if line[0] == "[" and line[-1] == "]":
                passes.append((line[1:-1].strip(), []))
                continue
            if not passes:
                passes.append(("", []))
            try:
                passes[-1][1].append(_entry(line))
            except ProblemError as error:
                raise ProblemError(f"line {number}: {error}") from None
        return cls(tuple(Pass(name, tuple(entries)) for name, entries in passes if entries), notes)

    @classmethod
    def from_suite(cls, name: str) -> ProblemList:
        """The problems of a shipped suite; ProblemError if there is none of this name."""
        suites = shipped_suites()
        if name not in suites:
            hint = suggest(name, suites) or ";"
            raise ProblemError(f"{name!r:.80} is no shipped suite{hint} `gemmill shapes` lists them")
        suite = load_shapes(suites[name])
        entries = tuple(Entry(shape, suite.counts.get(shape, 1)) for shape in suite.shapes)
        return cls((Pass("", entries),), suite=name)._checked()

    @classmethod
    def from_config(cls, config: Mapping[str, Any], deployment: Deployment) -> ProblemList:
        """The problems of a model, a pass for each number of tokens; ProblemError as for
        :func:`~gemmill.library.models.problems.problems_of`."""
        notes = Notes()
        names: dict[tuple[Entry, ...], str] = {}
        if (count := len(deployment.tokens)) > MOST_PASSES:
            raise ProblemError(f"--tokens has {count} numbers; a page can have at most {MOST_PASSES}")
        until = time.monotonic() + _CONFIG_SECONDS
        for tokens in deployment.tokens or TOKENS:
            if time.monotonic() > until:
                raise ProblemError(
                    f"--tokens {tokens} and later are not listed within {_CONFIG_SECONDS:.0f} s; pass fewer numbers of "
                    "tokens, or use gemmill model"
                )
            found = problems_of(config, replace(deployment, tokens=(tokens,)), notes)
            entries = tuple(
                Entry(
                    Shape.of(layer.problem),
                    layer.count,
                    ", ".join(layer.layers) + ("" if layer.step == "forward" else f": {layer.step}"),
                )
                for layer in found
            )
            names[entries] = "" if entries in names else f"{tokens:,} token{'s'[: tokens > 1]}"
        says = [f"{config['model_type']}, {_in_words(deployment)}"]
        says += [_as_line(f"left out: {text}") for text in notes.left_out]
        says += [_as_line(f"assumed: {text}") for text in notes.assumed]
        return cls(tuple(Pass(name, entries) for entries, name in names.items()), tuple(says))._checked()

    def __str__(self) -> str:
        """The text, as :meth:`from_text` reads it."""
        return "\n".join(self._lines())

    def _lines(self) -> Iterator[str]:
        yield from (f"# {note}" for note in self.notes)
        for each in self.passes:
            if each.name:
                yield f"[{each.name}]"
            for entry in each.entries:
                count = f" count={entry.count}" if entry.count > 1 else ""
                yield f"{entry.problem}{count}{entry.layer and f' # {entry.layer}'}"

    @cached_property
    def parameters(self) -> dict[str, str]:
        """The parameters of a link to these problems."""
        if self.suite:
            return {"suite": self.suite}
        text = str(self)
        if len(text) <= _READABLE:
            return {"problems": text} if text else {}
        return {"packed": base64.urlsafe_b64encode(zlib.compress(text.encode(), 9)).decode().rstrip("=")}

    @classmethod
    def from_parameters(cls, parameters: Mapping[str, str]) -> ProblemList:
        """The problems of a link.

        Raises:
            ProblemError: a problem is invalid.
            Refusal: the link is damaged.
        """
        if name := parameters.get("suite"):
            return cls.from_suite(name)
        packed = parameters.get("packed")
        return cls.from_text(_unpacked(packed) if packed else parameters.get("problems", ""))

    @property
    def as_suite(self) -> ShapeSuite:
        """All passes as one suite, with the counts of equal shapes added."""
        counts: dict[Shape, int] = {}
        for each in self.passes:
            for entry in each.entries:
                counts[entry.shape] = counts.get(entry.shape, 0) + entry.count
        return ShapeSuite(self.suite or "problems", tuple(counts), counts)

    def _checked(self) -> ProblemList:
        _check_count(sum(len(each.entries) for each in self.passes))
        return self


def _check_count(count: int) -> None:
    if count > MOST_PROBLEMS:
        raise ProblemError(
            f"there are {count:,} problems; a page can have at most {MOST_PROBLEMS}; pass fewer numbers of tokens, or "
            "split the list"
        )


def _entry(line: str) -> Entry:
    if len(line) > MOST_LINE:
        raise ProblemError(f"{line!r:.80} has {len(line):,} characters; a problem can have at most {MOST_LINE:,}")
    problem, *layer = _LAYER.split(line, maxsplit=1)
    words, count = problem.rsplit(maxsplit=1), "1"
    if words[-1].startswith("count="):
        problem, count = " ".join(words[:-1]), words[-1].removeprefix("count=")
    if not (count.isdecimal() and len(count) <= 10 and 1 <= int(count) <= MAX_EXTENT):
        raise ProblemError(f"count is {count!r:.80}; it must be an integer from 1 to {MAX_EXTENT}")
    return Entry(Shape.of(GemmProblem.from_text(problem)), int(count), "".join(layer))


def _unpacked(packed: str) -> str:
    damaged = malformed("packed is damaged; copy the whole link")
    try:
        unpacker = zlib.decompressobj()
        data = unpacker.decompress(base64.urlsafe_b64decode(packed + "=" * (-len(packed) % 4)), MOST_BYTES)
        if not unpacker.eof:
            raise damaged
        return data.decode()
    except (binascii.Error, zlib.error, ValueError):
        raise damaged from None


def _as_line(text: str) -> str:
    """A text that can contain names from a config, as a line in UTF-8."""
    return " ".join(text.encode(errors="backslashreplace").decode().split())


def _in_words(deployment: Deployment) -> str:
    """The options of `gemmill model`, as a command line has them."""
    words = [f"--tp {deployment.tp} --ep {deployment.ep} --quantization {deployment.quantization}"]
    words += [f"--dtype {deployment.dtype}"] if deployment.dtype else []
    words += [f"--{name}" for name in ("training", "separate") if getattr(deployment, name)]
    return " ".join(words)
