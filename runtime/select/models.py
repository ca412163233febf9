"""Models of GPUs, as files: what was trained on measurements of one (`gemmill train`). Those that ship are in
``runtime/models``; a program may name a folder of its own (``Registry(model=)``, ``GEMMILL_MODEL``)."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

from gemmill.library.arch import Gpu
from gemmill.library.errors import RecordError

FOLDER = Path(__file__).parents[1] / "models"
"""Where those are that ship."""
REQUIRED = ("trees", "measured")
"""What every model has: the residual model, and the fastest kernels of problems that were measured."""
_AGAIN = "train it again: gemmill train RECORDS... --gpu NAME -o DIR"


def path_of(gpu: str, what: str, folder: Path | None = None) -> Path:
    """The file of a GPU, by the name of its row in library/arch.py, that holds ``trees`` of the residual model, what
    was ``measured``, or the decision trees of ``quick`` selection."""
    return (folder or FOLDER) / f"{gpu.lower().replace(' ', '-').replace('/', '-')}.{what}.json"


def content_of(gpu: str, folder: Path | None, what: str, version: int) -> dict[str, Any] | None:
    """What the file holds; None where there is none.

    Raises:
        RecordError: the file cannot be read, is damaged, of another GPU or of another version.
    """
    path = path_of(gpu, what, folder)
    try:
        content: dict[str, Any] = json.loads(path.read_bytes())
        found = content["version"], content["gpu"]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from None
    except (ValueError, KeyError, TypeError):
        raise RecordError(f"{path}: is damaged, or no model of a GPU; {_AGAIN}") from None
    if found != (version, gpu):
        raise RecordError(f"{path}: version {found[0]} for {found[1]}, not {version} for {gpu}; {_AGAIN}")
    return content


def with_model(gpu: Gpu, folder: Path) -> Gpu:
    """A GPU whose model is in a folder, not among those that ship.

    Raises:
        RecordError: the folder has no model of it.
    """
    if missing := [what for what in REQUIRED if not path_of(gpu.name, what, folder).is_file()]:
        others = sorted({path.name.partition(".")[0] for path in folder.glob("*.trees.json")})
        has = f"it has models of: {', '.join(others)}" if others else "the folder has no model"
        raise RecordError(f"model {folder}: {path_of(gpu.name, missing[0]).name} is missing; {has}; {_AGAIN}")
    return replace(gpu, model=folder)


def origin(gpu: Gpu) -> str:
    """In words, where the model of a GPU is and what it was trained on."""
    path = path_of(gpu.name, "trees", gpu.model)
    if not path.is_file():
        return f"none was trained for {gpu.name}: the analytic model alone decides"
    runs = json.loads(path.read_bytes())["fitted to"]
    quick = "" if path_of(gpu.name, "quick", gpu.model).is_file() else ", without decision trees for quick selection"
    return f"{gpu.model or 'ships'}: of {gpu.name}, trained on {len(runs)} sweeps{quick}"
