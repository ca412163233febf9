"""train: from records to the model of a GPU."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from gemmill.cli import completion, output
from gemmill.cli.app import app
from gemmill.library.errors import RecordError
from gemmill.profiler.training.train import train as train_model
from gemmill.profiler.training.train import train_quick


@app.command()
def train(
    records: Annotated[list[Path], typer.Argument(metavar="RECORDS...", exists=True, dir_okay=False)],
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
    quick: Annotated[
        int | None,
        typer.Option(
            "--quick", min=1, metavar="N", help="Train decision trees too, for quick selection, on N problems of each."
        ),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", min=1, metavar="N", help="Processes that decision trees take.")
    ] = None,
) -> None:
    """Train the selector's model of a GPU on measurements: yours, of your GPU.

    RECORDS are files that `gemmill profile` wrote, or packed ones. What the model reaches on problems that it was not
    fitted to is printed, and kept beside it. Records of other GPUs may be among them: the model learns from them as
    well, with less weight. Needs CatBoost: gemmill's extra fit.

    A folder takes effect with gemmill select --model DIR, gemmill.Registry(model=DIR) or GEMMILL_MODEL=DIR. The
    decision trees that ship are of 160,000 to 1,000,000 problems of each formats; 600,000 take 16 cores five minutes.

    \b
    Examples:
      gemmill train records.jsonl -o models
      gemmill train mine.jsonl profiler/results/h200.parquet --gpu "NVIDIA H100 PCIe" -o models
      gemmill train records.jsonl -o models --quick 600000
    """
    try:
        name = train_model(records, gpu, to, listener=output.complain)
        if quick is not None:
            train_quick(name, to, quick, jobs or os.cpu_count() or 1, output.complain)
    except OSError as error:
        raise RecordError(f"{to}: cannot be written: {error.strerror or error}") from None
    typer.echo(f"{to}: model of {name}")
