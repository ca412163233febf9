"""fp8 with scales: of rows beside ``torch._scaled_mm``, of blocks of 3-D operands beside 2-D, and in bytes beside f32.

``gemmill.matmul(a, b, a_scale=(M, 1), b_scale=(1, N))`` on layers of large language models, the epilogue of the
selected kernel multiplying; block-scaled (B, S, K) operands beside the same as (B * S, K), and scales of ue8m0 beside
the same in f32; all in one run. Launches go through
operand sets in turn, so that none is in L2, and are replayed in CUDA graphs; ratios are of rounds. Needs an NVIDIA GPU
and PyTorch.

Reproduces docs/performance/types.md, "Scales of rows".
"""

from __future__ import annotations

import argparse
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from math import prod
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]

ROWS = (
    (16, 6144, 4096),
    (64, 4096, 14336),
    (128, 28672, 4096),
    (512, 6144, 4096),
    (1024, 4096, 14336),
    (2048, 28672, 4096),
    (4096, 10240, 8192),
    (4096, 8192, 28672),
    (8192, 4096, 4096),
    (8192, 28672, 8192),
)
"""M, N and K of layers of Llama 3 8B and 70B."""
BLOCKS = (
    (16, 1, 7168, 16384),
    (8, 128, 4096, 7168),
    (4, 512, 7168, 2048),
    (4, 1024, 2112, 7168),
    (2, 2048, 24576, 1536),
)
"""Sequences, their tokens, N and K of layers of DeepSeek-V3."""


def main() -> None:
    """Measure, write and print."""
    from benchmarks.common import Record, add_options

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print what is written instead of a table")
    add_options(parser)
    arguments = parser.parse_args()

    import torch

    from gemmill.library.problem import GemmProblem
    from gemmill.profiler.measure.operands import set_count

    record, stream = Record("scaled", arguments), torch.cuda.Stream()
    for kind, shapes, candidates in (
        ("rows", ROWS, by_rows),
        ("blocks", BLOCKS, by_blocks),
        ("bytes", BLOCKS, by_bytes),
    ):
        rows = []
        for shape in shapes:
            torch.cuda.empty_cache()
            count = set_count(GemmProblem(prod(shape[:-2]), *shape[-2:], a="e4m3"))
            row = {"kind": kind, "problem": "x".join(map(str, shape))}
            rows.append(row | compare(*candidates(torch, shape, count), arguments.rounds, stream))
            record.add(rows[-1])
            if not arguments.json:
                show(rows[-1])
        mean = statistics.geometric_mean(row["ratio"] for row in rows)
        record.add({"kind": kind, "problem": f"geometric mean of {len(rows)}", "ratio": mean})
        if not arguments.json:
            print(f"{kind:7} geometric mean of {len(rows)}: {mean:.3f}", flush=True)
    print(record.path.read_text() if arguments.json else f"records: {record.path}")


def show(row: Mapping[str, Any]) -> None:
    """Print what was measured of one problem."""
    print(
        f"{row['kind']:7} {row['problem']:18} {row['us']:8.1f} us  {row['other']} {row['other_us']:8.1f} us  "
        f"ratio {row['ratio']:.3f} ({row['low']:.3f} to {row['high']:.3f})  {row['kernel']}",
        flush=True,
    )


def compare(
    plans: Sequence[Any], other: str, launches: Sequence[Callable[[], object]], rounds: int, stream: Any
) -> dict[str, Any]:
    """Times of plans, one for each operand set, and of what stands beside them; ratios above 1 say plans are faster."""
    from benchmarks.common import in_turn

    from gemmill.profiler.measure.timing import capture, launches_per_replay, time_rounds

    sets = len(plans)
    count = launches_per_replay(plans[0].problem, sets)
    graphs = {name: capture(in_turn(own), sets, count, stream) for name, own in (("own", plans), (other, launches))}
    time_rounds(graphs, count, 5)  # until clocks have settled
    times = time_rounds(graphs, count, rounds)
    low, ratio, high = statistics.quantiles((x / y for x, y in zip(times[other], times["own"], strict=True)), n=4)
    medians = {"us": statistics.median(times["own"]), "other": other, "other_us": statistics.median(times[other])}
    return medians | {"ratio": ratio, "low": low, "high": high, "rounds": rounds, "kernel": plans[0].choice.name}


Candidates = tuple[list[Any], str, list[Callable[[], object]]]
"""Plans, and the name and launches of what stands beside them."""


def by_rows(torch: Any, shape: Sequence[int], sets: int) -> Candidates:
    """A scale for each row of A and column of B, beside ``torch._scaled_mm``; both sum in the tensor cores."""
    from benchmarks.common import check

    m, n, k = shape
    plans: list[Any] = []
    launches: list[Callable[[], object]] = []
    for seed in range(sets):
        a, b, of_rows, of_columns = operands(torch, seed, (m, k), n, (m, 1), (1, n))
        plan, theirs = made(torch, a, b.t(), of_rows, of_columns)
        plans.append(plan)
        scaled = partial(torch._scaled_mm, a, b.t(), scale_a=of_rows, scale_b=of_columns, out=theirs)
        launches.append(partial(scaled, out_dtype=torch.bfloat16, use_fast_accum=True))
        if seed == 0:
            plan()
            launches[0]()
            check(f"rows of {m}x{n}x{k}", plan.out, theirs.float())
    return plans, "torch", launches


def by_blocks(torch: Any, shape: Sequence[int], sets: int) -> Candidates:
    """Scales of blocks, of a (B, S, K) operand and of the same as (B * S, K)."""
    from benchmarks.common import check

    batch, tokens, n, k = shape
    plans: list[Any] = []
    flat: list[Callable[[], object]] = []
    blocks = -(-k // 128)
    for seed in range(sets):
        a, b, a_scale, b_scale = operands(
            torch, seed, (batch, tokens, k), n, (batch, tokens, blocks), (-(-n // 128), blocks)
        )
        plans.append(made(torch, a, b.t(), a_scale, b_scale.t())[0])
        plain, _ = made(torch, a.flatten(0, 1), b.t(), a_scale.flatten(0, 1), b_scale.t())
        flat.append(plain)
        if seed == 0:
            plans[0]()
            flat[0]()
            check(f"blocks of {batch}x{tokens}x{n}x{k}", plans[0].out.flatten(0, 1), plain.out.float())
    return plans, "2-D", flat


def by_bytes(torch: Any, shape: Sequence[int], sets: int) -> Candidates:
    """Scales of blocks that are powers of two, in ue8m0 and in f32."""
    from benchmarks.common import check

    m, (n, k) = prod(shape[:-2]), shape[-2:]
    plans: list[Any] = []
    wide: list[Callable[[], object]] = []
    blocks = -(-k // 128)
    for seed in range(sets):
        a, b, *scales = operands(torch, seed, (m, k), n, (m, blocks), (-(-n // 128), blocks))
        a_scale, b_scale = (x.log2().round().exp2() for x in scales)
        a_byte, b_byte = (x.to(torch.float8_e8m0fnu) for x in (a_scale, b_scale))
        plans.append(made(torch, a, b.t(), a_byte, b_byte.t())[0])
        plain, _ = made(torch, a, b.t(), a_scale, b_scale.t())
        wide.append(plain)
        if seed == 0:
            plans[0]()
            plain()
            check(f"bytes of {m}x{n}x{k}", plans[0].out, plain.out.float())
    return plans, "f32", wide


def operands(torch: Any, seed: int, a: Sequence[int], n: int, *scales: Sequence[int]) -> tuple[Any, ...]:
    """A, B with a row for each column, and scales around a hundredth."""
    generator = torch.Generator(device="cuda").manual_seed(seed)

    def normal(*extents: int) -> Any:
        return torch.randn(extents, generator=generator, device="cuda").to(torch.float8_e4m3fn)

    def positive(*extents: int) -> Any:
        return torch.rand(extents, generator=generator, device="cuda") / 100 + 0.005

    return normal(*a), normal(n, a[-1]), *(positive(*extents) for extents in scales)


def made(torch: Any, a: Any, b: Any, a_scale: Any, b_scale: Any) -> tuple[Any, Any]:
    """A plan, and an empty D like its own."""
    import gemmill

    out = torch.empty(*a.shape[:-1], b.shape[-1], dtype=torch.bfloat16, device="cuda")
    return gemmill.plan(a, b, out=out, a_scale=a_scale, b_scale=b_scale), torch.empty_like(out)


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    main()
