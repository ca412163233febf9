"""The operator ``gemmill::moe``, a layer of experts, and the function that calls it.

Its reference and its gradient are made of the operators of groups, and of PyTorch's own for routing, which transforms
and compiled programs can trace.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch

from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.epilogues.tree import Epilogue, fault_of_n
from gemmill.library.errors import OperandError
from gemmill.library.input.keywords import unexpected
from gemmill.library.legality.quantities import TMA_ALIGN
from gemmill.library.problem import upconverts_a
from gemmill.runtime.api.expert_layer import bind_layer, epilogue_of, quantising
from gemmill.runtime.api.moe import launch_moe
from gemmill.runtime.api.prepare import check
from gemmill.runtime.api.read import KEYWORDS
from gemmill.runtime.operands import narrow_experts
from gemmill.runtime.operands.epilogue_arguments import check_names, read_epilogue
from gemmill.runtime.operands.experts import (
    SCALES,
    LayerExtents,
    check_scales,
    layer_extents,
    layer_shapes,
    refuse_activation,
    refuse_scales,
)
from gemmill.runtime.operands.matrices import SCALE_BLOCK
from gemmill.runtime.operands.tensors import TensorView, dtype_named, not_on_gpu, view_anywhere
from gemmill.runtime.torch import outputs, reference_operators
from gemmill.runtime.torch.gradients import autograd, epilogue_rule, product_rules
from gemmill.runtime.torch.gradients.autograd import Arguments
from gemmill.runtime.torch.gradients.product_rules import Gradients, rows_in_use
from gemmill.runtime.torch.option_text import for_gradient, read, written
from gemmill.runtime.torch.transforms import batching

LIBRARY = torch.library.Library("gemmill", "FRAGMENT")
"""Keeps the operator alive."""
_SCHEMA = (
    "moe(Tensor x, Tensor w1, Tensor w2, Tensor topk_ids, Tensor? topk_weights, Tensor? b2, "
    "Tensor? x_scale, Tensor? w1_scale, Tensor? w2_scale, Tensor? w1_zero, Tensor? w2_zero, Tensor[] operands, "
    "str[] names, *, float[] numbers=[], str activation='silu', str? w_dtype=None, ScalarType? out_dtype=None, "
    "str options='') -> Tensor"
)
_KEYWORDS = ("x", "w1", "w2", "topk_ids", "topk_weights", "b2", *SCALES, *narrow_experts.ZEROS)
"""Tensors of the operator, by the keywords of :func:`gemmill.moe`."""

# Keywords of one subject share a line.
# fmt: off


def moe(
    x: torch.Tensor, w1: torch.Tensor, w2: torch.Tensor, topk_ids: torch.Tensor, topk_weights: torch.Tensor | None, *,
    activation: str = "silu", b2: torch.Tensor | None = None, out_dtype: torch.dtype | None = None,
    x_scale: torch.Tensor | None = None, w1_scale: torch.Tensor | None = None, w2_scale: torch.Tensor | None = None,
    w1_zero: torch.Tensor | None = None, w2_zero: torch.Tensor | None = None, w_dtype: object = None,
    bits: str = "any",
    **operands: torch.Tensor | float,
) -> torch.Tensor:
    """Run :func:`gemmill.moe` as an operator, with gradients, transforms and ``torch.compile``.

    The gradients are those of ``x``, the weights, ``topk_weights``, ``b2`` and the operands of the activation; a layer
    of e4m3 or of narrow weights has none. Backward computes the rows between the products again, so forward saves only
    its arguments.

    Args:
        out_dtype: Dtype of the result; by default that of ``x``, or bf16 for e4m3.

    All other arguments, and the errors, are those of :func:`gemmill.moe`.
    """
    for name in operands:
        if name in KEYWORDS:
            raise unexpected(name, _PARAMETERS)
    tensors = {name: value for name, value in operands.items() if isinstance(value, torch.Tensor)}
    others = {name: value for name, value in operands.items() if name not in tensors and value is not None}
    numbers = {name: float(value) for name, value in others.items()}
    options = "" if bits == "any" else written({"bits": bits})
    d: torch.Tensor = torch.ops.gemmill.moe(
        x, w1, w2, topk_ids, topk_weights, b2, x_scale, w1_scale, w2_scale, w1_zero, w2_zero,
        [*tensors.values()], [*tensors, *numbers], numbers=[*numbers.values()], activation=activation,
        w_dtype=None if w_dtype is None else dtype_named(w_dtype, "w_dtype"), out_dtype=out_dtype, options=options,
    )
    return d
# fmt: on


_PARAMETERS = tuple(name for name in inspect.signature(moe).parameters if name != "operands")


def _call(*positional: Any, **keywords: Any) -> Arguments:
    """All arguments of a call of the operator by name, with defaults."""
    schema = torch.ops.gemmill.moe.default._schema.arguments
    defaults = {x.name: x.default_value if x.has_default_value() else None for x in schema}
    return {**defaults, **dict(zip(defaults, positional, strict=False)), **keywords}


def _named(call: Arguments) -> dict[str, Any]:
    """The operands of the activation by name."""
    return dict(zip(call["names"], [*call["operands"], *call["numbers"]], strict=True))


def _on_gpu(*positional: Any, **keywords: Any) -> torch.Tensor:
    call = _call(*positional, **keywords)
    tensors = {name: call[name] for name in _KEYWORDS}
    dtype = call["out_dtype"]
    tensors["out"] = None if dtype is None else torch.empty_like(call["x"], dtype=dtype, memory_format=_PACKED)
    options, w_dtype = read(call["options"]), call["w_dtype"]
    result: torch.Tensor = launch_moe(tensors, call["activation"], _named(call), options, w_dtype=w_dtype)
    return result


_PACKED = torch.contiguous_format


def _elsewhere(x: torch.Tensor, *_: Any, **__: Any) -> torch.Tensor:
    raise not_on_gpu("x", x.device)


def _fake(*positional: Any, **keywords: Any) -> torch.Tensor:
    call = _call(*positional, **keywords)
    _check(call, read_epilogue(epilogue_of(call["activation"])))
    x: torch.Tensor = call["x"]
    return x.new_empty(x.shape, dtype=_out_dtype(call))


def _out_dtype(call: Arguments) -> torch.dtype:
    dtype: torch.dtype = call["out_dtype"] or outputs.d_dtype(call["x"].dtype, call["x"].dtype)
    return dtype


def _check(call: Arguments, activation: Epilogue) -> None:
    """Raise an error for shapes and operands that do not fit, and for an activation that writes further tensors."""
    if activation.outputs:
        raise OperandError(
            f"the activation `{activation}` writes {activation.outputs[0].name}, and gemmill::moe returns only its "
            "result: call gemmill.moe under torch.no_grad(), or leave it out"
        )
    refuse_activation(activation)
    check_names(activation, _named(call))
    given, narrow = [name for name in _KEYWORDS if call[name] is not None], _is_narrow(call)
    if narrow:
        narrow_experts.check_scales_of_tokens(dtype_named(call["x"].dtype, "x"), given)
        narrow_experts.check_presence(_w_dtype(call), given)
    else:
        refuse_scales(given, dtype_named(call["x"].dtype, "x"))
        if call["x_scale"] is not None:
            check_scales({name: dtype_named(call[name].dtype, name) for name in SCALES})
    x, w1, w2, ids = (call[name] for name in _KEYWORDS[:4])
    ranks = x.dim(), w1.dim(), w2.dim(), ids.dim()
    torch._check(
        ranks == (2, 3, 3, 2),
        lambda: (
            f"x, w1, w2 and topk_ids have {ranks} extents; expected (tokens, H), (experts, N, H), (experts, H, F) "
            "and (tokens, slots)"
        ),
    )
    in_byte = _elements_in_byte(call)
    extents = LayerExtents(ids.shape[0], ids.shape[1], w2.shape[0], x.shape[1], in_byte * w2.shape[2])
    shapes = layer_shapes(extents, activation, narrow)
    if narrow:
        scales = {name: call[name].shape for name in given}
        dtypes = _w_dtype(call), dtype_named(x.dtype, "x")
        shapes |= narrow_experts.shapes_of_groups(*dtypes, scales, shapes["w1"], shapes["w2"])
    for name in ("w1", "w2") if in_byte > 1 else ():
        shapes[name] = (*shapes[name][:2], shapes[name][2] // in_byte)
    for name, shape in shapes.items():
        if (tensor := call.get(name)) is not None:

            def says(name: str = name, shape: Any = shape, given: Any = tensor.shape) -> str:
                return f"{name} has shape {(*given,)}; it must have shape {(*shape,)}"

            torch._check(tensor.dim() == len(shape), says)
            for axis, extent in enumerate(shape):
                torch._check(tensor.shape[axis] == extent, says)
    sums = w1.shape[1]
    if isinstance(sums, int) and (fault := fault_of_n(activation, sums)):
        raise OperandError(f"w1 has shape {(*w1.shape,)}, so N is {sums}: {fault}")


def _w_dtype(call: Arguments) -> DTypeName:
    name: DTypeName = call["w_dtype"] or dtype_named(call["w1"].dtype, "w1")
    return name


def _is_narrow(call: Arguments) -> bool:
    """Whether the weights are narrower than the tokens."""
    return upconverts_a(_w_dtype(call), dtype_named(call["x"].dtype, "x"))


def _elements_in_byte(call: Arguments) -> int:
    return 2 if DTYPES[_w_dtype(call)].bits == 4 else 1


def _wide(x: torch.Tensor) -> torch.Tensor:
    return x.to(torch.promote_types(x.dtype, torch.float32))


class Routed(NamedTuple):
    """What :class:`gemmill.Routing` holds, by PyTorch, and the slot of each row."""

    offsets: torch.Tensor
    rows: torch.Tensor
    places: torch.Tensor
    order: torch.Tensor
    """The slot of each row among those of all tokens."""
    used: torch.Tensor
    """Whether each slot (tokens, slots) has an expert."""

    @classmethod
    def of(cls, ids: torch.Tensor, experts: int) -> Routed:
        """Sort the slots of tokens by their experts."""
        used = (ids >= 0) & (ids < experts)
        order = torch.where(used, ids, experts).flatten().argsort(stable=True)
        ends = torch.arange(experts, device=ids.device)
        in_order = torch.where(used, ids, experts).flatten()[order].contiguous()
        offsets = torch.searchsorted(in_order, ends.to(in_order.dtype), right=True).int()
        places = torch.empty_like(order).scatter(0, order, torch.arange(order.shape[0], device=ids.device))
        return cls(offsets, order // max(1, ids.shape[1]), places.view(ids.shape), order, used)

    def summed(self, rows: torch.Tensor) -> torch.Tensor:
        """Add up the rows of each token, in float32 or wider."""
        of_slots = _wide(rows[self.places.flatten()]).view(*self.used.shape, rows.shape[1])
        return torch.where(self.used[..., None], of_slots, 0).sum(1)

    def weights(self, weights: torch.Tensor | None) -> torch.Tensor:
        """The weight of each row, in float32 or wider; 0 for a row without an expert."""
        of_slots = self.used.float() if weights is None else torch.where(self.used, _wide(weights), 0)
        return of_slots.flatten()[self.order]


def reference(*positional: Any, **keywords: Any) -> torch.Tensor:
    """Compute the operator on any device, with PyTorch."""
    call = _call(*positional, **keywords)
    text = epilogue_of(call["activation"])
    _check(call, read_epilogue(text))
    of_inner = {}
    if _is_narrow(call):
        x, w1, w2 = call["x"], *(_upconverted(call, name) for name in ("w1", "w2"))
        if call["x_scale"] is not None:
            x, of_inner = x.float() * call["x_scale"], {"out_dtype": w2.dtype}
    else:
        x, w1, w2 = (_dequantised(call[name], call[f"{name}_scale"]) for name in ("x", "w1", "w2"))
    routed = Routed.of(call["topk_ids"], w2.shape[0])
    groups, named = {"offsets": routed.offsets}, _named(call)
    if (x_scale := call["x_scale"]) is None or _is_narrow(call):
        inner = reference_operators.epilogue(text, x[routed.rows], w1.mT, {**named, **groups}, **of_inner)[0]
    else:
        e4m3 = {"out_dtype": call["x"].dtype}
        text = quantising(text, dtype_named(x_scale.dtype, "x_scale"))
        inner = _dequantised(*reference_operators.epilogue(text, x[routed.rows], w1.mT, {**named, **groups}, **e4m3))
    bias = {} if call["b2"] is None else {"b2": call["b2"]}
    of_second = "d = acc + b2[n]" if bias else "d = acc"
    y = reference_operators.epilogue(of_second, inner, w2.mT, {**bias, **groups})[0]
    weighted = _wide(y) * routed.weights(call["topk_weights"])[:, None]
    return routed.summed(weighted).to(_out_dtype(call))


def _upconverted(call: Arguments, name: str) -> torch.Tensor:
    """Narrow weights in the dtype of the rows that they multiply; in f32 beside e4m3."""
    scale, zero = call[f"{name}_scale"], call[f"{name}_zero"]
    dtype = call["x"].dtype if name == "w1" else outputs.d_dtype(call["x"].dtype, call["x"].dtype)
    like = call["x"].new_empty(0, call[name].shape[2] * _elements_in_byte(call), dtype=dtype)
    narrow = {"b_scale": scale, "b_zero": zero, "b_dtype": call["w_dtype"]}
    like, wide, *_ = reference_operators.dequantised(like, call[name].mT, **narrow)
    return wide.mT.to(like.dtype)


def _dequantised(x: torch.Tensor, scale: torch.Tensor | None) -> torch.Tensor:
    """Multiply each block of the last extent, or of the last two of weights, by its scale."""
    if scale is None:
        return x
    scale = scale.float()
    for axis in (-1, -2)[: 1 + (x.dim() == 3)]:
        scale = scale.repeat_interleave(SCALE_BLOCK, dim=axis).narrow(axis, 0, x.shape[axis])
    return x.float() * scale


def backward(call: Arguments, grads: Sequence[Any], wanted: frozenset[str]) -> Gradients:
    """Gradients of a layer. The first product and its activation are computed again."""
    (g,) = grads
    x, w1, w2, b2 = (call[name] for name in ("x", "w1", "w2", "b2"))
    if call["x_scale"] is not None or _is_narrow(call):
        raise OperandError(
            f"{', '.join(sorted(wanted))} requires a gradient, and a layer of {_w_dtype(call)} weights has none: call "
            "it under torch.no_grad()"
        )
    if "topk_ids" in wanted:
        raise OperandError("gemmill::moe has no gradient of topk_ids: pass whole numbers")
    routed, text = Routed.of(call["topk_ids"], w2.shape[0]), epilogue_of(call["activation"])
    epilogue_rule.refuse_parts(read_epilogue(text), grads)
    weights, of_rows = routed.weights(call["topk_weights"]), g.to(x.dtype)[routed.rows]
    options = for_gradient(call["options"])
    names = {"x": "a", "w1": "b"}
    of_first = frozenset(names.get(name, name) for name in wanted - {"w2", "b2", "topk_weights"})
    of_call = {"a_dtype": None, "b_dtype": None, "options": options, "numbers": call["numbers"]}
    groups = {"offsets": routed.offsets, "rows": routed.rows.int()}
    operands = {"operands": [*groups.values(), *call["operands"]], "names": [*groups, *call["names"]]}
    first = epilogue_rule.Recomputation(
        {**of_call, **operands, "expression": text, "a": _aligned(x), "b": w1.mT},
        of_first,
        lambda of_rows, *_: routed.summed(of_rows).to(x.dtype),
    )
    d = first.d
    in_use = rows_in_use(d, routed.offsets, None)
    inner = torch.where(in_use, d, 0).to(x.dtype)
    nothing = dict.fromkeys(("a_scale", "b_scale", "c", "beta", "counts"))
    second = {
        **nothing, "a": inner, "b": w2.mT, "offsets": routed.offsets, "alpha": 1.0, "options": options,
    }  # fmt: skip
    weighted = torch.where(in_use, of_rows * weights[:, None], 0).to(x.dtype)
    gradients: Gradients = {}
    if "w2" in wanted:
        gradients["w2"] = product_rules.of_groups(second, [weighted], frozenset(("b",)))["b"].mT
    if b2 is not None:
        group = reference_operators.groups_of_rows(routed.offsets, of_rows.shape[0])
    if "b2" in wanted:
        gradients["b2"] = torch.zeros_like(_wide(b2)).index_add(0, group, _wide(weighted)).to(b2.dtype)
    before = wanted - {"w2", "b2"}
    if not before:
        return gradients
    of_inner = product_rules.of_groups(second, [of_rows], frozenset(("a",)))["a"]
    if "topk_weights" in wanted:
        products = (_wide(inner) * _wide(of_inner)).sum(-1)
        if b2 is not None:
            products = products + (_wide(of_rows) * _wide(b2)[group]).sum(-1)
        of_slots = products[routed.places.flatten()].view(routed.used.shape)
        gradients["topk_weights"] = torch.where(routed.used, of_slots, 0).to(call["topk_weights"].dtype)
    if of_first:
        found = first.backward([(of_inner * weights[:, None]).to(x.dtype)])
        if "x" in wanted:
            gradients["x"] = found.pop("a")
        if "w1" in wanted:
            gradients["w1"] = found.pop("b").mT
        gradients |= found
    return gradients


def _aligned(x: torch.Tensor) -> torch.Tensor:
    """Tokens whose rows kernels can gather: a copy where they do not start at multiples of 16 bytes."""
    fits = x.is_contiguous() and x.storage_offset() * x.element_size() % TMA_ALIGN == 0
    return x if fits else x.clone(memory_format=_PACKED)


def run_on_cpu() -> None:
    """Let the operator also run on CPU tensors."""
    LIBRARY.impl("moe", _on_cpu, "CPU")


def _on_cpu(*positional: Any, **keywords: Any) -> torch.Tensor:
    """Compute the operator. Refuses what the launch on a GPU refuses, but for f64, in which gradients are checked."""
    call = _call(*positional, **keywords)
    if call["x"].dtype != torch.float64:
        _check_as_on_gpu(call)
    return reference(*positional, **keywords)


def _check_as_on_gpu(call: Arguments) -> None:
    """Raise what the layer raises on a GPU before it selects kernels, by binding views of the tensors."""
    activation = read_epilogue(epilogue_of(call["activation"]))
    _check(call, activation)
    tensors = {**call, "topk_ids": call["topk_ids"].int()}
    views = {name: view_anywhere(tensors[name], name) for name in _KEYWORDS if tensors[name] is not None}
    if call["w_dtype"] is not None:
        views = narrow_experts.elements_of(views, call["w_dtype"])
    layer_extents(views, activation)
    views["out"] = view_anywhere(call["x"].new_empty(call["x"].shape, dtype=_out_dtype(call)), "out")
    named = {name: view_anywhere(x, name) if isinstance(x, torch.Tensor) else x for name, x in _named(call).items()}

    def allocate(shape: tuple[int, ...], dtype: DTypeName) -> TensorView:
        return view_anywhere(torch.empty(shape, dtype=outputs.torch_dtype(dtype)), "memory")

    layer = bind_layer(views, call["activation"], named, {**read(call["options"]), "stream": 0}, allocate)
    for product in (layer.first, layer.second):
        check(product)
        product.bound  # noqa: B018 - it raises an error for what does not fit


LIBRARY.define(_SCHEMA, tags=(torch.Tag.pt2_compliant_tag, torch.Tag.needs_exact_strides))
LIBRARY.impl("moe", _elsewhere, "CompositeExplicitAutograd")
LIBRARY.impl("moe", _on_gpu, "CUDA")
torch.library.register_fake("gemmill::moe", _fake, lib=LIBRARY)
autograd.register(LIBRARY, "moe", "Autograd", autograd.Rule(backward))
batching.register(LIBRARY, "moe")
