"""records: combine records files into one Parquet file."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from gemmill.cli import output
from gemmill.cli.app import Application, app
from gemmill.cli.options import RecordsFiles, output_file, refuse_overwriting
from gemmill.cli.output import UsageError
from gemmill.library.errors import RecordError
from gemmill.library.files import ending
from gemmill.library.parquet import write_parquet
from gemmill.library.records import Measurement, read_records

records_app = Application(
    """Combine records files into one Parquet file.

    \b
    Examples:
      gemmill records pack sweeps/*.jsonl -o h200.parquet
    """,
)
app.add_typer(records_app, name="records")


@records_app.callback()
def _records() -> None:
    """Keep `pack` a subcommand although it is the only one."""


@records_app.command()
def pack(
    records: RecordsFiles,
    to: Annotated[Path, output_file("Parquet file to write; its name must end in .parquet.")],
) -> None:
    """Write several records files to one Parquet file.

    The file is typed and compressed; the input files stay unchanged. Each measurement keeps the name of its sweep, or
    gets the name of its file. gemmill reads the new file back and compares it before it replaces an old one. `report`,
    `select`, `train` and DuckDB read it. Needs PyArrow: install gemmill with the extra `records`.

    \b
    Examples:
      gemmill records pack monday.jsonl tuesday.jsonl.xz -o week.parquet
      duckdb -c "select kernel, min(us) from 'week.parquet' where m = 4096 group by kernel order by 2 limit 5"
    """
    if ending(to) != ".parquet":
        raise UsageError(f"the file name {to} must end in .parquet", param_hint="-o")
    refuse_overwriting([to], records)
    measurements: list[Measurement] = []
    files: dict[str, Path] = {}
    for path in records:
        measurements += (own := _of_runs(path))
        for run in dict.fromkeys(m.run for m in own):
            if (other := files.setdefault(run, path)) is not path:
                raise RecordError(
                    f"{path} and {other} both have measurements of a sweep {run!r}, but a packed file must not "
                    "have two sweeps with one name; rename one of the files, or omit it"
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
    """The measurements of a file; those without the name of a sweep get the name of the file."""
    run = path.name.partition(".")[0]
    return [m if m.run else m.model_copy(update={"run": run}) for m in read_records(path)]
