"""ONNX graphs as exporters write them: a decoder's layer with weights in another file, and single products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from onnx import TensorProto, helper

ELSEWHERE = "../../../etc/passwd"
"""Where the weights are said to be; nobody opens it."""


def weight(name: str, extents: Sequence[int], dtype: int = TensorProto.FLOAT16) -> TensorProto:
    """A weight in another file."""
    tensor = TensorProto(name=name, dims=extents, data_type=dtype, data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=ELSEWHERE)
    return tensor


def graph(
    nodes: Sequence[Any], inputs: dict[str, tuple[int, Sequence[int | str]]], weights: Sequence[TensorProto] = ()
) -> bytes:
    """A file with nodes; inputs have types and extents."""
    values = [helper.make_tensor_value_info(name, dtype, extents) for name, (dtype, extents) in inputs.items()]
    result = helper.make_empty_tensor_value_info(nodes[-1].output[0])
    made = helper.make_graph(nodes, "graph", values, [result], weights)
    versions = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
    content: bytes = helper.make_model(made, opset_imports=versions).SerializeToString()
    return content


def decoder() -> bytes:
    """Two layers of 64 features; the scores of attention; a convolution and an operator of another domain."""
    nodes: list[Any] = []
    for layer in range(2):
        place = f"/layers.{layer}"
        nodes += [
            helper.make_node("MatMul", ["x", "w_q"], [f"q{layer}"], name=f"{place}/q_proj/MatMul"),
            helper.make_node("Transpose", ["w_k"], [f"w_kt{layer}"], perm=[1, 0]),
            helper.make_node("MatMul", ["x", f"w_kt{layer}"], [f"k{layer}"], name=f"{place}/k_proj/MatMul"),
            helper.make_node("Transpose", [f"k{layer}"], [f"kt{layer}"], perm=[0, 2, 1]),
            helper.make_node("MatMul", [f"q{layer}", f"kt{layer}"], [f"s{layer}"], name=f"{place}/scores"),
        ]
    nodes += [
        helper.make_node("Conv", ["image", "w_c"], ["c"]),
        helper.make_node("MatMulNBits", ["x"], ["packed"], domain="com.microsoft"),
        helper.make_node("Gemm", ["pooled", "w_k", "bias"], ["logits"], transB=1),
    ]
    half = TensorProto.FLOAT16
    inputs: dict[str, tuple[int, Sequence[int | str]]] = {
        "x": (half, ["batch", "seq", 64]),
        "pooled": (half, ["batch", 64]),
        "image": (half, [1, 3, 8, 8]),
    }
    shapes = {"w_q": [64, 128], "w_k": [128, 64], "bias": [128], "w_c": [4, 3, 2, 2]}
    return graph(nodes, inputs, [weight(name, extents) for name, extents in shapes.items()])
