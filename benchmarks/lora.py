"""Products of low-rank adapters (LoRA): gemmill, a loop of PyTorch over adapters, and a Triton baseline, in bursts.

Each token has one of some adapters at random. gemmill's time is that of a plan with tokens that are sorted once for all
layers, and of one with ids. The Triton baseline works as vLLM's, with sorted tokens; it and the loop are made for these
ids, while gemmill's plans hold for any. A burst is a CUDA graph; all operands stay in L2 if they fit. The program
prints microseconds, and the others' divided by gemmill's with sorted tokens. Results are written as JSON. Needs an
NVIDIA GPU and PyTorch with Triton.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from itertools import product
from typing import Any

OURS, BY_IDS, LOOP, TRITON = "gemmill", "gemmill, by ids", "PyTorch's loop", "Triton"
TOKENS, RANKS, ADAPTERS = (1, 16, 64, 256, 2048), (8, 16, 64), (1, 8, 32, 128)
SCALE = 0.5
LAUNCHES = 20
"""Launches of a graph."""


def main() -> None:
    """Run the benchmark: write records, and print figures."""
    from benchmarks.common import Record, parser_of

    parser = parser_of(__doc__, rounds=9)
    for name, values in (("tokens", TOKENS), ("ranks", RANKS), ("adapters", ADAPTERS)):
        parser.add_argument(f"--{name}", nargs="+", type=int, default=values, help=f"({' '.join(map(str, values))})")
    parser.add_argument("--hidden", type=int, default=4096, help="columns of x (%(default)s)")
    parser.add_argument("--columns", type=int, default=4096, help="columns of the result (%(default)s)")
    arguments = parser.parse_args()
    widths = arguments.hidden, arguments.columns
    record = Record("lora", arguments, hidden=arguments.hidden, columns=arguments.columns)
    for rank, adapters, tokens in product(arguments.ranks, arguments.adapters, arguments.tokens):
        row = {"tokens": tokens, "rank": rank, "adapters": adapters}
        row |= measure(tokens, rank, adapters, widths, arguments.rounds)
        record.add(row)
        print(line(row), flush=True)
    print(f"records: {record.path}")


def measure(tokens: int, rank: int, adapters: int, widths: tuple[int, int], rounds: int) -> dict[str, Any]:
    """Median microseconds of each side; an error of a baseline by its name."""
    import torch
    from benchmarks.common import in_turn

    import gemmill
    from gemmill.profiler.baselines import triton_adapters
    from gemmill.profiler.measure.graph_timing import capture, time_rounds

    hidden, columns = widths
    drawn = {"device": "cuda", "dtype": torch.bfloat16}
    x, y = torch.randn(tokens, hidden, **drawn), torch.randn(tokens, columns, **drawn)
    a, b = torch.randn(adapters, rank, hidden, **drawn) / hidden**0.5, torch.randn(adapters, columns, rank, **drawn)
    ids = torch.randint(0, adapters, (tokens,), device="cuda", dtype=torch.int32)
    routing, stream = gemmill.route(ids[:, None], adapters), torch.cuda.Stream()
    plans = {name: gemmill.plan_lora(x, a, b, i, y=y, scale=SCALE) for name, i in ((OURS, routing), (BY_IDS, ids))}
    sides: dict[str, tuple[Callable[[], None], Any]] = {name: (plan, plan.out) for name, plan in plans.items()}
    failed: dict[str, str] = {}
    sides[LOOP] = loop(x, a, b, ids, y)
    try:
        tuned = triton_adapters.tuned(x, a, b, ids, y, SCALE, stream)
        sides[TRITON] = tuned, tuned.out
    except Exception as error:  # noqa: BLE001 - an error of a baseline is a result, and the others go on
        failed[TRITON] = f"{type(error).__name__}: {error}"
    graphs = {name: capture(in_turn((run,)), 1, LAUNCHES, stream) for name, (run, _) in sides.items()}
    at = ids[:64].long()
    inner = torch.einsum("th,trh->tr", x[:64].double(), a.double()[at])
    wanted = y[:64].double() + SCALE * torch.einsum("tr,tnr->tn", inner, b.double()[at])
    time_rounds(graphs, LAUNCHES, 1)  # lets the clocks settle
    samples = time_rounds(graphs, LAUNCHES, rounds)
    errors = {name: float((out[:64].double() - wanted).norm() / wanted.norm()) for name, (_, out) in sides.items()}
    assert max(errors.values()) < 2**-6, f"a result is wrong: the errors are {errors}"
    return {
        "us": {name: statistics.median(us) for name, us in samples.items()},
        "errors": errors,
        "failed": failed,
    }


def loop(x: Any, a: Any, b: Any, ids: Any, y: Any) -> tuple[Callable[[], None], Any]:
    """PyTorch's operations for each adapter in use, and their result."""
    out = y.clone()
    used = [(i, (ids == i).nonzero()[:, 0]) for i in range(len(a))]

    def run() -> None:
        out.copy_(y)
        for i, at in used:
            if len(at):
                out.index_add_(0, at, (x[at] @ a[i].mT) @ b[i].mT, alpha=SCALE)

    return run, out


def line(row: dict[str, Any]) -> str:
    """A row as text."""
    us = row["us"]
    others = ", ".join(f"{name} {us[name] / us[OURS]:.2f}" for name in (LOOP, TRITON) if name in us)
    case = f"{row['tokens']:5} tokens, rank {row['rank']:3}, {row['adapters']:4} adapters"
    failed = "".join(f"; {name} failed: {error:.80}" for name, error in row["failed"].items())
    return f"{case}: {us[OURS]:6.1f} us, by ids {us[BY_IDS]:6.1f}; {others}{failed}"
