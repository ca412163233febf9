"""records: pack the measurements of many sweeps into one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gemmill.cli import output
from gemmill.cli.app import Application, app
from gemmill.cli.options import RecordsFiles, output_file, refuse_overwriting
from gemmill.library.errors import RecordError
from gemmill.library.parquet import write_parquet
from gemmill.library.records import Measurement, read_records

records_app = Application(
    """Pack the measurements of many sweeps into one file.

    \b
    Examples:
      gemmill records pack sweeps/*.jsonl -o h200.parquet
    """,
)
app.add_typer(records_app, name="records")


@records_app.callback()
def _records() -> None:
    """Keeps `pack` a command of its own, while it is the only one."""


@records_app.command()
def pack(
    records: RecordsFiles,
    to: Annotated[Path, output_file("The file to write, .parquet.", "FILE")],
) -> None:
    """Write measurements of several files to one Parquet file, typed and compressed.

    RECORDS are files that `gemmill profile` wrote, or packed ones; they stay. Each measurement names the sweep that it
    is of, its file's name where it names none yet. What is written is read back and compared before it takes its place.
    `report`, `select`, `train` and DuckDB read it as it is. Needs PyArrow: gemmill's extra records.

    \b
    Examples:
      gemmill records pack monday.jsonl tuesday.jsonl.xz -o week.parquet
      duckdb -c "select kernel, min(us) from 'week.parquet' where m = 4096 group by kernel order by 2 limit 5"
    """
    if to.suffix != ".parquet":
        raise typer.BadParameter(f"{to} is to be read as Parquet, which files are called .parquet", param_hint="-o")
    refuse_overwriting([to], records)
    measurements: list[Measurement] = []
    files: dict[str, Path] = {}
    for path in records:
        measurements += (own := _of_runs(path))
        for run in dict.fromkeys(m.run for m in own):
            if (other := files.setdefault(run, path)) is not path:
                raise RecordError(
                    f"{path} and {other} both have measurements of sweep {run!r}, which names one sweep in a packed "
                    "file: rename one of the two, or leave it out"
                )
    try:
        write_parquet(to, measurements)
    except OSError as error:
        raise RecordError(f"{to}: cannot be written: {error.strerror or error}") from None
    output.print_result(
        "records.pack",
        {"path": str(to), "measurements": len(measurements), "runs": len(files)},
        f"{to}: {len(measurements):,} measurements of {len(files)} sweeps, {to.stat().st_size:,} bytes",
    )


def _of_runs(path: Path) -> list[Measurement]:
    """The measurements of a file, each with the name of its sweep: the file's, where it has none."""
    run = path.name.partition(".")[0]
    return [m if m.run else m.model_copy(update={"run": run}) for m in read_records(path)]
