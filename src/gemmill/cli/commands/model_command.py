"""model: the problems of a model's layers."""

from __future__ import annotations

import itertools
import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from gemmill.cli import output
from gemmill.cli.app import app
from gemmill.cli.kernel_sets import KernelSets
from gemmill.cli.options import CompileOptions, numbers, output_file, refuse_overwriting
from gemmill.cli.output import UsageError
from gemmill.cli.pack_making import PackOutput, WorthOptions, write_for
from gemmill.library.errors import ProblemError
from gemmill.library.files import ending
from gemmill.library.input.group_sizes import checked_sizes
from gemmill.library.models.fields import Notes
from gemmill.library.models.images import Images
from gemmill.library.models.problems import TOKENS, Deployment, LayerProblem, tokens_of
from gemmill.library.models.quantization import QuantizationName
from gemmill.library.problem import MAX_EXTENT
from gemmill.profiler.imports.model_config import read_model
from gemmill.profiler.sweep.shape_suites import Shape, ShapeSuite

_VARYING: Mapping[str, str] = {"forward": "m", "input gradient": "m", "weight gradient": "k"}
"""The extent that is the number of tokens."""


def _tokens(text: str) -> tuple[int, ...]:
    try:
        return tokens_of(text)
    except ProblemError as error:
        raise typer.BadParameter(str(error)) from None


def _images(text: str) -> Images:
    parts = numbers(text) if "," not in text else []
    if len(parts) != 3 or not all(len(part) < 7 and int(part) for part in parts):
        raise typer.BadParameter(f"{text!r:.80} must be COUNTxHEIGHTxWIDTH such as 8x448x448")
    return Images(*map(int, parts))


def _dims(text: str) -> dict[str, int]:
    pairs = [part.partition("=") for part in text.split(",")]
    if not all(
        name and len(value) < 11 and value.isdecimal() and 1 <= int(value) <= MAX_EXTENT for name, _, value in pairs
    ):
        raise typer.BadParameter(f"{text!r:.80} must be a list such as batch=1,sequence=128")
    if len(dims := {name: int(value) for name, _, value in pairs}) < len(pairs):
        raise typer.BadParameter(f"{text!r:.80} has a name twice")
    return dims


@dataclass(frozen=True)
class ParallelOptions:
    """How many GPUs share the model."""

    tp: Annotated[int, typer.Option(min=1, max=1024, metavar="N", help="GPUs that divide each layer.")] = 1
    ep: Annotated[
        int,
        typer.Option(
            min=1,
            max=1024,
            metavar="N",
            help="GPUs that divide the experts; each has whole ones, and its share of the rows of all tokens.",
        ),
    ] = 1


@dataclass(frozen=True)
class PassOptions:
    """What the model computes, and in which types."""

    tokens: Annotated[
        Any,
        typer.Option(
            metavar="N,...",
            parser=_tokens,
            help=f"Tokens of a pass, all sequences together. Default: {','.join(map(str, TOKENS))}.",
        ),
    ] = None
    training: Annotated[
        bool, typer.Option("--training", help="Add the gradients of inputs and weights.")
    ] = False  # fmt: skip
    separate: Annotated[
        bool,
        typer.Option(
            "--separate", help="Keep layers apart as transformers does. Default: fuse QKV, gate and up as engines do."
        ),
    ] = False
    quantization: Annotated[
        QuantizationName,
        typer.Option(help="Types and scales of weights: those in the config, `none`, or what others would be."),
    ] = "config"
    dtype: Annotated[
        Literal["bf16", "f16", "f32"] | None,
        typer.Option(help="Type of activations and of weights that are not quantised. Default: that of the config."),
    ] = None
    images: Annotated[
        Any,
        typer.Option(
            metavar="NxHxW",
            parser=_images,
            help="Images that a vision tower sees: number, height and width in pixels. Default: one of the config's "
            "size.",
        ),
    ] = None
    dims: Annotated[
        Any, typer.Option(metavar="NAME=N,...", parser=_dims, help="Values of symbolic extents of an ONNX graph.")
    ] = None


@app.command()
def model(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="CONFIG",
            help="config.json of a model, the folder that has it, a GGUF file, or an ONNX graph (.onnx).",
        ),
    ],
    gpus: ParallelOptions,
    passes: PassOptions,
    compiling: CompileOptions,
    worth: WorthOptions,
    pack: Annotated[
        Path | None, output_file("Write a pack for these problems, as gemmill pack does.", "FILE", "--pack")
    ] = None,
) -> None:
    """Print the problems of a model, or make a pack for them.

    model reads the config.json that describes a model on Hugging Face, or the header of a GGUF file. It needs neither
    weights nor PyTorch. The suite has the layers of a pass on one GPU: projections of attention, MLPs, routers,
    experts, heads, vision towers. `count` is how often each occurs in a pass. Attention itself is left out. stderr
    lists what else is left out, and what the config lacks and model assumes.

    An ONNX graph, which needs the package onnx, has its products as they run. A product with a weight has the number of
    tokens as M where its rows are symbolic, unless --dims has their values. Files with its weights need not exist.

    select, bench, profile, pack and lock take the suite as --shapes. They also take CONFIG itself, unless it is a
    folder, for one GPU and the default numbers of tokens.

    With --pack, model writes a pack instead: few kernels, and the choice table of the layers, by which
    `gemmill.Registry(packs=[FILE])` selects for every number of tokens. The kernels run the problems, and those of the
    powers of two between the smallest and the largest --tokens, within --regret of the fastest shipped kernel; those of
    other numbers between within 15%.

    \b
    Examples:
      gemmill model Llama-3.1-8B/config.json --tokens 1,16,2048 > llama.yaml
      gemmill model Qwen3-30B-A3B --tp 2 --json
      gemmill model DeepSeek-V3 --tokens 4096 --tp 8 --ep 8
      gemmill model Llama-3.1-8B --tokens 8192 --training
      gemmill model Llama-3.1-8B --pack llama.pack --gpu H200
      gemmill model Llama-3.1-8B --tokens 1,8192 --pack served.pack
      gemmill model decoder.onnx --dims batch=1,sequence=128
    """
    if pack is None and (worth, compiling) != (WorthOptions(), CompileOptions()):
        raise UsageError("--regret, --budget, --objective, --bits, --gpu, --jobs and --store need --pack")
    if not source.exists():
        download = f"hf download ORGANISATION/{source.name} config.json --local-dir {source}"
        raise UsageError(f"path '{source}' does not exist; `{download}` gets the config of a model on Hugging Face")
    notes = Notes()
    deployment = Deployment(
        tokens=passes.tokens or (),
        tp=gpus.tp,
        ep=gpus.ep,
        training=passes.training,
        separate=passes.separate,
        quantization=passes.quantization,
        dtype=passes.dtype,
        images=passes.images,
        dims=passes.dims or {},
    )
    kind, found = read_model(source, deployment, notes)
    for text in notes.left_out:
        output.complain(f"left out: {text}")
    for text in notes.assumed:
        output.complain(f"assumed: {text}")
    path = source.resolve()
    name = path.stem if ending(path) in (".gguf", ".onnx") else (path if path.is_dir() else path.parent).name
    if pack is not None:
        refuse_overwriting([pack], [source, source / "config.json"])
        counts = Counter[Shape]()
        for layer in found:
            counts[Shape.of(layer.problem, checked_sizes(layer.problem, None))] += layer.count
        write_for(ShapeSuite(name, tuple(counts), counts), KernelSets(), PackOutput(pack), compiling, worth)
        return
    rows = [
        {"text": str(layer.problem), **layer.problem.to_dict(), "count": layer.count, "pass": layer.step}
        | {"layers": layer.layers}
        for layer in found
    ]
    report = {"name": name, "type": kind, "problems": rows}
    report |= {"assumed": [*notes.assumed], "left_out": [*notes.left_out]}
    output.print_result("model", report, lambda: typer.echo("\n".join(_as_yaml(name, found))))


def _as_yaml(name: str, found: Sequence[LayerProblem]) -> Iterator[str]:
    """A suite as the lines of a file; problems that differ only in the number of tokens share a line."""
    words = [layer.words for layer in found]
    common = dict(set.intersection(*({*each.items()} for each in words)))
    yield f"name: {json.dumps(name)}"
    yield f"defaults: {_mapping({word: common[word] for word in words[0] if word in common and word not in 'mnk'})}"
    yield "shapes:"

    def key(item: tuple[LayerProblem, Mapping[str, Any]]) -> object:
        layer, each = item
        return layer.step, layer.layers, layer.count, {**each, _VARYING[layer.step]: None}

    for _, group in itertools.groupby(zip(found, words, strict=True), key):
        layers, each = zip(*group, strict=True)
        first, line, extent = layers[0], dict(each[0]), _VARYING[layers[0].step]
        line[extent] = [one[extent] for one in each] if len(each) > 1 else line[extent]
        shown = {word: value for word, value in line.items() if word in "mnk" or word not in common}
        shown |= {"count": first.count} if first.count > 1 else {}
        says = ", ".join(first.layers) + ("" if first.step == "forward" else f": {first.step}")
        yield f"  - {_mapping(shown)}  # {says}"


def _mapping(words: Mapping[str, Any]) -> str:
    return f"{{{', '.join(f'{word}: {json.dumps(value)}' for word, value in words.items())}}}"
