"""The config of a model on Hugging Face: the problems of its layers on one GPU."""

from __future__ import annotations

from gemmill.library.errors import ProblemError
from gemmill.library.input import strict_json
from gemmill.library.models.fields import Notes
from gemmill.library.models.problems import Deployment, problems_of
from gemmill.library.models.source import MAX_BYTES
from gemmill.profiler.imports.collector import Collector, Imported, TextFile


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
    into, notes = Collector(file.path), Notes()
    try:
        found = problems_of(config, Deployment(tuple(file.m)), notes)
    except ProblemError as error:
        raise into.error(1, str(error)) from None
    with into.at(1) as entry:
        for layer in found:
            entry.add(layer.words, layer.count)
        for text in notes.assumed:
            entry.assume(text)
        for text in notes.left_out:
            entry.leave_out(text)
    return into.result()
