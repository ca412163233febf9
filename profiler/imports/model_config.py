"""Models: the problems of their layers on one GPU, from the config on Hugging Face, a GGUF file or an ONNX graph."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from gemmill.library.errors import ProblemError, RecordError
from gemmill.library.files import ending
from gemmill.library.input import strict_json
from gemmill.library.models.fields import Notes
from gemmill.library.models.onnx_products import onnx_problems
from gemmill.library.models.problems import Deployment, LayerProblem, problems_of
from gemmill.library.models.source import MAX_BYTES, read_config
from gemmill.profiler.imports.collector import Collector, Imported, TextFile


def read_model(path: Path, deployment: Deployment, notes: Notes) -> tuple[str, list[LayerProblem]]:
    """The type of the model that a config, its folder, a GGUF file or an ONNX graph (``.onnx``) describes, and its
    problems.

    Raises:
        RecordError: the file cannot be read, or describes no problem.
    """
    try:
        if ending(path) == ".onnx":
            return "onnx", onnx_problems(path, deployment, notes)
        config = read_config(path, notes)
        found = problems_of(config, deployment, notes)
        return config["model_type"], found
    except ProblemError as error:
        raise RecordError(f"{path}: {error}") from None


def read_file(file: TextFile) -> Imported:
    """Problems of an ONNX graph or a GGUF file, which are no texts, with each number of tokens."""
    notes = Notes()
    _, found = read_model(file.path, Deployment(tuple(file.m)), notes)
    return _imported(file.path, found, notes)


def read(file: TextFile) -> Imported | None:
    """Problems of each layer with each number of tokens, fused as engines do. None for other texts."""
    if '"model_type"' not in file.text or len(file.text) > MAX_BYTES:
        return None
    try:
        config = strict_json.parse(file.text.encode())
    except ValueError:
        return None
    if not isinstance(config, dict) or "model_type" not in config:
        return None
    notes = Notes()
    try:
        found = problems_of(config, Deployment(tuple(file.m)), notes)
    except ProblemError as error:
        raise Collector(file.path).error(1, str(error)) from None
    return _imported(file.path, found, notes)


def _imported(path: Path, found: Sequence[LayerProblem], notes: Notes) -> Imported:
    into = Collector(path)
    with into.at(1) as entry:
        for layer in found:
            entry.add(layer.words, layer.count)
        for text in notes.assumed:
            entry.assume(text)
        for text in notes.left_out:
            entry.leave_out(text)
    return into.result()
