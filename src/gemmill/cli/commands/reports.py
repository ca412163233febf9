"""report, roofline: measurements as HTML, CSV and JUnit XML, and relative to the peak rates of the GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from gemmill.cli import completion, output
from gemmill.cli.app import app
from gemmill.cli.commands.problems import spread
from gemmill.cli.options import RecordsFiles, input_file, output_file, refuse_overwriting
from gemmill.cli.output import UsageError
from gemmill.emitters.peak_rate import MEASURED_DTYPES
from gemmill.library.errors import RecordError
from gemmill.library.files import publish
from gemmill.library.manifest.renamed import warn
from gemmill.library.records import Measurement, read_records
from gemmill.library.wording import one_of
from gemmill.profiler.analysis.figures import Figures, figures, formats
from gemmill.profiler.analysis.populations import Choices
from gemmill.profiler.analysis.report import as_csv, as_html, as_junit, rows
from gemmill.profiler.measure.peak_rates import COPY, PeakRates, measure_peak_rates, read_peak_rates

Output = Annotated[Path | None, output_file("HTML report to write.")]
Csv = Annotated[Path | None, output_file("CSV file to write, one line per problem.", "FILE", "--csv")]
Junit = Annotated[
    Path | None, output_file("JUnit XML to write, one test case per kernel and problem.", "FILE", "--junit")
]

PeakRatesOutput = Annotated[Path | None, output_file("JSON file to write the peak rates to.")]
RecordsOption = Annotated[
    list[Path], input_file("Compare the measurements in this records file. Repeatable.", "--records")
]
PeakRatesFiles = Annotated[
    list[Path],
    input_file("Peak rates of a GPU, from gemmill roofline -o FILE. Repeatable, for other GPUs.", "--peak-rates"),
]

FormerPeakRatesFiles = Annotated[
    list[Path], typer.Option("--ceilings", metavar="FILE", exists=True, dir_okay=False, hidden=True)
]
"""The former name of --peak-rates."""

ALL_DTYPES = ",".join(MEASURED_DTYPES)


def _dtypes(text: str) -> str:
    names = text.split(",")
    if unknown := [name for name in names if name not in MEASURED_DTYPES]:
        raise typer.BadParameter(f"each type must be {one_of(MEASURED_DTYPES)}, not {unknown[0]!r}")
    if len(set(names)) < len(names):
        raise typer.BadParameter(f"{text!r} must not contain a type twice")
    return text


Dtypes = Annotated[
    str,
    typer.Option(
        metavar="TYPE,...",
        callback=_dtypes,
        autocompletion=completion.measured_dtypes,
        help="Types of A and B to measure the WGMMA rate for.",
    ),
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
    """Write measurements as HTML, CSV or JUnit XML.

    The HTML report shows a roofline, the fastest kernels, the speed relative to baselines, the selector's regret, and a
    table with filters. It needs no network. You choose the formats and the baseline in menus; the first baseline is
    cuBLASLt. HTML needs Jinja: install gemmill with the extra `report`.

    CSV and JSON have the same columns. For each baseline these include BASELINE_us, its quartiles, and BASELINE_ratio,
    the speed of the best kernel relative to the baseline. Means and curves include only problems on which all compared
    kernels were timed in the same rounds; the report prints how many these are. The selector's regret is that of the
    model alone, without measurements. With --peak-rates, the report also shows the fraction of the roofline that each
    problem reaches.

    \b
    Examples:
      gemmill report records.jsonl -o report.html
      gemmill report monday.jsonl tuesday.jsonl --csv table.csv --junit tests.xml
      gemmill report records.jsonl --peak-rates h200.peak-rates.json -o report.html
    """
    if to is as_tests is as_table is None and not output.is_json():
        raise UsageError("no output is given; pass --output, --csv, --junit or --json")
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
        output.complain(
            f"--peak-rates has no file for {', '.join(missing)}; run `gemmill roofline -o FILE` on that GPU"
        )


@app.command()
def roofline(
    dtypes: Dtypes = ALL_DTYPES,
    records: RecordsOption = [],  # noqa: B006
    to: PeakRatesOutput = None,
) -> None:
    """Measure the peak rates of this GPU.

    roofline measures the WGMMA rate of the tensor cores on operands in shared memory, and the rate of memory copies.
    Each test runs for 1.5 seconds on data like that of `gemmill profile`, because power depends on the data and limits
    the tensor cores. Needs a Hopper GPU and PyTorch.

    With --records, roofline also prints the fraction of the roofline that the best kernel of each problem reaches. The
    roofline time is the longer of two times: the operations at the WGMMA rate, and one move of each operand at the copy
    rate. A kernel that reads much more than it writes can exceed the copy rate. GPUs of one model differ by several
    percent, so compare records of the same machine.

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
        count = f"{len(found) - len(here)} of {len(found)} problems"
        raise RecordError(
            f"{count} were measured on {', '.join(elsewhere)}, not on {peak_rates.gpu}; run gemmill roofline there"
        )


def _figures(records: list[Path]) -> list[Figures]:
    problems = figures(measurement for path in records for measurement in read_records(path))
    if not problems:
        raise RecordError(f"{', '.join(map(str, records))}: no measurement; run gemmill profile")
    return problems


def _print_peak_rates(peak_rates: PeakRates) -> None:
    rates = {**peak_rates.compute_tflops, COPY: peak_rates.copy_tbps}
    rows = []
    for name, rate in rates.items():
        unit, digits = ("TB/s", 2) if name == COPY else ("TFLOP/s", 0)
        quartiles = f"{rate.low:.{digits}f}-{rate.high:.{digits}f}"
        what = name if name == COPY else f"WGMMA {name}"
        state = rate.windows, rate.sm_mhz, f"{rate.watts:.0f}", ", ".join(rate.throttle)
        rows.append((what, f"{rate.median:.{digits}f}", quartiles, unit, *state))
    columns = ("peak rate of", ">median", ">quartiles", "", ">windows", ">SM MHz", ">W", "throttled by")
    output.print_table(columns, rows, title=f"{peak_rates.gpu}, driver {peak_rates.driver}")


def _reached(problem: Figures, peak_rates: PeakRates) -> dict[str, Any]:
    """The fraction of the roofline that the best kernel of a problem and cuBLAS reach."""
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
    columns = ("problem", "best kernel", ">us", "quartiles", ">rounds", ">TFLOP/s", "roof", ">fraction")
    output.print_table((*columns, ">cuBLAS fraction"), rows)
    without = sorted({formats(f.run.problem) for f in problems if peak_rates.roof(f.run.problem) is None})
    if without:
        output.complain(f"no peak rate was measured for {'; '.join(without)}; add their types to --dtypes")
