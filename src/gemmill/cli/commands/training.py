"""train: from records to the model of a GPU."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gemmill.cli import completion, output
from gemmill.cli.app import app
from gemmill.cli.options import RecordsFiles
from gemmill.library.errors import RecordError
from gemmill.profiler.training.train import train as train_model


@app.command(has_json=False)
def train(
    records: RecordsFiles,
    to: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", file_okay=False, help="The folder to write the model to.")
    ],
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="NAME",
            autocompletion=completion.gpus,
            help="The GPU to train for, such as H200 or H100-PCIe; default: that of the records.",
        ),
    ] = None,
) -> None:
    """Train the selector's model of a GPU on measurements: yours, of your GPU.

    RECORDS are files that `gemmill profile` wrote, or packed ones. What the model reaches on problems that it was not
    fitted to is printed, and kept beside it. Records of other GPUs may be among them: the model learns from them as
    well, with less weight.

    A folder takes effect with gemmill select --model DIR, gemmill.Registry(model=DIR) or GEMMILL_MODEL=DIR.

    \b
    Examples:
      gemmill train records.jsonl -o models
      gemmill train mine.jsonl profiler/results/h200.parquet --gpu "NVIDIA H100 PCIe" -o models
    """
    try:
        name = train_model(records, gpu, to, listener=output.complain)
    except OSError as error:
        raise RecordError(f"{to}: cannot be written: {error.strerror or error}") from None
    typer.echo(f"{to}: model of {name}")
