"""records: pack the measurements of many sweeps into one file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gemmill.cli import output
from gemmill.cli.app import Commands, app
from gemmill.cli.options import Json, refuse_overwriting
from gemmill.library.errors import RecordError
from gemmill.library.parquet import as_kept, read_parquet, write_parquet
from gemmill.library.records import Measurement, read_records

records_app = typer.Typer(
    cls=Commands,
    help="""Pack the measurements of many sweeps into one file.

    \b
    Examples:
      gemmill records pack sweeps/*.jsonl -o h200.parquet
    """,
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(records_app, name="records")


@records_app.callback()
def _records() -> None:
    """Keeps `pack` a command of its own, while it is the only one."""


@records_app.command()
def pack(
    records: Annotated[list[Path], typer.Argument(metavar="RECORDS...", exists=True, dir_okay=False)],
    to: Annotated[
        Path, typer.Option("--output", "-o", metavar="FILE", dir_okay=False, help="The file to write, .parquet.")
    ],
    as_json: Json = False,
) -> None:
    """Write measurements of several files to one Parquet file, typed and compressed, and read it back to compare.

    RECORDS are files that `gemmill profile` wrote, or packed ones. Each measurement names the sweep that it is of, its
    file's name where it names none yet. `report`, `select`, `train` and DuckDB read the result as it is. Needs PyArrow:
    pip install 'gemmill[records]'.

    \b
    Examples:
      gemmill records pack monday.jsonl tuesday.jsonl.xz -o week.parquet
      duckdb -c "select kernel, min(us) from 'week.parquet' where m = 4096 group by kernel order by 2 limit 5"
    """
    if to.suffix != ".parquet":
        raise typer.BadParameter(f"{to} is to be read as Parquet, which files are called .parquet", param_hint="-o")
    refuse_overwriting([to], records)
    measurements: list[Measurement] = []
    for path in records:
        run = path.name.partition(".")[0]
        measurements += [m if m.run else m.model_copy(update={"run": run}) for m in read_records(path)]
    try:
        write_parquet(to, measurements)
    except OSError as error:
        raise RecordError(f"{to}: cannot be written: {error.strerror or error}") from None
    for row, (read, given) in enumerate(zip(read_parquet(to), measurements, strict=True), 1):
        if read != as_kept(given):
            raise RecordError(f"{to}: row {row} is read otherwise than it was written; keep the files it is made of")
    runs = len({m.run for m in measurements})
    if as_json:
        output.print_json({"path": str(to), "measurements": len(measurements), "runs": runs})
    else:
        typer.echo(f"{to}: {len(measurements):,} measurements of {runs} sweeps, {to.stat().st_size:,} bytes")
