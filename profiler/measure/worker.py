"""The process that measures kernels for a sweep, so that a kernel that faults or hangs ends only this process.

The sweep sends one :class:`Unit` at a time. The worker announces each kernel before it runs (:class:`Running`), so that
the sweep can attribute a crash, and finally sends a :class:`Report`. A CUDA fault makes the context of the process
unusable: the worker sends a :class:`Fault` and exits.
"""

from __future__ import annotations

import math
import pickle
import statistics
import time
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from gemmill.library.arithmetic import arithmetic_of
from gemmill.library.config.edited import is_edited, plain_name
from gemmill.library.config.names import parse_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import CompileError, DeviceError, GemmillError, OperandError, UnsupportedProblemError
from gemmill.library.input.group_sizes import as_full, sizes_of
from gemmill.library.problem import GemmProblem
from gemmill.profiler.baselines.baseline import BASELINES, absent
from gemmill.profiler.measure.bits import compare_bits
from gemmill.profiler.measure.graph_timing import (
    Launch,
    capture,
    launches_per_replay,
    replay_seconds,
    summarise,
    time_rounds,
)
from gemmill.profiler.measure.messages import (
    Fault,
    Machine,
    Options,
    Outcome,
    Refusal,
    Report,
    Running,
    Stage,
    Unit,
)
from gemmill.profiler.measure.operands import (
    BETA,
    OperandSet,
    as_called,
    factors,
    make_operands,
    plan_options,
    poison,
    torch,
)
from gemmill.profiler.measure.sustained_load import likely_kernels, time_turns
from gemmill.profiler.measure.telemetry import Reading, Telemetry, open_telemetry
from gemmill.profiler.measure.telemetry import summarise as summarise_readings
from gemmill.profiler.measure.verify import Reference, reference
from gemmill.runtime import driver
from gemmill.runtime.api.matmul import plan
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.kernels.faults import is_swapped
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.workers import Parent

READ_EVERY = 4
"""Rounds per reading of clocks and power."""


def this_machine() -> tuple[Machine, Telemetry]:
    """torch's GPU 0, and its telemetry.

    Raises:
        DeviceError: there is no GPU, no torch, or no telemetry.
    """
    try:
        count = driver.device_count()
    except DeviceError as error:
        raise DeviceError(f"there is no GPU to run kernels on: {error}") from None
    if count == 0 or not torch().cuda.is_available():
        finds = "PyTorch finds none" if count else "the driver shows none"
        raise DeviceError(f"there is no GPU to run kernels on: {finds}; run gemmill doctor")
    properties = torch().cuda.get_device_properties(0)
    uuid = f"GPU-{properties.uuid}"
    telemetry = open_telemetry(uuid)
    versions = telemetry.driver(), str(torch().version.cuda), str(torch().__version__)
    capability = properties.major, properties.minor
    return Machine(properties.name, uuid, *versions, capability=capability, absent=absent()), telemetry


def serve(parent: Parent) -> None:
    """Body of the process: receives :class:`Options` and then units from the sweep, until the sweep ends."""

    def send(message: Running | Machine | Report | Refusal | Fault) -> None:
        parent.send(pickle.dumps(message))

    parent.end_with()  # while a kernel hangs, nothing reads the socket; the GPU must become free anyway
    with suppress(EOFError):
        options: Options = pickle.loads(parent.receive())
        try:
            bench = _Bench(options, send)
        except GemmillError as error:
            send(Refusal(str(error)))
            return
        send(bench.machine)
        while True:
            unit: Unit = pickle.loads(parent.receive())
            try:
                report = bench.measure(unit)
            except (GemmillError, RuntimeError) as error:  # torch raises RuntimeError, also for CUDA errors
                send(Fault(f"{type(error).__name__}: {error}".partition("\n")[0]))
                return
            send(report)


class _Clock:
    """The time limit of a unit, and the time left."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds = math.inf if seconds is None else seconds
        self._start = time.monotonic()

    @property
    def left(self) -> float:
        return self.seconds - (time.monotonic() - self._start)


class _Bench:
    """Measures units in the current process."""

    def __init__(self, options: Options, send: Callable[[Running], None]) -> None:
        self.machine, self.telemetry = this_machine()
        self.options = options
        self.send = send
        self.registry = Registry(manifests=[])
        self.kernels: set[str] = set()
        self.stream = torch().cuda.Stream()

    def runs(self, kernel: SlicedKernel | None) -> None:
        """Announce the kernel that runs next."""
        self.send(Running(kernel))

    def measure(self, unit: Unit) -> Report:
        """Verify all kernels, screen the correct ones, then time the best and the baselines.

        With a time limit, verification and screening may take half of it; the last kernels of the unit are skipped if
        they do not fit. While time permits, the slower half is dropped and the rest is timed with twice as many rounds
        (successive halving: Jamieson and Talwalkar, AISTATS 2016), down to the finalists.
        """
        clock = _Clock(unit.seconds)
        self.runs(None)
        torch().cuda.empty_cache()  # the operands of the last unit had other sizes
        operands = make_operands(unit.problem, self.options.seed, sizes=sizes_of(unit.problem, unit.sizes))
        launches, outcomes = self.verified(unit, operands, clock)
        baselines = {b: launches.pop(b) for b in map(SlicedKernel, unit.baselines) if b in launches}
        launches_each = launches_per_replay(as_full(unit.problem, unit.sizes), len(operands))
        readings: list[Reading] = []

        def timed(graphs: dict[SlicedKernel, Any], rounds: int, stage: Stage) -> list[SlicedKernel]:
            """Time candidates and record their outcomes; returns them, the fastest first."""
            if not graphs:
                return []

            def read(round_: int) -> None:
                if round_ % READ_EVERY == 0:
                    next(iter(graphs.values())).replay()  # keeps the GPU busy during the reading
                    self.runs(None)
                    readings.append(self.telemetry.read())
                    torch().cuda.synchronize()

            samples = time_rounds(graphs, launches_each, rounds, self.runs, read)
            for kernel, values in samples.items():
                outcomes[kernel] = replace(outcomes[kernel], stage=stage, timing=summarise(values, launches_each))
            return sorted(samples, key=lambda kernel: statistics.median(samples[kernel]))

        def seconds(kernels: Iterable[SlicedKernel]) -> float:
            """Time of a round of these kernels, in seconds."""
            return sum(outcomes[kernel].us for kernel in kernels) * launches_each / 1e6

        graphs = self.captured(launches, len(operands), launches_each)
        rounds, last = self.options.screen_rounds, self.options.finalists
        ranked = timed(graphs, rounds, "screen")
        while unit.seconds is not None and last is not None and len(ranked) // 2 > last:
            better, rounds = ranked[: len(ranked) // 2], 2 * rounds
            if clock.left < rounds * seconds(better) + self.options.screen_rounds * seconds(ranked[:last]):
                break
            ranked = timed({kernel: graphs[kernel] for kernel in better}, rounds, "screen")
        chosen = set(ranked[:last]) | set(unit.pinned)
        if self.options.regime == "sustained" and last is not None:
            screened_us = {k: outcomes[k].us for k in unit.kernels if k in graphs and not is_edited(k.name)}
            chosen |= {*likely_kernels(unit.problem, screened_us, last)}
        graphs = {kernel: graph for kernel, graph in graphs.items() if kernel in chosen}
        rounds = self.options.final_rounds
        if unit.seconds is not None and graphs:
            round_seconds = seconds(graphs) * (1 + len(baselines) / len(graphs))
            rounds = min(rounds, max(self.options.screen_rounds, int(clock.left / round_seconds)))
        graphs |= self.captured(baselines, len(operands), launches_each)
        if self.options.regime == "burst":
            timed(graphs, rounds, "final")
        else:
            outcomes |= self.time_alone(graphs, launches_each, frozenset(baselines), outcomes)
        return Report(
            tuple(outcomes.values()),
            summarise_readings(readings) if graphs else None,
            len(set(unit.kernels) - set(outcomes)),
        )

    def captured(self, candidates: dict[SlicedKernel, Launch], sets: int, launches: int) -> dict[SlicedKernel, Any]:
        """Capture graphs of ``launches`` launches each, over ``sets`` operand sets."""
        graphs = {}
        for kernel, launch in candidates.items():
            self.runs(kernel)
            graphs[kernel] = capture(launch, sets, launches, self.stream)
        return graphs

    def time_alone(
        self,
        graphs: dict[SlicedKernel, Any],
        launches: int,
        always: frozenset[SlicedKernel],
        outcomes: dict[SlicedKernel, Outcome],
    ) -> dict[SlicedKernel, Outcome]:
        """Time each candidate alone, under sustained load; those in ``always`` get all turns."""
        options = self.options
        results = time_turns(graphs, launches, options.seconds, options.turns, self.telemetry, always, self.runs)
        return {
            kernel: replace(outcomes[kernel], stage="final", timing=summarise(values, launches), reading=reading)
            for kernel, (values, reading) in results.items()
        }

    def verified(
        self, unit: Unit, operands: list[OperandSet], clock: _Clock
    ) -> tuple[dict[SlicedKernel, Launch], dict[SlicedKernel, Outcome]]:
        """Run each kernel once and compare it with the reference; returns the launches to time, and all outcomes.

        With a time limit, verify at least as many kernels as there are finalists, and more while verification and
        screening take at most half of the time.

        Baselines that support the GEMM are timed even if they exceed the bound, since cuBLAS may use accumulators of
        lower precision.
        """
        expected = reference(unit.problem, operands[0], *factors(unit.problem))
        launches: dict[SlicedKernel, Launch] = {}
        outcomes: dict[SlicedKernel, Outcome] = {}
        # A capture and the screening rounds.
        screening = (1 + self.options.screen_rounds) * replay_seconds(as_full(unit.problem, unit.sizes), len(operands))
        for kernel in unit.kernels:
            remaining = clock.left - len(launches) * screening
            tried = launches if clock.left > 0 else outcomes  # kernels that fail also take time
            if remaining < clock.seconds / 2 and len(tried) >= (self.options.finalists or 0):
                break
            self.runs(kernel)
            try:
                launch = self.launch(kernel, unit, operands)
            except (UnsupportedProblemError, OperandError, CompileError, DeviceError) as error:
                torch().cuda.synchronize()  # raises if the GPU has a fault, which ends this process
                outcomes[kernel] = Outcome(kernel, "failed", says=str(error).partition("\n")[0])
                continue
            operands[0].poison_outputs(unit.problem)
            outcome = self.compared(kernel, launch, expected, operands[0])
            outcomes[kernel] = self.with_bits(outcome, unit.problem, operands[0]) if self.options.bits else outcome
            if outcomes[kernel].verified:
                launches[kernel] = launch
        references = {unit.problem: expected}
        for name in unit.baselines:
            if name in self.machine.absent:
                continue
            self.runs(kernel := SlicedKernel(name))
            try:
                baseline = BASELINES[name](unit.problem, operands)
                if baseline is None:
                    continue
                solved, first = baseline.problem, baseline.operands[0]
                if solved not in references:
                    references[solved] = reference(solved, first, alpha=1.0, beta=BETA)
                if first.c is None:
                    poison(first.d)
                else:
                    first.d.copy_(first.c)  # torch's cuBLAS adds to D
                outcomes[kernel] = self.compared(kernel, baseline.launch, references[solved], first)
                launches[kernel] = baseline.launch
            except (GemmillError, RuntimeError) as error:  # the shape or the types are not supported
                torch().cuda.synchronize()  # raises if the GPU has a fault, which ends this process
                outcomes[kernel] = Outcome(kernel, "failed", says=str(error).partition("\n")[0])
        self.runs(None)
        return launches, outcomes

    def compared(self, kernel: SlicedKernel, launch: Launch, expected: Reference, operands: OperandSet) -> Outcome:
        """Launch with the first operand set, and compare with the reference."""
        launch(0)
        torch().cuda.synchronize()
        self.runs(None)  # a lack of memory in the comparison is not an error of the kernel
        comparison = expected.compare(operands.d, operands.arguments)
        stage: Stage = "screen" if comparison.passed else "failed"
        return Outcome(
            kernel,
            stage,
            None,
            comparison.passed,
            comparison.error,
            comparison.says and f"wrong result: {comparison.says}",
        )

    def with_bits(self, outcome: Outcome, problem: GemmProblem, operands: OperandSet) -> Outcome:
        """The outcome of a kernel after its D was also compared with the bits of the oracle."""
        if not outcome.verified:
            return outcome
        config = parse_name(plain_name(outcome.kernel.name))
        arithmetic = arithmetic_of(config, outcome.kernel.slices)
        comparison = compare_bits(problem, operands, arithmetic, swap_ab=is_swapped(config, problem))
        if comparison.passed:
            return outcome
        return replace(outcome, stage="failed", verified=False, says=f"wrong result: {comparison.says}")

    def launch(self, kernel: SlicedKernel, unit: Unit, operands: list[OperandSet]) -> Launch:
        """The launch of one kernel on each operand set; GemmillError if the kernel does not support the problem."""
        problem = unit.problem
        if kernel.name not in self.kernels:
            self.kernels.add(kernel.name)
            self.registry.add(Artifact.from_bytes(unit.artifacts[kernel.name]))
        alpha, beta = factors(problem)
        called, (first, *others) = as_called(problem, operands)
        options = plan_options(called, first) | first.tensors() | {"kernel": kernel.name, "slices": kernel.slices}
        prepared = plan(alpha=alpha, beta=beta, registry=self.registry, **options)
        bound = [operand.tensors() for operand in (first, *others)]

        def launch(index: int) -> None:
            prepared.rebind(**bound[index])
            prepared()

        return launch
