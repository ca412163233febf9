"""Autotuning: ``autotune=N`` times the N kernels that the selector ranks best, once per problem, and stores the
fastest.

Only calls with ``autotune=`` use the stored result, so the content of a store never changes other calls.
"""

from __future__ import annotations

import functools
import hashlib
import json
import logging
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict
from typing import TYPE_CHECKING

from pydantic import AliasChoices, Field

from gemmill.library.bits import ANY
from gemmill.library.config.names import parse_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import CaptureError, CompileError, DeviceError, GemmillError, UnsupportedProblemError
from gemmill.library.frozen import Frozen
from gemmill.library.problem import GemmProblem
from gemmill.runtime import driver
from gemmill.runtime.api import caches
from gemmill.runtime.launch.launcher import Launches
from gemmill.runtime.launch_times import scratch, time_launches
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.gemm import Addresses
from gemmill.runtime.operands.tensors import TensorView
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.choice import RUNNERS_UP, Candidate, Choice, in_words

if TYPE_CHECKING:
    from gemmill.runtime.compile.pool import Outcome

_lock = threading.Lock()
"""Held while kernels are timed, since threads that time at once would disturb each other."""

NewLauncher = Callable[[SlicedKernel, bool], Callable[[], Launches]]
"""Loads a kernel with its slices of K, for the problem or its transpose, and returns a function that makes its
launcher."""


class TimedKernel(Frozen):
    """One kernel and its measured time."""

    kernel: str
    """Kernel name."""
    slices: int = 1
    """Slices of K of its launch."""
    swap_ab: bool = Field(validation_alias=AliasChoices("swap_ab", "swapped"))
    """Whether it ran the transposed problem; older stores call this ``swapped``."""
    digest: str
    """SHA-256 of its cubin, in hex."""
    us: float
    """Median time in microseconds."""

    @property
    def sliced(self) -> SlicedKernel:
        """The kernel and its slices of K."""
        return SlicedKernel(self.kernel, self.slices)


class Answer(Frozen):
    """The result of autotuning one problem."""

    problem: GemmProblem
    gpu: str
    """Name of the GPU from the driver."""
    sm_count: int | None
    """Most SMs that launches used; None for all."""
    kernels: tuple[TimedKernel, ...]
    """The timed kernels, fastest first."""


def autotuned(
    registry: Registry,
    problem: GemmProblem,
    count: int,
    sm_count: int | None,
    gpu: str,
    time: Callable[[list[Candidate]], Sequence[float | None]],
    bits: str = ANY,
) -> Choice:
    """Return the fastest of the ``count`` best-ranked kernels for a problem on a GPU with the name ``gpu``, with the
    arithmetic that ``bits`` requires.

    The result comes from this process, from the registry's store, or from ``time``, which returns the microseconds of
    each candidate and None for those that cannot run here. A stored result holds for the same candidates, and as long
    as the cubin of the fastest is the one that was timed.
    """
    candidates = registry.candidates(problem, count, sm_count, bits)
    request = [asdict(problem), gpu, sm_count, sorted((str(c.kernel), c.swap_ab) for c in candidates)]
    request += [bits] if bits != ANY else []
    key = hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()
    answers = caches.of_registry(registry).answers
    with _lock:
        if key not in answers:
            answer = _read(registry, key, problem, candidates)
            if answer is None:
                times = time(candidates)
                timed = [
                    TimedKernel(kernel=name, slices=slices, swap_ab=swap_ab, digest=registry.get(name).digest, us=us)
                    for ((name, slices), swap_ab, _), us in zip(candidates, times, strict=True)
                    if us is not None
                ]
                kernels = tuple(sorted(timed, key=lambda kernel: (kernel.us, kernel.sliced)))
                answer = Answer(problem=problem, gpu=gpu, sm_count=sm_count, kernels=kernels)
                registry.store.put_note("autotuned", key, answer.model_dump_json(indent=1).encode())
            selected = registry.select(problem, sm_count, bits)
            answers[key] = _choice(answer).answering(problem, selected.slow_path, selected.required)
        return answers[key]


def _read(registry: Registry, key: str, problem: GemmProblem, candidates: Sequence[Candidate]) -> Answer | None:
    """Return the stored result; None where there is none, it is damaged, or its kernel has changed since."""
    try:
        answer = Answer.model_validate_json(registry.store.get_note("autotuned", key))
        best = answer.kernels[0]
    except (OSError, ValueError, IndexError):
        return None
    expected = {(candidate.kernel, candidate.swap_ab) for candidate in candidates}
    if answer.problem != problem or not {(kernel.sliced, kernel.swap_ab) for kernel in answer.kernels} <= expected:
        return None
    return answer if registry.get(best.kernel).digest == best.digest else None


def _choice(answer: Answer) -> Choice:
    best, *others = answer.kernels
    config = parse_name(best.kernel)
    bound = "" if answer.sm_count is None else f", on {answer.sm_count} SMs"
    reason = (
        f"autotuned: the fastest of {len(answer.kernels)} kernels timed for this problem on {answer.gpu}{bound}: "
        f"{best.us:.1f} us{in_words(config, answer.problem, best.swap_ab)}"
    )
    runners_up = tuple((other.sliced, other.us) for other in others[:RUNNERS_UP])
    return Choice(best.sliced, config, lambda: reason, best.us, lambda: runners_up, "measured", best.swap_ab)


def time_kernels(
    call: GemmCall, registry: Registry, new_launcher: NewLauncher, candidates: list[Candidate]
) -> list[float | None]:
    """Time each kernel on the operands of a call, in microseconds; None for kernels that cannot be built or launched.

    Outputs go to scratch memory. Where no kernel runs, the error of the first is raised.
    """
    device = call.tensors["a"].device
    if driver.is_capturing(device, call.stream):
        raise CaptureError(
            f"autotune cannot time {len(candidates)} kernels while the stream is captured into a CUDA graph: before "
            "the capture, call gemmill.plan(...) or gemmill.matmul(...) once with the same autotune and with "
            "operands of the same shapes, strides and dtypes"
        )
    launchers = _launchers(registry, candidates, new_launcher)
    values = {**call.tensors, **call.arguments.values}
    addresses = [*call.addresses]
    places = [place for place, name in enumerate(call.places) if name == "out" or name in call.arguments.outputs]
    written = [x for x in (values[call.places[place]] for place in places) if isinstance(x, TensorView)]
    with scratch(device, written) as scratch_addresses:
        for place, address in zip(places, scratch_addresses, strict=True):
            addresses[place] = address
        launches = [functools.partial(_launch, launcher, tuple(addresses)) for launcher in launchers.values()]
        times = time_launches(device, call.stream, launches, [candidate.us for candidate in launchers])
    us_by_candidate = dict(zip(launchers, times, strict=True))
    return [us_by_candidate.get(candidate) for candidate in candidates]


def _launchers(registry: Registry, candidates: list[Candidate], new_launcher: NewLauncher) -> dict[Candidate, Launches]:
    """Return launchers of the candidates that can be built and launched; where none can, raise the error of the
    first."""
    failed: dict[str, GemmillError] = {}

    def note(outcome: Outcome) -> None:
        if outcome.error is not None:
            failed[outcome.name] = outcome.error

    with suppress(CompileError):  # the loop below handles the errors one by one
        registry.warm([candidate.name for candidate in candidates], on_done=note)
    launchers: dict[Candidate, Launches] = {}
    errors: list[GemmillError] = []
    for candidate in candidates:
        error = failed.get(candidate.name)
        if error is None:
            try:
                launchers[candidate] = new_launcher(candidate.kernel, candidate.swap_ab)()
                continue
            except (CompileError, UnsupportedProblemError, DeviceError) as refusal:
                error = refusal
        logging.getLogger(__name__).warning("autotune skips %s: %s", candidate.kernel, error)
        errors.append(error)
    if not launchers:
        raise errors[0]
    return launchers


def _launch(launcher: Launches, addresses: Addresses, stream: int) -> None:
    launcher.launch(stream, addresses)
