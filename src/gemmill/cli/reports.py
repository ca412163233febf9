"""report: measurements as a page, as CSV and as JUnit XML."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gemmill.cli import output
from gemmill.cli.app import app
from gemmill.library.errors import RecordError
from gemmill.library.files import publish
from gemmill.library.records import read_records
from gemmill.profiler.figures import figures
from gemmill.profiler.report import Choices, as_csv, as_html, as_junit

Output = Annotated[
    Path | None, typer.Option("--output", "-o", metavar="FILE", dir_okay=False, help="The page to write, HTML.")
]
Csv = Annotated[
    Path | None, typer.Option("--csv", metavar="FILE", dir_okay=False, help="Write a line a problem as well.")
]
Junit = Annotated[
    Path | None,
    typer.Option("--junit", metavar="FILE", dir_okay=False, help="Write a test case a kernel and problem as well."),
]


@app.command()
def report(
    records: Annotated[list[Path], typer.Argument(metavar="RECORDS...", exists=True, dir_okay=False)],
    to: Output = None,
    as_table: Csv = None,
    as_tests: Junit = None,
) -> None:
    """Show measurements: roofline, winners, speed relative to cuBLAS, the selector's regret, a table to filter.

    RECORDS are files that `gemmill profile` wrote. The page opens without a network and needs Plotly and Jinja:
    pip install 'gemmill[report]'. The selector's regret is that of its model alone, over the measured kernels.

    \b
    Examples:
      gemmill report records.jsonl -o report.html
      gemmill report monday.jsonl tuesday.jsonl --csv table.csv --junit tests.xml
    """
    if to is as_tests is as_table is None:
        raise typer.BadParameter("nothing to write: pass --output, --csv or --junit")
    found = figures(measurement for path in records for measurement in read_records(path))
    if not found:
        raise RecordError(f"{', '.join(map(str, records))}: no measurement: run gemmill profile")
    if to is not None or as_table is not None:
        choices = Choices(found)
        if to is not None:
            publish(to, [as_html(found, choices).encode()])
        if as_table is not None:
            publish(as_table, [as_csv(found, choices).encode()])
    if as_tests is not None:
        publish(as_tests, [as_junit(found).encode()])
    for path in (to, as_table, as_tests):
        if path is not None:
            output.complain(f"{path}: {len(found)} problems")
