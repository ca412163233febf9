"""Models of GPUs, as files: what was trained on measurements of one (`gemmill train`). Those that ship are in
``runtime/models``; a program may name a folder of its own (``Registry(model=)``, ``GEMMILL_MODEL``)."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from gemmill.library.arch import Gpu
from gemmill.library.errors import RecordError
from gemmill.library.files import read_regular
from gemmill.library.input.strict_json import parse

FOLDER = Path(__file__).parents[1] / "models"
"""Where those are that ship."""
REQUIRED = ("trees", "measured")
"""What every model has: the residual model, and the fastest kernels of problems that were measured."""
_MAX_BYTES = 64 << 20
"""Most bytes of a file; those that ship have less than one."""
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
        with sound(path):
            content: dict[str, Any] = parse(read_regular(path, _MAX_BYTES))
            found = content["version"], content["gpu"]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from None
    if found != (version, gpu):
        raise RecordError(f"{path}: version {found[0]!r:.20} for {found[1]!s:.80}, not {version} for {gpu}; {_AGAIN}")
    return content


@contextmanager
def sound(path: Path) -> Iterator[None]:
    """While what a model's file holds is read and understood: RecordError where it is not what it should be."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RecordError(f"{path}: is damaged, or no model of a GPU ({error!r:.200}); {_AGAIN}") from None


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
    with sound(path):
        runs = len(parse(read_regular(path, _MAX_BYTES))["fitted to"])
    quick = "" if path_of(gpu.name, "quick", gpu.model).is_file() else ", without decision trees for quick selection"
    return f"{gpu.model or 'ships'}: of {gpu.name}, trained on {runs} sweeps{quick}"
