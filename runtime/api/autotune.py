"""``autotune=``: the selector's best kernels are timed once for a problem, and the fastest is kept in the store.

Only calls that ask for it read the answer, so no other call depends on what a store happens to hold.
"""

from __future__ import annotations

import hashlib
import json
import threading
from collections.abc import Callable, Sequence
from dataclasses import asdict
from weakref import WeakKeyDictionary

from gemmill.library.config.names import parse_name
from gemmill.library.frozen import Frozen
from gemmill.library.problem import GemmProblem
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.choice import RUNNERS_UP, Candidate, Choice, in_words

_lock = threading.Lock()
"""Held while kernels are timed: threads that timed at once would disturb each other."""
_known: WeakKeyDictionary[Registry, dict[str, Choice]] = WeakKeyDictionary()


class TimedKernel(Frozen):
    """One kernel, as it was timed."""

    kernel: str
    """Kernel name."""
    swapped: bool
    """Whether it ran the transposed problem."""
    digest: str
    """SHA-256 of its cubin in hex."""
    us: float
    """Median time in microseconds."""


class Answer(Frozen):
    """What was found out about one problem."""

    problem: GemmProblem
    gpu: str
    """Name of the GPU as the driver reports it."""
    sm_count: int | None
    """Most SMs that launches used; None for all."""
    kernels: tuple[TimedKernel, ...]
    """Those timed, the fastest first."""


def autotuned(
    registry: Registry,
    problem: GemmProblem,
    count: int,
    sm_count: int | None,
    gpu: str,
    time: Callable[[list[Candidate]], Sequence[float | None]],
) -> Choice:
    """The fastest of the best ``count`` kernels for a problem on a GPU of some name.

    Known to this process or kept in the registry's store, or else found out by ``time``, which returns the microseconds
    of each, None of those that cannot run here. An answer holds for these candidates, and as long as the cubin of the
    fastest is the one that was timed.
    """
    candidates = registry.candidates(problem, count, sm_count)
    asked = [asdict(problem), gpu, sm_count, sorted((c.name, c.swap_ab) for c in candidates)]
    key = hashlib.sha256(json.dumps(asked, sort_keys=True).encode()).hexdigest()
    with _lock:
        known = _known.setdefault(registry, {})
        if key not in known:
            answer = _read(registry, key, problem, candidates)
            if answer is None:
                times = time(candidates)
                timed = [
                    TimedKernel(kernel=c.name, swapped=c.swap_ab, digest=registry.get(c.name).digest, us=us)
                    for c, us in zip(candidates, times, strict=True)
                    if us is not None
                ]
                kernels = tuple(sorted(timed, key=lambda kernel: (kernel.us, kernel.kernel)))
                answer = Answer(problem=problem, gpu=gpu, sm_count=sm_count, kernels=kernels)
                registry.store.put_note("autotuned", key, answer.model_dump_json(indent=1).encode())
            known[key] = _choice(answer)
        return known[key]


def _read(registry: Registry, key: str, problem: GemmProblem, candidates: Sequence[Candidate]) -> Answer | None:
    """The answer in a store; None where there is none, or it is damaged, or the kernel has changed since."""
    try:
        answer = Answer.model_validate_json(registry.store.get_note("autotuned", key))
        best = answer.kernels[0]
    except (OSError, ValueError, IndexError):
        return None
    known = {(candidate.name, candidate.swap_ab) for candidate in candidates}
    if answer.problem != problem or not {(kernel.kernel, kernel.swapped) for kernel in answer.kernels} <= known:
        return None
    return answer if registry.get(best.kernel).digest == best.digest else None


def _choice(answer: Answer) -> Choice:
    best, *others = answer.kernels
    config = parse_name(best.kernel)
    bound = "" if answer.sm_count is None else f", on {answer.sm_count} SMs"
    reason = (
        f"autotuned: the fastest of {len(answer.kernels)} kernels timed for this problem on {answer.gpu}{bound}: "
        f"{best.us:.1f} us{in_words(config, answer.problem, best.swapped)}"
    )
    runners_up = tuple((other.kernel, other.us) for other in others[:RUNNERS_UP])
    return Choice(best.kernel, config, reason, best.us, runners_up, "measured", best.swapped)
