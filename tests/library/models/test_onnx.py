"""Problems of ONNX graphs: which operand is a weight, majors, types, symbols, and what is left out."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from onnx import TensorProto, helper
from tests.cases import onnx_graphs
from tests.cases.onnx_graphs import graph, weight

from gemmill.library.errors import GemmillError, ProblemError, RecordError
from gemmill.library.models.fields import Notes
from gemmill.library.models.onnx_products import onnx_problems
from gemmill.library.models.problems import Deployment

HALF, SINGLE, S8, U8 = TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.INT8, TensorProto.UINT8


def texts(path: Path, content: bytes, notes: Notes | None = None, **passed: Any) -> dict[str, int]:
    """Counts of the problems as lines."""
    path.write_bytes(content)
    found = onnx_problems(path, Deployment(**passed), Notes() if notes is None else notes)
    return {str(each.problem): each.count for each in found}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "graph.onnx"


def test_symbols_are_the_number_of_tokens_or_have_values(file: Path) -> None:
    notes = Notes()
    assert texts(file, onnx_graphs.decoder(), notes, tokens=(7,)) == {"7x128x64 f16 tt": 2, "7x128x64 f16 tn": 3}
    assert [*notes.left_out] == [
        "C of Gemm, which is added",
        "2 x MatMul: two activations with extents batch x seq; --dims passes them",
        "1 x Conv, which is no product of two matrices",
        "1 x MatMulNBits, whose operands gemmill does not read",
    ]
    assert [*notes.assumed] == [
        "batch x seq of products with weights is the number of tokens; --dims passes each",
        "batch of products with weights is the number of tokens; --dims passes each",
        "layers that read the same input stay apart, as in the graph",
    ]
    notes = Notes()
    assert texts(file, onnx_graphs.decoder(), notes, dims={"batch": 2, "seq": 32}, tokens=(7,)) == {
        "64x128x64 f16 tt": 2,
        "64x128x64 f16 tn": 2,
        "32x32x128x2 f16 tn": 2,
        "2x128x64 f16 tn": 1,
    }
    assert "the numbers of tokens, since the graph has all extents" in notes.left_out
    with pytest.raises(RecordError, match=r"--dims has 'sq', did you mean seq\?; the graph has batch, seq"):
        texts(file, onnx_graphs.decoder(), dims={"sq": 1})


def test_a_known_factor_of_the_rows_is_named_too(file: Path) -> None:
    notes = Notes()
    node = helper.make_node("MatMul", ["x", "w"], ["d"])
    content = graph([node], {"x": (HALF, [2, "seq", 8])}, [weight("w", [8, 16])])
    assert texts(file, content, notes, tokens=(7,)) == {"7x16x8 f16 tt": 1}
    assert "2 x seq of products with weights is the number of tokens; --dims passes each" in notes.assumed


def test_a_function_that_calls_itself_is_an_error(file: Path) -> None:
    node = helper.make_node("F", ["a"], ["d"], domain="own")
    versions = [helper.make_opsetid("", 21), helper.make_opsetid("own", 1)]
    function = helper.make_function("own", "F", ["a"], ["d"], [node], versions)
    made = helper.make_graph([node], "graph", [helper.make_tensor_value_info("a", HALF, [4])], [])
    file.write_bytes(helper.make_model(made, functions=[function], opset_imports=versions).SerializeToString())
    with pytest.raises(RecordError, match="onnx cannot infer extents"):
        onnx_problems(file, Deployment(), Notes())


def test_layers_have_their_names(file: Path) -> None:
    file.write_bytes(onnx_graphs.decoder())
    first, second = onnx_problems(file, Deployment(tokens=(1,)), Notes())
    assert first.layers == ("/layers.*/q_proj/MatMul",)
    assert second.layers == ("/layers.*/k_proj/MatMul", "logits")
    node = helper.make_node("MatMul", ["x", "w"], ["d"], name="a\n  - {m: 1}\x1b[2J")
    file.write_bytes(graph([node], {"x": (HALF, [4, 8])}, [weight("w", [8, 8])]))
    (only,) = onnx_problems(file, Deployment(), Notes())
    assert only.layers == ("a?  - {m: 1}?[2J",)


@pytest.mark.parametrize(
    ("equation", "a", "b", "text"),
    [
        ("bsk,nk->bsn", [2, 3, 8], [16, 8], "6x16x8 f16 tn"),
        ("mk,kn", [3, 8], [8, 16], "3x16x8 f16 tt"),
        ("mk,kn->nm", [3, 8], [8, 16], "16x3x8 f16 nn"),
        ("bhqd,bhkd->bhqk", [2, 4, 5, 8], [2, 4, 6, 8], "5x6x8x8 f16 tn"),
        ("km,kn->mn", [8, 3], [8, 5], "3x5x8 f16 nt"),
        ("bshd,hdn->bsn", [2, 3, 4, 8], [4, 8, 16], "6x16x32 f16 tt"),
        ("bhqd,bkhd->bhqk", [2, 4, 5, 8], [2, 6, 4, 8], ""),
        ("ii,ij->j", [4, 4], [4, 4], ""),
        ("ab,cd->abcd", [4, 4], [4, 4], ""),
        ("a...b,bc->a...c", [4, 4, 4], [4, 4], ""),
        ("ab" * 60 + ",bc", [4, 4], [4, 4], ""),
    ],
)
def test_einsum_where_it_is_a_product(equation: str, a: list[int], b: list[int], text: str, file: Path) -> None:
    content = graph(
        [helper.make_node("Einsum", ["a", "b"], ["d"], equation=equation)], {"a": (HALF, a), "b": (HALF, b)}
    )
    if text:
        assert texts(file, content) == {text: 1}
    else:
        with pytest.raises(ProblemError, match=r"Einsum: '.*' is no product of two matrices"):
            texts(file, content)


@pytest.mark.parametrize(
    ("trans_a", "trans_b", "text"), [(0, 0, "tt"), (1, 0, "nt"), (0, 1, "tn"), (1, 1, "nn")], ids=str
)
def test_gemm_names_the_majors(trans_a: int, trans_b: int, text: str, file: Path) -> None:
    node = helper.make_node("Gemm", ["a", "w"], ["d"], transA=trans_a, transB=trans_b)
    a, w = [8, 4] if trans_a else [4, 8], [16, 8] if trans_b else [8, 16]
    assert texts(file, graph([node], {"a": (SINGLE, a)}, [weight("w", w, SINGLE)])) == {f"4x16x8 f32 {text}": 1}


def test_a_factor_of_gemm_is_left_out_and_an_absent_c_is_not(file: Path) -> None:
    notes = Notes()
    nodes = [helper.make_node("Gemm", ["a", "w", ""], ["d"], alpha=2.0)]
    assert texts(file, graph(nodes, {"a": (HALF, [4, 8])}, [weight("w", [8, 16])]), notes) == {"4x16x8 f16 tt": 1}
    assert [*notes.left_out] == ["alpha of Gemm, a factor of the product"]


def test_integers_and_what_surrounds_them(file: Path) -> None:
    zero, scale = weight("zero", [], S8), weight("scale", [], SINGLE)
    inputs: dict[str, tuple[int, Sequence[int | str]]] = {"a": (U8, [4, 8]), "x": (SINGLE, ["n", 8])}
    weights = [weight("w", [8, 16], S8), zero, scale]
    nodes = [
        helper.make_node("MatMulInteger", ["a", "w"], ["d"]),
        helper.make_node("DequantizeLinear", ["w", "scale"], ["wide"]),
        helper.make_node("MatMul", ["x", "wide"], ["y"]),
        helper.make_node("QLinearMatMul", ["a", "scale", "zero", "w", "scale", "zero", "scale", "zero"], ["q"]),
    ]
    notes = Notes()
    found = texts(file, graph(nodes, inputs, weights), notes, tokens=(3,), dtype="bf16")
    assert found == {"4x16x8 u8*s8 tt": 2, "3x16x8 bf16 tt": 1}
    assert "operands in INT8 are dequantised to FLOAT beforehand" in notes.assumed
    assert "scales and zero points of QLinearMatMul; D is the sum in s32" in notes.left_out


def test_products_in_branches_are_counted(file: Path) -> None:
    inner = helper.make_graph(
        [helper.make_node("MatMul", ["a", "a"], ["r"])], "branch", [], [helper.make_empty_tensor_value_info("r")]
    )
    nodes = [
        helper.make_node("If", ["c"], ["r"], then_branch=inner, else_branch=inner),
        helper.make_node("MatMul", ["a", "a"], ["d"]),
    ]
    notes = Notes()
    assert texts(file, graph(nodes, {"c": (TensorProto.BOOL, []), "a": (HALF, [8, 8])}), notes) == {"8x8x8 f16 tt": 1}
    assert "2 x products in branches, loops and functions" in notes.left_out


@pytest.mark.parametrize(
    ("passed", "option"),
    [({"tp": 2}, "tp"), ({"training": True}, "training"), ({"quantization": "fp8"}, "quantization")],
)
def test_options_that_do_not_apply_are_errors(passed: dict[str, Any], option: str, file: Path) -> None:
    with pytest.raises(ProblemError, match=f"--{option} is passed, but an ONNX graph has its products as they run"):
        texts(file, onnx_graphs.decoder(), **passed)


@pytest.mark.parametrize(
    "content", [b"", b"{}", os.urandom(64), onnx_graphs.decoder()[:-50]], ids=["", "{}", "?", "cut"]
)
def test_what_is_no_graph_is_named(content: bytes, file: Path) -> None:
    with pytest.raises(RecordError, match=r"graph\.onnx: the file is damaged, or is no ONNX graph"):
        texts(file, content)


@given(st.data())
def test_damaged_graphs_are_errors(data: st.DataObject) -> None:
    """Bytes replaced: problems, or an error of one line."""
    content = bytearray(onnx_graphs.decoder())
    for place in data.draw(st.lists(st.integers(0, len(content) - 1), min_size=1, max_size=8)):
        content[place] = data.draw(st.integers(0, 255))
    with TemporaryDirectory() as folder:
        passed = {} if data.draw(st.booleans()) else {"seq": 3}
        try:
            says = next(iter(texts(Path(folder) / "x.onnx", bytes(content), dims=passed)))
        except GemmillError as error:
            says = str(error)
    assert says.isprintable()
