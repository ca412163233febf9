"""What fused epilogues cost: the same kernel with the plain epilogue and with expressions, interleaved in one run.

Prints the time of each and its ratio to the plain one, with quartiles over rounds, and writes the same to a
file (JSON). Needs an NVIDIA GPU and PyTorch.

Reproduces docs/performance/layouts.md, "Fused epilogues".
"""

from __future__ import annotations

import argparse
import statistics
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]

KERNELS = (
    "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x128x64_2x1_pingpong_s6_m8_k1_linear",
    "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear",
)
"""The fastest kernel at 4096x4096x4096, and the fastest of those whose epilogues no other warpgroup's MMAs hide."""
SETS = 3
"""Operand sets that launches rotate over, so that none is in L2."""
LAUNCHES = 12
"""Launches in one replay."""
EPILOGUES = (
    "d = acc + bias.bf16[n]",
    "d = relu(acc + bias.bf16[n])",
    "d = silu(acc + bias.bf16[n])",
    "d = gelu(acc + bias.bf16[n])",
    "d = gelu_tanh(acc + bias.bf16[n])",
    "d = silu(gate) * up",
    "d = acc * row[m] * column[n]",
    "d = silu(alpha * acc * row[m] * column[n] + bias.bf16[n])",
    "d = relu(acc + bias.bf16[n]); amax = max(abs(d))",
    "d = acc + bias.bf16[n]; rows[m] = sum(d)",
    "d = acc + residual.bf16.n[m, n]",
    "d = acc + residual.bf16[m, n]",
    "aux.bf16.n = acc + bias.bf16[n]; d = gelu(acc + bias.bf16[n])",
    "aux.bf16 = acc + bias.bf16[n]; d = gelu(acc + bias.bf16[n])",
)
"""Matrices twice: moved by TMA, and through plain addresses."""


def main() -> None:
    """Measure, write and print."""
    from benchmarks.common import Record, add_options, in_turn

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--size", type=int, default=4096, help="M, N and K (%(default)s)")
    add_options(parser)
    arguments = parser.parse_args()

    import torch

    from gemmill.library.config.names import kernel_name, parse_name
    from gemmill.library.epilogues.parse import canonical
    from gemmill.profiler.measure.timing import capture, time_rounds
    from gemmill.runtime.registry import Registry
    from gemmill.runtime.select.kernels.variations import with_epilogue

    # Of each plain kernel, the one that a call with the epilogue would compile in its place.
    configs = {parse_name(name): name for name in KERNELS}
    for config, name in list(configs.items()):
        fused = {text: with_epilogue(config, canonical(text)) for text in EPILOGUES}
        if refused := [text for text, own in fused.items() if own is None]:
            raise SystemExit(f"{name} takes no epilogue {refused}")
        configs |= {own: name for own in fused.values() if own is not None}
    registry = Registry()
    registry.warm(list(configs))
    sets = [_operands(torch, arguments.size, seed) for seed in range(SETS)]
    stream = torch.cuda.Stream()
    plans = {kernel_name(config): [_plan(registry, config, x) for x in sets] for config in configs}
    graphs = {name: capture(in_turn(own), SETS, LAUNCHES, stream) for name, own in plans.items()}
    time_rounds(graphs, LAUNCHES, 3)  # until clocks have settled
    times = time_rounds(graphs, LAUNCHES, arguments.rounds)
    rows = []
    for config, name in configs.items():
        samples = times[kernel_name(config)]
        low, median, high = statistics.quantiles((x / y for x, y in zip(samples, times[name], strict=True)), n=4)
        us = statistics.median(samples)
        row = {"plain": name, "stages": config.stages, "epilogue": config.epilogue, "us": us}
        rows.append(row | {"ratio": median, "low": low, "high": high})
    rows.sort(key=lambda row: KERNELS.index(row["plain"]))
    record = Record("epilogue", arguments, size=arguments.size)
    record.add(*rows)
    print(f"{torch.cuda.get_device_name()}: {arguments.size}^3 bf16")
    print("ratio to the plain epilogue, its quartiles")
    for row in rows:
        if row["epilogue"] == "linear":
            print(row["plain"])
        print(
            f"  {row['us']:8.1f} us  {row['ratio']:6.3f} ({row['low']:.3f} to {row['high']:.3f})  s{row['stages']}  "
            f"{row['epilogue']}"
        )
    print(f"records: {record.path}")


def _operands(torch: Any, size: int, seed: int) -> dict[str, Any]:
    generator = torch.Generator(device="cuda").manual_seed(seed)

    def normal(*shape: int, dtype: Any = torch.bfloat16) -> Any:
        return torch.randn(shape, generator=generator, device="cuda").to(dtype)

    return {
        "a": normal(size, size),
        "b": normal(size, size).t(),
        "out": torch.empty(size, size, dtype=torch.bfloat16, device="cuda"),
        "gated": torch.empty(size, size // 2, dtype=torch.bfloat16, device="cuda"),
        "bias": normal(size),
        "row": normal(size, dtype=torch.float32),
        "column": normal(size, dtype=torch.float32),
        "residual": normal(size, size),
        "aux": torch.empty(size, size, dtype=torch.bfloat16, device="cuda"),
        "amax": torch.empty(1, device="cuda"),
        "rows": torch.empty(size, device="cuda"),
    }


def _plan(registry: Any, config: Any, x: dict[str, Any]) -> Any:
    """The plan of a kernel on one operand set."""
    import gemmill
    from gemmill.library.epilogues.parse import parse

    epilogue = parse(config.epilogue)
    out = x["gated"] if epilogue.gated else x["out"]
    if config.epilogue == "linear":
        return gemmill.plan(x["a"], x["b"], out=out, registry=registry, kernel=config)
    passed = {o.name: x[o.name] for o in epilogue.arguments}
    return gemmill.plan(x["a"], x["b"], out=out, registry=registry, kernel=config, epilogue=config.epilogue, **passed)


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    main()
