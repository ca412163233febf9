"""Narrow weights beside bf16 activations: the selected kernel and those ranked next beside cuBLAS in bf16, in one run.

Needs an NVIDIA GPU and PyTorch.

Reproduces docs/performance/types.md, "Narrow weights".
"""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


TOKENS = (1, 16, 64, 256, 4096)
FORMATS: tuple[tuple[Any, Any], ...] = (("u4", "1x128"), ("u4", "1x128z"), ("s8", "none"), ("e4m3", "none"))
"""Types of the weights and the groups of their scales; z: with zero points."""
SIZE = 8192
"""N and K."""


def main() -> None:
    """Measure, write and print."""
    from benchmarks.common import Record, add_options, times

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runners", type=int, default=5, help="kernels beside the selected one (%(default)s)")
    add_options(parser)
    arguments = parser.parse_args()

    import torch

    from gemmill.library.problem import GemmProblem
    from gemmill.profiler.baselines.cublas import unscaled
    from gemmill.profiler.measure.operands import make_operands, poison, set_count
    from gemmill.profiler.measure.timing import launches_per_replay
    from gemmill.profiler.measure.verify import reference
    from gemmill.runtime.registry import Registry

    registry, stream = Registry(manifests=["mixed"]), torch.cuda.Stream()
    record = Record("weights-bf16", arguments, size=SIZE)
    for tokens in TOKENS:
        # Kernels upconvert their A: it is the weights, and D is m-major.
        plain = GemmProblem(SIZE, tokens, SIZE, d_major="m")
        problems = [replace(plain, a_dtype=dtype, a_scale=scale) for dtype, scale in FORMATS]
        sets = max(map(set_count, (plain, *problems)))  # the narrowest weights, too, come from DRAM
        operands = make_operands(plain, 0, sets=sets)
        cublas = unscaled(plain, operands)
        assert cublas is not None
        launches = {"cublas": cublas.launch}
        chosen = {}
        for problem in problems:
            choice = registry.select(problem)
            names = list(dict.fromkeys([choice.name, *(name for name, _ in choice.runners_up[: arguments.runners])]))
            registry.warm(names)
            own = make_operands(problem, 0, sets=sets)
            expected = reference(problem, own[0], alpha=1.0, beta=0.0)
            chosen[f"{problem.a_dtype} {problem.a_scale}"] = choice.name, names
            for name in names:
                launches[name] = _launch(problem, name, own, registry)
                poison(own[0].d)
                launches[name](0)
                assert (verdict := expected.compare(own[0].d)).passed, f"{name} is wrong: {verdict.says}"
        count = launches_per_replay(plain, sets)
        measured = times(launches, sets, count, arguments.rounds, stream)
        row: dict[str, Any] = {"tokens": tokens, "cublas": measured["cublas"]}
        for label, (name, names) in chosen.items():
            best = min(names, key=measured.__getitem__)
            row[label] = {
                "selected": measured[name],
                "best": measured[best],
                "kernels": {"selected": name, "best": best},
            }
        record.add(row)
        figures = "  ".join(f"{label} {row[label]['selected']:.1f} ({row[label]['best']:.1f})" for label in chosen)
        print(f"{tokens:5} tokens: cuBLAS {row['cublas']:.1f} us; selected (best): {figures}", flush=True)
    print(f"records: {record.path}")


def _launch(problem: Any, name: str, operands: Any, registry: Any) -> Any:
    from benchmarks.common import in_turn

    from gemmill.profiler.measure.operands import plan_options
    from gemmill.runtime.api.matmul import plan

    return in_turn(
        [plan(x.a, x.b, out=x.d, registry=registry, kernel=name, **plan_options(problem, x)) for x in operands]
    )


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    main()
