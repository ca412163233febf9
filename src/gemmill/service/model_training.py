"""Train a model on the records of a fleet, and publish it if it is not worse than the one in force.

Runs in a separate process (:func:`serve`), since it takes minutes and all cores.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

from gemmill.library.errors import GemmillError
from gemmill.library.files import make_private, os_error_text
from gemmill.profiler.training.judge import reached
from gemmill.profiler.training.rows import rows_of
from gemmill.profiler.training.train import read_runs, train
from gemmill.runtime.select import gpus
from gemmill.runtime.select.cost.network import corrections_of_rows
from gemmill.runtime.select.model_file import model_of, path_of
from gemmill.runtime.workers import Parent
from gemmill.service.fleet_models import Models

WORSE = 0.002
"""How much a new model may lose on held-out problems, as a fraction of the best throughput; less is noise."""


def learn(records: Sequence[Path], gpu: str, state: Path) -> dict[str, Any]:
    """Train a model of a GPU and publish it if it is good enough; returns the response of the server.

    The new model is evaluated on held-out problems only, the model in force on all problems. The model in force may
    have been trained on some of them, so that the comparison favors it.

    Raises:
        RecordError: the records have too few measurements of the GPU.
        OSError: the state folder cannot be written.
    """
    models = Models(state)
    place, number = models.place(gpu)
    make_private(place.parent)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".new-") as folder:
        new = Path(folder) / "model"
        name = train(records, gpu, new)
        content: dict[str, Any] = json.loads(path_of(name, new).read_bytes())
        figures = next(value for key, value in content.items() if key.startswith("held out"))
        new_share = float(figures["all"]["fitted"][0])
        old_share = _in_force(records, name, models.folder(name))
        is_published = new_share >= old_share - WORSE
        if is_published:
            new.rename(place)
    old = "previous" if is_published else "current"
    comparison = (
        f"the kernels that it selects reach {new_share:.4f} of the best, those of the {old} model {old_share:.4f}"
    )
    return {
        "published": is_published,
        "number": number if is_published else number - 1,
        "reaches": {"new": new_share, "before": old_share},
        "says": f"{f'published as {number}' if is_published else 'not published'}: {comparison}",
    }


def _in_force(records: Sequence[Path], gpu: str, folder: Path | None) -> float:
    """Throughput of the kernels that the model in force selects, relative to the best: geometric mean over problems."""
    model = model_of(gpu, folder)
    shares = []
    for (name, _), run in read_runs(records).items():
        for rows in rows_of(run, gpus.figures(name)) if name == gpu else ():
            corrections = 0.0 if model is None else corrections_of_rows(model.network, rows.features)
            shares.append(reached(rows, rows.analytic + corrections)[0])
    return geometric_mean(shares)


def serve(parent: Parent) -> None:
    """The body of the process: receives GPU, state folder and files of records as JSON, and sends a JSON result."""
    parent.end_with()
    job = json.loads(parent.receive())
    try:
        answer = learn([Path(file) for file in job["files"]], job["gpu"], Path(job["state"]))
    except GemmillError as error:
        answer = {"error": str(error)}
    except OSError as error:
        answer = {"error": os_error_text(error)}
    parent.send(json.dumps(answer).encode())
