"""Modules of experts as transformers has them: what they compute, the layer that replaces them, and the function by
which they call gemmill themselves (``experts_implementation="gemmill"``).

These modules hold 3-D parameters ``gate_up_proj`` and ``down_proj``, and flags of transformers'
``use_experts_implementation`` that say how: ``is_transposed``, ``is_concatenated``, ``has_bias``, ``has_gate``. Their
method ``_apply_gate`` is the activation.
"""

from __future__ import annotations

import functools
import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Iterator
from importlib.machinery import ModuleSpec
from types import ModuleType, SimpleNamespace
from typing import Any

import torch

from gemmill.library.epilogues.evaluation import values
from gemmill.library.errors import OperandError
from gemmill.runtime.api.moe import interleaved
from gemmill.runtime.operands.epilogue_arguments import read_epilogue
from gemmill.runtime.torch.gradients.epilogue_rule import ARRAYS
from gemmill.runtime.torch.layers import expert_tensors
from gemmill.runtime.torch.layers.expert_tensors import WEIGHTS, Order
from gemmill.runtime.torch.layers.experts import Experts, epilogue_of, run
from gemmill.runtime.torch.layers.linear import ACTIVATIONS
from gemmill.runtime.torch.layers.weight_formats import Stored, quantised_blocks

_FLAGS = ("is_transposed", "is_concatenated", "has_bias", "has_gate")
_BIASES = ("gate_up_proj_bias", "down_proj_bias")
_TABLES = {
    "transformers.integrations.moe": "ALL_EXPERTS_FUNCTIONS",
    "transformers.integrations.finegrained_fp8": "ALL_FP8_EXPERTS_FUNCTIONS",
}
"""Modules of transformers, and their tables of implementations: of plain experts, and of e4m3."""


def is_experts(module: torch.nn.Module) -> bool:
    """Whether a module holds the weights of experts as transformers does."""
    weights = [module._parameters.get(name) for name in WEIGHTS]
    return _is_mxfp4(module) or all(x is not None and x.dim() == 3 for x in weights)


def _is_mxfp4(module: torch.nn.Module) -> bool:
    """Whether a module is ``Mxfp4GptOssExperts``. Its weights are tensors of triton_kernels."""
    return all(f"{name}_precision_config" in vars(module) for name in WEIGHTS)


def tensors_of(module: torch.nn.Module) -> Stored:
    """The tensors of a module of experts, as checkpoints name them."""
    tensors = {name: x for name, x in module._parameters.items() if x is not None}
    if _is_mxfp4(module):
        for name in WEIGHTS:
            parts = getattr(module, name), getattr(module, f"{name}_precision_config").weight_scale
            blocks, scales = (x.storage.layout.unswizzle_data(x.storage.data).mT for x in parts)
            tensors |= {f"{name}_blocks": blocks.reshape(*scales.shape, -1), f"{name}_scales": scales}
    return tensors


def form_of(module: torch.nn.Module) -> str | None:
    """The format of a module whose weights are quantised; None if they are not."""
    return "mxfp4" if _is_mxfp4(module) else expert_tensors.form_of(module._parameters)


def fault_of(module: torch.nn.Module) -> str:
    """Why gemmill does not run a module of experts; empty if it does."""
    if _is_mxfp4(module):
        loaded = all(getattr(module, f"{name}_precision_config") is not None for name in WEIGHTS)
        return "" if loaded else "experts of MXFP4 without weights"
    if missing := [name for name in _FLAGS if not hasattr(module, name)]:
        return f"experts without {', '.join(missing)}"
    if not module.has_gate or getattr(module, "has_post_expert_norm", False):
        return "experts without a gate" if not module.has_gate else "experts with a norm"
    form = form_of(module)
    own = {*WEIGHTS, *(_BIASES if module.has_bias else ()), *(f"{name}_scale_inv" for name in WEIGHTS if form)}
    parameters = {name for name, x in module._parameters.items() if x is not None}
    if missing := sorted(own - parameters):
        return f"experts without {', '.join(missing)}"
    kinds = {"parameter": parameters - own, "buffer": module._buffers.keys()}
    kinds["tensor of a child"] = {name for name, child in module.named_children() if [*child.state_dict()]}
    if more := [f"{kind} {name}" for kind, names in kinds.items() for name in sorted(names)]:
        return f"experts with {' and '.join(more)}"
    narrow = {x.dtype for name in WEIGHTS if (x := module._parameters[name]).dtype.itemsize == 1}
    if narrow and not form:
        return f"experts of {' and '.join(sorted(map(str, narrow)))}"
    if "_apply_gate" in vars(module) or _activation(*_gate(module)) is None:
        return f"experts with an activation, {type(module).__name__}._apply_gate, that is not known"
    return ""


def converted(module: torch.nn.Module, weights: str) -> Experts:
    """The layer that replaces a module of experts, with its weights in a format."""
    if _is_mxfp4(module):
        order, activation = Order(is_transposed=True, is_concatenated=False), _of_gpt_oss(module.limit, module.alpha)
    else:
        order, known = Order(module.is_transposed, module.is_concatenated), _activation(*_gate(module))
        assert known is not None
        activation = known
    tensors = tensors_of(module)
    if form := form_of(module):
        layer = Experts.of_stored(*order.read_stored(tensors), form, activation)
    else:
        layer = Experts.of(*order.read(tensors), weights, activation)
    layer.order = order
    return layer


def call_plainly(parent: torch.nn.Module, experts: torch.nn.Module) -> None:
    """Make the parent of replaced experts call others with ids and weights, as transformers' own does. That of
    ``Mxfp4GptOssExperts`` passes what triton_kernels needs."""
    if _is_mxfp4(experts):
        kind = importlib.import_module("transformers.models.gpt_oss.modeling_gpt_oss").GptOssMLP
        vars(parent).pop("forward", None)  # of transformers before 5.24
        parent.__class__ = kind


def forward(
    module: torch.nn.Module, hidden_states: torch.Tensor, top_k_index: torch.Tensor, top_k_weights: torch.Tensor
) -> torch.Tensor:
    """Run a module of experts, as transformers' ``experts_implementation`` calls functions.

    Raises:
        OperandError: gemmill does not support the module.
    """
    if not module.has_gate or getattr(module, "has_post_expert_norm", False):
        raise OperandError("experts without a gate, or with a norm, do not run: choose another experts_implementation")
    epilogue = _epilogue(_gate(module), module.has_bias, module.is_transposed)
    if form_of(module):
        return _forward_in_blocks(module, epilogue, hidden_states, top_k_index, top_k_weights)
    gate_up, down = module.gate_up_proj, module.down_proj
    if module.is_transposed:
        gate_up, down = gate_up.mT, down.mT
    if module.is_concatenated and module.is_transposed:  # kernels load halves of rows only
        gate_up = interleaved(gate_up)
    biases = {}
    if module.has_bias:
        gate, up = Order(module.is_transposed, module.is_concatenated).halves(module.gate_up_proj_bias)
        biases = {"gate_bias": gate.contiguous(), "up_bias": up.contiguous(), "b2": module.down_proj_bias}
    x, dtype = hidden_states.to(gate_up.dtype), hidden_states.dtype
    return run(x, gate_up, down, top_k_index, top_k_weights, activation=epilogue, out_dtype=dtype, **biases)


def _forward_in_blocks(
    module: torch.nn.Module, epilogue: str, x: torch.Tensor, ids: torch.Tensor, weights: torch.Tensor
) -> torch.Tensor:
    """Run a module of e4m3 with scales of blocks."""
    if getattr(module, "activation_scheme", "dynamic") != "dynamic":
        raise OperandError("experts with scales of activations do not run: choose another experts_implementation")
    held, _ = Order(module.is_transposed, module.is_concatenated).read_stored(module._parameters)
    rows, held["x_scale"] = quantised_blocks(x)
    return run(rows, held.pop("w1"), held.pop("w2"), ids, weights, activation=epilogue, out_dtype=x.dtype, **held)


Gate = tuple[type, type | None, float | None, float | None, float | None, bool]
"""What decides the activation of a module of experts: its class, that of its ``act_fn``, limit, alpha and the cap of
the gate, and whether it is concatenated. Dynamo knows all as constants."""
_LIMITS, _ALPHAS, _CAPS = ("limit", "swiglu_limit"), ("alpha", "swiglu_alpha"), ("gate_softcap", "up_softcap")


def _gate(module: torch.nn.Module) -> Gate:
    """Of a module of experts."""
    function = getattr(module, "act_fn", None)
    limit, alpha = getattr(module, _LIMITS[0], None), getattr(module, _ALPHAS[0], None)
    if limit is None:
        limit = getattr(module, _LIMITS[1], None)
    if alpha is None:
        alpha = getattr(module, _ALPHAS[1], None)
    kind, cap = None if function is None else type(function), getattr(module, _CAPS[0], None)
    return type(module), kind, limit, alpha, cap, module.is_concatenated


def _epilogue(gate: Gate, has_bias: bool, is_transposed: bool) -> str:
    """The epilogue of the first product of a module.

    Raises:
        OperandError: its activation is not known.
    """
    activation, is_concatenated = _activation(*gate), gate[-1]
    if activation is None:
        raise OperandError(
            f"the activation of experts, {gate[0].__name__}._apply_gate, is not known: choose another "
            "experts_implementation"
        )
    order = "" if not is_concatenated else "8" if is_transposed else "_half"
    return epilogue_of(activation, f"gate{order}", f"up{order}", has_bias)


@functools.lru_cache(64)
def _activation(
    kind: type,
    function: type | None,
    limit: float | None,
    alpha: float | None,
    cap: float | None,
    is_concatenated: bool,
) -> str | None:
    """The activation of modules of experts as an expression of ``gate`` and ``up``: the first of those that models have
    that gives what ``_apply_gate`` gives, on values from -12 to 12. None if there is none."""
    points = torch.linspace(-12, 12, 49, dtype=torch.float64, device="cpu")
    gate, up = (x.flatten() for x in torch.meshgrid(points, points, indexing="ij"))
    sums = torch.cat((gate, up)) if is_concatenated else torch.stack((gate, up), -1).flatten()
    try:
        module = SimpleNamespace(**dict.fromkeys(_LIMITS, limit), **dict.fromkeys(_ALPHAS, alpha))
        vars(module).update(dict.fromkeys(_CAPS, cap))
        module.act_fn = None if function is None else function()
        with torch.no_grad():
            wanted = kind._apply_gate(module, sums[None])[0]  # type: ignore[attr-defined]
    except (AttributeError, IndexError, RuntimeError, TypeError, ValueError):  # it needs more than that
        return None
    for text in _candidates(limit, alpha):
        given = values(read_epilogue(f"d = {text}"), {"gate": gate, "up": up}, ARRAYS, gate.new_tensor)["d"]
        if wanted.shape == given.shape and torch.allclose(wanted.double(), given, rtol=1e-6, atol=1e-6):
            return text
    return None


def _candidates(limit: float | None, alpha: float | None) -> Iterator[str]:
    """Activations of models."""
    for name in ACTIVATIONS:
        yield f"{name}(gate) * up"
    if limit is None:
        return
    gate, up = f"min(gate, {limit})", f"clamp(up, -{limit}, {limit})"
    for name in ACTIVATIONS:
        yield f"{name}({gate}) * {up}"
        yield f"min({name}(gate), {limit}) * {up}"
    if alpha is not None:
        yield _of_gpt_oss(limit, alpha)


def _of_gpt_oss(limit: float, alpha: float) -> str:
    gate = f"min(gate, {limit})"
    return f"(clamp(up, -{limit}, {limit}) + 1) * {gate} * sigmoid({alpha} * {gate})"


def register() -> None:
    """Give transformers the implementation ``gemmill`` of experts, as soon as a program has imported them."""
    for name in _TABLES:
        if name in sys.modules:
            _register_in(sys.modules[name])
        else:
            sys.meta_path.insert(0, _Finder(name))


def _register_in(module: ModuleType) -> None:
    torch.compiler.assume_constant_result(_epilogue)  # marks it, and imports Dynamo, which takes a second
    getattr(module, _TABLES[module.__name__]).register("gemmill", forward)


class _Finder(importlib.abc.MetaPathFinder):
    """Finds nothing itself; registers when a module of transformers has run.

    Args:
        name: the name of the module.
    """

    def __init__(self, name: str) -> None:
        self._name = name

    def find_spec(self, fullname: str, path: Any = None, target: Any = None) -> ModuleSpec | None:
        """The spec that other finders give, whose loader also registers."""
        del path, target
        if fullname != self._name:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return spec
        execute = spec.loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            _register_in(module)

        spec.loader.exec_module = exec_module  # type: ignore[method-assign]
        return spec
