"""``gemmill.torch.convert``."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from fnmatch import fnmatchcase

import torch

from gemmill.library.errors import OperandError
from gemmill.runtime.torch.layers.checkpoints import read
from gemmill.runtime.torch.layers.linear import Linear, format_named


def convert(
    model: torch.nn.Module,
    weights: str | None = "e4m3_rows",
    *,
    skip: Iterable[str] = (),
    inplace: bool = True,
) -> torch.nn.Module:
    """Replace the linear layers of a model by :class:`Linear`.

    ``convert`` quantises each ``torch.nn.Linear`` to ``weights``, but not subclasses of it. Layers that a checkpoint
    already holds quantised keep their values, in these schemes:

    * e4m3 ``weight``, with ``weight_scale`` or ``weight_scale_inv`` of one value, of rows, or of 128 x 128 blocks
      (compressed-tensors, DeepSeek);
    * 4-bit ``qweight``, ``qzeros`` and ``scales``, in groups of 128, 64 or 32 along K (AWQ, GPTQ).

    Args:
        model: the model whose layers are replaced.
        weights: the format, as for :class:`Linear`. None converts only layers that are already quantised. Default:
            ``e4m3_rows``.
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
    replacements: dict[torch.nn.Module, Linear] = {}
    for module, aliases in names.items():  # read all layers before replacing any, so that an error changes nothing
        if module not in skipped and not isinstance(module, Linear):
            converted = _converted(aliases[0], module, weights)
            if converted is not None:
                replacements[module] = converted.train(module.training)
    if model in replacements:
        return replacements[model]
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child in replacements:
                parent._modules[name] = replacements[child]
    return model


def _converted(name: str, module: torch.nn.Module, weights: str | None) -> Linear | None:
    quantised = read(f"layer {name!r}" if name else "the model", module)
    if quantised is not None:
        return Linear.of(quantised[0], getattr(module, "bias", None), quantised[1])
    if weights is None or type(module) is not torch.nn.Linear:
        return None
    return Linear.from_linear(module, weights)
