"""Eight kernels, from a naive one to the fastest for large matrices: verified, timed, and compared with torch.mm.

    python examples/ladder/climb.py                            # a Hopper GPU and PyTorch
    python examples/ladder/climb.py --mnk 4096,4096,4096 --json times.json
    python examples/ladder/climb.py --dry                      # without a GPU: resources and registers
    python examples/ladder/climb.py --page                     # write the tables of docs/tutorials/ladder.md

Each step is a manifest in this folder. It declares one kernel, and changes one thing relative to the previous step. The
times of the page are those of the newest `ladder-*.json` in `profiler/results`.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from gemmill.emitters.emit import emit
from gemmill.library.config.fields import fields_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.errors import CompileError, DeviceError, GemmillError
from gemmill.library.families import mma
from gemmill.library.files import publish
from gemmill.library.manifest.load import load_manifest
from gemmill.library.records import Measurement

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
PAGE = ROOT / "docs" / "tutorials" / "ladder.md"
RESULTS = ROOT / "profiler" / "results"
MNK = (8192, 8192, 8192)
TORCH = "cublas"
"""The name of ``torch.mm`` in records."""
ELEMENT = 2
"""Bytes of a bf16 element."""


class Reading(NamedTuple):
    """The work of an instruction, and the data that its threads read from shared memory."""

    instruction: int
    """Multiply-adds of an instruction, over all threads that issue it together."""
    m: int
    n: int
    """Extents of the accumulators of these threads."""
    bytes: int
    """Size of an element in shared memory."""


def _by_warps(config: GemmConfig) -> Reading:
    warps_m, warps_n, _ = mma.MmaPlan(config).warps
    return Reading(16 * 8 * 16, config.tile.m // warps_m, config.tile.n // warps_n, ELEMENT)


READS: Mapping[str, Callable[[GemmConfig], Reading]] = {
    "simt": lambda config: Reading(32, config.tile.m // 4, config.tile.n // 2, 4),  # a warp of 4 x 8 threads; in f32
    "multistage": _by_warps,  # m16n8k16
    "pingpong": lambda config: Reading(64 * config.tile.n * 16, 64, config.tile.n, ELEMENT),  # a warpgroup
}
"""By schedule, for the schedules of the ladder."""


class Step(NamedTuple):
    """A step of the ladder: the kernel of a manifest."""

    name: str
    config: GemmConfig
    changed: str
    """Fields that differ from the previous step."""

    @property
    def resources(self) -> dict[str, str]:
        """The resources and data reuse of a CTA, by heading of the table."""
        config, reading = self.config, READS[self.config.schedule](self.config)
        m, n, k = config.tile.m, config.tile.n, config.tile.k
        asked = ELEMENT * (m / config.cluster.n + n / config.cluster.m)  # bytes from L2 per element of K
        read = reading.bytes * (reading.m + reading.n)
        launch = emit(config).launch
        return {
            "threads": f"{launch.threads}",
            "shared, KiB": f"{launch.shared_bytes / 1024:.0f}",
            "in flight, KiB": f"{(config.stages - 1) * ELEMENT * (m + n) * k / 1024:.0f}",
            "MACs per instruction": f"{reading.instruction:,}",
            "MACs per L2 byte": f"{m * n / asked:.1f}",
            "MACs per shared byte": f"{reading.m * reading.n / read:.1f}",
        }


def ladder() -> list[Step]:
    """The steps, the slowest first.

    Raises:
        ManifestError: a manifest is invalid.
        ValueError: a manifest declares several kernels.
    """
    steps: list[Step] = []
    for path in sorted(HERE.glob("*.yaml")):
        [config] = load_manifest(path).expand()
        steps.append(Step(path.stem, config, changes(steps[-1].config, config) if steps else ""))
    return steps


def brief(kernel: str) -> str:
    """The part of a kernel's name that differs between steps."""
    return "_".join(kernel.split("_")[6:11])


def changes(before: GemmConfig, after: GemmConfig) -> str:
    """Fields in which two configs differ, as ``tile.k 16 to 64, stages 2 to 4``."""
    old, new = fields_of(before), fields_of(after)
    return ", ".join(f"{field} {old[field]} to {new[field]}" for field in new if old[field] != new[field])


def compiled(steps: Sequence[Step]) -> list[dict[str, str]]:
    """Registers and spills of each step.

    Raises:
        ToolchainError: NVRTC or headers are missing.
        CompileError: a kernel does not compile.
    """
    from gemmill.runtime.compile.pool import compile_many
    from gemmill.runtime.storage.store import Store

    rows = []
    for outcome in compile_many([step.config for step in steps], store=Store()):
        if outcome.artifact is None:
            raise outcome.error or CompileError(outcome.name)
        used = outcome.artifact.resources
        rows.append({"registers": f"{used.registers}", "spilled": f"{used.spill_stores + used.spill_loads} B"})
    return rows


def climb(steps: Sequence[Step], mnk: tuple[int, int, int], rounds: int, commit: str | None) -> dict[str, Measurement]:
    """Verify all steps and ``torch.mm`` on one problem against float64, and time them in the same rounds.

    Args:
        steps: the ladder.
        mnk: extents of the problem.
        rounds: number of rounds.
        commit: commit to record; None: that of the repository.

    Returns:
        Records by kernel, including failed ones.

    Raises:
        DeviceError: there is no GPU or no PyTorch.
        ToolchainError: the store lacks kernels, and they cannot be compiled.
    """
    from gemmill.profiler.measure.messages import Options
    from gemmill.profiler.sweep.shape_suites import Shape
    from gemmill.profiler.sweep.sweep import Scope, sweep
    from gemmill.profiler.sweep.units import units

    chosen = units([step.config for step in steps], [Shape(*mnk)])
    options = Options(screen_rounds=2, finalists=None, final_rounds=rounds)
    with tempfile.TemporaryDirectory() as folder:
        records = Path(folder) / "records.jsonl"
        found = sweep(chosen, records, options=options, scope=Scope([TORCH], commit=commit))
    return {record.kernel: record for record in found}


def results(
    steps: Sequence[Step], records: Mapping[str, Measurement], mnk: tuple[int, int, int], rounds: int
) -> dict[str, Any]:
    """The content of ``--json``: times in milliseconds and ratios, with GPU, driver and commit."""
    own, torch = [records[kernel_name(step.config)] for step in steps], records[TORCH]
    rows = [
        {
            "step": step.name,
            "kernel": record.kernel,
            "changed": step.changed,
            "verified": record.verified,
            **times(record),
            "of_step_before": ratio(before, record),
            "of_torch": ratio(torch, record),
        }
        for step, before, record in zip(steps, [None, *own[:-1]], own, strict=True)
    ]
    facts = {name: getattr(torch, name) for name in ("gpu", "driver", "cuda", "torch", "commit")}
    return {**facts, "mnk": mnk, "rounds": rounds, "steps": rows, "torch_mm": times(torch)}


def times(record: Measurement) -> dict[str, float | None]:
    """Median and quartiles of a launch in milliseconds, and the throughput; None if it failed."""
    own = {"ms": record.us, "low_ms": record.low_us, "high_ms": record.high_us}
    return {**{name: us and us / 1000 for name, us in own.items()}, "tflops": record.tflops}


def ratio(before: Measurement | None, after: Measurement) -> float | None:
    """Speed of the second relative to the first; None if either has no time."""
    return before.us / after.us if before and before.us and after.us else None


def resource_table(steps: Sequence[Step], besides: Sequence[Mapping[str, str]] = ()) -> str:
    """A Markdown table of the resources of each step, with additional columns."""
    rows = [{"step": step.name, **step.resources} for step in steps]
    return table([{**row, **more} for row, more in zip(rows, besides or [{}] * len(rows), strict=True)])


def time_table(results: Mapping[str, Any], kernels: bool = True) -> str:
    """A Markdown table of :func:`results`, optionally with kernels and changes, and a line on the measurement."""
    rows = [
        {
            "step": row["step"],
            **({"kernel": brief(row["kernel"]), "changed": row["changed"]} if kernels else {}),
            **_told(row),
            "vs step before": _number(row["of_step_before"], 2),
            "vs torch.mm": _number(row["of_torch"], 3),
        }
        for row in results["steps"]
    ]
    rows.append({**dict.fromkeys(rows[0], ""), "step": "torch.mm", **_told(results["torch_mm"])})
    m, n, k = results["mnk"]
    return (
        f"{table(rows)}\n\n{m}x{n}x{k} on one {results['gpu']}, driver {results['driver']}, PyTorch {results['torch']} "
        f"with CUDA {results['cuda']}, commit `{results['commit'] or 'unknown'}`:\nmedians of {results['rounds']} "
        "rounds, quartiles in parentheses."
    )


def _told(row: Mapping[str, Any]) -> dict[str, str]:
    quartiles = f" ({_number(row['low_ms'], 3)} to {_number(row['high_ms'], 3)})" if row["ms"] else ""
    return {"ms": _number(row["ms"], 3) + quartiles, "TFLOP/s": _number(row["tflops"], 1)}


def _number(value: float | None, digits: int) -> str:
    return "" if value is None else f"{value:.{digits}f}"


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """A Markdown table, aligned so that it is readable in a terminal."""
    wide = {head: max(len(head), *(len(row[head]) for row in rows)) for head in rows[0]}

    def line(cells: Iterable[str]) -> str:
        return "| " + " | ".join(cell.ljust(width) for cell, width in zip(cells, wide.values(), strict=True)) + " |"

    rule = "|".join("-" * (width + 2) for width in wide.values())
    return "\n".join((line(wide), f"|{rule}|", *(line(row.values()) for row in rows)))


def page(text: str) -> str:
    """The text of the page with its tables generated again."""
    found = sorted(RESULTS.glob("ladder-*.json"))
    made = {"resources": resource_table(ladder()), "times": ""}
    if found:
        newest = json.loads(found[-1].read_text(encoding="utf-8"))
        made["times"] = f"{time_table(newest, kernels=False)} From `{found[-1].name}`."
    for name, content in made.items():
        begin, end = f"<!-- {name}: made by python examples/ladder/climb.py --page -->", f"<!-- end of {name} -->"
        inner = f"\n\n{content}\n\n" if content else "\n\n"
        text = re.sub(rf"({re.escape(begin)}).*?({re.escape(end)})", lambda x: x[1] + inner + x[2], text, flags=re.S)  # noqa: B023
    return text


def extents(text: str) -> tuple[int, int, int]:
    """M, N and K from text; ValueError if it is invalid."""
    m, n, k = map(int, text.split(","))
    if min(m, n, k) < 1:
        raise ValueError(text)
    return m, n, k


def main() -> None:
    """Run the ladder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mnk", type=extents, default=MNK, metavar="M,N,K", help="extents (%(default)s)")
    parser.add_argument("--rounds", type=int, default=12, help="rounds of timing (%(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the times to this file")
    parser.add_argument("--commit", help="commit to record; default: that of the repository")
    parser.add_argument("--dry", action="store_true", help="only compile: print resources and registers")
    parser.add_argument("--page", action="store_true", help="write the tables of docs/tutorials/ladder.md")
    arguments = parser.parse_args()
    try:
        steps = ladder()
        if arguments.page:
            publish(PAGE, [page(PAGE.read_text(encoding="utf-8")).encode()])
        elif arguments.dry:
            print(resource_table(steps, compiled(steps)))
        else:
            records = climb(steps, arguments.mnk, arguments.rounds, arguments.commit)
            found = results(steps, records, arguments.mnk, arguments.rounds)
            if arguments.json:
                publish(arguments.json, [json.dumps(found, indent=1).encode(), b"\n"])
            print(time_table(found))
            own = [records[kernel_name(step.config)] for step in steps]
            if wrong := [f"{record.kernel}: {record.says}" for record in own if not record.verified]:
                sys.exit("\n".join(wrong))
    except DeviceError as error:
        parser.exit(3, f"timing needs a Hopper GPU and PyTorch ({error}); without them, use {parser.prog} --dry\n")
    except GemmillError as error:
        parser.exit(1, f"{error}\n")


if __name__ == "__main__":
    main()
