"""The types and scales of a model's layers, from ``quantization_config`` of its config."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, Literal, get_args

from gemmill.library.config.model import ScaleName
from gemmill.library.errors import ProblemError
from gemmill.library.models.fields import Notes
from gemmill.library.models.linear import Linear
from gemmill.library.wording import one_of

Words = Mapping[str, str]
"""Keywords of a problem that state its types and scales."""
_WHOLE = "d = alpha * acc * a_scale * b_scale"
_EXPERTS = "d = alpha * acc * a_scale * b_scale[batch]"
_ROWS = "d = alpha * acc * a_scale[m] * b_scale[n]"
_OUTPUTS = "d = alpha * acc * b_scale[n]"
"""Epilogues of calls with scales of whole operands, of whole experts, of rows and columns, and of columns alone."""
QuantizationName = Literal["config", "none", "fp8", "fp8-rows", "fp8-blocks", "int8", "int4", "mxfp4"]
"""``config``: what the config has; ``none``: nothing; otherwise a scheme of :data:`SCHEMES`."""
SCHEMES: Mapping[QuantizationName, Words] = MappingProxyType(
    {
        "fp8": {"a": "e4m3", "b": "e4m3", "epilogue": _WHOLE},
        "fp8-rows": {"a": "e4m3", "b": "e4m3", "epilogue": _ROWS},
        "fp8-blocks": {"a": "e4m3", "b": "e4m3", "a_scale": "1x128", "b_scale": "128x128"},
        "int8": {"a": "s8", "b": "s8", "epilogue": _ROWS},
        "int4": {"b": "s4", "b_scale": "1x128"},
        "mxfp4": {"b": "e2m1"},
    }
)
"""Keywords that differ from those of the model's own type. ``fp8`` has a scale for each operand and expert."""
_MOST_WILDCARDS = 8
_LONGEST_PATTERN = 200
_UNSAFE = re.compile(r"[)\]}*+?]\s*[*+?{]|\(\?|\\[1-9]")
"""Parts of regular expressions that can take exponential time, or that look around."""


@dataclass(frozen=True, slots=True)
class Quantization:
    """Which layers are quantised, and how."""

    dtype: str
    """The type of activations, and of weights that are not quantised."""
    words: Words
    """The keywords of quantised layers; empty for a model without."""
    only_experts: bool = False
    names: frozenset[str] = frozenset()
    """Names of modules that are left alone, whole or parts between dots."""
    patterns: tuple[re.Pattern[str], ...] = ()

    def of(self, linear: Linear) -> Words:
        """The types and scales of a layer."""
        if linear.plain or not self.words or (self.only_experts and not linear.experts) or self._skips(linear):
            return {"a": self.dtype}
        words = {"a": self.dtype, **self.words}
        if linear.experts and self.words.get("epilogue") == _WHOLE:
            words["epilogue"] = _EXPERTS
        if "8" in self.words.get("a", ""):
            words["d"] = self.dtype
        return words

    def _skips(self, linear: Linear) -> bool:
        names = [linear.name]
        if linear.fuses:
            names.append(f"{linear.name.rpartition('.')[0]}.{linear.fuses}")
        names += [f"model.{name}" for name in names]  # newer versions of transformers have towers in `model`
        parts = (part for name in names for part in _parts(name))
        return any(part in self.names for part in parts) or any(
            pattern.search(name) for pattern in self.patterns for name in names
        )


def _parts(name: str) -> Iterator[str]:
    """All runs of a dotted name."""
    words = name.split(".")
    for first in range(len(words)):
        for last in range(first + 1, len(words) + 1):
            yield ".".join(words[first:last])


def quantization_of(config: Mapping[str, Any], dtype: str, choice: QuantizationName, notes: Notes) -> Quantization:
    """The quantisation of a model.

    Args:
        config: the config.
        dtype: gemmill's name of the type of activations.
        choice: ``config``, or what replaces it.
        notes: for what is left out or assumed.

    Raises:
        ProblemError: the method or a value of it is not supported.
    """
    found = config.get("quantization_config") or config.get("compression_config")
    if choice != "config":
        return Quantization(dtype, SCHEMES.get(choice, {}))
    if found is None:
        return Quantization(dtype, {})
    if not isinstance(found, dict):
        raise ProblemError(f"quantization_config is {found!r:.80}; it must be a mapping")
    method = found.get("quant_method")
    if not isinstance(method, str) or method not in _METHODS:
        raise ProblemError(
            f"quant_method is {method!r:.80}; gemmill reads {one_of([*_METHODS])}; --quantization none omits it, and "
            f"{one_of([*SCHEMES])} replaces it"
        )
    words = _METHODS[method](found, notes)
    names, patterns = _skipped(found)
    return Quantization(dtype, words, method == "mxfp4", names, patterns)


def _skipped(found: Mapping[str, Any]) -> tuple[frozenset[str], tuple[re.Pattern[str], ...]]:
    """The names and patterns of modules that a config leaves alone."""
    names, patterns = set(), []
    for key in ("modules_to_not_convert", "ignored_layers", "ignore"):
        listed = found.get(key) or []
        if not isinstance(listed, list) or not all(isinstance(name, str) for name in listed):
            raise ProblemError(f"{key} of quantization_config is {listed!r:.80}; it must be a list of names")
        for name in listed:
            if name.startswith("re:"):
                patterns.append(_pattern(key, name.removeprefix("re:"), name))
            elif "*" in name:
                text = ".*".join(map(re.escape, name.split("*")))
                patterns.append(_pattern(key, rf"(?:^|\.){text}(?:\.|$)", name, ours=True))
            else:
                names.add(name)
    return frozenset(names), tuple(patterns)


def _pattern(key: str, text: str, name: str, *, ours: bool = False) -> re.Pattern[str]:
    """A pattern of names; ProblemError if it could take long, or is invalid."""
    wildcards = sum(map(text.count, "*+?{"))
    if len(text) <= _LONGEST_PATTERN and wildcards <= _MOST_WILDCARDS and (ours or not _UNSAFE.search(text)):
        try:
            return re.compile(text if ours else f"^(?:{text})")
        except (re.error, OverflowError):
            pass
    raise ProblemError(
        f"{key} of quantization_config has {name!r:.80}; gemmill reads names, names with * and simple regular "
        "expressions; --quantization replaces what the config has"
    )


def _fp8(found: Mapping[str, Any], notes: Notes) -> Words:
    block = found.get("weight_block_size")
    if (form := found.get("fmt", "e4m3")) != "e4m3" or block not in (None, [128, 128]):
        raise ProblemError(f"fp8 has fmt {form!r:.40} and blocks {block!r:.40}; gemmill reads e4m3 and [128, 128]")
    return SCHEMES["fp8-blocks" if block else "fp8"]


def _weights(bits: object, group: object, zeros: bool, notes: Notes) -> Words:
    """Integer weights with scales of groups along K, or of output features where the group is -1 or None."""
    scale = f"1x{group}{'z' if zeros else ''}"
    per_output = group in (-1, None)
    groups = ("1x128",) if bits == 8 else get_args(ScaleName)
    if bits not in (4, 8) or (bits == 8 and zeros) or (not per_output and scale not in groups):
        raise ProblemError(
            f"weights have {bits!r:.20} bits and groups of {group!r:.20}; gemmill has 4 bits in groups "
            "of 32, 64 or 128, and 8 bits without zero points in groups of 128"
        )
    dtype = "s8" if bits == 8 else "u4" if zeros else "s4"
    if per_output and zeros:
        raise ProblemError("weights have zero points without groups; gemmill has them only with groups")
    if not per_output:
        return {"b": dtype, "b_scale": scale}
    if bits == 8:
        return {"b": dtype, "epilogue": _OUTPUTS}
    notes.assume("4-bit weights have a scale for each output; gemmill needs groups, so groups of 128 repeat it")
    return {"b": dtype, "b_scale": "1x128"}


def _gptq(found: Mapping[str, Any], notes: Notes) -> Words:
    if found.get("dynamic"):
        raise ProblemError("dynamic of quantization_config has rules for single layers, which gemmill does not read")
    if found.get("desc_act"):
        notes.leave_out("the order of activations (desc_act): engines permute columns of A before the product")
    return _weights(found.get("bits"), found.get("group_size"), not found.get("sym", True), notes)


def _awq(found: Mapping[str, Any], notes: Notes) -> Words:
    bits, group = found.get("bits", found.get("w_bit")), found.get("group_size", found.get("q_group_size"))
    return _weights(bits, group, bool(found.get("zero_point", True)), notes)


def _compressed(found: Mapping[str, Any], notes: Notes) -> Words:
    """A config of compressed-tensors, with one group of layers."""
    groups = found.get("config_groups")
    group = next(iter(groups.values())) if isinstance(groups, dict) and len(groups) == 1 else None
    if not isinstance(group, dict) or group.get("targets") != ["Linear"]:
        raise ProblemError('config_groups of quantization_config must have one group with the targets ["Linear"]')
    weights, inputs = group.get("weights"), group.get("input_activations")
    if not isinstance(weights, dict) or not isinstance(inputs, dict | None):
        raise ProblemError("weights and input_activations of config_groups must be mappings")
    kind = weights.get("type"), weights.get("num_bits"), *((inputs or {}).get(key) for key in ("type", "num_bits"))
    strategy = weights.get("strategy")
    if not isinstance(strategy, str | None):
        raise ProblemError(f"strategy of weights in config_groups is {strategy!r:.80}; it must be a word")
    if kind == ("float", 8, "float", 8) and strategy in _STRATEGIES:
        if strategy == "block" and weights.get("block_structure") != [128, 128]:
            raise ProblemError(f"block_structure is {weights.get('block_structure')!r:.40}; gemmill has [128, 128]")
        return SCHEMES[_STRATEGIES[strategy]]
    if kind == ("int", 8, "int", 8) and strategy in ("channel", "tensor"):
        return SCHEMES["int8"]
    if kind[0] == "int" and inputs is None:
        return _weights(kind[1], weights.get("group_size"), not weights.get("symmetric", True), notes)
    if kind == ("float", 8, None, None) and strategy in ("channel", "tensor"):
        return {"b": "e4m3", "epilogue": _OUTPUTS}
    raise ProblemError(
        f"config_groups has weights of {weights.get('num_bits')!r:.20} bits ({weights.get('type')!r:.20}, "
        f"{strategy!r:.20}) and activations of {kind[3]!r:.20} bits ({kind[2]!r:.20}), which gemmill does not read; "
        "--quantization replaces it"
    )


_STRATEGIES: Mapping[object, QuantizationName] = MappingProxyType(
    {"tensor": "fp8", "channel": "fp8-rows", "block": "fp8-blocks"}
)
"""Schemes by the strategy of weights in compressed-tensors."""


def _decoded(found: Mapping[str, Any], notes: Notes) -> Words:
    if not found.get("load_in_4bit"):
        raise ProblemError("bitsandbytes without load_in_4bit is not supported; pass --quantization none or int8")
    notes.assume("bitsandbytes decodes 4-bit weights before each product, so products have the model's own type")
    return {}


_METHODS: Mapping[str, Any] = MappingProxyType(
    {
        "fp8": _fp8,
        "fbgemm_fp8": lambda found, notes: SCHEMES["fp8-rows"],
        "gptq": _gptq,
        "awq": _awq,
        "compressed-tensors": _compressed,
        "mxfp4": lambda found, notes: SCHEMES["mxfp4"],
        "bitsandbytes": _decoded,
    }
)
"""Readers of each ``quant_method``."""
