"""A model from the records of a fleet, published if it is no worse than the one in force.

Runs in a process of its own (:func:`serve`), as it takes minutes and all cores.
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
"""What a new model may lose, as part of the best time, on problems that were held out: less is noise."""


def learn(records: Sequence[Path], gpu: str, state: Path) -> dict[str, Any]:
    """Train a model of a GPU and publish it, if it is to be; what came of it, as the server answers.

    The new model is judged on problems that it was not fitted to, the one in force on all: it may have seen some, which
    counts for it.

    Raises:
        RecordError: the records have too little of the GPU.
        OSError: the state cannot be written.
    """
    models = Models(state)
    place, number = models.place(gpu)
    make_private(place.parent)
    with tempfile.TemporaryDirectory(dir=place.parent, prefix=".new-") as folder:
        new = Path(folder) / "model"
        name = train(records, gpu, new)
        content: dict[str, Any] = json.loads(path_of(name, new).read_bytes())
        figures = next(value for key, value in content.items() if key.startswith("held out"))
        after = float(figures["all"]["fitted"][0])
        before = _in_force(records, name, models.folder(name))
        is_published = after >= before - WORSE
        if is_published:
            new.rename(place)
    says = f"it reaches {after:.4f} of the best, the model in force {'before ' if is_published else ''}{before:.4f}"
    return {
        "published": is_published,
        "number": number if is_published else number - 1,
        "reaches": {"new": after, "before": before},
        "says": f"{f'published as {number}' if is_published else 'not published'}: {says}",
    }


def _in_force(records: Sequence[Path], gpu: str, folder: Path | None) -> float:
    """What the model in force reaches of the best: of kernels that it takes first, the geometric mean over problems."""
    model = model_of(gpu, folder)
    shares = []
    for (name, _), run in read_runs(records).items():
        for rows in rows_of(run, gpus.figures(name)) if name == gpu else ():
            corrections = 0.0 if model is None else corrections_of_rows(model.network, rows.features)
            shares.append(reached(rows, rows.analytic + corrections)[0])
    return geometric_mean(shares)


def serve(parent: Parent) -> None:
    """The body of the process: takes GPU, state and files of records, as JSON, and answers with JSON."""
    parent.end_with()
    job = json.loads(parent.receive())
    try:
        answer = learn([Path(file) for file in job["files"]], job["gpu"], Path(job["state"]))
    except GemmillError as error:
        answer = {"error": str(error)}
    except OSError as error:
        answer = {"error": os_error_text(error)}
    parent.send(json.dumps(answer).encode())
