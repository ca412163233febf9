from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import parse_name
from gemmill.library.errors import RecordError
from gemmill.library.problem import MAX_EXTENT
from gemmill.profiler.sweep.shape_suites import Shape, load_shapes
from gemmill.profiler.sweep.units import units, unserved

EXTENTS = st.integers(1, MAX_EXTENT)


def write(folder: Path, text: str) -> Path:
    path = folder / "suite.yaml"
    path.write_text(text)
    return path


def test_lists_and_mappings_mean_the_same(tmp_path: Path) -> None:
    suite = load_shapes(write(tmp_path, "name: s\nshapes: [[1, 2, 3], [1, 2, 3, 4], {k: 7, m: 5, n: 6}]\n"))
    assert suite.name == "s"
    assert suite.shapes == (Shape(1, 2, 3), Shape(1, 2, 3, 4), Shape(5, 6, 7))
    assert [str(shape) for shape in suite.shapes] == ["1x2x3", "1x2x3x4", "5x6x7"]


def test_lists_in_a_mapping_are_cross_products(tmp_path: Path) -> None:
    suite = load_shapes(write(tmp_path, "shapes: [{k: [7, 8], m: [1, 2], n: 6}, [3, 6, 7]]\n"))
    assert [str(shape) for shape in suite.shapes] == ["1x6x7", "1x6x8", "2x6x7", "2x6x8", "3x6x7"]


def test_a_suite_is_named_after_its_file_unless_it_says_otherwise(tmp_path: Path) -> None:
    assert load_shapes(write(tmp_path, "shapes: [[1, 2, 3]]\n")).name == "suite"


def test_what_is_said_of_formats_multiplies_and_counts_add_up(tmp_path: Path) -> None:
    text = """shapes:
    - {m: 4, n: 8, k: 16, a: [bf16, fp16], epilogue: d = relu(acc), count: 3}
    - {m: 4, n: 8, k: 16, a: bf16, epilogue: d = relu(acc)}
    - [4, 8, 16]
    - [4, 8, 16]
    - {m: 64, n: 8, k: 16, batching: grouped, groups: 2}
    """
    suite = load_shapes(write(tmp_path, text))
    assert [str(shape) for shape in suite.shapes] == [
        "4x8x16 bf16 tn epilogue='d = relu(acc)'",
        "4x8x16 f16 tn epilogue='d = relu(acc)'",
        "4x8x16",
        "64x8x16 bf16 tn grouped=2",
    ]
    assert [*suite.counts.values()] == [4, 3, 2, 1]


def test_defaults_are_for_what_a_shape_does_not_say(tmp_path: Path) -> None:
    text = """defaults: {a: e4m3, c: none, epilogue: "d = silu(acc)", d: [bf16, f16]}
    shapes: [[4, 8, 16], {m: 4, n: 8, k: 16, a: bf16, d: bf16, epilogue: linear}]
    """.replace("    shapes", "shapes")
    suite = load_shapes(write(tmp_path, text))
    assert [str(shape) for shape in suite.shapes] == [
        "4x8x16 e4m3 tn epilogue='d = silu(acc)'",
        "4x8x16 e4m3 tn d=f16 epilogue='d = silu(acc)'",
        "4x8x16 bf16 tn",
    ]
    with pytest.raises(RecordError, match=r"suite.yaml:1:12: defaults.am: unknown key; allowed: .*sizes"):
        load_shapes(write(tmp_path, "defaults: {am: 4}\nshapes: [[4, 8, 16]]\n"))
    with pytest.raises(RecordError, match="defaults: must be a mapping"):
        load_shapes(write(tmp_path, "defaults: [bf16]\nshapes: [[4, 8, 16]]\n"))


@pytest.mark.parametrize(
    "text",
    [
        '[{"m": 1, "n": 2, "k": 3}, {"M": 4, "N": 5, "K": 6}]',
        "- [1, 2, 3]\n- [4, 5, 6]\n",
        "m,n,k\n1,2,3\n4,5,6\n",
        '{"m": 1, "n": 2, "k": 3}\n{"m": 4, "n": 5, "k": 6}\n',
    ],
)
def test_lists_that_are_no_suites_are_read_as_well(tmp_path: Path, text: str) -> None:
    assert load_shapes(write(tmp_path, text)).shapes == (Shape(1, 2, 3), Shape(4, 5, 6))


def test_a_list_of_nothing_that_can_be_served_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match=r"a JSON list, without any supported problem: .*m is 0"):
        load_shapes(write(tmp_path, '[{"m": 0, "n": 2, "k": 3}]'))


def measured(configs: Sequence[GemmConfig], shapes: Iterable[Shape]) -> list[list[GemmConfig]]:
    return [[parse_name(kernel.name) for kernel in unit.kernels] for unit in units(configs, shapes)]


def test_a_kernel_is_measured_on_what_is_said(tmp_path: Path) -> None:
    """Of two kernels that differ in A's major, each on its own; weights that are a narrow B are a kernel's A."""
    row, column = (
        parse_name(f"sm90a_bf16{major}16_bf16k16_f32_none_bf16n16_128x128x64_1x1_cooperative_s4_m8_k1_linear")
        for major in ("k", "mn")
    )
    narrow = parse_name("sm90a_s8k16_bf16k16_f32_none_bf16m16_64x16x128_1x1_cooperative_s16_m8_k1_linear")
    configs = (row, column, narrow)
    text = "shapes: [{m: 2048, n: 64, k: 64, a: bf16, b: bf16, a_major: mn}, {m: 16, n: 4096, k: 64, b: s8}]"
    suite = load_shapes(write(tmp_path, text))
    assert measured(configs, suite.shapes) == [[column], [narrow]]
    assert unserved(configs, suite.shapes) == []
    assert unserved((row,), suite.shapes) == [*suite.shapes]
    assert measured((row, column), [Shape(2048, 64, 64)]) == [[row], [column]]


@given(st.lists(st.tuples(EXTENTS, EXTENTS, EXTENTS, EXTENTS), min_size=1, max_size=5, unique=True))
def test_every_list_of_extents_is_read_as_written(
    tmp_path_factory: pytest.TempPathFactory, shapes: list[tuple[int, int, int, int]]
) -> None:
    text = "shapes:\n" + "".join(f"- {list(shape)}\n" for shape in shapes)
    path = write(tmp_path_factory.mktemp("suite"), text)
    assert load_shapes(path).shapes == tuple(Shape(*shape) for shape in shapes)


@pytest.mark.parametrize(
    ("text", "place", "says"),
    [
        ("name: s\n", "1:1: shapes", "at least one shape"),
        ("shapes: []\n", "1:9: shapes", "at least one shape"),
        ("shapes: [[1, 2]]\n", "1:10: shapes[0]", "[m, n, k]"),
        ("shapes: [[1, 2, 3, 4, 5]]\n", "1:10: shapes[0]", "[m, n, k]"),
        ("shapes: [12]\n", "1:10: shapes[0]", "[m, n, k]"),
        ("shapes:\n- [1, 0, 3]\n", "2:7: shapes[0][1]", "n is 0; it must be an integer from 1 to"),
        ("shapes:\n- [1, -4, 3]\n", "2:7: shapes[0][1]", "n is -4"),
        ("shapes:\n- [1, 2, 3000000000]\n", "2:10: shapes[0][2]", "k is 3000000000"),
        ("shapes:\n- {m: 1, n: 2}\n", "2:3: shapes[0]", "missing k; a shape must be"),
        ("shapes:\n- {m: [1, 0], n: 2, k: 3}\n", "2:11: shapes[0].m[1]", "m is 0"),
        ("shapes:\n- {m: [], n: 2, k: 3}\n", "2:7: shapes[0].m", "m is an empty list"),
        (f"shapes:\n- {{m: &x {[*range(1, 50)]}, n: *x, k: *x}}\n", "2:3: shapes[0]", "expands to 117,649 shapes"),
        ("shapes:\n- {m: [1, [2]], n: 2, k: 3}\n", "2:11: shapes[0].m[1]", "m is [2]"),
        ("shapes:\n- [[1, 2], 2, 3]\n", "2:4: shapes[0][0]", "m is [1, 2]"),
        ("shapes:\n- {m: 1, n: 2, k: 3, l: 4}\n", "2:22: shapes[0].l", "unknown key; allowed: m, n, k, batch"),
        ("shapes: [[1, 2, 3]]\nshape: 1\n", "2:1: shape", "unknown key; allowed: name, defaults, shapes"),
        ("name: 3\nshapes: [[1, 2, 3]]\n", "1:7: name", "must be text, not 3"),
        ("shapes:\n- {m: 1, n: 2, k: 3, a: bf17}\n", "2:3: shapes[0]", "a is 'bf17', did you mean bf16"),
        ("shapes:\n- {m: 1, n: 2, k: 3, count: 0}\n", "2:29: shapes[0].count", "count is 0"),
        ("shapes:\n- {m: 1, n: 2, k: 3, epilogue: {}}\n", "2:3: shapes[0]", "epilogue is {}"),
        (
            "shapes:\n- {m: 1, n: 2, k: 3, groups: 4}\n",
            "2:3: shapes[0]",
            "groups is 4; it replaces batch only if batching",
        ),
        ("shapes: [[1, 2\n", "2:1", ""),
    ],
)
def test_a_fault_is_named_where_it_stands(tmp_path: Path, text: str, place: str, says: str) -> None:
    path = write(tmp_path, text)
    with pytest.raises(RecordError) as caught:
        load_shapes(path)
    (line,) = str(caught.value).splitlines()
    assert line.startswith(f"{path}:{place}")
    assert says in line


@pytest.mark.parametrize("value", ["010", "12:30", "0x10", "1_000", "1e3", "1.0", "yes", "'1'", "null"])
def test_what_yaml_would_turn_into_another_number_is_refused(tmp_path: Path, value: str) -> None:
    with pytest.raises(RecordError, match=r"suite\.yaml:2:7: shapes\[0\]\[1\]: "):
        load_shapes(write(tmp_path, f"shapes:\n- [1, {value}, 3]\n"))


def test_all_faults_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(RecordError) as caught:
        load_shapes(write(tmp_path, "nam: s\nshapes:\n- [0, 2, x]\n- {m: 1}\n"))
    assert [line.split(":")[1] for line in str(caught.value).splitlines()] == ["1", "3", "3", "4"]


def test_a_file_that_is_not_there_is_no_traceback(tmp_path: Path) -> None:
    with pytest.raises(RecordError, match="file: cannot read"):
        load_shapes(tmp_path / "missing.yaml")
