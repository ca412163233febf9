"""``gemmill.torch.convert``."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase

import torch

from gemmill.library.errors import OperandError
from gemmill.runtime.torch.layers import transformers_experts
from gemmill.runtime.torch.layers.checkpoints import read
from gemmill.runtime.torch.layers.experts import EXPERT_FORMATS, Experts
from gemmill.runtime.torch.layers.linear import Linear, format_named


def convert(
    model: torch.nn.Module,
    weights: str | None = "e4m3_rows",
    *,
    skip: Iterable[str] = (),
    inplace: bool = True,
) -> torch.nn.Module:
    """Replace the linear layers of a model by :class:`Linear`, and the experts of transformers' models by
    :class:`Experts`.

    ``convert`` quantises each ``torch.nn.Linear``, and all experts, to ``weights``. It leaves a layer unchanged if more
    than its weight and bias may decide what it computes, and names it in a warning: a subclass, a layer with hooks, a
    replaced ``forward``, or further parameters, buffers or children; experts also if they do not have the format, or
    their activation is not known. Other attributes of linear layers move to the new layer; routers stay. Layers that a
    checkpoint already holds quantised keep their values, in these schemes:

    * e4m3 ``weight``, with ``weight_scale`` or ``weight_scale_inv`` of one value, of rows, or of 128 x 128 blocks
      (compressed-tensors, DeepSeek);
    * 4-bit ``qweight``, ``qzeros`` and ``scales``, in groups of 128, 64 or 32 along K (AWQ, GPTQ);
    * transformers' experts in e4m3 with scales of 128 x 128 blocks (``FP8Experts``), and in MXFP4
      (``Mxfp4GptOssExperts``).

    Args:
        model: the model whose layers are replaced.
        weights: the format, as for :class:`Linear`; experts have all but ``e4m3_rows``. None converts only layers that
            are already quantised. Default: ``e4m3_rows``.
        skip: names of layers to leave unchanged, as in ``model.named_modules()``, with the wildcards ``*`` and ``?``:
            ``("lm_head", "*.gate")``.
        inplace: True (default) changes ``model``. False changes a copy.

    Returns:
        ``model`` or its copy; a new layer if ``model`` is itself a linear layer.

    Raises:
        OperandError: ``weights`` is not a format, a layer has an unsupported quantisation scheme, or a name in
            ``skip`` matches no module. The message names the layer. After an error, no layer is replaced.
    """
    if weights is not None:
        format_named(weights)
    if not inplace:
        model = copy.deepcopy(model)
    names: dict[torch.nn.Module, list[str]] = {}
    for name, module in model.named_modules(remove_duplicate=False):
        names.setdefault(module, []).append(name)
    skipped: set[torch.nn.Module] = set()
    for pattern in skip:
        fitting = {module for module, aliases in names.items() if any(fnmatchcase(name, pattern) for name in aliases)}
        if not fitting:
            raise OperandError(f"{pattern!r} in skip matches no module; print(model) shows the names of its modules")
        skipped |= fitting
    replacements: dict[torch.nn.Module, Linear | Experts] = {}
    unchanged: dict[str, list[str]] = {}
    adapters = {} if weights is None else _adapters(model)
    for module, aliases in names.items():  # read all layers before replacing any, so that an error changes nothing
        if module in skipped or isinstance(module, Linear | Experts):
            continue
        converted = adapters.get(module) or _converted(aliases[0], module, weights)
        if isinstance(converted, str):
            unchanged.setdefault(converted, []).append(aliases[0])
        elif converted is not None:
            replacements[module] = converted.train(module.training)
    if unchanged:
        warnings.warn(_unchanged_text(unchanged), stacklevel=2)
    if model in replacements:
        return replacements[model]
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child in replacements:
                parent._modules[name] = replacements[child]
                transformers_experts.call_plainly(parent, child)
    _leave_fused_encoders(model)
    return model


def _leave_fused_encoders(model: torch.nn.Module) -> None:
    """Make PyTorch's encoders call their linear layers. In inference they would pass the weights to one fused operator,
    which dequantises them."""
    kinds = torch.nn.TransformerEncoder, torch.nn.TransformerEncoderLayer
    for module in model.modules():
        if isinstance(module, kinds) and any(isinstance(x, Linear) for x in module.modules()):
            module.use_nested_tensor, module.activation_relu_or_gelu = False, 0


def _converted(name: str, module: torch.nn.Module, weights: str | None) -> Linear | Experts | str | None:
    """The new layer, why a layer is left unchanged, or None if the module is not to be converted."""
    if transformers_experts.is_experts(module):
        form = transformers_experts.form_of(module) or weights
        return None if form is None else _experts(module, form)
    quantised = read(f"layer {name!r}" if name else "the model", module)
    if quantised is not None:
        (stored, form), bias = quantised, getattr(module, "bias", None)
        dtype = (stored["weight_scale"] if bias is None else bias).dtype
        return _hooks(module) or Linear.of(
            stored, bias, form, wide_dtype=dtype if dtype.itemsize == 2 else torch.bfloat16
        )
    if weights is None or not isinstance(module, torch.nn.Linear):
        return None
    if type(module) is not torch.nn.Linear:
        return f"a subclass of torch.nn.Linear, {type(module).__name__}"
    if reason := _hooks(module) or _more_state(module):
        return reason
    layer = Linear.from_linear(module, weights)
    attributes = {x: y for x, y in vars(module).items() if x not in _ATTRIBUTES}
    for attribute in attributes:
        if hasattr(layer, attribute) or hasattr(torch.nn.Linear, attribute):
            return f"its own {attribute}"
    layer.__dict__.update(attributes)
    return layer


def _experts(module: torch.nn.Module, weights: str) -> Experts | str:
    """The new experts, or why they are left unchanged."""
    if weights not in EXPERT_FORMATS:
        return f"experts, which have no format {weights}, only {', '.join(EXPERT_FORMATS)}"
    if reason := _hooks(module) or transformers_experts.fault_of(module):
        return reason
    forward = type(module).forward
    of_transformers = hasattr(forward, "__wrapped__") or forward.__module__ == "transformers.integrations.mxfp4"
    if "forward" in vars(module) or not of_transformers:  # the first is that of transformers' decorator
        return "its own forward"
    try:
        return transformers_experts.converted(module, weights)
    except OperandError as error:
        return str(error)


_ATTRIBUTES = frozenset(vars(torch.nn.Linear(1, 1, device="meta")))
"""The attributes that every ``torch.nn.Linear`` has."""


def _adapters(model: torch.nn.Module) -> dict[torch.nn.Module, str]:
    """The linear layers beside a ``base_layer``, as peft adds them, and why they are left unchanged: they are small,
    and programs train them and add them to the base layer."""
    adapters: dict[torch.nn.Module, str] = {}
    for module in model.modules():
        if "base_layer" in module._modules:
            beside = {*module.modules()} - {*module._modules["base_layer"].modules()}
            adapters |= {x: "an adapter of a base_layer" for x in beside if isinstance(x, torch.nn.Linear)}
    return adapters


def _hooks(module: torch.nn.Module) -> str:
    """The kinds of hooks that are registered on a module."""
    kinds = [name for name, x in vars(module).items() if name.endswith("_hooks") and x]
    return " and ".join(name.strip("_").replace("_", " ") for name in kinds)


def _more_state(module: torch.nn.Module) -> str:
    """What a linear layer holds besides an ordinary weight and bias."""
    own = module._parameters
    kinds = {"parameter": own.keys() - {"weight", "bias"}, "buffer": module._buffers, "child": module._modules}
    more = [f"{kind} {name}" for kind, names in kinds.items() for name in sorted(names)]
    present = {name: x for name in ("weight", "bias") if (x := own.get(name)) is not None}
    more += [f"a {type(x).__name__}" for x in present.values() if type(x) is not torch.nn.Parameter]
    more += [f"hooks of {name}" for name, x in present.items() if x._backward_hooks or x._post_accumulate_grad_hooks]
    return " and ".join(more)


def _unchanged_text(unchanged: Mapping[str, list[str]]) -> str:
    parts = []
    for reason, names in unchanged.items():
        named = ", ".join(repr(name) for name in names[:_MOST_NAMES])
        more = f" and {len(names) - _MOST_NAMES} more" if len(names) > _MOST_NAMES else ""
        parts.append(f"{named}{more} ({reason})")
    return (
        "convert left these layers unchanged, because their new form may not compute the same: "
        f"{'; '.join(parts)}. Pass their names in skip to avoid this warning"
    )


_MOST_NAMES = 8
"""The most names of layers that a warning gives for one reason."""
