"""The regret of choosers on measured problems, in bursts and at the power limit. Needs no GPU.

A chooser is a function that gets a problem and the kernels that were measured on it. It returns the name of one, or
several in order; or properties (``benchmarks.choosers.cases.KernelProperties``), for which the nearest kernel stands;
or None if it does not support the problem. Its regret is the time of its kernel divided by that of the fastest measured
kernel, less 1. Problems that gemmill's model was fitted to, or ships measurements of, are ``fitted``; the others are
``unseen``. Your own chooser: ``--chooser FILE.py:FUNCTION`` or ``--chooser MODULE:FUNCTION``.

Reproduces docs/performance/selection.md, "Other choosers".
"""

from __future__ import annotations

import argparse
import importlib
import json
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from runpy import run_path
from statistics import fmean, median, quantiles
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from benchmarks.choosers.cases import Answer, Chooser, Measured

WITHIN = (0.01, 0.03, 0.05)
"""Regrets for which the share of problems is shown."""
FIRST = 8
"""Number of kernels of an answer whose fastest is scored too."""
NEAR = 0.25
"""The distance up to which a candidate has tile, cluster and slices of the wanted kernel. The regrets of these are also
averaged alone."""


@dataclass(frozen=True)
class Score:
    """What a chooser did on one problem."""

    chooser: str
    measured: Measured
    kernel: str | None
    """The scored candidate; None: the chooser does not support the problem."""
    regret: float
    """Its time divided by the least, less 1; 0 without a kernel."""
    of_first: float
    """The same for the fastest of the first :data:`FIRST` kernels."""
    distance: float | None
    """How unlike the candidate is to the wanted kernel; None if the chooser named one."""
    choice_us: float
    """Microseconds of the call."""


def built_in(fitted: Sequence[Measured]) -> Mapping[str, Chooser]:
    """The choosers that ship, by name; ``fitted`` are cases that a chooser may learn from."""
    from benchmarks.choosers import deepgemm, models, nvidia, rules

    return {
        "gemmill": models.gemmill,
        "without-measurements": models.without_measurements,
        "analytic": models.analytic_part,
        "nvidia": nvidia.nvidia,
        "deepgemm": deepgemm.deepgemm,
        "largest-tile": rules.largest_tile,
        "one-kernel": rules.one_kernel(fitted),
        "random": rules.by_chance,
    }


def main() -> None:
    """Run the benchmark: score choosers, and print a table or write JSON."""
    from benchmarks.choosers.cases import RECORDS, cases_of
    from benchmarks.choosers.nvidia import missing

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--chooser", action="append", metavar="NAME", help="a chooser; repeat it for several (all)")
    parser.add_argument("--regime", choices=("burst", "sustained"), help="short launches, or the power limit (both)")
    parser.add_argument("--records", nargs="+", type=Path, default=RECORDS, help="files of measurements (published)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write figures and all choices to a file")
    arguments = parser.parse_args()
    cases = cases_of(arguments.records, [arguments.regime] if arguments.regime else ("burst", "sustained"))
    known = built_in([measured for measured in cases.measured if measured.is_fitted])
    choosers = {name: found_chooser(name, known) for name in arguments.chooser or known}
    if not arguments.chooser and (says := missing()):
        print(f"left out: {says}", flush=True)
        del choosers["nvidia"]
    print(f"{len(cases.measured)} problems; {cases.too_few} have too few measured kernels to count", flush=True)
    scores = [score for name, chooser in choosers.items() for score in scored(name, chooser, cases.measured)]
    figures = [*figures_of(scores)]
    show(figures)
    if arguments.json:
        from gemmill.library.files import publish

        content = {"figures": figures, "left out": cases.too_few, "choices": [*map(_row, scores)]}
        publish(arguments.json, [json.dumps(content).encode(), b"\n"])


def found_chooser(name: str, known: Mapping[str, Chooser]) -> Chooser:
    """The chooser of a name, of ``FILE.py:FUNCTION`` or of ``MODULE:FUNCTION``; ConfigError if there is none."""
    from gemmill.library.errors import ConfigError

    if name in known:
        return known[name]
    place, colon, function = name.rpartition(":")
    if not colon:
        raise ConfigError(f"chooser {name} is unknown; choose one of {', '.join(known)}, or FILE.py:FUNCTION")
    try:
        content = run_path(place) if place.endswith(".py") else vars(importlib.import_module(place))
    except (ImportError, OSError, SyntaxError, ValueError) as error:
        raise ConfigError(f"chooser {name}: {place} cannot be imported: {error}") from None
    if not callable(chooser := content.get(function)):
        raise ConfigError(f"chooser {name}: {place} has no function {function}")
    found: Chooser = chooser
    return found


def scored(name: str, chooser: Chooser, cases: Iterable[Measured]) -> Iterator[Score]:
    """The scores of a chooser on each case.

    Raises:
        ConfigError: it names a kernel that was not measured on the problem, or fails.
    """
    from gemmill.library.errors import ConfigError

    for measured in cases:
        start = time.perf_counter_ns()
        try:
            answer = chooser(measured.case)
            choice_us = (time.perf_counter_ns() - start) / 1000
            answered = _candidates(name, answer, measured)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
            raise ConfigError(f"chooser {name} failed on {measured.case.problem}: {error!r:.300}") from error
        if not answered:
            yield Score(name, measured, None, 0.0, 0.0, None, choice_us)
            continue
        regrets = [measured.regret(kernel) for kernel, _ in answered]
        kernel, distance = answered[0]
        yield Score(name, measured, kernel, regrets[0], min(regrets), distance, choice_us)


def _candidates(name: str, answer: Answer, measured: Measured) -> list[tuple[str, float | None]]:
    """The first distinct candidates of an answer, with the distances from wanted kernels."""
    from benchmarks.choosers.cases import KernelProperties, nearest

    from gemmill.library.errors import ConfigError

    kernels = measured.case.kernels
    found: dict[str, float | None] = {}
    for one in [answer] if isinstance(answer, str | KernelProperties) else answer or ():
        kernel, distance = nearest(one, kernels) if isinstance(one, KernelProperties) else (one, None)
        if kernel not in kernels:
            raise ConfigError(
                f"chooser {name} names {kernel!s:.200} for {measured.case.problem}, on which it was not measured; it "
                f"must name one of the {len(kernels)} of case.kernels, such as {next(iter(kernels))}"
            )
        found.setdefault(kernel, distance)
        if len(found) == FIRST:
            break
    return [*found.items()]


def figures_of(scores: Iterable[Score]) -> Iterator[dict[str, Any]]:
    """The figures of each chooser by regime, split, and type, kind or all of these; by GPU too."""
    groups: dict[tuple[str, ...], list[Score]] = defaultdict(list)
    for score in scores:
        measured = score.measured
        case = measured.case
        splits = ["fitted"] if measured.is_fitted else ["unseen"]
        splits += [] if measured.has_fitted_weights else ["unseen weights"]
        for split in splits:
            for group in ("all", f"type {measured.type}", f"kind {measured.kind}", f"GPU {case.gpu}"):
                groups[case.regime, split, group, score.chooser].append(score)
    for (regime, split, group, chooser), members in sorted(groups.items(), key=lambda item: item[0][:3]):
        yield {"regime": regime, "split": split, "group": group, "chooser": chooser, **_summary(members)}


def _summary(scores: Sequence[Score]) -> dict[str, Any]:
    """Figures over problems; those of regret over the problems that the chooser supports."""
    answered = [score for score in scores if score.kernel is not None]
    figures: dict[str, Any] = {
        "problems": len(scores),
        "kernels": median(len(score.measured.us) for score in scores),
        "coverage": len(answered) / len(scores),
        "choice_us": median(score.choice_us for score in scores),
    }
    if not answered:
        return figures
    regrets = [score.regret for score in answered]
    low, middle, high = quantiles(regrets, n=4, method="inclusive") if len(regrets) > 1 else regrets * 3
    figures |= {"low": low, "median": middle, "high": high, "mean": fmean(regrets), "worst": max(regrets)}
    figures |= {f"within {most:.0%}": fmean(regret <= most for regret in regrets) for most in WITHIN}
    figures[f"mean of first {FIRST}"] = fmean(score.of_first for score in answered)
    if distances := [score.distance for score in answered if score.distance is not None]:
        figures |= {"distance": median(distances), "farthest": max(distances)}
        near = [score.regret for score in answered if score.distance is not None and score.distance <= NEAR]
        figures |= {"near": len(near) / len(distances)} | ({"mean of near": fmean(near)} if near else {})
    return figures


def show(figures: Sequence[Mapping[str, Any]]) -> None:
    """Print a table for each regime, split and group; regrets in percent."""
    heads = (
        "coverage",
        "quartiles",
        "mean",
        "worst",
        *(f"<={most:.0%}" for most in WITHIN),
        f"of {FIRST}",
        "near",
        "of near",
    )
    before = None
    for row in figures:
        place = f"{row['regime']}, {row['split']}, {row['group']}"
        if place != before:
            about = f"{row['problems']} problems, {row['kernels']:.0f} kernels each in the median"
            print(f"\n{place}: {about}\n{'chooser':24}{''.join(f'{head:>10}' for head in heads)}{'us':>8}")
            before = place
        print(f"{row['chooser'][-23:]:24}{row['coverage']:>10.0%}{_regrets(row)}{row['choice_us']:>8.0f}")


def _regrets(row: Mapping[str, Any]) -> str:
    """The columns of a row about regret; dashes for a chooser that supports no problem."""
    if "mean" not in row:
        return f"{'-':>10}" * (3 + len(WITHIN) + 3)
    quartiles = "/".join(f"{100 * row[name]:.1f}" for name in ("low", "median", "high"))
    percent = [f"{100 * row[name]:.1f}" for name in ("mean", "worst")]
    shares = [f"{row[f'within {most:.0%}']:.0%}" for most in WITHIN]
    rest = [f"{100 * row[f'mean of first {FIRST}']:.1f}", f"{row['near']:.0%}" if "near" in row else "-"]
    rest += [f"{100 * row['mean of near']:.1f}" if "mean of near" in row else "-"]
    return "".join(f"{text:>10}" for text in (f" {quartiles}", *percent, *shares, *rest))


def _row(score: Score) -> dict[str, Any]:
    """A choice as it is written to JSON."""
    measured = score.measured
    case = measured.case
    row: dict[str, Any] = {
        "chooser": score.chooser,
        "problem": str(case.problem),
        "gpu": case.gpu,
        "regime": case.regime,
    }
    row |= {"run": measured.run, "type": measured.type, "kind": measured.kind, "is_fitted": measured.is_fitted}
    row |= {"has_fitted_weights": measured.has_fitted_weights, "kernel": score.kernel, "regret": score.regret}
    return row | {"of_first": score.of_first, "distance": score.distance, "choice_us": score.choice_us}
