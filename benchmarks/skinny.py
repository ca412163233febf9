"""Few rows of A: cuBLAS, the kernels that the selector names, and a device-to-device copy, in one run.

For every number of rows and every weight: cuBLAS (PyTorch's ``mm``), the kernel that the model selects, the best of
those it ranks next, and the best of the kernels with ordinary tiles that run the problem as it is. Prints bytes per
second as parts of the rate of a copy, which counts both its directions. Needs an NVIDIA GPU and PyTorch.

Reproduces docs/performance/selection.md, "Few rows".
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Container
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


WEIGHTS = ((8192, 8192), (4096, 14336), (2112, 7168))
"""N and K."""
ROWS = (1, 2, 4, 8, 16, 32, 64, 128)


def main() -> None:
    """Measure and print."""
    from benchmarks.common import Record, add_options, copy_gbps

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--manifest", default="bf16", help="shipped manifest (%(default)s)")
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS, help="M (%(default)s)")
    parser.add_argument("--majors", nargs="+", default=["k", "mn"], help="majors of B (%(default)s)")
    parser.add_argument("--runners", type=int, default=4, help="kernels beside the selected one (%(default)s)")
    add_options(parser)
    arguments = parser.parse_args()

    import torch

    from gemmill.library.legality.aligns import BY_TMA
    from gemmill.library.problem import GemmProblem
    from gemmill.runtime.registry import Registry
    from gemmill.runtime.select.selector import Selector

    registry = Registry(manifests=[arguments.manifest])
    configs = registry.configs()
    dtype = next(iter(configs.values())).a.dtype
    plain = {n: c for n, c in configs.items() if c.family in BY_TMA and c.tile.n % 16 == 0 and c.d.major == "n"}
    selectors = {"selected": registry.selector, "plain": Selector(plain, registry.gpu)}
    problems = [
        GemmProblem(m, n, k, a=dtype, b_major=major, accumulator="f32", d=dtype)
        for n, k in WEIGHTS
        for major in arguments.majors
        for m in arguments.rows
    ]
    named = {p: {role: s.select(p) for role, s in selectors.items()} for p in problems}
    candidates = {
        p: dict.fromkeys(n for c in by.values() for n in (c.name, *(r for r, _ in c.runners_up[: arguments.runners])))
        for p, by in named.items()
    }
    registry.warm(sorted({name for names in candidates.values() for name in names}))

    stream = torch.cuda.Stream()
    copy = copy_gbps(stream, arguments.rounds)
    print(f"{torch.cuda.get_device_name()}; copy {copy:.0f} GB/s; parts of it; us")
    record = Record(f"skinny-{dtype}", arguments, copy_gbps=copy)
    for problem in problems:
        measured = _measure(problem, list(candidates[problem]), registry, stream, arguments.rounds)
        row = _row(problem, named[problem], measured, plain, copy)
        record.add(row)
        figures = " ".join(f"{key} {row[key]:6.1f}" for key in ("cublas", "plain", "selected", "predicted", "best"))
        short = "_".join(row["kernels"]["best"].split("_")[6:10])
        print(f"{row['problem']:20} {figures} {row['part_of_copy']:.3f} {short}", flush=True)
    print(f"records: {record.path}")


def _row(
    problem: Any, named: dict[str, Any], measured: dict[str, float], plain: Container[str], copy: float
) -> dict[str, Any]:
    """What was measured of a problem."""
    total = 2 * (problem.m * problem.k + problem.n * problem.k + problem.m * problem.n)
    cublas = measured.pop("cublas")
    roles = {role: measured[choice.name] for role, choice in named.items()}
    plain_best = min(us for name, us in measured.items() if name in plain)
    best = min(measured, key=measured.__getitem__)
    return {
        "problem": f"{problem.m}x{problem.n}x{problem.k} {problem.b_major}",
        "cublas": cublas,
        "plain": plain_best,
        "selected": roles["selected"],
        "predicted": named["selected"].predicted_us,
        "best": measured[best],
        "part_of_copy": total / measured[best] / 1e3 / copy,
        "kernels": {"selected": named["selected"].name, "best": best},
        "times": measured,
    }


def _measure(problem: Any, names: list[str], registry: Any, stream: Any, rounds: int) -> dict[str, float]:
    """Microseconds of cuBLAS and of each kernel, interleaved; operands come from DRAM."""
    from benchmarks.common import check, times

    from gemmill.profiler.baselines.cublas import unscaled
    from gemmill.profiler.measure.operands import make_operands
    from gemmill.profiler.measure.timing import launches_per_replay
    from gemmill.runtime.api.matmul import plan

    operands = make_operands(problem, 0)
    count = launches_per_replay(problem, len(operands))
    cublas = unscaled(problem, operands)
    assert cublas is not None
    launches = {"cublas": cublas.launch}
    wanted = operands[0].a.double() @ operands[0].b.double()
    for name in names:
        first = operands[0]
        prepared = plan(first.a, first.b, out=first.d, registry=registry, kernel=name)

        def launch(index: int, prepared: Any = prepared) -> None:
            prepared.rebind(a=operands[index].a, b=operands[index].b, out=operands[index].d)
            prepared()

        first.d.fill_(float("nan"))
        launch(0)
        launches[name] = launch
        check(f"{name} on {problem}", first.d, wanted)
    return times(launches, len(operands), count, rounds, stream)


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    main()
