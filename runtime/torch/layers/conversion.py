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
    """A model whose linear layers are :class:`Linear`.

    Layers that a checkpoint holds quantised keep their weights: e4m3 ``weight`` with ``weight_scale`` or
    ``weight_scale_inv`` of all, of rows, or of 128 x 128 blocks (compressed-tensors, DeepSeek), and ``qweight``,
    ``qzeros`` and ``scales`` of 4 bits in groups of 128, 64 or 32 (AWQ, GPTQ). ``torch.nn.Linear`` itself is quantised
    to ``weights``, or left alone where that is None; classes derived from it are left alone unless quantised.

    Args:
        model: whose layers are replaced; itself returned, a new layer if it is one.
        weights: as for :class:`Linear`.
        skip: names of layers to leave as they are, as ``model.named_modules()`` has them, with ``*`` and ``?``:
            ``("lm_head", "*.gate")``.
        inplace: False leaves ``model`` as it is and returns a copy.

    OperandError where ``weights`` is none, a layer is quantised otherwise, or a name in ``skip`` fits no module.
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
            raise OperandError(f"skip has {pattern!r}, and no module is called so: print(model) shows their names")
        skipped |= fitting
    replacements: dict[torch.nn.Module, Linear] = {}
    for module, aliases in names.items():  # all are read before any is replaced
        if module not in skipped and not isinstance(module, Linear):
            made = _converted(aliases[0], module, weights)
            if made is not None:
                replacements[module] = made.train(module.training)
    if model in replacements:
        return replacements[model]
    for parent in list(model.modules()):
        for name, child in parent._modules.items():
            if child in replacements:
                parent._modules[name] = replacements[child]
    return model


def _converted(name: str, module: torch.nn.Module, weights: str | None) -> Linear | None:
    quantised = read(name or "the model", module)
    if quantised is not None:
        return Linear.of(quantised[0], getattr(module, "bias", None), quantised[1])
    if weights is None or type(module) is not torch.nn.Linear:
        return None
    return Linear.from_linear(module, weights)
