"""What is measured of shapes that say more than matrices: expressions, groups, arrays, alignments."""

from __future__ import annotations

from pathlib import Path

from tests.cases.manifests import shipped_set

from gemmill.library.arch import DEFAULT_GPU
from gemmill.library.arithmetic import arithmetic_named, parse_arithmetic
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.problem import GemmProblem
from gemmill.profiler.measure.messages import Unit
from gemmill.profiler.sweep.shape_suites import Shape, load_shapes
from gemmill.profiler.sweep.units import likely_first, units, unserved, with_arithmetic
from gemmill.runtime.select.kernels.faults import needs_swap
from gemmill.runtime.select.selector import Selector

BF16 = tuple(shipped_set("bf16").expand())
MIXED = tuple(shipped_set("mixed").expand(where="a.dtype == 'u4' and a.scale == '1x128' and b.dtype == 'bf16'"))


def test_a_shape_that_says_all_of_a_problem_is_measured_on_it_alone() -> None:
    asked = GemmProblem(4096, 256, 512, d="f32", d_major="m", b_major="mn")
    assert Shape.of(asked).problem == asked
    assert [unit.problem for unit in units(BF16, [Shape.of(asked)])] == [asked]
    narrow = GemmProblem(16, 4096, 512, b="u4", b_scale="1x128", epilogue="d = acc + bias[n]")
    assert [unit.problem for unit in units(MIXED, [Shape.of(narrow)], varies=True)] == [narrow.with_narrow_a]
    slots = GemmProblem(512, 256, 512, batching="masked", groups=8, expected_rows=50)
    assert [unit.problem for unit in units(BF16, [Shape.of(slots)])] == [slots]
    grouped = GemmProblem(512, 256, 512, batching="grouped", groups=8)
    (unit,) = units(BF16, [Shape.of(grouped, "zipf:1.1")])
    assert (unit.problem, unit.sizes) == (grouped, "zipf:1.1")


def test_a_required_arithmetic_leaves_its_kernels_and_slices_and_the_selected_one_has_it() -> None:
    (unit,) = units(BF16, [Shape.of(GemmProblem(4096, 512, 16384))])
    selector = Selector({kernel_name(config): config for config in BF16}, DEFAULT_GPU)
    for name in ("k16", "k16/8", "k16/37@64"):
        limited = likely_first(with_arithmetic(unit, parse_arithmetic(name)), selector)
        assert {arithmetic_named(kernel) for kernel in limited.kernels} == {name}
        assert limited.pinned
    assert with_arithmetic(unit, parse_arithmetic("k32")).kernels == ()
    assert with_arithmetic(unit, None) == unit


def shape(problem: GemmProblem, sizes: str = "") -> Shape:
    """A shape that says all of a problem that is not by default."""
    words = problem.to_dict()
    extents = {name: words.pop(name) for name in ("m", "n", "k", "batch") if name in words}
    return Shape(**extents, keywords=tuple(sorted(words.items())), sizes=sizes)


def problems(*shapes: Shape) -> set[GemmProblem]:
    return {unit.problem for unit in units(BF16, shapes, varies=True)}


def configs_of(unit: Unit) -> list[GemmConfig]:
    return [parse_name(kernel.name) for kernel in unit.kernels]


def test_groups_are_measured_by_kernels_for_them() -> None:
    for batching in ("grouped", "masked", "array", "kgrouped"):
        majors = {"a_major": "mn", "b_major": "mn"} if batching == "kgrouped" else {}
        asked = GemmProblem(512, 256, 512, batching=batching, groups=8, **majors)
        (unit,) = (u for u in units(BF16, [shape(asked, "balanced")]) if u.problem == asked)
        assert {config.scheduler.batching for config in configs_of(unit)} == {batching}
        assert unit.sizes == "balanced"
        assert not unserved(BF16, [shape(asked)])


def test_kernels_for_groups_are_not_measured_on_matrices() -> None:
    found = units(BF16, [Shape(4096, 256, 512), Shape(4096, 256, 512, 8)])
    assert {config.scheduler.batching for unit in found for config in configs_of(unit)} == {"strided"}


def test_one_problem_with_two_choices_of_sizes_is_measured_twice() -> None:
    asked = GemmProblem(512, 256, 512, batching="grouped", groups=8)
    found = units(BF16, [shape(asked, "balanced"), shape(asked, "zipf:1.1")])
    own = [unit for unit in found if unit.problem == asked]
    assert [unit.sizes for unit in own] == ["balanced", "zipf:1.1"]
    assert own[0].kernels == own[1].kernels


def test_kernels_are_measured_with_the_expression_of_a_shape() -> None:
    asked = GemmProblem(4096, 256, 512, epilogue="d = gelu(acc + bias.bf16[n])")
    assert unserved(BF16, [shape(asked)])
    assert asked in problems(shape(asked))
    found = units(BF16, [shape(asked)], varies=True)
    (unit,) = (unit for unit in found if unit.problem == asked)
    assert len(unit.kernels) > 20
    assert {config.epilogue for config in configs_of(unit)} == {asked.epilogue}
    assert not any(needs_swap(config, asked) for config in configs_of(unit))
    assert asked not in {unit.problem for unit in units(BF16, [shape(asked)])}
    both = units(BF16, [shape(asked), Shape(4096, 256, 512)], varies=True)
    assert {config.epilogue for u in both if u.problem.epilogue == "linear" for config in configs_of(u)} == {"linear"}
    assert {u.problem.epilogue for u in units(BF16, [Shape(4096, 256, 512)], varies=True)} == {"linear"}


def test_few_rows_with_an_expression_are_measured_transposed_too() -> None:
    asked = GemmProblem(16, 4096, 512, epilogue="d = acc * sa[m] + bias[n]")
    found = units(BF16, [shape(asked)], varies=True)
    (unit,) = (unit for unit in found if unit.problem == asked)
    transposed = [config for config in configs_of(unit) if needs_swap(config, asked)]
    assert {config.epilogue for config in transposed} == {"d = acc * sa[n] + bias[m]"}
    assert len({*unit.kernels}) == len(unit.kernels)


def test_gates_have_no_transpose() -> None:
    asked = GemmProblem(16, 4096, 512, epilogue="d = silu(gate) * up")
    assert asked in problems(shape(asked))
    narrow = GemmProblem(16, 4096, 512, b="u4", b_scale="1x128", epilogue="d = silu(gate) * up")
    assert unserved(MIXED, [shape(narrow)], varies=True)


def test_narrow_weights_with_an_expression_are_the_transpose() -> None:
    asked = GemmProblem(16, 4096, 512, b="u4", b_scale="1x128", epilogue="d = acc + bias[n]")
    found = units(MIXED, [shape(asked)], varies=True)
    (unit,) = (unit for unit in found if unit.problem == asked.with_narrow_a)
    assert unit.problem.epilogue == "d = acc + bias[m]"


def test_an_alignment_that_is_said_is_kept() -> None:
    asked = GemmProblem(4096, 256, 512, a_align=2)
    assert asked in problems(shape(asked))


def test_a_suite_says_sizes(tmp_path: Path) -> None:
    (path := tmp_path / "s.yaml").write_text(
        "shapes:\n"
        "  - {m: 64, n: 32, k: 32, batching: grouped, groups: 2, sizes: [balanced, zipf:1.5]}\n"
        "  - {m: 64, n: 32, k: 32, batching: grouped, groups: 2, sizes: [60, 4]}\n"
        "  - {m: 64, n: 32, k: 32, batching: grouped, groups: 2}\n"
    )
    suite = load_shapes(path)
    assert [shape.sizes for shape in suite.shapes] == ["balanced", "zipf:1.5", "60,4"]
    assert [*suite.counts.values()] == [2, 1, 1]
    (path := tmp_path / "l.json").write_text(
        '[{"m": 64, "n": 32, "k": 32, "batching": "grouped", "groups": 2, "sizes": [60, 4]},'
        ' {"m": 64, "n": 32, "k": 32, "batching": "grouped", "groups": 2, "sizes": "61,4"}]'
    )
    suite = load_shapes(path)
    assert [shape.sizes for shape in suite.shapes] == ["60,4"]
    assert "sizes add up to 65; they must add up to m = 64" in suite.left_out[0]
