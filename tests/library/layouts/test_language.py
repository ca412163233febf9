"""Expressions: values that texts on CuTe state, and where a wrong text is wrong."""

from __future__ import annotations

import pytest

from gemmill.library.errors import LayoutError
from gemmill.library.layouts.evaluate import evaluate
from gemmill.library.layouts.functions import FUNCTIONS
from gemmill.library.layouts.picture import grids
from gemmill.library.layouts.syntax import MOST_CHARACTERS, MOST_NESTED
from gemmill.library.layouts.values import text

EXAMPLE = "(3,(2,3)):(3,(12,1))"

DING = {
    "(2,3):(1,2)": [[0, 2, 4], [1, 3, 5]],
    "(2,3):(3,1)": [[0, 1, 2], [3, 4, 5]],
    "((2,2),2):((4,2),1)": [[0, 1], [4, 5], [2, 3], [6, 7]],
    "(8,(2,2)):(2,(1,16))": [[2 * row + column for column in (0, 1, 16, 17)] for row in range(8)],
    EXAMPLE: [[3 * row + column for column in (0, 12, 1, 13, 2, 14)] for row in range(3)],
    "8:1": [[*range(8)]],
    "8:2": [[*range(0, 16, 2)]],
    "(4,2):(2,1)": [[0, 1], [2, 3], [4, 5], [6, 7]],
    "((4,2)):((2,1))": [[0, 2, 4, 6, 1, 3, 5, 7]],
    "((4,2)):((1,4))": [[*range(8)]],
}
"""Tables of Bill Ding's text "深入 CUTLASS 之 CuTe 详解" (CuTe of CUTLASS in detail)."""


@pytest.mark.parametrize("layout", DING)
def test_tables_are_those_of_the_text(layout: str) -> None:
    (grid,) = grids(evaluate(layout))
    assert [[*map(int, row)] for row in grid.cells] == DING[layout]


VALUES = {
    # Ding: the coordinates of index 17, and both ways between them.
    f"get_1d_coord({EXAMPLE}, 17)": "16",
    f"get_flat_coord({EXAMPLE}, 17)": "(1,5)",
    f"get_hier_coord({EXAMPLE}, 17)": "(1,(1,2))",
    **{
        f"idx2crd({given}, (3,(2,3)))": "(1,(1,2))"
        for given in ("16", "_16", "(1,5)", "(_1,5)", "(1,(1,2))", "(_1,(1,_2))")
    },
    **{f"crd2idx({given}, (3,(2,3)), (3,(12,1)))": "17" for given in ("16", "(1,5)", "(_1,_5)", "(1,(1,2))")},
    **{f"{EXAMPLE}({given})": "15" for given in ("4", "1,1", "(1,1)")},  # where the text says 5
    "rank((2,(2,2)))": "2",
    "depth((2,(2,2)))": "2",
    "depth(7)": "0",
    "size((8,(2,2)):(2,(1,16)))": "32",
    "cosize((8,(2,2)):(2,(1,16)))": "32",
    "cosize(8:2)": "15",
    "get((2,(3,4)), 1, 0)": "3",
    "shape(((2,2),2):((4,2),1))": "((2,2),2)",
    "stride(((2,2),2):((4,2),1))": "((4,2),1)",
    # "CUTLASS: Principled Abstractions": its tiles of A and B; a TV layout over data, and a slice of that by a thread.
    "(64,16):(17,1)(1,1)": "18",
    "((32,3),16):((1,512),32)(33,1)": "545",
    "(4,8):(8,1) o ((2,4),4):((16,1),4)": "((2,4),4):((4,8),1)",
    "((2,4),4):((4,8),1)(3,_)": "Sw<0,4,3> o 12 o 4:1",
    "Shape_MNK(make_tiled_mma(SM70_8x8x4_F32F16F16F32_NT, (2,2):(2,1)))": "(16,16,4)",
    # The rest of the language.
    "(6,2):(8,2) o (4,3):(3,1)": "((2,2),3):((24,2),8)",
    "composition(20:2, (5,4):(4,1))": "(5,4):(8,2)",
    "coalesce((2,(1,6)):(1,(6,2)))": "12:1",
    "flatten((2,(1,6)):(1,(6,2)))": "(2,1,6):(1,6,2)",
    "filter((2,4):(0,3))": "4:3",
    "complement((2,2):(1,6), 24)": "(3,2):(2,12)",
    "make_layout((2,(3,4)))": "(2,(3,4)):(1,(2,6))",
    "make_layout((2,3), (3,1))": "(2,3):(3,1)",
    "make_layout(2:3, (2,2):(1,6))": "(2,(2,2)):(3,(1,6))",
    "make_ordered_layout((2,3,4), (2,0,1))": "(2,3,4):(12,1,3)",
    "Sw<3,4,3>(144)": "128",
    "Sw<2,3,3> o 8 o (4,8):(8,1)": "Sw<2,3,3> o 8 o (4,8):(8,1)",
    "Sw<2,3,3> \u2218 (4,8):(8,1) o 2:4": "Sw<2,3,3> o 0 o 2:1",
    "tile_to_shape(GMMA::Layout_K_SW128_Atom<half_t>, (8,128))": "Sw<3,3,3> o 0 o ((8,1),(64,2)):((64,0),(1,512))",
    "make_layout_tv((4,8):(8,1), (2,1):(1,0))": "((8,4),2):((8,2),1)",
    "get_layoutC_TV(SM70_8x8x4_F32F16F16F32_NT)(16,0)": "4",
    "SM90_64x64x16_F32F16F16_SS<GMMA::Major::K, GMMA::Major::MN>": "SM90_64x64x16_F32F16F16_SS",
    "ThrID(UniversalFMA<float>)": "1:0",
    "(8)": "(8)",
    "((4,2):(1,4))(3)": "3",
}


@pytest.mark.parametrize("expression", VALUES)
def test_expressions_have_the_values_that_are_stated(expression: str) -> None:
    assert text(evaluate(expression)) == VALUES[expression]


WRONG = {
    "": (0, "the text ends; expected a layout"),
    "(4,2):(1": (8, r"'\(' at column 7 is not closed"),
    "(4,2):(1,2) (": (13, "the text ends; expected|is not closed"),
    "(4,2) 7": (6, "write 'o' between layouts"),
    "(4,2):(1,4) $": (12, r"'\$' is not allowed here"),
    "complemnt((4,2):(1,4))": (0, "did you mean complement?"),
    "SM80_16x8x16_F32F16F16F33_TN": (0, "did you mean SM80_16x8x16_F32F16F16F32_TN?"),
    "SM75_U32x4_LDSM": (0, "did you mean SM75_U32x4_LDSM_N?"),
    "composition((4,2):(1,4), complement)": (25, r"complement\(layout\[, cosize\]\)"),
    "size(8:1, 2)": (0, r"size has 2 arguments; expected size\(of\)"),
    "complement((4,2), 24)": (11, r"did you mean make_layout\(\(4,2\)\)\?"),
    "2:1 o complement((4,2):(2,3), 24)": (6, "stride 3 is not a multiple of 8"),
    "(4,2):(1,4)(0,2)": (12, "coordinate 2 is outside a mode of shape 2; it must be from 0 to 1"),
    "(4,3):(1,10) o 6:1": (13, "the result is not a layout"),
    "(4,2):(1,4) o Sw<2,3,3>": (14, "the right side of 'o' is Sw<2,3,3>; it must be a layout"),
    "8:1 o (Sw<2,3,3> o (4,8):(8,1))": (4, "must be the leftmost term"),
    "(0,2):(1,2)": (0, "extents must be at least 1"),
    "8:-1": (0, "strides must be at least 0"),
    "upcast(8:1, 0)": (0, "n is 0; it must be at least 1"),
    "Sw<2,3>": (0, "three integers, for example Sw<3,4,3>"),
    "Sw<3,4,3>((1,2))": (10, "the argument of a swizzle is .1,2.; it must be an integer"),
    "right_inverse(Sw<2,3,3> o (4,8):(8,1))": (24, "does not support a swizzle"),
    "idx2crd(18, (3,(2,3)))": (0, "it must be from 0 to 17"),
    "get_hier_coord(4:2, 3)": (0, "no coordinate has it"),
    "get_1d_coord((4,2):(1,0), 3)": (0, "2 coordinates have it"),
    "get_1d_coord((4000,4000):(1,4000), 3)": (0, "16,000,000 cells"),
    "tv((4,2):(1,4), (2,2))": (0, "reaches coordinate 7"),
    "make_tiled_mma(SM80_16x8x8_F32F16F16F32_TN, (2,2), (40,16,8))": (0, "must be a multiple of 32"),
    "Copy_Atom<SM75_U32x4_LDSM_N, halft>": (0, "did you mean half_t?"),
    "Copy_Atom<SM75_U32x4_LDSM_N, double>": (0, "do not divide"),
    "SM80_16x8x8_F32F16F16F32_TN<half_t>": (0, "has no template parameter half_t"),
    "CLayout(make_tiled_mma(UniversalFMA, (2,2)))": (8, "did you mean get_layoutA_TV"),
    "9999999999999999999:1": (0, "at most 18 digits"),
    "(" * 50 + ")" * 50: (MOST_NESTED, "nested more than"),
    "1" + " " * MOST_CHARACTERS: (0, "characters"),
}


@pytest.mark.parametrize("expression", WRONG)
def test_an_error_says_where_and_why(expression: str) -> None:
    column, says = WRONG[expression]
    with pytest.raises(LayoutError, match=says) as told:
        evaluate(expression)
    assert told.value.column == column


def test_what_is_too_large_is_refused_by_name() -> None:
    with pytest.raises(LayoutError, match=r"a table of \(10000,1000\):\(1,10000\) has 10,000,000 cells"):
        grids(evaluate("make_layout((10000,1000))"))
    with pytest.raises(LayoutError, match=r"operand C of .* has 65,536 cells"):
        grids(evaluate("make_tiled_mma(SM90_64x256x16_F32F16F16_SS, (4,1))"))


def test_every_function_says_what_it_returns() -> None:
    assert all(function.says for function in FUNCTIONS.values())
    assert FUNCTIONS["crd2idx"].signature("crd2idx") == "crd2idx(coordinate, shape[, stride])"
    assert FUNCTIONS["get"].signature("get") == "get(of, i[, j[, k]])"
