"""vLLM alone and with gemmill's plugin: start-up, time to the first token, tokens per second, joules per token.

Starts two processes, each with an engine of vLLM that holds the model with random weights. They take turns: while one
measures, the other is idle. ``first_ms`` is the time of all prompts and their first tokens. A token's time and energy
come from longer runs, without those of the prompts. A ratio below 1 means that the plugin takes less; of
``tokens_per_s``, above 1 that it is faster.

Writes JSON Lines as results arrive. Needs vLLM, integrations/vllm, nvidia-ml-py and an NVIDIA GPU. To start without
compiling, set ``GEMMILL_PACKS`` to a pack of the model (``gemmill model``).
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import sys
import tempfile
import time
import traceback
from collections.abc import Mapping
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median, quantiles
from typing import Any

Load = tuple[int, int]
"""A number of prompts, and of tokens of each."""
SIDES: Mapping[str, str] = {"torch": "", "ours": "gemmill"}
"""For each side, the value of VLLM_PLUGINS."""
LLAMA = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "num_hidden_layers": 32,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "rms_norm_eps": 1e-05,
    "rope_theta": 500000.0,
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "torch_dtype": "bfloat16",
    "bos_token_id": 128000,
    "eos_token_id": 128001,
}
"""The config of Llama-3.1-8B."""


def main() -> None:
    """Run the benchmark, and print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="folder with a config.json (Llama-3.1-8B's)")
    parser.add_argument(
        "--loads", nargs="+", default=["1x2048", "16x1024", "64x512"], help="prompts x tokens (%(default)s)"
    )
    parser.add_argument("--tokens", type=int, default=128, help="tokens to generate (%(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="turns of each side (%(default)s)")
    parser.add_argument("--hold", action="store_true", help="wait for a line on standard input before timing")
    parser.add_argument("--engine", type=json.loads, default={}, help="further arguments of vLLM's LLM, in JSON")
    parser.add_argument("--commit", help="commit to record in the results")
    parser.add_argument("--out", type=Path, help="file to append lines to")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if arguments.model is None:
            (Path(folder) / "config.json").write_text(json.dumps(LLAMA))
            arguments.model = Path(folder)
        _measure(arguments)


def _measure(arguments: argparse.Namespace) -> None:
    context, engines = multiprocessing.get_context("spawn"), {}
    loads = [(int(batch), int(length)) for batch, length in (load.split("x") for load in arguments.loads)]
    _add(arguments, program="serving", tokens=arguments.tokens, engine=arguments.engine, commit=arguments.commit)
    for side, plugins in SIDES.items():
        engines[side], other = context.Pipe()
        process = context.Process(target=serve, args=(other, plugins, str(arguments.model), loads, arguments.engine))
        process.start()
        other.close()
    for side, engine in engines.items():
        state = engine.recv()
        _add(arguments, what="ready", side=side, **state)
        if "error" in state:
            _close(engines)
            sys.exit(f"error: {side}: {state['error']}")
    if arguments.hold:
        sys.stdin.readline()
    for load in loads:
        samples: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
        for number in range(arguments.rounds):
            for side in sorted(SIDES, reverse=number % 2 == 1):
                engines[side].send((load, arguments.tokens))
                samples[side].append(engines[side].recv())
        _add(arguments, what="time", load=load, rounds=arguments.rounds, **_summary(samples))
    for side, engine in engines.items():
        for load in loads:
            engine.send((load, 0))
            _add(arguments, what="kernels", side=side, load=load, **engine.recv())
    _close(engines)


def _close(engines: Mapping[str, Connection]) -> None:
    for engine in engines.values():
        engine.close()


def _summary(samples: Mapping[str, list[dict[str, float]]]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name in samples["ours"][0]:
        values = {side: [row[name] for row in rows] for side, rows in samples.items()}
        pairs = zip(values["ours"], values["torch"], strict=True)
        ratios = [ours / theirs for ours, theirs in pairs if theirs]  # the energy of a short turn may be counted as 0
        found[name] = {side: _figures(row) for side, row in [*values.items(), ("ratio", ratios)] if row}
    return found


def _figures(values: list[float]) -> list[float]:
    """Lower quartile, median and upper quartile."""
    low, high = (quantiles(values, method="inclusive")[i] if len(values) > 1 else values[0] for i in (0, 2))
    return [round(x, 5) for x in (low, median(values), high)]


def _add(arguments: argparse.Namespace, **row: Any) -> None:
    """Write a row."""
    line = json.dumps(row)
    print(line, flush=True)
    if arguments.out is not None:
        with arguments.out.open("a", encoding="utf-8") as file:
            file.write(line + "\n")


def serve(pipe: Connection, plugins: str, model: str, loads: list[Load], options: dict[str, Any]) -> None:
    """Make an engine, then answer requests: a load and the number of tokens to generate. 0 tokens: profile a step of
    decoding. A closed pipe ends the process."""
    start = time.perf_counter()
    os.environ["VLLM_PLUGINS"] = plugins
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
    os.environ.setdefault("VLLM_USE_FLASHINFER_SAMPLER", "0")
    try:
        import vllm

        imported = time.perf_counter() - start
        given = {
            "load_format": "dummy",
            "skip_tokenizer_init": True,
            "max_model_len": 4096,
            "max_num_seqs": max(batch for batch, _ in loads),
            "enable_prefix_caching": False,
            "compilation_config": {"cudagraph_capture_sizes": sorted({batch for batch, _ in loads})},
            "gpu_memory_utilization": 0.4,
            "kv_cache_memory_bytes": 12 << 30,
            **options,
        }
        engine = vllm.LLM(model=model, **given)
        ready = time.perf_counter() - start
        spent(engine, loads[0], 2)
        facts = {"vllm": vllm.__version__, "imported_s": imported, "ready_s": ready}
        facts["first_s"] = time.perf_counter() - start
        for load in loads:
            spent(engine, load, 2)
        pipe.send(facts | _state(engine))
        while True:
            load, tokens = pipe.recv()
            pipe.send(measured(engine, load, tokens) if tokens else profiled(engine, load))
    except EOFError:
        return
    except Exception as error:
        traceback.print_exc()
        pipe.send({"error": f"{type(error).__name__}: {error}"[:600]})
        raise


def _state(engine: Any) -> dict[str, Any]:
    """How vLLM runs the model."""
    config = engine.llm_engine.vllm_config
    layers = config.compilation_config.static_forward_context.values()
    return {
        "graphs": str(config.compilation_config.cudagraph_mode),
        "mode": str(config.compilation_config.mode),
        "attention": sorted({x.get_attn_backend().__name__ for x in layers if hasattr(x, "get_attn_backend")}),
    }


def spent(engine: Any, load: Load, tokens: int) -> tuple[float, float]:
    """Seconds and joules of prompts and ``tokens`` new tokens of each."""
    import torch
    import vllm
    from benchmarks.pytorch.gpu import joules

    batch, length = load
    draw = torch.Generator().manual_seed(batch)
    vocabulary = engine.llm_engine.model_config.get_vocab_size()
    prompts = torch.randint(1, vocabulary, (batch, length), generator=draw).tolist()
    sampling = vllm.SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
    torch.cuda.synchronize()
    start, before = time.perf_counter(), joules()
    made = engine.generate([{"prompt_token_ids": row} for row in prompts], sampling, use_tqdm=False)
    torch.cuda.synchronize()
    assert all(len(x.outputs[0].token_ids) == tokens for x in made)
    return time.perf_counter() - start, joules() - before


def measured(engine: Any, load: Load, tokens: int) -> dict[str, float]:
    """Time and energy of prompts, and of a token after them."""
    first, first_joules = spent(engine, load, 1)
    whole, whole_joules = spent(engine, load, tokens)
    step = (whole - first) / (tokens - 1)
    return {
        "first_ms": first * 1000,
        "token_ms": step * 1000,
        "tokens_per_s": load[0] / step,
        "first_joules": first_joules,
        "token_joules": (whole_joules - first_joules) / (tokens - 1) / load[0],
    }


def profiled(engine: Any, load: Load) -> dict[str, Any]:
    """Names, counts and milliseconds of the kernels with most time, of prompts with their first and second tokens."""
    import torch
    from benchmarks.pytorch.gpu import kernels_of

    with torch.profiler.profile() as profile:
        spent(engine, load, 2)
    return {"kernels": kernels_of(profile)}
