"""What distinguishes the models of a type."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, NamedTuple

from gemmill.library.errors import ProblemError
from gemmill.library.models.fields import Fields
from gemmill.library.models.images import Images
from gemmill.library.models.linear import Linear


def grouped(fields: Fields) -> int:
    """Heads of keys and values where the config must have their number."""
    return fields.whole("kv_heads")


class Experts(NamedTuple):
    """Where a config has its experts."""

    size: str
    """The field with the size of an expert."""
    in_layer: Callable[[Fields, int], bool] = lambda fields, layer: True
    """Whether a layer has experts; others have an MLP."""
    shared: Literal["", "n_shared_experts", "shared_expert_intermediate_size"] = ""
    """The field with the number of shared experts, or with the size of a shared expert with a gate; empty: none."""


def after_dense(fields: Fields, layer: int) -> bool:
    """DeepSeek's rule: the first layers have MLPs."""
    return layer >= fields.whole("first_k_dense_replace", least=0) and layer % fields.whole("moe_layer_freq", 1) == 0


def in_steps(fields: Fields, layer: int) -> bool:
    """Qwen's rule: experts every few layers, except in some."""
    dense = fields.config.get("mlp_only_layers") or []
    if not isinstance(dense, list):
        raise ProblemError(f"{fields.place}mlp_only_layers is {dense!r:.80}; it must be a list of layers")
    return layer not in dense and (layer + 1) % fields.whole("decoder_sparse_step") == 0


@dataclass(frozen=True, slots=True)
class Architecture:
    """How to list the linear layers of the models of a type."""

    linears: Callable[[Fields, Architecture, Images | None], Iterator[Linear]]
    """Its linear layers, in order; fields that are needed and missing raise ProblemError."""
    kv_heads: Callable[[Fields], int] = grouped
    """Heads of keys and values."""
    gated: bool = True
    """Whether MLPs have a gate."""
    mlp_factor: int | None = None
    """The size of an MLP in hidden sizes if the config has none; None: the config must have it."""
    experts: Experts | None = None
    """The experts of a model that has some in place of MLPs."""
    fused: tuple[str, ...] = ()
    """The layers that transformers itself has as one."""
    defaults: Mapping[str, int] = field(default_factory=dict)
    """Defaults of transformers for fields that published configs omit."""


def or_heads(fields: Fields) -> int:
    """Heads of keys and values where transformers defines a missing number as that of queries."""
    heads = fields.whole("heads")
    if not fields.has("kv_heads"):
        fields.notes.assume(f"num_key_value_heads is missing; assuming {heads}, the heads of queries, as transformers")
    return fields.whole("kv_heads", heads)


def of_queries(fields: Fields) -> int:
    """Heads of keys and values where each query has its own."""
    return fields.whole("heads")


def of_falcon(fields: Fields) -> int:
    """Heads of keys and values of Falcon, whose config has their number even where it shares one."""
    if fields.flag("multi_query", True) and not fields.flag("new_decoder_architecture", False):
        return 1
    return fields.whole("kv_heads", fields.whole("heads"))


_HEADS: Mapping[str, str] = MappingProxyType(
    {
        **dict.fromkeys(("ForCausalLM", "ForConditionalGeneration", "LMHeadModel", "ForImageTextToText"), "vocabulary"),
        "ForMaskedLM": "vocabulary",
        **dict.fromkeys(("ForSequenceClassification", "ForImageClassification"), "class"),
        "ForTokenClassification": "classes of tokens",
        "Model": "none",
    }
)
"""The head of a model by the end of the name of its class."""


def head_of(fields: Fields, usual: str) -> str:
    """What the class in ``architectures`` ends with: logits of the ``vocabulary``, of a ``class`` of the whole input,
    or ``classes of tokens``; ``none``. ``usual`` if the config names no class that is known, which is noted."""
    named = fields.config.get("architectures")
    name = named[0] if isinstance(named, list) and named and isinstance(named[0], str) else ""
    kind = next((kind for end, kind in _HEADS.items() if name.endswith(end)), None)
    if kind is None:
        says = f"the class {name:.80} in architectures is unknown" if name else "architectures is missing"
        fields.notes.assume(f"{says}; assuming that the head of the model is {usual}")
    return kind or usual
