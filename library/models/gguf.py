"""The header of a GGUF file, the format of llama.cpp, as the config of a model.

The file begins with keys and values, and a list of tensors with types and extents; weights follow and are not read.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, BinaryIO

from gemmill.library.errors import RecordError
from gemmill.library.models.fields import Notes
from gemmill.library.wording import one_of

_MAGIC = b"GGUF"
_MOST_BYTES = 256 << 20
"""Maximum size of a header. Most of it is the vocabulary: a few megabytes."""
_MOST_ITEMS = 1 << 24
"""Maximum number of keys, tensors, and items of a list."""
_TYPES: Mapping[str, str] = MappingProxyType(
    {name: name for name in ("llama", "qwen2", "qwen3", "gemma", "gemma2", "phi3", "phimoe", "starcoder2", "cohere2")}
    | {name: name for name in ("olmo", "olmo2", "olmoe", "glm4", "granite", "granitemoe", "smollm3", "seed_oss")}
    | {"qwen2moe": "qwen2_moe", "qwen3moe": "qwen3_moe", "gpt-oss": "gpt_oss", "gemma3": "gemma3_text"}
    | {"command-r": "cohere"}
)
"""The ``model_type`` of each architecture."""
_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "embedding_length": "hidden_size",
        "block_count": "num_hidden_layers",
        "feed_forward_length": "intermediate_size",
        "attention.head_count": "num_attention_heads",
        "attention.head_count_kv": "num_key_value_heads",
        "attention.key_length": "head_dim",
        "vocab_size": "vocab_size",
        "expert_count": "num_experts",
        "expert_used_count": "num_experts_per_tok",
        "expert_feed_forward_length": "moe_intermediate_size",
        "expert_shared_feed_forward_length": "shared_expert_intermediate_size",
    }
)
"""The field of a config for each key, which is prefixed with the architecture."""
_NUMBERS: Mapping[int, str] = MappingProxyType({**dict(enumerate("BbHhIif?")), 10: "Q", 11: "q", 12: "d"})
"""Formats of numbers by their type."""
_STRING, _LIST = 8, 9
_WEIGHTS: Mapping[int, str] = MappingProxyType({0: "float32", 1: "float16", 30: "bfloat16"})
"""Types of weights that are no blocks, by their number."""
_MXFP4 = 39
_BLOCKS: Mapping[int, str] = MappingProxyType(
    {2: "Q4_0", 3: "Q4_1", 6: "Q5_0", 7: "Q5_1", 8: "Q8_0", 10: "Q2_K", 11: "Q3_K", 12: "Q4_K", 13: "Q5_K", 14: "Q6_K"}
)
"""Names of the usual types of blocks, for notes."""


def is_gguf(path: Path) -> bool:
    """Whether a file begins as a GGUF file."""
    with path.open("rb") as file:
        return file.read(len(_MAGIC)) == _MAGIC


def gguf_config(path: Path, notes: Notes) -> Mapping[str, Any]:
    """The fields of a config from the header of a GGUF file.

    Args:
        path: the file.
        notes: for the types of weights that gemmill lacks.

    Raises:
        RecordError: the header is damaged, or the architecture is not known.
    """
    with path.open("rb") as file:
        header = _Header(file, path)
        values, tensors = header.values(), header.tensors()
    name = values.get("general.architecture")
    if not isinstance(name, str) or name not in _TYPES:
        raise RecordError(f"{path}: general.architecture is {name!r:.80}; gemmill reads {one_of([*_TYPES])}")
    found = {field: values[f"{name}.{key}"] for key, field in _FIELDS.items() if f"{name}.{key}" in values}
    if listed := [field for field, value in found.items() if value is None]:
        raise RecordError(f"{path}: {listed[0]} is a list with a value for each layer; gemmill reads one value for all")
    kind = "mixtral" if name == "llama" and found.get("num_experts") else _TYPES[name]
    if kind in ("gpt_oss", "mixtral") and "moe_intermediate_size" in found:
        found["intermediate_size"] = found["moe_intermediate_size"]
    config = {"model_type": kind, "architectures": ["ForCausalLM"], "decoder_sparse_step": 1, **found}
    if embedding := tensors.get("token_embd.weight"):
        config["vocab_size"] = embedding[1][-1]
    types = Counter(kind for kind, extents in tensors.values() if len(extents) > 1)
    if types[_MXFP4]:
        config["quantization_config"] = {"quant_method": "mxfp4"}
    blocks = sorted({*types} - {*_WEIGHTS, _MXFP4})
    if types:
        config["torch_dtype"] = "bfloat16" if blocks else _WEIGHTS.get(types.most_common(1)[0][0], "bfloat16")
    if blocks:
        names = ", ".join(_BLOCKS.get(kind, f"type {kind}") for kind in blocks)
        notes.assume(f"weights are {names}, blocks that gemmill lacks; assuming bf16; --quantization passes others")
    return config


class _Header:
    """Reads a header from its start."""

    def __init__(self, file: BinaryIO, path: Path) -> None:
        self._file, self._path, self._left = file, path, _MOST_BYTES
        _, version, self._tensors, self._keys = self._unpacked("4sIQQ")
        if version not in (2, 3):
            raise self._error(f"version {version} of GGUF is not supported; 2 and 3 are")

    def values(self) -> dict[str, Any]:
        """All values by key; None for lists."""
        return {self._text(): self._value(self._unpacked("I")[0]) for _ in self._items(self._keys)}

    def tensors(self) -> dict[str, tuple[int, tuple[int, ...]]]:
        """Type and extents of each tensor, the contiguous extent first."""
        found = {}
        for _ in self._items(self._tensors):
            name, (rank,) = self._text(), self._unpacked("I")
            if not 1 <= rank <= 8:
                raise self._error(f"tensor {name!r:.80} has {rank} dimensions")
            extents = self._unpacked(f"{rank}Q")
            found[name] = self._unpacked("IQ")[0], extents
        return found

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind in _NUMBERS:
            return self._unpacked(_NUMBERS[kind])[0]
        inner, count = self._unpacked("IQ") if kind == _LIST else (_LIST, 0)
        if inner != _STRING and inner not in _NUMBERS:
            raise self._error(f"a value has type {kind}, or is a list of lists")
        if inner in _NUMBERS:
            self._take(struct.calcsize(_NUMBERS[inner]) * count)
        else:
            for _ in self._items(count):
                self._value(inner)
        return None

    def _items(self, count: int) -> Iterator[int]:
        if count > _MOST_ITEMS:
            raise self._error(f"it has {count:,} items; at most {_MOST_ITEMS:,} are allowed")
        return iter(range(count))

    def _text(self) -> str:
        return self._take(self._unpacked("Q")[0]).decode("utf-8", "replace")

    def _unpacked(self, form: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{form}", self._take(struct.calcsize(f"<{form}")))

    def _take(self, count: int) -> bytes:
        self._left -= count
        data = self._file.read(count) if self._left >= 0 else b""
        if len(data) < count:
            raise self._error("it ends early, or is too large")
        return data

    def _error(self, says: str) -> RecordError:
        return RecordError(f"{self._path}: the header of the GGUF file is damaged: {says}")
