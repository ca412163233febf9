"""Choice tables: read strictly, looked up as the format says, and equal to what the selector chooses."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from bisect import bisect_left
from collections.abc import Callable
from copy import deepcopy
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases.choices import ASKED, FILE, GPU, PROBLEMS, chosen, document, made, selector, table
from tests.runtime.storage.test_hostile import changed, values

from gemmill.library.arithmetic import Arithmetic, parse_arithmetic
from gemmill.library.config.batchings import MASKED
from gemmill.library.errors import GemmillError, PackError, UnsupportedProblemError
from gemmill.library.input.strict_json import RowError
from gemmill.library.problem import GemmProblem
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.choice_table import ALL_EXTENTS, ChoiceTable, Layer
from gemmill.runtime.select.table_chooser import TableChooser, TableOfPack, value_of, word_of
from gemmill.runtime.select.table_making import GRID, table_of, varying_extent
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.pack import Pack, write_pack

PROBLEM = GemmProblem(512, 256, 128)


@pytest.fixture(scope="module")
def chooser() -> TableChooser:
    return TableChooser([TableOfPack(table(), "cases.pack")])


def members(content: Any) -> set[str]:
    return {kernel["name"] for kernel in content["kernels"]}


CONTENT = json.loads(FILE.read_text())["choices"]


def test_the_shared_cases_are_what_a_table_chooses() -> None:
    """After a change on purpose: ``python -m tests.cases.choices``."""
    assert json.loads(json.dumps(document(table()))) == json.loads(FILE.read_text())


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda x: x.update(gpu=7), r"choices\.gpu is 7"),
        (lambda x: x.update(objective="fast"), r"choices\.objective is 'fast'"),
        (lambda x: x.update(bits="most"), r"choices\.bits is 'most'"),
        (lambda x: x.update(watts=700), "choices: .*watts"),
        (lambda x: x.pop("layers"), "choices: .*layers"),
        (lambda x: x["formats"][1].update(word="bf16 k"), r"formats\[1\]\.word is 'bf16 k'; it must have 16 words"),
        (lambda x: x["formats"][0].update(multiples=[1, 0, 1]), r"formats\[0\]\.multiples is \[1, 0, 1\]"),
        (lambda x: x["kernels"][2].update(name="other"), r"kernels\[2\]\.name is 'other', which is not in the pack"),
        (lambda x: x["kernels"][2].update(slices=0), r"kernels\[2\]\.slices is 0"),
        (lambda x: x["kernels"][2].update(aligns=[16, 16, 16]), r"kernels\[2\]\.aligns is \[16, 16, 16\]"),
        (lambda x: x["kernels"][2].update(swap_ab=1), r"kernels\[2\]\.swap_ab is 1"),
        (lambda x: x["layers"][1].update(formats=9), r"layers\[1\]\.formats is 9; there are 9"),
        (lambda x: x["layers"][1].update(extent="batch"), r"layers\[1\]\.extent is 'batch'"),
        (lambda x: x["layers"][1].update(m=5), r"layers\[1\]\.m is 5; it must be 0"),
        (lambda x: x["layers"][1].update(n=0), r"layers\[1\]\.n is 0; it must be from 1"),
        (lambda x: x["layers"][1].update(n=1 << 40), r"layers\[1\]\.n is 1099511627776; it must be from 1"),
        (lambda x: x["layers"][1]["first"].__setitem__(0, 2), r"layers\[1\]\.first must ascend from 1"),
        (lambda x: x["layers"][1]["first"].__setitem__(2, 9), r"layers\[1\]\.first must ascend from 1"),
        (lambda x: x["layers"][1]["first"].pop(), r"layers\[1\] has \(\d+, \d+, \d+\) items"),
        (lambda x: x["layers"][1].update(first=[], kernel=[], us=[]), r"layers\[1\] has \(0, 0, 0\) items"),
        (lambda x: x["layers"][1]["kernel"].__setitem__(2, 12), r"layers\[1\]\.kernel has 12; there are 12 kernels"),
        (lambda x: x["layers"][1]["us"].__setitem__(2, 0.0), r"layers\[1\]\.us must be from"),
        (lambda x: x["layers"][1].update(largest=4), r"layers\[1\]\.largest is 4"),
        (lambda x: x["layers"].append(x["layers"][3]), r"layers\[11\] has the problem of layers\[3\]"),
    ],
)
def test_an_invalid_table_is_refused_by_place(change: Callable[[Any], object], says: str) -> None:
    change(content := deepcopy(CONTENT))
    with pytest.raises(RowError, match=says):
        ChoiceTable.read("choices", content, members(CONTENT))


@given(st.randoms(use_true_random=False), values)
def test_a_changed_table_is_refused_or_chooses(chance: random.Random, new: Any) -> None:
    """Whatever a file says, a call gets a kernel that supports its problem or an error of ours."""
    content = changed(deepcopy(CONTENT), chance, new)
    try:
        read = ChoiceTable.read("choices", content, members(CONTENT))
    except RowError:
        return
    chooser = TableChooser([TableOfPack(read, "changed.pack")])
    for text in chance.sample(ASKED, 3):
        try:
            chooser.choose(GemmProblem.from_text(text).with_narrow_a, None)
        except GemmillError:
            continue


def by_definition(problem: GemmProblem) -> tuple[str, int, bool] | None:
    """The choice by the rules of the format, searched without an order or an index."""
    found, word = table(), word_of(problem)
    aligns = problem.a_align, problem.b_align, problem.c_align, problem.d_align
    best: tuple[float, int, float, str, int, bool] | None = None
    for place, layer in enumerate(found.layers):
        if found.formats[layer.formats].word != word:
            continue
        distance = away(layer, problem)
        exact = distance == 1 and aligns == layer.aligns
        value = value_of(problem, layer.extent)
        here = max(i for i, first in enumerate(layer.first) if first <= value)
        for i, index in enumerate(layer.kernel):
            kernel = found.kernels[index]
            if all(need <= has for need, has in zip(kernel.aligns, aligns, strict=True)):
                step = abs(i - here) * 2 - (i < here)
                key = 0.0 if exact else distance, place, step, kernel.name, kernel.slices, kernel.swap_ab
                best = min(best or key, key, key=lambda key: key[:3])
    return best and best[3:]


def away(layer: Layer, problem: GemmProblem) -> float:
    ratio = 1.0
    for name, extent in zip(ALL_EXTENTS, layer.extents, strict=True):
        if name != layer.extent:
            asked = getattr(problem, name) or 1
            ratio *= max(asked / extent, extent / asked)
    return ratio


extents = st.one_of(st.integers(1, 70_000), st.sampled_from([512, 768, 1024, 2048, 2880, 4096, 8192]))
alignments = st.sampled_from([16, 16, 16, 8, 4, 2])


@given(st.sampled_from(PROBLEMS), *[extents] * 4, st.tuples(*[alignments] * 4), st.booleans())
def test_the_choice_is_that_of_the_definition(
    chooser: TableChooser, base: GemmProblem, m: int, n: int, k: int, batch: int, aligns: Any, is_near: bool
) -> None:
    narrow, extent = base.with_narrow_a, varying_extent(base)
    sizes = dict(zip(ALL_EXTENTS, (m, n, k, batch), strict=True))
    sizes = {extent: sizes[extent]} if is_near else sizes
    if narrow.batching == "strided" and not is_near:
        sizes["batch"] = 1 + batch % 4
    names = dict(zip(("a_align", "b_align", "c_align", "d_align"), aligns, strict=True))
    problem = narrow.but(**sizes, **({} if is_near else names))
    multiples = next(x.multiples for x in table().formats if x.word == word_of(problem))
    choice = chosen(chooser, problem)
    if any(getattr(problem, name) % multiple for name, multiple in zip("mnk", multiples, strict=True)):
        assert choice is None
    else:
        expected = by_definition(problem)
        assert (choice and (*choice.values(),)) == expected
        assert not is_near or choice, "a layer serves every extent"


@pytest.mark.slow
def test_a_layer_has_what_the_selector_chooses_at_the_next_size_of_the_grid() -> None:
    """The number of tiles is the same there, and with it the best kernel."""
    chooser, select = TableChooser([TableOfPack(made(), "made.pack")]), selector().select
    for base in PROBLEMS:
        narrow, extent = base.with_narrow_a, varying_extent(base)
        for value in (1, 2, 77, 256, 257, 263, 264, 999, 1024, 1025, 3000, 5000, 16384):
            above = GRID[bisect_left(GRID, value)]
            asked, compared = (narrow.but(**{extent: extents}) for extents in (value, above))
            if base.batching in MASKED:
                room = narrow.but(**{extent: max(above, getattr(narrow, extent))})
                asked, compared = (room.but(expected_rows=rows) for rows in (value, above))
            expected, choice = select(compared), chooser.choose(asked, None)
            assert (choice.kernel, choice.swap_ab) == (expected.kernel, expected.swap_ab), (base, value)
            assert 1 / 1.11 < choice.predicted_us / expected.predicted_us < 1.11


def test_reasons_say_exact_nearest_and_beyond(chooser: TableChooser) -> None:
    def why(text: str) -> str:
        choice = chooser.choose(GemmProblem.from_text(text), None)
        assert choice.source == "table"
        return choice.why

    assert "the choice table of cases.pack has it for Mx4096x4096 with M from 17 to" in why("20x4096x4096 bf16")
    assert "for the nearest layer, Mx4096x4096," in why("20x4096x4100 bf16 a_align=16 b_align=16")
    assert "beyond 16384, the largest that it was made for: predicted" in why("20000x4096x4096 bf16")
    assert "copies A into aligned memory" in why("300x4096x4096 bf16 a_align=2")
    assert "no layer has the formats of the problem, so those with accumulator f32 decide" in why(
        "700x768x512 f16 tn c=f16 accumulator=f16"
    )


def test_an_empty_d_takes_no_time_and_an_empty_k_does(chooser: TableChooser) -> None:
    for text in ("0x4096x4096 bf16", "16x0x4096 bf16", "16x4096x4096x0 bf16", "0x2048x768 bf16 tn grouped=16"):
        assert chooser.choose(GemmProblem.from_text(text), None).predicted_us == 0, text
    assert chooser.choose(GemmProblem.from_text("16x4096x0 bf16"), None).predicted_us > 0


def test_refusals_name_what_is_near(chooser: TableChooser) -> None:
    def refusal(text: str, bits: Arithmetic | None = None) -> str:
        with pytest.raises(UnsupportedProblemError) as caught:
            chooser.choose(GemmProblem.from_text(text), bits)
        return str(caught.value)

    assert "no layer of its formats; the nearest has a_major k. Make a pack" in refusal("16x4096x4096 bf16 nn")
    grouped = refusal("1024x2048x768 bf16 tn grouped=24 a_align=8")
    assert "the nearest layer in the choice table of cases.pack is Mx2048x768x16, whose kernels need other" in grouped
    other_bits = refusal("20x4096x4096 bf16", parse_arithmetic("k16/8"))
    assert "which has no kernel of arithmetic k16/8 for these alignments; leave out bits" in other_bits
    assert "n is 1021; with these formats it must be a multiple of 2" in refusal(
        "64x1021x2048 bf16 tn epilogue='d = silu(gate) * up'"
    )


@pytest.fixture(scope="module")
def packs(artifacts: tuple[Artifact, ...], tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A pack with a choice table for bf16, and the same without."""
    folder = tmp_path_factory.mktemp("packs")
    write_pack(old := folder / "old.pack", artifacts)
    registry = Registry(packs=[old], gpu="H200")
    choices = table_of([PROBLEM], registry.select, GPU.name, "sustained", "any")
    write_pack(new := folder / "new.pack", artifacts, choices=choices)
    return new, old


def test_a_pack_keeps_its_table(packs: tuple[Path, Path]) -> None:
    new, old = map(Pack.open, packs)
    assert new.choices
    assert [layer.extents for layer in new.choices.layers] == [(0, 256, 128, 1)]
    assert old.choices is None
    assert b"choices" not in packs[1].read_bytes()


def test_a_table_with_a_kernel_of_no_member_is_not_written(artifacts: tuple[Artifact, ...], tmp_path: Path) -> None:
    with pytest.raises(PackError, match="the choice table names kernels that are not in the pack: sm90_"):
        write_pack(tmp_path / "wrong.pack", artifacts, choices=table())


def test_a_registry_of_packs_chooses_by_their_tables(packs: tuple[Path, Path]) -> None:
    new, old = packs
    select = partial(Registry(packs=[new], gpu="H200").select, PROBLEM)
    by_model = Registry(packs=[old], gpu="H200").select(PROBLEM)
    assert select().source == "table" == select(sm_count=132).source
    assert select().kernel == by_model.kernel
    for others, says in (
        ({"objective": "burst"}, "is for objective 'sustained', not 'burst'; "),
        ({"bits": "invariant"}, "is for bits 'any', not 'invariant'; "),
        ({"sm_count": 100}, "choice tables are for all SMs; "),
    ):
        choice = select(**others)
        assert choice.source == "model"
        assert says in choice.why
    other = Registry(packs=[new], gpu="H100-PCIe").select(PROBLEM)
    assert "is for gpu 'NVIDIA H200', not 'NVIDIA H100 PCIe'; " in other.why
    mixed = Registry(packs=[new, old], gpu="H200").select(PROBLEM)
    assert mixed.why.startswith(f"{old} has no choice table; ")
    assert Registry(packs=[Pack.open(new)], manifests=["bf16"], gpu="H200").select(PROBLEM).source != "table"


def test_a_kernel_that_does_not_support_a_problem_is_damage(packs: tuple[Path, Path]) -> None:
    choices = Pack.open(packs[0]).choices
    assert choices
    content = json.loads(json.dumps(choices.to_json()).replace("bf16 k none bf16 k", "f16 k none f16 k"))
    wrong = ChoiceTable.read("choices", content, Pack.open(packs[0]).names())
    with pytest.raises(PackError, match=r"wrong.pack: the choice table names .* it needs A's dtype bf16"):
        TableChooser([TableOfPack(wrong, "wrong.pack")]).choose(GemmProblem(512, 256, 128, a="f16", d="bf16"), None)


CHOOSING = """
import sys
import gemmill
gemmill.matmul
registry = gemmill.Registry(packs=[sys.argv[1]], gpu="H200", store=sys.argv[2])
for m in (1, 100, 512, 100000):
    choice = registry.select(gemmill.GemmProblem(m, 256, 128))
    assert choice.source == "table", choice
    registry.get(choice.name)
    choice.why
models = "numpy", "gemmill.runtime.select.cost", "gemmill.runtime.select.selector", "gemmill.runtime.compile"
print([name for name in sys.modules if name.startswith(models)])
"""


@pytest.mark.slow
def test_a_process_with_a_pack_alone_imports_no_model(packs: tuple[Path, Path], tmp_path: Path) -> None:
    command = [sys.executable, "-c", CHOOSING, str(packs[0]), str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.stdout == "[]\n", done.stderr
