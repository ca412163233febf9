"""transformers' ``generate`` of Llama-3.1-8B with gemmill and with PyTorch alone: tokens per second, time to the first
token, joules per token.

The model has random bf16 weights and a static cache. ``compiled`` is what ``generate`` does by itself: it compiles the
decoding of a token, with CUDA graphs. gemmill and PyTorch take turns in one process; a ratio below 1 means that gemmill
takes less. A token's time is the mean over the tokens after the first five; its energy is that of all tokens after the
first.

Writes JSON Lines as results arrive. Needs transformers, nvidia-ml-py and an NVIDIA GPU; ``--device cpu --tiny`` tries
the program without one.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import torch
from benchmarks.pytorch.architectures import build
from benchmarks.pytorch.gpu import joules, kernels_of
from benchmarks.pytorch.options import parsed, parser_of
from benchmarks.pytorch.sides import SIDES, Lines, figures, ratios, synchronize
from benchmarks.pytorch.warming import Needed, warm

import gemmill.torch

FORMS = ("eager", "compiled")
OPTIONS: Mapping[str, Mapping[str, bool]] = {
    "torch": {"triton.cudagraphs": True},
    "ours": {"triton.cudagraphs": True, "triton.cudagraph_trees": True},
}
"""Inductor's options of ``mode="reduce-overhead"``. A default among them distinguishes the sides: Dynamo keeps code by
the options it was compiled with."""
UNSTEADY = 5
"""Tokens after which a CUDA graph has been recorded."""


class Spent(NamedTuple):
    """What a run of ``generate`` took."""

    first_ms: float
    """From the call to the logits of the first token."""
    token_ms: float
    tokens_per_s: float
    """Of all sequences, after the first token."""
    token_joules: float


def main() -> None:
    """Run the benchmark, and print the results."""
    parser = parser_of(__doc__, seconds=540, rounds=6)
    parser.add_argument("--layers", type=int, default=32, help="(%(default)s)")
    parser.add_argument("--batch", type=int, default=1, help="prompts (%(default)s)")
    parser.add_argument("--prompt", type=int, default=2048, help="tokens of a prompt (%(default)s)")
    parser.add_argument("--tokens", type=int, default=128, help="tokens to generate (%(default)s)")
    parser.add_argument("--forms", nargs="+", choices=FORMS, default=FORMS)
    parser.add_argument("--hold", action="store_true", help="wait for a line on standard input before timing")
    arguments = parsed(parser)
    if arguments.tiny:
        arguments.prompt, arguments.tokens, arguments.rounds = 16, 12, 2
    import transformers

    lines = Lines(arguments.out, arguments.seconds)
    kept = ("batch", "prompt", "tokens", "layers", "commit")
    facts = {name: getattr(arguments, name) for name in kept}
    lines.head(program="generation", transformers=transformers.__version__, **facts)
    torch.set_grad_enabled(False)
    model = build("Llama-3.1-8B", arguments.layers, arguments.device, arguments.tiny)
    model.generation_config.eos_token_id = None  # with random weights, the end token may appear anywhere
    run = Generation(model, arguments)
    of = {"batch": arguments.batch}
    ready = [form for form in arguments.forms if lines.tried(partial(run.ready, form), what="ready", form=form, **of)]
    if arguments.hold:
        sys.stdin.readline()
    for form in ready:
        lines.tried(partial(run.timed, form), what="time", form=form, **of)
        lines.tried(partial(run.served, form), what="kernels", form=form, **of)


class Clock:
    """A logits processor that notes when logits arrive, and time and energy of the first ones."""

    def __init__(self) -> None:
        self.first: tuple[float, float] = (0, 0)
        self.arrivals: list[Any] = []

    def __call__(self, ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Note the time; returns the scores."""
        if not self.arrivals:
            synchronize()
            self.first = time.perf_counter(), joules()
        if scores.is_cuda:
            event = torch.cuda.Event(enable_timing=True)
            event.record()
        self.arrivals.append(event if scores.is_cuda else time.perf_counter())
        return scores

    def steady_ms(self) -> float:
        """Mean time between logits, without the first ones."""
        start, *_, end = self.arrivals[UNSTEADY:]
        elapsed = (end - start) * 1000 if isinstance(end, float) else start.elapsed_time(end)
        return float(elapsed) / (len(self.arrivals) - UNSTEADY - 1)


class Generation:
    """A model and its prompts.

    Args:
        model: the model.
        arguments: arguments of the command line.
    """

    def __init__(self, model: Any, arguments: argparse.Namespace) -> None:
        self._model, self._arguments = model, arguments
        draw, shape = torch.Generator(arguments.device).manual_seed(2), (arguments.batch, arguments.prompt)
        vocabulary = model.config.vocab_size
        self._prompts = torch.randint(1, vocabulary, shape, generator=draw, device=arguments.device)

    def ready(self, form: str) -> dict[str, Any]:
        """Compile all kernels and programs of a form."""
        start = time.perf_counter()
        with Needed() as needed:
            self._generate("torch", "eager", 2)
        if self._arguments.device == "cuda":
            warm(needed.names)
        seconds = {"kernels": time.perf_counter() - start}
        for side, context in SIDES.items():
            start = time.perf_counter()
            with context():
                self._generate(side, form)
            seconds[side] = time.perf_counter() - start
        return {"kernels": sorted(needed.names), "seconds": {key: round(value, 2) for key, value in seconds.items()}}

    def timed(self, form: str) -> dict[str, Any]:
        """Times and energy of both sides in turns."""
        samples: dict[str, list[Spent]] = {side: [] for side in SIDES}
        for number in range(self._arguments.rounds):
            for side in sorted(SIDES, reverse=number % 2 == 1):
                with SIDES[side]():
                    samples[side].append(self._generate(side, form))
        found: dict[str, Any] = {"rounds": self._arguments.rounds}
        for index, name in enumerate(Spent._fields):
            values = {side: [x[index] for x in rows] for side, rows in samples.items()}
            found[name] = {side: figures(row) for side, row in values.items()} | {"ratio": figures(ratios(values))}
        return found

    def served(self, form: str) -> dict[str, Any]:
        """Time of kernels in a run of each side, by name, and gemmill's coverage."""
        found: dict[str, Any] = {}
        for side, context in SIDES.items():
            gemmill.torch.reset_stats()
            with context(), torch.profiler.profile() as profile:
                self._generate(side, form, 16)
                synchronize()
            found[side] = kernels_of(profile)
        return found | {"stats": gemmill.torch.stats().as_dict()}

    def _generate(self, side: str, form: str, tokens: int | None = None) -> Spent:
        from transformers import CompileConfig, LogitsProcessorList

        tokens, clock = tokens or self._arguments.tokens, Clock()
        config = CompileConfig(mode=None, dynamic=False, options={**OPTIONS[side]})
        config._compile_all_devices = True  # also without a GPU
        synchronize()
        start = time.perf_counter()
        made = self._model.generate(
            self._prompts,
            max_new_tokens=tokens,
            do_sample=False,
            pad_token_id=0,
            cache_implementation="static",
            max_cache_len=self._arguments.prompt + self._arguments.tokens,
            logits_processor=LogitsProcessorList([clock]),
            **({"disable_compile": True} if form == "eager" else {"compile_config": config}),
        )
        synchronize()
        end, energy = time.perf_counter(), joules()
        assert made.shape[1] == self._arguments.prompt + tokens
        (first, at_first), rest = clock.first, max(1, tokens - 1)
        token_ms = clock.steady_ms() if tokens > UNSTEADY + 1 else 0.0
        rate = made.shape[0] * rest / (end - first)
        return Spent((first - start) * 1000, token_ms, rate, (energy - at_first) / rest / made.shape[0])


if __name__ == "__main__":
    main()
