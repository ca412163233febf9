"""Atoms and tilings: values that CUTLASS's page "CuTe's support for Matrix Multiply-Accumulate instructions" states,
and the tables of tensor-layouts."""

from __future__ import annotations

import re

import pytest

from gemmill.library.errors import LayoutError
from gemmill.library.layouts.algebra import coalesce
from gemmill.library.layouts.atoms import COPY_NAMES, MMA_EXAMPLES, CopyAtom, MmaAtom, copy_atom, mma_atom, shared_atom
from gemmill.library.layouts.evaluate import evaluate
from gemmill.library.layouts.layout import Layout, column_major
from gemmill.library.layouts.tiled import MODES, Owner, TiledMma
from gemmill.library.layouts.tuples import crd2idx

NT = "SM70_8x8x4_F32F16F16F32_NT"


def atom(name: str) -> MmaAtom:
    found = mma_atom(name)
    assert found is not None
    return found


def tiled(text: str) -> TiledMma:
    found = evaluate(text)
    assert isinstance(found, TiledMma)
    return found


def held(mma: TiledMma, thread: int) -> list[tuple[int, int]]:
    """Coordinates (m,k) of the values of A that a thread holds, in order."""
    rows = mma.shape_mnk[0]
    found = {who.value: where for where, owners in mma.owners("A").items() for who in owners if who.thread == thread}
    return [(found[value] % rows, found[value] // rows) for value in sorted(found)]


def test_the_quadpair_s_threads_are_two_quads_of_a_warp() -> None:
    threads = atom(NT).thread_ids
    assert str(threads) == "(4,2):(1,16)"
    assert [threads(thread) for thread in range(8)] == [0, 1, 2, 3, 16, 17, 18, 19]


def test_the_quadpair_s_accumulators_are_where_the_page_says() -> None:
    c = atom(NT).c
    assert str(c) == "((2,2,2),(2,2,2)):((1,16,4),(8,2,32))"
    assert [c((thread, 0)) for thread in range(8)] == [0, 1, 16, 17, 4, 5, 20, 21]
    assert [c((0, value)) for value in range(8)] == [0, 8, 2, 10, 32, 40, 34, 42]
    assert str(atom("SM70_8x8x4_F16F16F16F16_TN").c) == "(8,8):(1,8)"


def test_the_quadpair_s_operands_follow_the_transposes() -> None:
    along, across = "(8,4):(1,8)", "((4,2),4):((8,4),1)"
    cases = {"TN": (along, along), "NT": (across, across), "NN": (across, along), "TT": (along, across)}
    for transposes, of_both in cases.items():
        found = atom(f"SM70_8x8x4_F32F16F16F32_{transposes}")
        assert (str(found.a), str(found.b)) == of_both


@pytest.mark.parametrize("name", ["SM90_64x128x16_F16F16F16F16_TN", "SM90_64x128x16_F16F16F16_SS"])
def test_a_warpgroup_s_layouts_are_those_of_the_page(name: str) -> None:
    found = atom(name)
    assert str(found.thread_ids) == "128:1"
    assert str(found.c) == "((4,8,4),(2,2,16)):((128,1,16),(64,8,512))"
    assert str(found.a) == "(128,(64,16)):(0,(1,64))"
    c = found.c
    assert c((0, 2)) == 8, "the core matrix below is the thread's, too"
    assert c((32, 0)) == 16, "the next warp is sixteen rows on"
    assert c((0, 4)) == 512, "and the next eight columns follow"


def test_an_fma_is_one_thread_s() -> None:
    found = atom("UniversalFMA")
    assert (found.shape_mnk, str(found.thread_ids), str(found.c)) == ((1, 1, 1), "1:0", "(1,1):(0,0)")


def test_four_quadpairs_are_a_warp() -> None:
    mma = tiled(f"make_tiled_mma({NT}, (2,2):(2,1))")
    assert mma.shape_mnk == (16, 16, 4)
    assert {who.thread for owners in mma.owners("C").values() for who in owners} == {*range(32)}


def test_a_wider_tile_gives_a_thread_eight_values_apart_and_a_permutation_puts_them_together() -> None:
    wide = tiled(f"make_tiled_mma({NT}, (2,2):(2,1), (32,32,4))")
    assert held(wide, 0) == [(m, 0) for m in (0, 1, 2, 3, 16, 17, 18, 19)]
    permuted = tiled(f"make_tiled_mma({NT}, (2,2):(2,1), ((4,4,2):(1,8,4),32,4))")
    assert held(permuted, 0) == [(m, 0) for m in range(8)]
    permutation = evaluate("(4,4,2):(1,8,4)")
    assert isinstance(permutation, Layout)
    assert [permutation(m) for m in range(32)] == [
        *(0, 1, 2, 3, 8, 9, 10, 11, 16, 17, 18, 19, 24, 25, 26, 27),
        *(4, 5, 6, 7, 12, 13, 14, 15, 20, 21, 22, 23, 28, 29, 30, 31),
    ]
    assert wide.owners("B") == permuted.owners("B"), "only M is permuted"


def test_n_and_k_are_permuted_as_m_is() -> None:
    wide = "make_tiled_mma(SM80_16x8x8_F32F16F16F32_TN, (1,1), (16,{0},{0}))"
    mma, plain = tiled(wide.format("(8,2):(2,1)")), tiled(wide.format(16))

    def new(old: int) -> int:
        return 2 * old % 16 + old // 8

    (b, c), (plain_b, plain_c) = ([each.owners("B"), each.owners("C")] for each in (mma, plain))
    for n in range(16):
        for other in range(16):
            assert b[new(n) + 16 * new(other)] == plain_b[n + 16 * other]
            assert c[other + 16 * new(n)] == plain_c[other + 16 * n]


@pytest.mark.parametrize("name", [re.sub(r"_64x\d+", "_64x16", name) for name in MMA_EXAMPLES])
def test_every_operand_is_held_whole(name: str) -> None:
    mma = TiledMma(atom(name), column_major((2, 1, 1)), (None, None, None))
    for operand, (rows, columns) in MODES.items():
        owners = mma.owners(operand)
        assert {*owners} == {*range(mma.shape_mnk[rows] * mma.shape_mnk[columns])}
        layout = mma.thread_values(operand)
        threads = {who.thread for holders in owners.values() for who in holders}
        for where, holders in owners.items():
            assert all(crd2idx((who.thread, who.value), layout.shape, layout.stride) == where for who in holders)
        assert operand != "C" or len(threads) == mma.threads.size
    assert all(len(holders) == 1 for holders in mma.owners("C").values())


def test_copies_of_k_hold_the_same_accumulators() -> None:
    mma = TiledMma(atom("SM80_16x8x8_F32F16F16F32_TN"), column_major((1, 1, 2)), (None, None, None))
    assert mma.owners("C")[0] == [Owner(0, 0), Owner(32, 0)]
    assert mma.thread_values("C")((32, 0)) == 0


def test_ldmatrix_gives_each_quad_a_row() -> None:
    copy = copy_atom("SM75_U32x4_LDSM_N", "half_t")
    assert isinstance(copy, CopyAtom)
    assert (str(copy.source), str(copy.target)) == ("(32,8):(8,1)", "(32,(2,4)):(2,(1,64))")
    transposed = copy_atom("SM75_U16x8_LDSM_T", "half_t")
    assert isinstance(transposed, CopyAtom)
    assert [transposed.target((0, value)) for value in range(4)] == [0, 8, 64, 72], "down a column, then on"


def test_shared_memory_of_a_warpgroup_is_swizzled_by_rows_of_bytes() -> None:
    half, byte = shared_atom("Layout_K_SW128_Atom", "half_t"), shared_atom("Layout_MN_SW64_Atom", "e4m3")
    assert str(half) == "Sw<3,3,3> o 0 o (8,64):(64,1)"
    assert str(byte) == "Sw<2,4,3> o 0 o (64,8):(1,64)"


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("SM80_16x8x17_F32F16F16F32_TN", "MxNxK must be 16x8x8 or 16x8x16"),
        ("SM75_16x8x32_S32S8S8S32_TN", "MxNxK must be 8x8x16"),
        ("SM75_16x8x16_F32BF16BF16F32_TN", "SM80_16x8x8 or SM80_16x8x16"),
        ("SM90_64x100x16_F32F16F16_SS", "64xNx16 with N = 8, 16, ..., 256"),
        ("SM80_16x8x16_F16BF16BF16F16_TN", "D is F16; for BF16 it must be F32"),
        ("SM80_16x8x16_F32F16BF16F32_TN", "F16 x BF16 is not supported"),
    ],
)
def test_a_name_of_no_instruction_says_what_there_is(name: str, says: str) -> None:
    with pytest.raises(LayoutError, match=says):
        mma_atom(name)


def test_atoms_are_those_of_tensor_layouts() -> None:
    other = pytest.importorskip("tensor_layouts.atoms_nv", reason="an oracle; pip install tensor-layouts")
    compared = 0
    for name, theirs in vars(other).items():
        # B of this one, there and in CUTLASS 4.2, gives elements of K to two threads; ours follows the PTX ISA.
        if not hasattr(theirs, "c_layout") or "SPARSE" in name or name == "SM80_16x8x32_S32S4S4S32_TN":
            continue
        try:
            ours = mma_atom(name)
        except LayoutError:  # it has some under names that CUTLASS does not have
            continue
        if ours is not None:
            compared += 1
            for mine, its in ((ours.a, theirs.a_layout), (ours.b, theirs.b_layout), (ours.c, theirs.c_layout)):
                assert coalesce(mine, (1, 1)) == coalesce(Layout(its.shape, its.stride), (1, 1)), name
    assert compared > 60
    for name in COPY_NAMES:
        if (theirs := vars(other).get(name)) is not None:
            copy = copy_atom(name, None)
            assert copy is not None
            assert str(copy.source) == str(theirs.src_layout_bits).replace(" ", ""), name
            assert str(copy.target) == str(theirs.dst_layout_bits).replace(" ", ""), name
