"""Training of a Llama, with gemmill and with PyTorch alone: step time, energy and loss curves. The model has 1.2
billion parameters, or four layers of the widths of Llama-3.1-8B.

The step (forward, backward, AdamW; bf16 autocast) is timed eagerly and compiled, in turns. The loss curves start from
the same weights and use the same batches: PyTorch, gemmill, and PyTorch with cuBLASLt and float32 reductions. The
difference between gemmill and PyTorch is compared with that between the two PyTorch runs. The text is the bytes of this
repository's documentation.

Writes JSON Lines as results arrive. Needs transformers and an NVIDIA GPU; ``--device cpu --tiny`` tries the program
without one.
"""

from __future__ import annotations

import argparse
import copy
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path
from statistics import fmean
from typing import Any

import torch
from benchmarks.pytorch import steps
from benchmarks.pytorch.gpu import kernels_of
from benchmarks.pytorch.options import parsed, parser_of
from benchmarks.pytorch.sides import SIDES, Lines, in_turns, synchronize
from benchmarks.pytorch.warming import Needed, warm, without_launches

ROOT = Path(__file__).resolve().parents[2]

_OF_META = {"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256}
LLAMAS = {
    "1B": {
        **_OF_META,
        "hidden_size": 2048,
        "intermediate_size": 8192,
        "num_hidden_layers": 16,
        "tie_word_embeddings": True,
    },
    "8B": {**_OF_META, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 4},
}
"""Arguments of the configs."""
TINY = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": 256,
}


def main() -> None:
    """Run the benchmark, and print the results."""
    parser = parser_of(__doc__, seconds=300, rounds=12)
    parser.add_argument(
        "--model", choices=LLAMAS, default="1B", help="1B, or four layers of the widths of 8B (%(default)s)"
    )
    parser.add_argument("--forms", nargs="*", choices=("eager", "compiled"), default=["eager", "compiled"])
    parser.add_argument("--batch", type=int, default=4, help="sequences per step (%(default)s)")
    parser.add_argument("--tokens", type=int, default=2048, help="tokens per sequence (%(default)s)")
    parser.add_argument("--steps", type=int, default=80, help="steps of a loss curve; 0: none (%(default)s)")
    parser.add_argument("--hold", action="store_true", help="wait for a line on standard input before timing")
    arguments = parsed(parser)
    if arguments.tiny:
        arguments.batch, arguments.tokens, arguments.rounds = 2, 32, 2
    lines = Lines(arguments.out, arguments.seconds)
    import transformers

    torch.manual_seed(0)
    with torch.device(arguments.device):
        config = transformers.LlamaConfig(**(TINY if arguments.tiny else LLAMAS[arguments.model]))
        model = transformers.AutoModelForCausalLM.from_config(config)
    lines.head(
        program="training",
        transformers=transformers.__version__,
        parameters=sum(x.numel() for x in model.parameters()),
        batch=arguments.batch,
        tokens=arguments.tokens,
        commit=arguments.commit,
    )
    run = Training(model, arguments)
    lines.tried(run.warmed, what="warm-up")
    needs = {"eager": 20, "compiled": 90}
    ready = [x for x in arguments.forms if lines.tried(partial(run.ready, x), needs[x], what="ready", form=x)]
    if arguments.hold:
        sys.stdin.readline()
    for form in ready:
        lines.tried(partial(run.timed, form), what="time", form=form)
        lines.tried(partial(run.served, form), what="kernels", form=form)
    if arguments.steps:
        lines.tried(lambda: run.curves(lines), needs=20, what="curves")


class Training:
    """A model, its training text, and its steps.

    Args:
        model: the model in float32.
        arguments: arguments of the command line.
    """

    def __init__(self, model: Any, arguments: argparse.Namespace) -> None:
        self._model, self._arguments = model, arguments
        self._steps: dict[str, dict[str, Callable[[], None]]] = {}
        pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
        text = b"\n".join(page.read_bytes() for page in pages)
        self._text = torch.tensor([*text], dtype=torch.int64, device=arguments.device)

    def batch(self, number: int) -> torch.Tensor:
        """Random windows of the text, determined by the number of the step."""
        arguments, draw = self._arguments, torch.Generator().manual_seed(number)
        starts = torch.randint(0, len(self._text) - arguments.tokens, (arguments.batch,), generator=draw)
        return torch.stack([self._text[i : i + arguments.tokens] for i in starts.tolist()])

    def _loss(self, model: Any) -> Callable[[torch.Tensor], torch.Tensor]:
        def loss(ids: torch.Tensor) -> torch.Tensor:
            with torch.autocast(self._arguments.device, torch.bfloat16):
                made: torch.Tensor = model(input_ids=ids, labels=ids, use_cache=False).loss
            return made

        return loss

    def _optimizer(self, model: Any) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=3e-4, fused=self._arguments.device == "cuda")

    def warmed(self) -> dict[str, Any]:
        """Compile the kernels of an eager step."""
        with Needed() as needed:
            self._loss(self._model)(self.batch(0)).backward()
        self._model.zero_grad()
        warm(needed.names)
        return {"kernels": len(needed.names)}

    def ready(self, form: str) -> dict[str, Any]:
        """Compile the step of each side."""
        ids, optimizer, took = self.batch(0), self._optimizer(self._model), {}
        calls = self._steps[form] = {}
        for side, context in SIDES.items():
            start = time.perf_counter()
            with context():
                loss = self._loss(self._model)
                if form == "compiled":
                    loss = steps.compiled(loss, side)
                    if side == "ours":
                        self._warm_compiled(partial(_backward, loss, ids))

                def step(loss: Callable[[torch.Tensor], torch.Tensor] = loss) -> None:
                    loss(ids).backward()
                    optimizer.step()
                    optimizer.zero_grad()

                step()
                calls[side] = step
            synchronize()
            took[side] = round(time.perf_counter() - start, 2)
        return {"seconds": took}

    def timed(self, form: str) -> dict[str, Any]:
        """Milliseconds and joules of a step of each side."""
        found = in_turns(self._steps[form], self._arguments.rounds, least=1000)
        tokens = self._arguments.batch * self._arguments.tokens
        return found | {"tokens_per_second": {side: round(tokens * 1000 / x[1]) for side, x in found["ms"].items()}}

    def served(self, form: str) -> dict[str, Any]:
        """Time of kernels in a step of each side, by name."""
        found = {}
        for side, context in SIDES.items():
            with context(), torch.profiler.profile() as profile:
                self._steps[form][side]()
                synchronize()
            found[side] = kernels_of(profile)
        return found

    def _warm_compiled(self, run: Callable[[], object]) -> None:
        kernels: set[str] = set()
        with without_launches(self._arguments.device, kernels):
            run()
        self._model.zero_grad()
        if self._arguments.device == "cuda":
            warm(kernels)

    def curves(self, lines: Lines) -> dict[str, Any]:
        """Losses of three runs from the same weights, and their differences."""
        runs: dict[str, AbstractContextManager[Any]] = {
            "torch": SIDES["torch"](),
            "ours": SIDES["ours"](),
            "torch, other reductions": _other_reductions(),
        }
        losses: dict[str, list[float]] = {}
        for name, context in runs.items():
            with context:
                losses[name] = self._curve()
            lines.add(what="curve", run=name, losses=[round(x, 5) for x in losses[name]])
        first, tail = losses["torch"], self._arguments.steps // 4
        apart = {}
        for name in ("ours", "torch, other reductions"):
            pairs = [*zip(losses[name], first, strict=True)]
            apart[name] = {
                "mean": fmean(abs(x - y) for x, y in pairs),
                "most": max(abs(x - y) for x, y in pairs),
                "last_quarter": fmean(x for x, _ in pairs[-tail:]) - fmean(y for _, y in pairs[-tail:]),
            }
        return {"apart": apart, "steps": self._arguments.steps}

    def _curve(self) -> list[float]:
        model = copy.deepcopy(self._model)
        draw = torch.Generator(self._arguments.device).manual_seed(3)
        with torch.no_grad():  # timed steps have changed the weights; all runs start from the same new ones
            for weight in model.parameters():
                if weight.dim() > 1:
                    weight.normal_(0, 0.02, generator=draw)
                else:
                    weight.fill_(1)
        optimizer, loss = self._optimizer(model), self._loss(model)
        found = []
        for number in range(self._arguments.steps):
            value = loss(self.batch(number))
            value.backward()
            optimizer.step()
            optimizer.zero_grad()
            found.append(value.detach())
        return [float(x) for x in found]


def _backward(loss: Callable[[torch.Tensor], torch.Tensor], ids: torch.Tensor) -> None:
    loss(ids).backward()


@contextmanager
def _other_reductions() -> Iterator[None]:
    """PyTorch's GEMMs with cuBLASLt and float32 reductions, which round differently but are equally correct."""
    matmul = torch.backends.cuda.matmul
    reduced, matmul.allow_bf16_reduced_precision_reduction = matmul.allow_bf16_reduced_precision_reduction, False
    library = torch.backends.cuda.preferred_blas_library()
    if torch.cuda.is_available():
        torch.backends.cuda.preferred_blas_library("cublaslt")
    try:
        yield
    finally:
        matmul.allow_bf16_reduced_precision_reduction = reduced
        if torch.cuda.is_available():
            torch.backends.cuda.preferred_blas_library(library)
