"""The problems of a model: its layers on one GPU, with each number of tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from gemmill.library.dtypes import find_dtype
from gemmill.library.errors import ProblemError
from gemmill.library.models.architectures import ARCHITECTURES
from gemmill.library.models.fields import Fields, Notes
from gemmill.library.models.images import PATCHES, Images
from gemmill.library.models.linear import Linear, fused
from gemmill.library.models.quantization import QuantizationName, Words, quantization_of
from gemmill.library.problem import MAX_EXTENT, GemmProblem
from gemmill.library.wording import suggest

TOKENS = (1, 16, 256, 2048)
"""Numbers of tokens if the caller passes none."""
_MOST_DIGITS = 10
Pass = Literal["forward", "input gradient", "weight gradient"]


@dataclass(frozen=True, slots=True)
class Deployment:
    """How a model runs."""

    tokens: tuple[int, ...] = ()
    """Tokens of a forward pass, all sequences together. Empty: :data:`TOKENS`, which is noted."""
    tp: int = 1
    """GPUs that divide each layer."""
    ep: int = 1
    """GPUs that divide the experts, each with whole ones."""
    training: bool = False
    """Whether gradients of inputs and weights are computed."""
    separate: bool = False
    """Whether layers stay apart as in transformers, rather than fused as engines do."""
    quantization: QuantizationName = "config"
    """Types and scales of weights."""
    dtype: str | None = None
    """Type of activations and of weights that are not quantised; None: that of the config."""
    images: Images | None = None
    """Images of a vision tower; None: one of the size in the config."""
    dims: Mapping[str, int] = field(default_factory=dict)
    """Values of symbolic extents of an ONNX graph."""


@dataclass(frozen=True, slots=True)
class LayerProblem:
    """A problem, and the layers in which it occurs."""

    problem: GemmProblem
    count: int
    """How often it occurs in a pass through the model."""
    layers: tuple[str, ...]
    """Names of the layers, with ``*`` for their numbers, such as ``model.layers.*.self_attn.qkv_proj``."""
    step: Pass = "forward"

    @property
    def words(self) -> dict[str, int | str]:
        """The keywords of the problem, with those of its types and majors that have their default, since commands that
        measure take any type where a problem names none."""
        problem = self.problem
        words: dict[str, int | str] = {"m": problem.m, "n": problem.n, "k": problem.k}
        if problem.batching != "strided":
            words |= {"batching": problem.batching, "groups": problem.batch}
        elif problem.batch > 1:
            words["batch"] = problem.batch
        names = ("a_dtype", "b_dtype", "d_dtype", "accumulator", "a_major", "b_major", "d_major", "a_scale", "b_scale")
        return words | {name: getattr(problem, name) for name in (*names, "epilogue")} | {"c": "none"}


def tokens_of(text: str) -> tuple[int, ...]:
    """The numbers of tokens in a text such as ``1,16,2048``, each once; ProblemError for another text."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isdecimal() and len(part) <= _MOST_DIGITS and 1 <= int(part) <= MAX_EXTENT for part in parts):
        raise ProblemError(f"{text!r:.80} must be a list of numbers such as 1,16,2048")
    return tuple(dict.fromkeys(map(int, parts)))


def problems_of(config: Mapping[str, Any], deployment: Deployment, notes: Notes) -> list[LayerProblem]:
    """The problems of the model that a config describes, those of the same layer after one another.

    Args:
        config: the mapping of a ``config.json``.
        deployment: how the model runs.
        notes: collects what is assumed and left out.

    Raises:
        ProblemError: the type of the model is unknown, a field is missing or invalid, or GPUs cannot share a layer.
    """
    if deployment.dims:
        raise ProblemError("--dims is passed, but only ONNX graphs have symbolic extents; omit it")
    layers = _layers(config, deployment, notes)
    if not layers:
        raise ProblemError(f"no layer is left: {'; '.join(notes.left_out)}")
    tokens = deployment.tokens or TOKENS
    if all(linear.rows is not None for linear, _ in layers):
        if deployment.tokens:
            notes.leave_out("the numbers of tokens, since all layers multiply images")
    elif not deployment.tokens:
        notes.assume(f"{', '.join(map(str, TOKENS))} tokens; gemmill model --tokens passes others")
    counted: dict[tuple[GemmProblem, Pass], dict[str, int]] = {}
    for linear, words in layers:
        for count in tokens if linear.rows is None else (linear.rows,):
            for step, problem in _products(linear, words, count, deployment):
                names = counted.setdefault((problem, step), {})
                name = _unnumbered(linear.name)
                names[name] = names.get(name, 0) + 1
    return [
        LayerProblem(problem, sum(names.values()), tuple(names), step) for (problem, step), names in counted.items()
    ]


def _layers(config: Mapping[str, Any], deployment: Deployment, notes: Notes) -> list[tuple[Linear, Words]]:
    """The layers on one GPU, fused, with their types."""
    kind = config.get("model_type")
    if not isinstance(kind, str) or kind not in ARCHITECTURES:
        hint = (suggest(kind, ARCHITECTURES) if isinstance(kind, str) else "") or ";"
        raise ProblemError(f"model_type is {kind!r:.80}{hint} gemmill reads {', '.join(sorted(ARCHITECTURES))}")
    row = ARCHITECTURES[kind]
    quantization = quantization_of(config, _dtype(config, deployment, notes), deployment.quantization, notes)
    if deployment.training and quantization.words:
        raise ProblemError("the model is quantised, and --training needs its own type; pass --quantization none")
    linears = list(row.linears(Fields(config, kind, notes, row.defaults), row, deployment.images))
    if deployment.ep > 1 and not any(linear.experts for linear in linears):
        raise ProblemError(f"--ep is {deployment.ep}, but the model has no experts; omit it")
    if deployment.images is not None and not any(linear.name.endswith(PATCHES) for linear in linears):
        raise ProblemError("--images is passed, but the model has no vision tower; omit it")
    if any(linear.experts for linear in linears):
        notes.assume("experts take equal shares of the tokens")
    for linear in linears:
        if deployment.tp > 1 and linear.split and getattr(linear, linear.split) % linear.units:
            notes.assume(f"{linear.name} has {linear.n} outputs; engines pad them to {linear.units}")
    local = ((linear.on(deployment.tp, deployment.ep), quantization.of(linear)) for linear in linears)
    return list(fused(local, row.fused if deployment.separate else None))


def _dtype(config: Mapping[str, Any], deployment: Deployment, notes: Notes) -> str:
    if deployment.dtype is not None:
        return deployment.dtype
    text = config.get("text_config")
    named = [part.get(key) for part in (config, text) if isinstance(part, dict) for key in ("dtype", "torch_dtype")]
    word = next((word for word in named if word is not None), None)
    if word is None:
        notes.assume("the config has no dtype; assuming bf16; --dtype passes another")
        return "bf16"
    if not isinstance(word, str) or (dtype := find_dtype(word)) not in ("bf16", "f16", "f32"):
        raise ProblemError(f"dtype is {word!r:.80}; it must be bfloat16, float16 or float32; --dtype passes another")
    return dtype


def _products(linear: Linear, words: Words, tokens: int, deployment: Deployment) -> Iterator[tuple[Pass, GemmProblem]]:
    """The products of a layer for a number of rows of X."""
    rows, n, k, groups = tokens, linear.n, linear.k, {}
    if linear.experts:
        rows = -(-tokens * linear.top_k // deployment.ep)
        groups = {"batching": "grouped", "groups": linear.experts}
    try:
        yield "forward", GemmProblem(rows, n, k, **words, **groups)
        if deployment.training:
            yield "input gradient", GemmProblem(rows, k, n, b_major="mn", **words, **groups)
            if linear.experts:
                groups["batching"] = "kgrouped"
            yield "weight gradient", GemmProblem(n, k, rows, a_major="mn", b_major="mn", **words, **groups)
    except ProblemError as error:
        raise ProblemError(f"{linear.name}: {error}") from None


def _unnumbered(name: str) -> str:
    """The name with ``*`` in place of the numbers of layers."""
    return re.sub(r"\.\d+(?=\.)", ".*", name)
