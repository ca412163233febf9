from gemmill.library.problem import GemmProblem
from gemmill.profiler.operands import set_count
from gemmill.profiler.timing import launches_per_replay, summarise


def problem(m: int, n: int, k: int) -> GemmProblem:
    return GemmProblem(m, n, k, 1, "bf16", "k", "bf16", "k", "f32", "bf16", "n")


def test_a_graph_holds_whole_turns_through_the_operand_sets() -> None:
    for extents in ((8192, 8192, 8192), (1000, 3000, 1024), (64, 64, 64), (1, 8192, 8192)):
        sets = set_count(problem(*extents))
        launches = launches_per_replay(problem(*extents), sets)
        assert launches >= sets
        assert launches % sets == 0


def test_a_large_launch_is_not_repeated_beyond_its_sets() -> None:
    assert launches_per_replay(problem(8192, 8192, 8192), 2) == 2


def test_a_summary_is_median_and_quartiles() -> None:
    timing = summarise([5.0, 1.0, 2.0, 3.0, 4.0])
    assert (timing.low, timing.median, timing.high, timing.samples) == (2.0, 3.0, 4.0, 5)
    single = summarise([7.0])
    assert (single.low, single.median, single.high, single.samples) == (7.0, 7.0, 7.0, 1)
