"""The compile queue: each kernel is queued once, and tenants take turns.

A job continues when the clients that asked for it disconnect. A failure is cached for a minute, so that a fleet does
not compile the same invalid kernel again and again.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import OrderedDict, deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Literal, NamedTuple

from gemmill.library.errors import DeviceError, GemmillError, InstallationError
from gemmill.profiler.sweep.compilers import ClusterCompilers
from gemmill.runtime.compile.pool import CompilePool, Outcome
from gemmill.service.audit import note
from gemmill.service.compiling.resolver import KeyedKernel
from gemmill.service.compiling.sent_sources import SourceCompiler
from gemmill.service.metrics import Metrics
from gemmill.service.refusal import Refusal, ending
from gemmill.service.served_kernels import Kernels, Served
from gemmill.service.service_options import COMPILE_SECONDS, SOURCES_CHARACTERS

_FIRST_GUESS = 5.0
"""Expected compile time, in seconds, before the first compilation."""
_WEIGHT = 0.1
"""Weight of the last compilation in the moving average of compile times."""
_FAILED_SECONDS = 60.0
_FAILED = 1000
"""Maximum number of cached failures."""
_AGAIN_SECONDS = 5.0
"""When a client should retry if no worker is available."""
_FINISHED = 50
"""Number of finished jobs that the queue page lists."""
Compilers = CompilePool | ClusterCompilers
"""Compilers of emitted sources; the queue calls them from one thread per parallel compilation."""
_log = logging.getLogger(__name__)


class Job:
    """One kernel to compile."""

    def __init__(self, kernel: KeyedKernel, tenant: str, reserved: float) -> None:
        self.kernel, self.tenant, self.reserved = kernel, tenant, reserved
        self.name, self.key = kernel.name, kernel.key
        self.state: Literal["queued", "compiling", "done"] = "queued"
        self.since = time.monotonic()
        """When the job entered its current state, by the monotonic clock."""
        self.started = asyncio.Event()
        self.result: asyncio.Future[Served | Refusal] = asyncio.get_running_loop().create_future()


class FinishedJob(NamedTuple):
    """The outcome of a job."""

    name: str
    key: str
    tenant: str
    error: str
    """Why the job failed; empty if it succeeded."""
    seconds: float
    """Compile time."""
    at: float
    """When the job finished, by the monotonic clock."""


class CompileQueue:
    """Jobs, and the tasks that run them.

    Args:
        jobs: number of kernels compiled in parallel.
        most: maximum number of waiting jobs.
        compilers: compile the sources that configs emit.
        sources: compiles the sources that clients send.
        quotas: compile seconds of each tenant.
        kernels: receives the compiled kernels.
        metrics: counts jobs and compilations.
    """

    def __init__(
        self,
        jobs: int,
        most: int,
        compilers: Compilers,
        sources: SourceCompiler,
        quotas: Quotas,
        kernels: Kernels,
        metrics: Metrics,
    ) -> None:
        self._jobs, self._most, self._compilers, self._sources, self._quotas = jobs, most, compilers, sources, quotas
        self._kernels, self._metrics = kernels, metrics
        self._by_key: dict[str, Job] = {}
        self._waiting: OrderedDict[str, deque[Job]] = OrderedDict()
        """Waiting jobs by tenant; the first tenant has the next turn."""
        self._there = asyncio.Condition()
        self._failed: OrderedDict[str, tuple[float, Refusal]] = OrderedDict()
        self._threads = ThreadPoolExecutor(jobs, "compile")
        self._expected = _FIRST_GUESS
        self._tasks: list[asyncio.Task[None]] = []
        self.closing = False
        self.finished: deque[FinishedJob] = deque(maxlen=_FINISHED)
        """The last finished jobs, the most recent last."""

    def start(self) -> None:
        """Start the tasks that run jobs."""
        self._tasks = [asyncio.create_task(self._work()) for _ in range(self._jobs)]

    def jobs(self) -> list[Job]:
        """All running and waiting jobs, in the order of submission."""
        return [*self._by_key.values()]

    async def submit(self, kernel: KeyedKernel, tenant: str) -> Job:
        """Queue a kernel, or join the job that another client has submitted.

        Raises:
            Refusal: the kernel failed less than a minute ago, the tenant's quota is used up (429), the queue is full,
                no worker is available, or the server is shutting down (503).
        """
        if (job := self._by_key.get(kernel.key)) is not None:
            self._metrics.joined.inc()
            return job
        if (failed := self._failed.get(kernel.key)) is not None:
            if time.monotonic() - failed[0] < _FAILED_SECONDS:
                raise failed[1]
            del self._failed[kernel.key]
        if self.closing:
            raise ending()
        if why := self._compilers.problem:
            raise Refusal(503, "workers", why, retry_after=_AGAIN_SECONDS)
        waiting = self.waiting
        if waiting >= self._most:
            raise Refusal(
                503,
                "busy",
                f"The compile queue is full: {waiting:,} kernels are waiting.",
                retry_after=min(60.0, waiting * self._expected / self._jobs),
            )
        sent = sum(len(job.kernel.source or "") for job in self._by_key.values())
        if kernel.source and sent + len(kernel.source) > SOURCES_CHARACTERS:
            full = f"The compile queue is full: sources of {sent:,} characters are waiting."
            raise Refusal(503, "busy", full, retry_after=30)
        self._quotas.reserve(tenant, self._expected)
        job = self._by_key[kernel.key] = Job(kernel, tenant, self._expected)
        self._waiting.setdefault(tenant, deque()).append(job)
        self._metrics.queued.set(waiting + 1)
        async with self._there:
            self._there.notify()
        return job

    @property
    def waiting(self) -> int:
        """Number of waiting jobs."""
        return sum(map(len, self._waiting.values()))

    def drop_waiting(self) -> None:
        """Accept no more jobs, and refuse the waiting ones."""
        self.closing = True
        waiting, self._waiting = [job for jobs in self._waiting.values() for job in jobs], OrderedDict()
        for job in waiting:
            self._quotas.settle(job.tenant, job.reserved, 0.0)
            self._finish(job, ending())
        self._metrics.queued.set(0)

    async def finish(self, seconds: float) -> None:
        """Wait for the running jobs, at most ``seconds``."""
        if results := [job.result for job in self._by_key.values()]:
            await asyncio.wait(results, timeout=seconds)

    async def close(self) -> None:
        """Stop all jobs and workers."""
        self.drop_waiting()
        for task in self._tasks:
            task.cancel()
        self._sources.close()
        await asyncio.to_thread(self._compilers.close)
        self._threads.shutdown(wait=False, cancel_futures=True)

    async def _work(self) -> None:
        while True:
            job = await self._next()
            job.state, job.since = "compiling", time.monotonic()
            job.started.set()
            self._metrics.compiling.inc()
            seconds = 0.0
            try:
                result, seconds = await self._compiled(job)
            except (DeviceError, InstallationError) as error:
                result = Refusal(503, "workers", f"{job.name}: {error}", retry_after=_AGAIN_SECONDS)
            except Exception as error:  # noqa: BLE001 (the task continues, and the clients get the error)
                _log.exception("%s", job.name)
                result = Refusal(500, "internal", f"{job.name}: {type(error).__name__}: {error}")
            finally:
                self._metrics.compiling.dec()
                self._quotas.settle(job.tenant, job.reserved, seconds)
            why = result.message if isinstance(result, Refusal) else None
            if seconds or why:  # else the kernel was there
                note("compilation", job.tenant, kernel=job.name, key=job.key, ms=round(seconds * 1e3), error=why)
            self._finish(job, result)

    async def _next(self) -> Job:
        async with self._there:
            await self._there.wait_for(lambda: bool(self._waiting))
            tenant, jobs = next(iter(self._waiting.items()))
            job = jobs.popleft()
            if jobs:
                self._waiting.move_to_end(tenant)
            else:
                del self._waiting[tenant]
            self._metrics.queued.set(self.waiting)
            return job

    async def _compiled(self, job: Job) -> tuple[Served | Refusal, float]:
        """The result of a job, and its compile time in seconds."""
        if (served := await self._kernels.find(job.key)) is not None:  # it may have appeared since it was queued
            return served, 0.0
        outcome = await asyncio.get_running_loop().run_in_executor(self._threads, self._compile, job.kernel)
        self._metrics.compile_seconds.observe(outcome.seconds)
        if outcome.artifact is None:
            self._metrics.compiles.labels("failed").inc()
            refusal = Refusal(422, "compile", str(outcome.error))
            if outcome.lost:
                refusal = Refusal(503, "workers", str(outcome.error), retry_after=_FAILED_SECONDS)
            self._failed[job.key] = time.monotonic(), refusal
            if len(self._failed) > _FAILED:
                self._failed.popitem(last=False)
            return refusal, outcome.seconds
        if outcome.artifact.key != job.key:
            self._metrics.compiles.labels("failed").inc()
            message = f"{job.name}: the toolchain of the worker differs from that of the server."
            return Refusal(
                503, "workers", message, "install the same versions on both", retry_after=60
            ), outcome.seconds
        self._metrics.compiles.labels("found" if outcome.cached else "ok").inc()
        if not outcome.cached:
            self._expected += _WEIGHT * (outcome.seconds - self._expected)
        try:
            return await self._kernels.publish(outcome.artifact), outcome.seconds
        except (GemmillError, ValueError) as error:
            return Refusal(500, "internal", f"{job.name}: {error}"), outcome.seconds

    def _compile(self, kernel: KeyedKernel) -> Outcome:
        if kernel.source is not None:
            return self._sources.compile(kernel)
        return self._compilers.compile(kernel.config, COMPILE_SECONDS)

    def _finish(self, job: Job, result: Served | Refusal) -> None:
        now = time.monotonic()
        seconds = now - job.since if job.state == "compiling" else 0.0
        error = result.message if isinstance(result, Refusal) else ""
        self.finished.append(FinishedJob(job.name, job.key, job.tenant, error, seconds, now))
        job.state = "done"
        self._by_key.pop(job.key, None)
        job.started.set()
        if not job.result.done():
            job.result.set_result(result)


_HOUR = 3600.0
_MOST = 10_000
"""Maximum number of tenants with an account. A tenant is the name of a token."""


@dataclass(slots=True)
class _Account:
    left: float
    updated: float


class Quotas:
    """The compile-time quotas of tenants.

    Args:
        seconds: compile seconds per hour of each tenant; an unused hour can be spent at once.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._accounts: dict[str, _Account] = {}

    def reserve(self, tenant: str, seconds: float, now: float | None = None) -> None:
        """Reserve the expected compile time of a job.

        Raises:
            Refusal: 429, with the time until the quota suffices.
        """
        account = self._account(tenant, now)
        if account.left < min(seconds, self._seconds):
            wait = (min(seconds, self._seconds) - account.left) * _HOUR / self._seconds
            raise Refusal(
                429,
                "quota",
                f"Quota exceeded: {tenant} has {max(0.0, account.left):.0f} of {self._seconds:g} compile seconds per "
                f"hour left; this kernel is expected to take {seconds:.0f}.",
                retry_after=wait,
            )
        account.left -= seconds

    def settle(self, tenant: str, reserved: float, taken: float, now: float | None = None) -> None:
        """Replace the reserved time of a job by the time that it took."""
        self._account(tenant, now).left += reserved - taken

    def _account(self, tenant: str, now: float | None) -> _Account:
        now = time.monotonic() if now is None else now
        if (account := self._accounts.get(tenant)) is None:
            if len(self._accounts) >= _MOST:
                self._accounts.pop(next(iter(self._accounts)))
            account = self._accounts[tenant] = _Account(self._seconds, now)
        account.left = min(self._seconds, account.left + (now - account.updated) * self._seconds / _HOUR)
        account.updated = now
        return account
