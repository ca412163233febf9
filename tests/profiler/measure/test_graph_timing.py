from gemmill.library.dtypes import DTypeName
from gemmill.library.problem import GemmProblem
from gemmill.profiler.measure.graph_timing import launches_per_replay, replay_seconds, summarise
from gemmill.profiler.measure.operands import set_count


def problem(m: int, n: int, k: int, dtype: DTypeName = "bf16") -> GemmProblem:
    return GemmProblem(m, n, k, 1, dtype, "k", dtype, "k", "f32", dtype, "n")


def test_a_graph_holds_whole_turns_through_the_operand_sets() -> None:
    for extents in ((8192, 8192, 8192), (1000, 3000, 1024), (64, 64, 64), (1, 8192, 8192)):
        sets = set_count(problem(*extents))
        launches = launches_per_replay(problem(*extents), sets)
        assert launches >= sets
        assert launches % sets == 0
        assert replay_seconds(problem(*extents), sets) >= 1e-3


def test_as_many_launches_as_the_type_is_fast() -> None:
    launches = [launches_per_replay(problem(4096, 4096, 4096, dtype), 1) for dtype in ("f32", "tf32", "bf16", "e4m3")]
    assert launches == [1, 3, 6, 12]


def test_a_large_launch_is_not_repeated_beyond_its_sets() -> None:
    assert launches_per_replay(problem(8192, 8192, 8192), 2) == 2


def test_a_summary_is_median_and_quartiles() -> None:
    timing = summarise([5.0, 1.0, 2.0, 3.0, 4.0], 6)
    assert (timing.low, timing.median, timing.high, timing.samples, timing.launches) == (2.0, 3.0, 4.0, 5, 6)
    single = summarise([7.0])
    assert (single.low, single.median, single.high, single.samples) == (7.0, 7.0, 7.0, 1)
