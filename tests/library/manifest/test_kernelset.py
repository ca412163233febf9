import itertools
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st
from tests.cases.examples import examples
from tests.cases.manifests import shipped_set

from gemmill.library.config.fields import FIELD_NAMES, ConfigView, Value, fields_of, part
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.errors import ExpressionError, ManifestError
from gemmill.library.families.families import resolved_stages
from gemmill.library.families.kernel_plan import KernelPlan
from gemmill.library.legality.rules import RULES, legal
from gemmill.library.manifest.expression import parse
from gemmill.library.manifest.grid import Axis, Grid, Predicate
from gemmill.library.manifest.kernelset import Candidates, KernelSet, Preset
from gemmill.library.manifest.load import load_manifest

CHOICES: dict[tuple[str, ...], list[tuple[Value, ...]]] = {
    ("arch",): [("sm90a",)],
    ("a.dtype", "a.major", "a.align", "a.scale"): [
        ("bf16", "k", 16, "none"),
        ("bf16", "mn", 16, "none"),
        ("f16", "k", 16, "none"),
        ("bf16", "k", 8, "none"),
        ("s8", "k", 16, "none"),
    ],
    ("b.dtype", "b.major", "b.align", "b.scale"): [
        ("bf16", "k", 16, "none"),
        ("bf16", "mn", 16, "none"),
        ("f16", "k", 16, "none"),
    ],
    ("accumulator",): [("f32",), ("f16",)],
    ("promote",): [(0,)],
    ("c.dtype", "c.major", "c.align", "d.dtype", "d.major", "d.align"): [
        ("none", "none", 0, "bf16", "n", 16),
        ("bf16", "n", 16, "bf16", "n", 16),
        ("f16", "n", 16, "bf16", "n", 16),
        ("none", "none", 0, "f32", "m", 16),
    ],
    ("tile.m", "tile.n", "tile.k"): [(128, 256, 64), (64, 64, 64), (192, 192, 64), (256, 256, 64), (100, 40, 128)],
    ("cluster.m", "cluster.n"): [(1, 1), (2, 1), (1, 2), (4, 1)],
    ("schedule",): [("cooperative",), ("pingpong",)],
    ("scheduler.raster", "scheduler.swizzle_size", "scheduler.splits"): [
        ("m", 1, 1),
        ("m", 3, 1),
        ("n", 8, 1),
        ("n", 1, 2),
    ],
    ("scheduler.decomposition", "scheduler.symmetry", "scheduler.rows", "scheduler.batching"): [
        ("tiles", "general", "stored", "strided"),
        ("tiles", "symmetric", "stored", "strided"),
        ("stream", "general", "stored", "strided"),
        ("splitk", "general", "stored", "strided"),
    ],
    ("epilogue",): [("linear",), ("d = relu(acc)",)],
}
STAGES: list[list[tuple[Value, ...]]] = [[("auto",)], [(2,), (4,), (9,)], [(1,)]]
FILTERS = ["tile.m * tile.n <= 128 * 256", "stages >= 4 and a.major == b.major", "c.dtype != 'none' or stages % 2 == 0"]


@st.composite
def grids(draw: st.DrawFn) -> Grid:
    axes = [
        Axis(names, tuple(draw(st.lists(st.sampled_from(values), min_size=1, max_size=3, unique=True))))
        for names, values in CHOICES.items()
    ]
    return Grid((*axes, Axis(("stages",), tuple(draw(st.sampled_from(STAGES))))))


@st.composite
def kernel_sets(draw: st.DrawFn) -> KernelSet:
    sets = [
        Candidates(grid, predicates(draw(st.none() | st.sampled_from(FILTERS))))
        for grid in draw(st.lists(grids(), min_size=1, max_size=3))
    ]
    return KernelSet("random", "", tuple(sets), {})


def predicates(where: str | None) -> tuple[Predicate, ...]:
    return tuple(term.check for term in parse(where)) if where else ()


def one_by_one(grid: Grid) -> list[dict[str, Value]]:
    """Every candidate of a grid, written out in plain Python."""
    found = []
    for cell in itertools.product(*(axis.values for axis in grid.axes)):
        merged = {
            name: value
            for axis, values in zip(grid.axes, cell, strict=True)
            for name, value in zip(axis.names, values, strict=True)
        }
        if merged["stages"] == "auto":
            merged["stages"] = resolved_stages(ConfigView(merged))
        found.append({name: merged[name] for name in FIELD_NAMES})
    return found


@pytest.mark.slow
@examples(8, 30)
@given(kernel_sets())
@pytest.mark.heavy
def test_broadcast_judgements_equal_those_made_one_by_one(kernel_set: KernelSet) -> None:
    refused = dict.fromkeys((rule.id for rule in RULES), 0)
    kernels: dict[tuple[Value, ...], None] = {}
    candidates = filtered = duplicates = 0
    for own in kernel_set.sets:
        for fields in one_by_one(own.grid):
            candidates += 1
            config = ConfigView(fields)
            broken = [rule.id for rule in RULES if not rule.allows(config)]
            if not all(predicate(config) for predicate in own.where):
                filtered += 1
            elif broken:
                refused[broken[0]] += 1
            elif tuple(fields.values()) in kernels:
                duplicates += 1
            else:
                kernels[tuple(fields.values())] = None
    count = kernel_set.count()
    assert (count.candidates, count.filtered, count.duplicates) == (candidates, filtered, duplicates)
    assert count.refused_by_rule == {rule: number for rule, number in refused.items() if number}
    assert count.legal == len(kernels)
    assert count.candidates == count.filtered + sum(count.refused_by_rule.values()) + count.duplicates + count.legal
    assume(kernels)
    expanded = [tuple(fields_of(config).values()) for config in kernel_set.expand()]
    assert expanded == list(kernels)


@examples(8, 30)
@given(kernel_sets())
def test_expansion_is_repeatable_and_free_of_duplicates(kernel_set: KernelSet) -> None:
    assume(kernel_set.count().legal)
    first, second = list(kernel_set.expand()), list(kernel_set.expand())
    assert first == second
    assert len(set(first)) == len({kernel_name(config) for config in first}) == len(first) == kernel_set.count().legal
    assert all(legal(config) for config in first)


@settings(examples(8, 30), suppress_health_check=[HealthCheck.filter_too_much])  # few sets have such kernels
@given(kernel_sets(), st.sampled_from(["tile.m <= 128", "a.dtype == 'bf16' and tile.m >= 128 and stages >= 4"]))
def test_a_filter_keeps_of_an_expansion_what_passes_it(kernel_set: KernelSet, where: str) -> None:
    assume(kernel_set.count(where=where).legal)
    passes = [config for config in kernel_set.expand() if all(check(config) for check in predicates(where))]
    assert [*kernel_set.expand(where=where)] == passes


def test_a_grid_is_narrowed_by_what_reads_one_axis_alone() -> None:
    grid = Grid((Axis(("tile.m", "tile.n"), ((64, 64), (128, 64))), Axis(("tile.k",), ((32,), (64,)))))
    narrow, same, wide, none = map(
        grid.narrowed,
        predicates("tile.m > 64")
        + predicates("tile.n == 64")
        + predicates("tile.m > tile.k")
        + predicates("tile.k == 1"),
    )
    assert narrow is not None
    assert narrow.shape == (1, 2)
    assert same is grid
    assert wide is None
    assert none is not None
    assert none.size == 0


@examples(8, 30)
@given(kernel_sets())
def test_illegal_candidates_are_expanded_when_asked_for(kernel_set: KernelSet) -> None:
    count = kernel_set.count()
    assume(count.candidates > count.filtered)
    everything = list(kernel_set.expand(legal=False))
    assert [config for config in everything if legal(config)] == (list(kernel_set.expand()) if count.legal else [])
    assert len(everything) == len(set(everything)) <= count.candidates - count.filtered


@given(grids(), st.integers(1, 50))
def test_blocks_cover_a_grid_once_and_in_order(grid: Grid, cells: int) -> None:
    seen = []
    for block in grid.blocks(cells):
        sizes = [cut.stop - cut.start for cut in block]
        assert len(list(itertools.product(*map(range, sizes)))) <= max(cells, 1)
        seen += list(itertools.product(*(range(cut.start, cut.stop) for cut in block)))
    assert seen == list(itertools.product(*map(range, grid.shape)))


@examples(8, 30)
@given(grids(), st.sampled_from(FILTERS), st.integers(1, 50))
def test_a_table_says_the_same_of_a_block_as_of_the_whole(grid: Grid, where: str, cells: int) -> None:
    (predicate, *_) = predicates(where)
    table = grid.tabulate(predicate)
    verdicts = [predicate(ConfigView(fields)) for fields in one_by_one(grid)]
    in_blocks: list[bool] = []
    for block in grid.blocks(cells):
        shape = tuple(cut.stop - cut.start for cut in block)
        in_blocks += np.broadcast_to(table.over(block), shape).ravel().tolist()
    assert in_blocks == verdicts


def test_what_reads_a_part_is_evaluated_once_for_each_of_its_results() -> None:
    evaluated = []

    class AreaPlan(KernelPlan):
        @part
        def area(self) -> int:
            return self.config.tile.m * self.config.tile.n

    def small(config: GemmConfig) -> bool:
        evaluated.append(AreaPlan(config).area)
        return evaluated[-1] <= 128

    axes = [Axis((name,), ((8,), (16,), (32,))) for name in ("tile.m", "tile.n", "tile.k")]
    table = Grid(tuple(axes)).tabulate(small)
    assert sorted(evaluated) == [64, 128, 256, 512, 1024]
    assert table.entries.squeeze().tolist() == [[True, True, False], [True, False, False], [False, False, False]]


BIG = {
    "name": "big",
    "defaults": {"accumulator": "f32", "a": {"dtype": "bf16"}, "b": {"dtype": "bf16"}, "d": {"dtype": "bf16"}},
    "sets": [
        {
            "a": {"major": ["k", "mn"]},
            "b": {"major": ["k", "mn"]},
            "c": ["none", "same"],
            "d": {"dtype": ["bf16", "f32"], "major": ["n", "m"]},
            "tile": {"m": [64, 128, 192, 256], "n": list(range(16, 257, 16)), "k": [32, 64, 128]},
            "cluster": {"m": [1, 2], "n": [1, 2]},
            "schedule": ["cooperative", "pingpong"],
            "stages": [2, 3, 4, 5, 6, 7],
            "scheduler": {"raster": ["m", "n"], "swizzle_size": [1, 2, 4, 8, 16]},
            "where": "tile.m * tile.n <= 128 * 256 and a.major == b.major",
        }
    ],
}


def test_two_million_candidates_are_counted_without_being_made(tmp_path: Path) -> None:
    path = tmp_path / "big.yaml"
    path.write_text(yaml.safe_dump(BIG))
    kernel_set = load_manifest(path)
    count = kernel_set.count()
    assert count.candidates == 2 * 2 * 2 * 4 * (4 * 16 * 3) * 4 * 2 * 6 * 10 == 2_949_120
    assert count.filtered + sum(count.refused_by_rule.values()) + count.legal == count.candidates
    # Independent axes multiply: raster and swizzle decide nothing.
    narrow = kernel_set.count(where="scheduler.raster == 'm' and scheduler.swizzle_size == 4")
    assert narrow.legal * 10 == count.legal > 100_000
    assert kernel_name(next(kernel_set.expand())).startswith("sm90a_")


def test_presets_and_filters_combine() -> None:
    kernel_set = shipped_set("bf16")
    quick = list(kernel_set.expand("quick"))
    pingpong = list(kernel_set.expand("quick", where="schedule == 'pingpong'"))
    assert pingpong == [config for config in quick if config.schedule == "pingpong"]
    assert kernel_set.count("quick").legal == len(quick)
    assert 0 < len(pingpong) < len(quick)


def test_a_limited_set_is_what_its_preset_and_filter_keep() -> None:
    kernel_set = load_manifest("bf16")
    limited = kernel_set.limited("quick", "schedule == 'pingpong'")
    assert [*limited.expand()] == [*kernel_set.expand("quick", "schedule == 'pingpong'")]
    assert [*limited.expand(where="tile.n == 128")] == [config for config in limited.expand() if config.tile.n == 128]
    assert limited.count().legal == len([*limited.expand()])
    assert not limited.presets
    with pytest.raises(ManifestError, match=r"no kernel of preset quick passes 'tile.m == 3'"):
        kernel_set.limited("quick", "tile.m == 3")


def test_a_selection_of_nothing_is_an_error_not_an_empty_run() -> None:
    kernel_set = shipped_set("bf16")
    with pytest.raises(ManifestError, match=r"no kernel of preset quick passes 'tile.m == 3'"):
        list(kernel_set.expand("quick", where="tile.m == 3"))
    with pytest.raises(ManifestError, match=r"no preset 'quik', did you mean quick\? presets: quick"):
        next(kernel_set.expand("quik"))
    with pytest.raises(ExpressionError, match="unknown field"):
        next(kernel_set.expand(where="tile.q == 3"))
    with pytest.raises(ExpressionError, match="empty"):
        next(kernel_set.expand(where=""))


@examples(8, 30)
@given(kernel_sets(), st.sampled_from(FILTERS))
def test_a_preset_holds_what_its_filter_keeps(kernel_set: KernelSet, where: str) -> None:
    preset = Preset(where=predicates(where))
    assert kernel_set.holds(preset) == (kernel_set.count(where=where).legal > 0)
