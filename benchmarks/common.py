"""Shared parts of the benchmarks: options, launches, baselines, and result files."""

from __future__ import annotations

import json
import time
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gemmill.library.decompositions.sliced_kernel import SlicedKernel


def parser_of(description: str | None, rounds: int | None = None) -> ArgumentParser:
    """A parser with the common options of all programs; ``rounds`` is the default number, None: that of sweeps."""
    from gemmill.profiler.measure.graph_timing import ROUNDS

    parser = ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds or ROUNDS, help="rounds over all candidates (%(default)s)")
    parser.add_argument("--commit", help="commit to record in the results; default: that of the repository")
    parser.add_argument("--out", type=Path, default=Path(), help="folder for the results; default: working directory")
    return parser


def check(what: str, found: Any, wanted: Any, most: float = 0.01) -> None:
    """Assert that the error of each element, relative to the largest element, is below ``most``; NaN fails."""
    error = (found.to(wanted.dtype) - wanted).abs().max() / wanted.abs().max()
    assert error < most, f"{what} is wrong: the error is {error:.3f} of the largest element; it must be below {most}"


def in_turn(launches: Sequence[Callable[[], object]]) -> Callable[[int], None]:
    """A function that launches on the operand set of an index."""

    def launch(index: int) -> None:
        launches[index]()

    return launch


def launch_of(problem: Any, operands: Sequence[Any], kernel: SlicedKernel, registry: Any) -> Callable[[int], None]:
    """The launch of a kernel, with its number of split-K slices, on each operand set."""
    from gemmill.profiler.measure.operands import as_called, natural_alpha, plan_options
    from gemmill.runtime.api.matmul import plan

    problem, operands = as_called(problem, operands)
    options = {"alpha": natural_alpha(problem), "registry": registry, "kernel": kernel.name, "slices": kernel.slices}
    return in_turn([plan(x.a, x.b, out=x.d, **options, **plan_options(problem, x)) for x in operands])


def baseline_graphs(problem: Any, operands: Sequence[Any], count: int, stream: Any) -> dict[str, Any]:
    """Captured graphs of cuBLAS through PyTorch, and of cuBLASLt, if available. Only cuBLASLt supports block scaling.
    Prints which baseline does not support a GEMM, and why."""
    from gemmill.library.errors import GemmillError
    from gemmill.profiler.baselines.baseline import BASELINES, CUBLAS, CUBLASLT, absent
    from gemmill.profiler.measure.graph_timing import capture

    graphs = {}
    for name in (CUBLAS, CUBLASLT):
        if name in absent():
            continue
        try:
            if (baseline := BASELINES[name](problem, operands)) is not None:
                graphs[name] = capture(baseline.launch, len(operands), count, stream)
        except (GemmillError, RuntimeError) as error:
            print(f"{problem}: not compared with {name}: {error}", flush=True)
    return graphs


def problem_of(dtype: str, m: int, n: int, k: int, a_major: str = "k", b_major: str = "k") -> Any:
    """A problem on packed operands of a type; the suffix ``-scaled`` adds block scaling."""
    from gemmill.library.dtypes import default_accumulator, default_output
    from gemmill.library.problem import GemmProblem

    element: Any = dtype.removesuffix("-scaled")
    d = "f32" if element == "tf32" else default_output(element)
    options: dict[str, Any] = {"a": element, "a_major": a_major, "b_major": b_major, "d": d}
    options["accumulator"] = default_accumulator(element)
    if element != dtype:
        options |= {"a_scale": "1x128", "b_scale": "128x128", "promote": 4}
    return GemmProblem(m, n, k, **options)


def ratios(reference: Sequence[float], candidate: Sequence[float]) -> tuple[float, float, float]:
    """Speed of a candidate relative to a reference: median and quartiles over rounds."""
    from gemmill.profiler.measure.graph_timing import summarise

    found = summarise([before / us for before, us in zip(reference, candidate, strict=True)])
    return found.median, found.low, found.high


def _claimed(folder: Path, name: str) -> Path:
    """Create a new file, named by the program and the second; waits if the name is taken."""
    folder.mkdir(parents=True, exist_ok=True)
    while True:
        path = folder / f"{name}-{datetime.now(UTC):%Y%m%dT%H%M%SZ}.json"
        try:
            path.touch(exist_ok=False)
        except FileExistsError:
            time.sleep(0.1)
        else:
            return path


class Record:
    """Results as JSON, with GPU, driver and commit. The file is complete after each row, so that no row is lost.

    Args:
        name: the beginning of the file name.
        arguments: arguments of the command line.
        facts: further members of the file.
    """

    def __init__(self, name: str, arguments: Namespace, **facts: Any) -> None:
        import torch

        from gemmill.profiler.analysis.appender import source_commit
        from gemmill.profiler.measure.telemetry import open_telemetry

        properties = torch.cuda.get_device_properties(torch.cuda.current_device())
        self.telemetry = open_telemetry(f"GPU-{properties.uuid}")
        """Telemetry of the GPU."""
        self.path = _claimed(arguments.out, name)
        self._rows: list[dict[str, Any]] = []
        self._content = {
            "gpu": properties.name,
            "driver": self.telemetry.driver(),
            "cuda": torch.version.cuda,
            "torch": str(torch.__version__),
            "commit": arguments.commit or source_commit(),
            "rounds": arguments.rounds,
            **facts,
            "rows": self._rows,
        }
        self.add()

    def add(self, *rows: dict[str, Any]) -> None:
        """Add rows, and write the file."""
        from gemmill.library.files import publish

        self._rows += rows
        publish(self.path, [json.dumps(self._content, indent=1).encode(), b"\n"])
