"""train: fit the selector's model of a GPU to measurements."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gemmill.cli import completion, output
from gemmill.cli.app import app
from gemmill.cli.options import RecordsFiles
from gemmill.library.errors import DeviceError, RecordError
from gemmill.profiler.training.train import train as train_model


@app.command(has_json=False)
def train(
    records: RecordsFiles,
    to: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", file_okay=False, help="Directory to write the model to.")
    ],
    gpu: Annotated[
        str | None,
        typer.Option(
            "--gpu",
            metavar="NAME",
            autocompletion=completion.gpus,
            help="Train for this GPU, such as H200, H100 or H100-PCIe. Default: the GPU of the records.",
        ),
    ] = None,
) -> None:
    """Train the selector's model on measurements of your GPU.

    train prints how well the model selects kernels for problems that it was not fitted to, and stores these figures
    with the model. RECORDS may include other GPUs; the model also learns from these, with less weight.

    To use the model, pass `gemmill select --model DIR` or `gemmill.Registry(model=DIR)`, or set GEMMILL_MODEL=DIR.

    \b
    Examples:
      gemmill train records.jsonl -o models
      gemmill train mine.jsonl profiler/results/h200.parquet --gpu "NVIDIA H100 PCIe" -o models
    """
    try:
        name = train_model(records, gpu, to, listener=output.complain)
    except DeviceError as error:
        raise typer.BadParameter(str(error), param_hint="'--gpu'") from None
    except OSError as error:
        raise RecordError(f"{to}: cannot be written: {error.strerror or error}") from None
    typer.echo(f"{to}: model of {name}")
