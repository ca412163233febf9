"""Grouped GEMMs of mixtures of experts in bf16: the selected kernel and those ranked next beside PyTorch, in one run.

Groups of random sizes, an eighth of them empty: tokens by experts (``torch._grouped_mm``), gradients of their weights,
and slots of fixed capacity, beside a batched product of whole slots. Needs an NVIDIA GPU and PyTorch.

Reproduces docs/performance/layouts.md, "Groups".
"""

from __future__ import annotations

import argparse
import random
import sys
from itertools import accumulate
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


ROWS = (
    (8, 16384, 7168, 4096),
    (128, 8192, 2048, 7168),
    (128, 32768, 7168, 2048),
    (256, 32768, 4096, 7168),
    (256, 4096, 7168, 2048),
)
"""Groups, tokens, N and K."""
GRADIENTS = ((128, 32768, 2048, 4096), (8, 16384, 4096, 7168))
"""Groups, tokens, M and N."""
SLOTS = ((64, 128, 16, 4096, 7168), (256, 128, 8, 4096, 2048))
"""Groups, capacity, mean of rows in use, N and K."""


def main() -> None:
    """Measure, write and print."""
    from benchmarks.common import Record, add_options

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runners", type=int, default=5, help="kernels beside the selected one (%(default)s)")
    add_options(parser)
    arguments = parser.parse_args()

    import torch

    from gemmill.runtime.registry import Registry

    registry, stream = Registry(manifests=["bf16"]), torch.cuda.Stream()
    generator = torch.Generator(device="cuda").manual_seed(0)

    def normal(*shape: int) -> Any:
        return torch.empty(shape, dtype=torch.bfloat16, device="cuda").normal_(generator=generator)

    def empty(*shape: int) -> Any:
        return torch.empty(shape, dtype=torch.bfloat16, device="cuda")

    def ends(tokens: int, groups: int) -> Any:
        return torch.tensor(list(accumulate(sizes(tokens, groups))), dtype=torch.int32, device="cuda")

    record = Record("groups-bf16", arguments)

    def measure(what: str, other: Any, a: Any, b: Any, out: Any, **kind: Any) -> None:
        row = {"problem": what} | compare(registry, stream, arguments, other, (a, b, out), kind)
        record.add(row)
        print(
            f"{what:44} torch {row['torch']:7.0f}  selected {row['selected']:7.0f}  best {row['best']:7.0f}", flush=True
        )

    for groups, tokens, n, k in ROWS:
        a, b, offsets = normal(tokens, k), normal(groups, n, k).mT, ends(tokens, groups)
        other = lambda _, a=a, b=b, offsets=offsets: torch._grouped_mm(a, b, offs=offsets)  # noqa: E731
        measure(f"{groups} groups, {tokens} x {n} x {k}", other, a, b, empty(tokens, n), offsets=offsets)
    for groups, tokens, m, n in GRADIENTS:
        a, b, offsets = normal(tokens, m).mT, normal(tokens, n), ends(tokens, groups)
        other = lambda _, a=a, b=b, offsets=offsets: torch._grouped_mm(a, b, offs=offsets)  # noqa: E731
        measure(f"gradients, {groups} groups, {m} x {n} x {tokens}", other, a, b, empty(groups, m, n), offsets=offsets)
    for groups, capacity, mean, n, k in SLOTS:
        a, b, out = normal(groups, capacity, k), normal(groups, n, k).mT, empty(groups, capacity, n)
        counts = torch.randint(0, 2 * mean, (groups,), generator=generator, device="cuda", dtype=torch.int32)
        other = lambda _, a=a, b=b, out=out: torch.bmm(a, b, out=out)  # noqa: E731
        what, kind = f"{groups} slots of {capacity}, {mean} used, {n} x {k}", {"counts": counts, "expected_rows": mean}
        measure(what, other, a, b, empty(*out.shape), **kind)
    print(f"records: {record.path}")


def sizes(tokens: int, groups: int) -> list[int]:
    """Random sizes of groups, an eighth of them empty."""
    draw = random.Random(tokens + groups)
    weights = [0.0 if draw.random() < 1 / 8 else draw.expovariate(1.0) for _ in range(groups)]
    bounds = [round(tokens * part / sum(weights)) for part in accumulate(weights)]
    return [end - begin for begin, end in zip([0, *bounds], bounds, strict=False)]


def compare(registry: Any, stream: Any, arguments: Any, other: Any, operands: Any, kind: Any) -> dict[str, Any]:
    """Microseconds of PyTorch, of the selected kernel and of the best; all kernels must agree with PyTorch."""
    import torch
    from benchmarks.common import check, times

    from gemmill.runtime.api.matmul import plan

    a, b, out = operands
    wanted, used = other(0).float(), slice(None)
    if "counts" in kind:  # what lies beyond is nobody's
        used = torch.arange(wanted.shape[1], device="cuda") < kind["counts"][:, None]
    choice = plan(a, b, out=out, registry=registry, **kind).choice
    assert choice is not None
    names = [choice.name, *(name for name, _ in choice.runners_up[: arguments.runners])]
    registry.warm(names)
    launches = {"torch": other}
    for name in dict.fromkeys(names):
        prepared = plan(a, b, out=out, registry=registry, kernel=name, **kind)
        out.fill_(float("nan"))
        prepared()
        check(name, out[used], wanted[used])
        launches[name] = lambda _, prepared=prepared: prepared()
    measured = times(launches, 1, 4, arguments.rounds, stream)
    torch_us = measured.pop("torch")
    best = min(measured, key=measured.__getitem__)
    return {
        "torch": torch_us,
        "selected": measured[choice.name],
        "best": measured[best],
        "kernels": {"selected": choice.name, "best": best},
        "times": measured,
    }


if __name__ == "__main__":
    sys.path[:0] = [str(ROOT), str(ROOT / "src")]
    main()
