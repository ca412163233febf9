"""report, roofline: measurements as a page, as CSV and as JUnit XML, and beside what the GPU could do."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gemmill.cli import output
from gemmill.cli.app import app
from gemmill.cli.commands.problems import spread
from gemmill.cli.options import RecordsFiles, input_file, output_file, refuse_overwriting
from gemmill.emitters.peak_rate import MEASURED_DTYPES
from gemmill.library.errors import RecordError
from gemmill.library.files import publish
from gemmill.library.manifest.renamed import warn
from gemmill.library.records import Measurement, read_records
from gemmill.profiler.analysis.figures import Figures, figures, formats
from gemmill.profiler.analysis.populations import Choices
from gemmill.profiler.analysis.report import as_csv, as_html, as_junit, rows
from gemmill.profiler.measure.peak_rates import COPY, PeakRates, measure_peak_rates, read_peak_rates

Output = Annotated[Path | None, output_file("The page to write, HTML.", "FILE")]
Csv = Annotated[Path | None, output_file("Write a line a problem as well.", "FILE", "--csv")]
Junit = Annotated[Path | None, output_file("Write a test case a kernel and problem as well.", "FILE", "--junit")]

PeakRatesOutput = Annotated[Path | None, output_file("Write the peak rates, as JSON.", "FILE")]
RecordsOption = Annotated[list[Path], input_file("Compare these measurements; may be repeated.", "--records")]
PeakRatesFiles = Annotated[
    list[Path],
    input_file("Peak rates of a GPU, from gemmill roofline -o FILE; may be repeated for others.", "--peak-rates"),
]

FormerPeakRatesFiles = Annotated[
    list[Path], typer.Option("--ceilings", metavar="FILE", exists=True, dir_okay=False, hidden=True)
]
"""What --peak-rates was called."""

ALL_DTYPES = ",".join(MEASURED_DTYPES)


def _dtypes(text: str) -> str:
    names = text.split(",")
    if unknown := [name for name in names if name not in MEASURED_DTYPES]:
        raise typer.BadParameter(
            f"{unknown[0]!r} has no peak rate of its own; these have: {', '.join(MEASURED_DTYPES)}"
        )
    if len(set(names)) < len(names):
        raise typer.BadParameter(f"{text!r} names a type twice")
    return text


Dtypes = Annotated[
    str, typer.Option(metavar="TYPE,...", callback=_dtypes, help="Types of A and B to measure WGMMAs of.")
]


@app.command()
def report(
    records: RecordsFiles,
    to: Output = None,
    as_table: Csv = None,
    as_tests: Junit = None,
    peak_rates: PeakRatesFiles = [],  # noqa: B006
    former: FormerPeakRatesFiles = [],  # noqa: B006
) -> None:
    """Show measurements: roofline, winners, speed relative to baselines, the selector's regret, a table to filter.

    RECORDS are files that `gemmill profile` wrote, .xz as well. The page opens without a network, in any width, light
    or dark, and prints whole; it needs Jinja: gemmill's extra report. Menus on it choose the formats and the baseline,
    of those in the records, cublaslt at first; CSV and JSON, which have the same columns, have BASELINE_us, its
    quartiles and BASELINE_ratio (speed of the best kernel relative to it) of each. Means and curves are of problems
    alone where all that is compared was timed in the same rounds; how many that are of how many stands beside them. The
    selector's regret is that of its model alone, as if nothing had been measured. With --peak-rates, it is also said
    what part of the nearer roof of its GPU each problem reaches.

    \b
    Examples:
      gemmill report records.jsonl -o report.html
      gemmill report monday.jsonl tuesday.jsonl --csv table.csv --junit tests.xml
      gemmill report records.jsonl --peak-rates h200.peak-rates.json -o report.html
    """
    if to is as_tests is as_table is None and not output.is_json():
        raise typer.BadParameter("nothing to write: pass --output, --csv, --junit or --json")
    if former:
        warn("--ceilings is now called --peak-rates")
        peak_rates = [*peak_rates, *former]
    refuse_overwriting([to, as_table, as_tests], [*records, *peak_rates])
    found = _figures(records)
    measured = {known.gpu: known for known in map(read_peak_rates, peak_rates)}
    choices = Choices(found)
    if to is not None:
        publish(to, [as_html(found, choices, measured).encode()])
    if as_table is not None:
        publish(as_table, [as_csv(found, choices, measured).encode(errors="backslashreplace")])
    if as_tests is not None:
        publish(as_tests, [as_junit(found).encode()])
    for path in (to, as_table, as_tests):
        if path is not None:
            output.complain(f"{path}: {len(found)} problems")
    if output.is_json():
        output.print_json("report", rows(found, choices, measured))
    if missing := sorted({f.run.gpu for f in found} - set(measured)) if peak_rates else ():
        output.complain(f"none of the files of peak rates is of {', '.join(missing)}: run gemmill roofline there")


@app.command()
def roofline(
    dtypes: Dtypes = ALL_DTYPES,
    records: RecordsOption = [],  # noqa: B006
    to: PeakRatesOutput = None,
) -> None:
    """Measure how fast this GPU could be: its tensor cores on what lies in shared memory, and copies of its memory.

    Each is kept at work for 1.5 seconds, on data like that of gemmill profile: tensor cores are bound by power, and how
    much they draw depends on the data. With --records, the best kernel of every problem as a part of the nearer
    roof: the time that its operations take at the rate of WGMMA, or its operands, each moved once, at that of a
    copy, whichever is longer. What reads far more than it writes can be faster than a copy. GPUs of one model differ by
    several per cent: compare records of the same machine. Needs a Hopper GPU and PyTorch.

    \b
    Examples:
      gemmill roofline
      gemmill roofline --dtypes bf16,e4m3 --records records.jsonl
      gemmill roofline -o h200.peak-rates.json    # for gemmill report --peak-rates
    """
    refuse_overwriting([to], records)
    found = _figures(records) if records else []
    names = [name for name in MEASURED_DTYPES if name in dtypes.split(",")]
    with output.progress(measuring=len(names) + 1) as step:
        peak_rates = measure_peak_rates(names, lambda: step("measuring"))
    if to is not None:
        publish(to, [peak_rates.model_dump_json(indent=2).encode(), b"\n"])
    here = [f for f in found if f.run.gpu == peak_rates.gpu]
    if output.is_json():
        problems = [_reached(f, peak_rates) for f in here]
        output.print_json("roofline", {"peak_rates": peak_rates.model_dump(mode="json"), "problems": problems})
    else:
        _print_peak_rates(peak_rates)
        if here:
            _print_problems(here, peak_rates)
    if elsewhere := sorted({f.run.gpu for f in found} - {peak_rates.gpu}):
        says = f"{len(found) - len(here)} of {len(found)} problems were measured on {', '.join(elsewhere)}"
        raise RecordError(
            f"{says}, of which the peak rates of {peak_rates.gpu} say nothing: run gemmill roofline there"
        )


def _figures(records: list[Path]) -> list[Figures]:
    problems = figures(measurement for path in records for measurement in read_records(path))
    if not problems:
        raise RecordError(f"{', '.join(map(str, records))}: no measurement: run gemmill profile")
    return problems


def _print_peak_rates(peak_rates: PeakRates) -> None:
    rates = {**peak_rates.compute_tflops, COPY: peak_rates.copy_tbps}
    rows = []
    for name, rate in rates.items():
        unit, digits = ("TB/s", 2) if name == COPY else ("TFLOP/s", 0)
        quartiles = f"{rate.low:.{digits}f} to {rate.high:.{digits}f}"
        what = name if name == COPY else f"WGMMA {name}"
        state = rate.windows, rate.sm_mhz, f"{rate.watts:.0f}", ", ".join(rate.throttle)
        rows.append((what, f"{rate.median:.{digits}f}", quartiles, unit, *state))
    columns = ("peak rate of", ">median", ">quartiles", "", ">windows", ">SM MHz", ">W", "throttled by")
    output.print_table(columns, rows, title=f"{peak_rates.gpu}, driver {peak_rates.driver}")


def _reached(problem: Figures, peak_rates: PeakRates) -> dict[str, Any]:
    """What the best kernel of a problem, and cuBLAS, reach of the nearer roof."""
    best, cublas, roof = problem.best, problem.baseline, peak_rates.roof(problem.run.problem)
    return {
        "problem": problem.run.problem.extents,
        "formats": formats(problem.run.problem, problem.run.sizes),
        "best": best.kernel if best else None,
        "slices": best.slices if best else None,
        "us": best.us if best else None,
        "low_us": best.low_us if best else None,
        "high_us": best.high_us if best else None,
        "rounds": best.samples if best else None,
        "tflops": best.tflops if best else None,
        "roof": roof.name if roof else None,
        "of_roof": _fraction(best, peak_rates),
        "cublas_of_roof": _fraction(cublas, peak_rates),
    }


def _fraction(measurement: Measurement | None, peak_rates: PeakRates) -> float | None:
    return peak_rates.fraction(measurement) if measurement else None


def _print_problems(problems: list[Figures], peak_rates: PeakRates) -> None:
    rows = [
        (
            f.run.problem,
            f.best.sliced if f.best else "",
            output.number(row["us"], 1),
            spread(f.best),
            row["rounds"] or "",
            output.number(row["tflops"], 0),
            row["roof"] or "",
            output.number(row["of_roof"], 3),
            output.number(row["cublas_of_roof"], 3),
        )
        for f, row in ((f, _reached(f, peak_rates)) for f in problems)
    ]
    columns = ("problem", "best kernel", ">us", "quartiles", ">rounds", ">TFLOP/s", "nearer roof", ">of it")
    output.print_table((*columns, ">cuBLAS of it"), rows)
    without = sorted({formats(f.run.problem) for f in problems if peak_rates.roof(f.run.problem) is None})
    if without:
        output.complain(f"no peak rate was measured for {'; '.join(without)}")
