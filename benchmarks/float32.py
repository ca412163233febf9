"""f32 and complex64 on tensor cores: each precision relative to cuBLAS, in bursts and under sustained load.

A product is x @ w.T, with square matrices and layers of models. Times include the splitting of both operands. PyTorch
multiplies in f32 without tf32. Calls rotate over sets of operands that are larger than the L2 cache.

A burst is a CUDA graph of a millisecond, in interleaved rounds. Under sustained load, each side runs alone for a turn,
of which the second half is timed. The program prints TFLOP/s, cuBLAS's time divided by that of each precision, with
quartiles over rounds or turns, and joules relative to cuBLAS. It first compares largest errors,
relative to float64, on data that is hard in one way each. Results are written as JSON. Needs an NVIDIA GPU and PyTorch.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemmill.profiler.measure.graph_timing import Launch

CUBLAS = "cublas"
REGIMES = ("burst", "sustained")
KINDS = ("f32", "complex64")
PRECISIONS = ("bf16x9", "bf16x6", "f16x3", "bf16x3", "ieee")
SQUARES = (4096, 8192, 16384)
ERROR_SQUARES = (4096, 8192)
"""Extents of the products whose errors are compared."""
LAYERS = (
    *((4096, 4096, 4096), (4096, 6144, 4096), (4096, 28672, 4096), (4096, 4096, 14336), (4096, 128256, 4096)),
    *((2048, 8192, 8192), (2048, 10240, 8192), (2048, 57344, 8192), (2048, 8192, 28672), (8192, 3072, 1024)),
    *((8192, 1024, 4096), (8192, 3072, 768), (8192, 768, 3072), (1024, 5120, 5120), (1024, 13824, 5120)),
    *((1024, 5120, 13824), (16384, 2112, 7168), (16384, 7168, 2048), (512, 18432, 4608), (512, 4608, 18432)),
)
"""Tokens, N and K of layers of Llama, ViT, BERT, Qwen2.5, DeepSeek-V3 and StarCoder2."""
MOST_ERROR = 2e-3
"""Largest error of a product that is timed, relative to the largest element."""
L2_BYTES = 2 * 50_000_000


def main() -> None:
    """Run the benchmark: write records, and print figures."""
    import torch
    from benchmarks.common import Record, parser_of

    parser = parser_of(__doc__, 9)
    parser.add_argument("--kinds", nargs="+", choices=KINDS, default=KINDS, help="types of the operands (all)")
    parser.add_argument("--precisions", nargs="+", choices=PRECISIONS, default=PRECISIONS, help="(all)")
    parser.add_argument("--regimes", nargs="*", choices=REGIMES, default=REGIMES, help="regimes (both)")
    parser.add_argument("--squares", nargs="*", type=int, default=SQUARES, help="M, N and K of squares (%(default)s)")
    parser.add_argument("--layers", type=int, default=len(LAYERS), help="the first layers (%(default)s)")
    parser.add_argument("--no-errors", action="store_true", help="do not compare errors")
    parser.add_argument("--turns", type=int, default=3, help="turns of each side (%(default)s)")
    parser.add_argument("--seconds", type=float, default=0.5, help="length of a turn (%(default)s)")
    arguments = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    record = Record("float32", arguments, turns=arguments.turns, seconds=arguments.seconds)
    if not arguments.no_errors:
        for row in errors(arguments.precisions):
            record.add(row)
            print(_errors_shown(row), flush=True)
    problems = [*((size,) * 3 for size in arguments.squares), *LAYERS[: arguments.layers]]
    for kind in arguments.kinds:
        rows = []
        for problem in problems:
            rows.append({"kind": kind, "problem": problem, **measure(kind, problem, arguments, record.telemetry)})
            record.add(rows[-1])
            print(_times_shown(rows[-1]), flush=True)
        for regime, precision in ((x, y) for x in arguments.regimes for y in arguments.precisions):
            found = [row[regime]["ratios"][precision][0] for row in rows]
            mean, least = statistics.geometric_mean(found), min(found)
            print(f"{kind} {precision:7} {regime:9} {len(found)} problems: {mean:.3f} of cuBLAS, at least {least:.3f}")
    print(f"records: {record.path}")


def sides(
    kind: str, problem: tuple[int, int, int], precisions: Sequence[str], sets: int
) -> tuple[dict[str, Launch], dict[str, Any]]:
    """Launches and D of cuBLAS and of each precision, on sets of random operands."""
    import torch
    from benchmarks.common import in_turn

    import gemmill

    m, n, k = problem
    dtype = {"f32": torch.float32, "complex64": torch.complex64}[kind]

    def normal(rows: int, columns: int) -> Any:
        return torch.randn(rows, columns, device="cuda", dtype=dtype)

    operands = [(normal(m, k), normal(n, k).T) for _ in range(sets)]
    wanted = torch.empty(m, n, device="cuda", dtype=dtype)
    launches: dict[str, Launch] = {CUBLAS: lambda i: torch.mm(*operands[i], out=wanted)}
    outputs = {CUBLAS: wanted}
    for precision in precisions:
        out = outputs[precision] = torch.empty_like(wanted)
        launches[precision] = in_turn([gemmill.plan(*pair, out=out, precision=precision) for pair in operands])
    return launches, outputs


def measure(kind: str, problem: tuple[int, int, int], arguments: Any, telemetry: Any) -> dict[str, Any]:
    """Measure all sides on one problem: microseconds, watts, and ratios to cuBLAS, by regime."""
    import torch
    from benchmarks.common import check, ratios

    from gemmill.profiler.measure.graph_timing import REPLAY_US, capture, time_rounds
    from gemmill.profiler.measure.sustained_load import time_turns

    m, n, k = problem
    element = 4 if kind == "f32" else 8
    sets = max(1, L2_BYTES // (element * k * (m + n)))
    launches, outputs = sides(kind, problem, arguments.precisions, sets)
    for launch in launches.values():
        launch(0)
    for name, out in outputs.items():
        check(f"{name} at {problem}", _real(out), _real(outputs[CUBLAS]), MOST_ERROR)
    flop = 2 * m * n * k * (1 if kind == "f32" else 4)
    count = sets * max(1, round(REPLAY_US / (flop / 100e6) / sets))
    stream = torch.cuda.Stream()
    graphs = {name: capture(launch, sets, count, stream) for name, launch in launches.items()}
    row: dict[str, Any] = {"flop": flop}
    if "burst" in arguments.regimes:
        time_rounds(graphs, count, 1)  # lets the clocks settle
        us = time_rounds(graphs, count, arguments.rounds)
        row["burst"] = {"us": us, "ratios": {name: ratios(us[CUBLAS], us[name]) for name in arguments.precisions}}
    if "sustained" in arguments.regimes:
        found = time_turns(graphs, count, arguments.seconds, arguments.turns, telemetry, frozenset(graphs))
        us = {name: times for name, (times, _) in found.items()}
        joules = {name: reading.watts * statistics.median(times) for name, (times, reading) in found.items()}
        row["sustained"] = {
            "us": us,
            "watts": {name: reading.watts for name, (_, reading) in found.items()},
            "ratios": {name: ratios(us[CUBLAS], us[name]) for name in arguments.precisions},
            "joules": {name: joules[name] / joules[CUBLAS] for name in arguments.precisions},
        }
    return row


def _real(x: Any) -> Any:
    import torch

    return torch.view_as_real(x) if x.is_complex() else x


def data(m: int, n: int, k: int) -> Iterator[tuple[str, Any, Any]]:
    """Pairs of f32 matrices x (M, K) and w (N, K), by what is hard about them."""
    import torch

    normal, uniform = partial(torch.randn, device="cuda"), partial(torch.rand, device="cuda")

    def powers(rows: int, columns: int, most: int) -> Any:
        return torch.exp2(torch.randint(-most, most + 1, (rows, columns), device="cuda").float())

    yield "normal", normal(m, k), normal(n, k)
    yield "one sign", uniform(m, k), uniform(n, k)
    yield "wide range in a row", normal(m, k) * powers(m, k, 20), normal(n, k) * powers(n, k, 20)
    yield "rows of many sizes", normal(m, k) * powers(m, 1, 40), normal(n, k) * powers(n, 1, 40)
    x, w = uniform(m, k // 2), uniform(n, k // 2)
    yield "halves that cancel", torch.cat((x, -x * (1 + normal(m, k // 2) / 1024)), 1), torch.cat((w, w), 1)


def errors(precisions: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Largest errors of cuBLAS and of each precision, relative to the product of magnitudes |x| |w.T|."""
    import torch

    import gemmill

    for size in ERROR_SQUARES:
        torch.manual_seed(0)
        for name, x, w in data(size, size, size):
            wanted = x.double() @ w.double().T
            magnitude = x.double().abs() @ w.double().abs().T

            def error(out: Any, wanted: Any = wanted, magnitude: Any = magnitude) -> float:
                return float(((out.double() - wanted).abs() / magnitude).max())

            found = {CUBLAS: error(x @ w.T)}
            found |= {p: error(gemmill.matmul(x, w.T, precision=p)) for p in precisions}
            yield {"errors": found, "data": name, "problem": (size, size, size)}


def _errors_shown(row: Mapping[str, Any]) -> str:
    listed = ", ".join(f"{name} {error:.1e}" for name, error in row["errors"].items())
    return f"errors, {row['data']:20} {'x'.join(map(str, row['problem'])):16} {listed}"


def _times_shown(row: Mapping[str, Any]) -> str:
    shown = []
    for regime in (x for x in REGIMES if x in row):
        found = row[regime]
        for name, (middle, low, high) in found["ratios"].items():
            rate = row["flop"] / statistics.median(found["us"][name]) / 1e6
            joules = f", J {found['joules'][name]:.3f}" if "joules" in found else ""
            shown.append(f"{regime} {name} {rate:.1f} TFLOP/s, {middle:.3f} ({low:.3f} to {high:.3f}){joules}")
    return f"{row['kind']} {'x'.join(map(str, row['problem']))}: " + "; ".join(shown)
