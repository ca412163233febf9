"""``gemmill.torch.enabled()`` on public model architectures, compared with PyTorch alone: time, accuracy, coverage.

Models are those of transformers, with random weights, real widths and few layers. The program measures prefill and
decoding of one token: eager, compiled, captured in a CUDA graph, and compiled and captured. gemmill and PyTorch take
turns; a time ratio below 1 means that gemmill is faster. Accuracy is the distance of the logits from those of float64,
for gemmill relative to PyTorch. Coverage is gemmill's share of the FLOP by ``stats()``, and of the time of GEMM kernels
by PyTorch's profiler.

Writes JSON Lines as results arrive, with a line for each failed or skipped measurement, too. Needs transformers and an
NVIDIA GPU; ``--device cpu --tiny`` tries the program without one.
"""

from __future__ import annotations

import argparse
import copy
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from benchmarks.pytorch import steps
from benchmarks.pytorch.architectures import ARCHITECTURES, build
from benchmarks.pytorch.options import parsed, parser_of
from benchmarks.pytorch.sides import SIDES, Lines, in_turns, synchronize
from benchmarks.pytorch.warming import Needed, warm, without_launches

import gemmill.torch

ROOT = Path(__file__).resolve().parents[2]

FORMS = ("eager", "captured", "compiled", "both")
GEMM = re.compile(r"gemm|gemv|nvjet|xmma|cutlass|cublas|splitk", re.IGNORECASE)
"""Pattern of the names of GEMM kernels; gemmill's begin with ``gemmill_``."""


def main() -> None:
    """Run the benchmark, each model in a separate process, since an error in a capture may break the context."""
    arguments = _arguments()
    if len(arguments.models) > 1:
        end = time.monotonic() + arguments.seconds
        for index, name in enumerate(arguments.models):
            share = (end - time.monotonic()) / (len(arguments.models) - index)
            options = _options({**vars(arguments), "models": [name], "seconds": share})
            subprocess.run([sys.executable, "-m", "benchmarks", "models", *options], cwd=ROOT, check=False)
        return
    tiny, [name] = arguments.tiny, arguments.models
    lines = Lines(arguments.out, arguments.seconds)
    import transformers

    lines.head(transformers=transformers.__version__, program="models", commit=arguments.commit)
    torch.set_grad_enabled(False)
    made: list[Any] = []

    def start() -> dict[str, Any]:
        made.append(build(name, arguments.layers, arguments.device, tiny))
        return {"parameters": sum(x.numel() for x in made[0].parameters()), "layers": _layers(made[0])}

    if lines.tried(start, needs=arguments.least, model=name):
        Model(name, made.pop(), lines, arguments).measure()


def _options(arguments: Mapping[str, Any]) -> Iterator[str]:
    """The arguments as words of a command line."""
    for name, value in arguments.items():
        if value is not None and value is not False:
            yield f"--{name}"
            yield from map(str, [] if value is True else value if isinstance(value, list | tuple) else [value])


def _arguments() -> argparse.Namespace:
    parser = parser_of(__doc__, seconds=540, rounds=10)
    parser.add_argument("--models", nargs="+", choices=ARCHITECTURES, default=[*ARCHITECTURES], help="(all)")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS, help="(all)")
    parser.add_argument("--least", type=float, default=10, help="seconds that must be left for a model (%(default)s)")
    parser.add_argument("--layers", type=int, help="layers of each model (2 to 8, by model)")
    parser.add_argument(
        "--batches", nargs="+", type=int, default=[1, 16, 64], help="batch sizes of decoding (%(default)s)"
    )
    parser.add_argument("--prefill", nargs="*", default=["1x2048"], help="prompts x tokens (%(default)s)")
    arguments = parsed(parser)
    if arguments.tiny:
        arguments.batches, arguments.prefill, arguments.rounds = [1, 4], ["2x16"], 2
    return arguments


def _layers(model: Any) -> int:
    return int(getattr(model.config, "num_hidden_layers", 0))


class Model:
    """The measurements of one model.

    Args:
        name: key of :data:`ARCHITECTURES`.
        model: the model.
        lines: receives the results.
        arguments: arguments of the command line.
    """

    def __init__(self, name: str, model: Any, lines: Lines, arguments: argparse.Namespace) -> None:
        self._name, self._model, self._lines, self._arguments = name, model, lines, arguments
        self._steps: dict[str, Callable[[Any], steps.Step]] = {}
        cache = {"position": 8, "length": 16} if arguments.tiny else {}
        for shape in arguments.prefill:
            batch, tokens = map(int, shape.split("x"))
            self._steps[f"prefill {shape}"] = partial(steps.prefill, batch=batch, tokens=tokens)
        for batch in arguments.batches if ARCHITECTURES[name].is_decoder else ():
            self._steps[f"decode {batch}"] = partial(steps.decode, batch=batch, **cache)
        self._made: dict[str, steps.Step] = {}
        self._exact: dict[str, torch.Tensor] = {}
        self._compiled_steps: dict[tuple[str, str], steps.Step] = {}

    def measure(self) -> None:
        """Run all measurements, the fast ones first, so that as few as possible are skipped for lack of time."""
        for step in [*self._steps]:
            if not self._tried(partial(self._prepared, step), step=step, what="warm-up"):
                self._steps.pop(step)
        for step in self._steps:
            self._tried(partial(self._served, step), step=step, what="served")
        self._tried(self._accuracy, what="accuracy")
        for form in self._arguments.forms:
            needs = 5 if form in ("eager", "captured") else 25
            for step in self._steps:
                if form in ("captured", "both") and self._arguments.device == "cpu":
                    continue
                self._tried(partial(self._timed, step, form), needs, step=step, what="time", form=form)

    def _tried(self, measure: Callable[[], dict[str, Any]], needs: float = 0, **of: Any) -> bool:
        return self._lines.tried(measure, needs=needs, model=self._name, **of)

    def _prepared(self, step: str) -> dict[str, Any]:
        """Make a step, and compile its kernels."""
        self._made[step] = run = self._steps[step](self._model)
        with Needed() as needed:
            run()
        warm(needed.names)
        return {"kernels": len(needed.names)}

    def _served(self, step: str) -> dict[str, Any]:
        run = self._made[step]
        with SIDES["ours"]():
            run()
        gemmill.torch.reset_stats()
        with SIDES["ours"](), torch.profiler.profile() as profile:
            run()
            synchronize()
        spent: dict[str, float] = {}
        for event in profile.key_averages():
            if event.self_device_time_total and event.device_type == torch.autograd.DeviceType.CUDA:
                spent[event.key] = spent.get(event.key, 0) + event.self_device_time_total
        ours = sum(time for key, time in spent.items() if key.startswith("gemmill_"))
        theirs = {key: time for key, time in spent.items() if GEMM.search(key) and not key.startswith("gemmill_")}
        gemms = ours + sum(theirs.values())
        return {
            "time_served": round(ours / gemms, 4) if gemms else None,
            "gemm_share": round(gemms / sum(spent.values()), 4) if spent else None,
            "not_served": sorted({key[:80] for key in theirs}),
            "stats": gemmill.torch.stats().as_dict(),
        }

    def _accuracy(self) -> dict[str, Any]:
        """Relative distances of the logits from those of the same weights in float64."""
        found = {}
        exact = copy.deepcopy(self._model).double()
        exact.config._experts_implementation = "eager"  # grouped GEMMs do not support float64
        for step, make in self._steps.items():
            logits = {}
            for side, context in SIDES.items():
                with context():
                    logits[side] = self._made[step]().double()
            self._exact[step] = make(exact)().double()
            found[step] = self._errors(step, logits)
        return {"errors": found}

    def _errors(self, step: str, logits: Mapping[str, torch.Tensor]) -> dict[str, float]:
        """Errors of both sides, and their ratio; empty if the exact logits are not known."""
        if (wanted := self._exact.get(step)) is None:
            return {}
        found = {side: float((made - wanted).norm() / wanted.norm()) for side, made in logits.items()}
        return found | {"ratio": round(found["ours"] / found["torch"], 4)}

    def _timed(self, step: str, form: str) -> dict[str, Any]:
        calls: dict[str, steps.Step] = {}
        for side, context in SIDES.items():
            with context():
                run = self._compiled(step, side) if form in ("compiled", "both") else self._made[step]
                calls[side] = steps.captured(run) if form in ("captured", "both") else run
        made = {}
        for side, context in SIDES.items():
            with context():
                made[side] = calls[side]().double()
        return {**in_turns(calls, self._arguments.rounds), "errors": self._errors(step, made)}

    def _compiled(self, step: str, side: str) -> steps.Step:
        """A step compiled for a side, with its kernels compiled in parallel; cached. Must be called in the side's
        context."""
        if (run := self._compiled_steps.get((step, side))) is None:
            run = self._compiled_steps[step, side] = steps.compiled(self._made[step], side)
            if side == "ours":
                kernels: set[str] = set()
                with without_launches(self._arguments.device, kernels):
                    run()
                if self._arguments.device == "cuda":
                    warm(kernels)
            run()
        return run
