"""Steps of a model: prefill of a prompt, and decoding of one token with a static cache of keys and values."""

from __future__ import annotations

import types
from collections.abc import Callable
from typing import Any

import torch
from benchmarks.pytorch.architectures import takes

Step = Callable[[], Any]

POSITION, LENGTH = 512, 1024
"""Number of tokens in the cache before a decoding step, and its capacity."""


def prefill(model: Any, batch: int, tokens: int) -> Step:
    """A step that returns the logits of the last token of each prompt; for an encoder, the hidden states of all
    tokens."""
    ids = _ids(model, batch, tokens)
    last = {"logits_to_keep": 1} if takes(model, "logits_to_keep") else {}
    cache = {"use_cache": False} if takes(model, "use_cache") else {}

    def step() -> Any:
        made = model(input_ids=ids, **last, **cache)
        return made.logits[:, -1] if hasattr(made, "logits") else made.last_hidden_state

    return step


def decode(model: Any, batch: int, position: int = POSITION, length: int = LENGTH) -> Step:
    """A step that returns the logits of the next token of each sequence, always at the same position, so that it can be
    repeated and captured."""
    from transformers import StaticCache

    ids = _ids(model, batch, 1)
    cache = StaticCache(config=model.config, max_cache_len=length)
    where = torch.full((1,), position, device=ids.device)
    # Older versions of transformers take the length as a position; newer ones keep it in the cache.
    given = {"cache_position": where} if takes(model, "cache_position") else {}
    given |= {"position_ids": where[None]} if takes(model, "position_ids") else {}
    given["cache" if takes(model, "cache") else "past_key_values"] = cache

    def step() -> Any:
        for layer in cache.layers:
            _set_length(layer, position)
        return model(input_ids=ids, use_cache=True, **given).logits[:, -1]

    with torch.no_grad():
        step()  # the cache allocates its tensors
    draw = torch.Generator(ids.device).manual_seed(1)
    for layer in cache.layers:
        for kept in (layer.keys, layer.values):
            drawn = torch.randn(kept.shape, generator=draw, device=kept.device, dtype=torch.float32)
            kept.copy_(drawn.bfloat16())  # the same values for all types of the model
    return step


def _set_length(layer: Any, position: int) -> None:
    """Set the length of a cache layer, for versions of transformers that keep it there."""
    for name in ("cumulative_length", "cumulative_length_int"):
        length = getattr(layer, name, None)
        if isinstance(length, torch.Tensor):
            length.fill_(position)
        elif length is not None:
            setattr(layer, name, position)


def _ids(model: Any, batch: int, tokens: int) -> torch.Tensor:
    device = next(model.parameters()).device
    draw = torch.Generator(device).manual_seed(2)
    return torch.randint(1, model.config.vocab_size, (batch, tokens), generator=draw, device=device)


def compiled(step: Any, of: str) -> Any:
    """Compile a step with torch.compile, separately for each side. Dynamo caches by code object, so each side gets a
    copy of it."""
    assert isinstance(step, types.FunctionType)
    code = step.__code__.replace(co_name=f"{step.__code__.co_name}_{of}")
    own = types.FunctionType(code, step.__globals__, code.co_name, None, step.__closure__)
    return torch.compile(own, dynamic=False)


def captured(step: Step) -> Step:
    """Capture a step in a CUDA graph, after three runs on the same stream."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            step()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, stream=stream):
        made = step()

    def replay() -> Any:
        graph.replay()
        return made

    return replay
