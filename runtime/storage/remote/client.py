"""A client of a remote. It requests kernels by key or by name, accepts only what trusted keys have signed, and pauses
while the remote fails.

By key, it sends ``GET /v1/kernels/KEY`` and ``GET /v1/blobs/SHA256``, which any file server can answer. For a missing
kernel, and for one whose key is unknown without a toolchain, it sends ``POST /v1/instantiate``, which compiles it.
"""

from __future__ import annotations

import logging
import os
import random
import threading
import time
import warnings
from collections import Counter
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import TypeVar
from weakref import WeakSet

from gemmill.library.errors import RemoteWarning, TrustError
from gemmill.runtime.settings import RemoteMode, Settings
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.remote.misses import Breaker, Miss, Misses
from gemmill.runtime.storage.remote.protocol import Machine, Protocol, Put, RequestedKernel
from gemmill.runtime.storage.remote.transport import Address, Connections, Deadline
from gemmill.runtime.storage.single_flight import SingleFlight
from gemmill.runtime.storage.trust.signatures import SigningKey, TrustedKeys

DEADLINE_SECONDS = 10.0
"""Most seconds per kernel, unless ``GEMMILL_REMOTE_DEADLINE`` is set."""
_AGAIN_SECONDS = 1.0
"""Seconds until the next request to a busy remote that does not say when to retry."""
_SOONEST_SECONDS = 0.1
"""Least seconds until the next request to a busy remote."""
_INSTANTIATE = "POST /v1/instantiate"
"""Key under which a miss is remembered where the remote compiles nothing, or nothing for this client."""
_OF_ENDPOINTS = ("absent", "forbidden", "version")
"""Reasons that do not depend on the requested kernel."""
_PUT = "PUT"
"""Key under which a miss is remembered where the remote accepts no uploads from this client."""
_log = logging.getLogger(__name__)
T = TypeVar("T")

_lock = threading.Lock()
_remotes: WeakSet[Remote] = WeakSet()


class Remote:
    """One remote. Threads and registries may share it.

    Args:
        url: its URL, such as ``https://kernels.example``.
        mode: ``read``; ``readwrite``, which also uploads kernels that are compiled here; or ``only``, which compiles
            nothing.
        deadline: most seconds per kernel.
        trusted: the keys whose signatures count. None accepts unsigned kernels too, for your own server.
        token: sent with every request; a path names a file with the token, which is read each time.
        certificate: PEM file with the client certificate and its private key.
        sign: file with the private key that signs uploads.

    Raises:
        SettingError: the URL is invalid.
    """

    def __init__(
        self,
        url: str,
        *,
        trusted: TrustedKeys | None,
        mode: RemoteMode = "read",
        deadline: float = DEADLINE_SECONDS,
        token: str | Path | None = None,
        certificate: Path | None = None,
        sign: Path | None = None,
    ) -> None:
        self._address = Address.of(url)
        self.url = str(self._address)
        self.mode, self.deadline = mode, deadline
        self._trusted, self._token, self._certificate, self._sign = trusted, token, certificate, sign
        self.problem: Miss | None = None
        """Why it is never asked for kernels; None where it is."""
        self._has_warned = False
        self._renew()
        _remotes.add(self)

    def __repr__(self) -> str:
        counted = ", ".join(f"{count:,} {name}" for name, count in self.counters().items())
        return f"<Remote {self.url}, {self.mode}{f': {counted}' if counted else ''}>"

    @staticmethod
    def of_settings(url: str | None = None) -> Remote | None:
        """Return the remote from the environment, or one with another URL and the other settings of the environment;
        always the same object in a process. None where no URL is set.

        Raises:
            SettingError: a variable is invalid, or the mode forbids compiling and no remote is set.
        """
        settings = Settings.read()
        if (address := settings.url_of(url)) is None:
            return None
        deadline = DEADLINE_SECONDS if settings.remote_deadline is None else settings.remote_deadline
        with _lock:  # so that concurrent threads share it too
            return _remote_of(
                *(address, settings.remote_mode, deadline, settings.remote_token, settings.remote_certificate),
                *(settings.remote_sign, settings.trusted_keys),
            )

    def kernel(
        self, requested: RequestedKernel, machine: Machine, seconds: float | None = None, patient: bool = False
    ) -> Artifact | Miss:
        """Return a verified kernel, or the reason for a miss. Raises nothing.

        Args:
            requested: the kernel.
            machine: the machine that it runs on.
            seconds: time limit; by default the deadline.
            patient: whether to wait for a busy remote, because kernels cannot be compiled here.
        """
        name, is_first_request = requested.key or requested.note, True
        limit = self.deadline if seconds is None else seconds
        result: Artifact | Miss
        try:
            result, is_first_request = self._single_flight.get(
                name, lambda: self._request(name, requested, machine, limit, patient), limit
            )
        except TimeoutError:
            result = Miss("timeout", f"another thread is still waiting for {requested.name} from {self.url}")
        if isinstance(result, Miss):
            self._warn_once(result)
        self._count("joined" if not is_first_request else result.reason if isinstance(result, Miss) else "hits")
        return result

    def put(
        self, artifact: Artifact, keys: Sequence[SigningKey] | None = None, seconds: float | None = None
    ) -> Put | Miss:
        """Upload a kernel, or return the reason for a miss. Raises nothing.

        Args:
            artifact: the kernel.
            keys: keys that sign its manifest; by default the ``sign`` key of the remote.
            seconds: time limit; by default the deadline.
        """
        deadline = Deadline(self.deadline if seconds is None else seconds)
        done: Put | Miss
        if (blocked := self._blocking_miss(_PUT)) is not None:
            done = blocked
        else:
            done = self._attempt(lambda: self._protocol.put(artifact, self._keys() if keys is None else keys, deadline))
            self._remember(_PUT, done)
        if isinstance(done, Miss):
            self._warn_once(done)
        self._count(f"uploads {done.reason}" if isinstance(done, Miss) else "uploads")
        return done

    def probe(self) -> Miss | None:
        """Request a kernel that nobody has, regardless of earlier failures. None where the remote answers as
        expected."""
        return self.problem or self._attempt(lambda: self._protocol.probe(Deadline(self.deadline)))

    def counters(self) -> dict[str, int]:
        """Return counters of this process by name, without zeros: ``hits``, ``joined`` (threads that waited for the
        request of another), the reasons of misses (:data:`~gemmill.runtime.storage.remote.misses.REASONS`),
        ``uploads``, ``uploads REASON`` for failed ones, ``requests``, and ``bytes`` received."""
        with self._lock:
            return dict(sorted(self._counters.items()))

    def _request(
        self, name: str, requested: RequestedKernel, machine: Machine, seconds: float, patient: bool
    ) -> Artifact | Miss:
        """Return a kernel with few requests, and record the consequences of a miss."""
        if self.problem is not None:
            return self.problem
        if seconds <= 0:
            return Miss(
                "timeout",
                f"no time was left to request {requested.name} from {self.url} after waiting for another process",
            )
        deadline = Deadline(seconds)
        if patient and 0 < (pause := self._breaker.seconds()) < seconds:
            time.sleep(pause)
        if (miss := self._blocking_miss(name)) is not None:
            return miss
        is_first = True
        while isinstance(result := self._attempt(lambda: self._fetch(requested, machine, deadline)), Miss):
            if not (result.follows.again and is_first) and not (patient and _has_waited(result, deadline)):
                break
            is_first = False
        if not (patient and isinstance(result, Miss) and result.reason == "pending"):
            self._remember(name, result)
        return result

    def _fetch(self, requested: RequestedKernel, machine: Machine, deadline: Deadline) -> Artifact:
        """Return a kernel that the remote has, or that it compiles for this client."""
        absent: Miss | None = None
        if requested.key is not None:
            try:
                return self._protocol.blob(self._protocol.manifest(requested, machine, deadline), deadline)
            except Miss as miss:
                if miss.reason not in ("absent", "forbidden"):
                    raise
                absent = miss
        with self._lock:
            remembered = self._misses.get(_INSTANTIATE)
        if remembered is not None:
            raise absent or Miss(remembered.reason, remembered.says)
        try:
            manifest = self._protocol.instantiate(requested, machine, deadline)
        except Miss as miss:
            if miss.reason not in _OF_ENDPOINTS:
                raise
            self._remember(_INSTANTIATE, miss)
            raise (absent if absent and miss.reason == "absent" else miss) from None
        return self._protocol.blob(manifest, deadline)

    def _keys(self) -> Sequence[SigningKey]:
        """Return the keys that sign uploads."""
        try:
            return [] if self._sign is None else [SigningKey.load(self._sign)]
        except TrustError as error:
            raise Miss("signing", f"nothing is uploaded to {self.url}: {error}") from error

    def _blocking_miss(self, name: str) -> Miss | None:
        """Return why no request is sent now for a kernel or endpoint; None where one may be sent."""
        with self._lock:
            if (remembered := self._misses.get(name)) is not None:
                return Miss("remembered", f"failed a moment ago: {remembered.says}")
            if not self._breaker.passes():
                cause, seconds = self._breaker.cause, self._breaker.seconds()
                return Miss("paused", f"{self.url} is paused for another {seconds:.0f} s: {cause and cause.says}")
        return None

    def _attempt(self, call: Callable[[], T]) -> T | Miss:
        """Return the result of a call, or why it failed."""
        try:
            return call()
        except Miss as miss:
            return miss
        except TimeoutError as error:
            return Miss("timeout", f"{self.url}: {error}")
        except Exception as error:  # noqa: BLE001 - whatever a remote sends, it must not cost a kernel
            return Miss("error", f"{self.url}: {error!r:.200}")

    def _remember(self, name: str, result: object) -> None:
        """Record the consequences of an answer for later requests."""
        with self._lock:
            if not isinstance(result, Miss):
                self._breaker.succeeded()
            elif result.follows.opens:
                self._breaker.failed(result)
            else:
                self._breaker.succeeded()
                self._misses.add(name, result)

    def _warn_once(self, miss: Miss) -> None:
        """Warn of the first miss, and log every one."""
        _log.info("%s", miss)
        with self._lock:
            has_warned, self._has_warned = self._has_warned, True
        if not has_warned:
            warning = (
                f"the remote was skipped: {miss.says}. Further misses only increase the counters of "
                "Registry.remote.counters()"
            )
            try:
                warnings.warn(warning, RemoteWarning, stacklevel=5)
            except RemoteWarning:  # under -W error, no kernel may be lost for a warning
                _log.warning("%s", warning)

    def _count(self, name: str, count: int = 1) -> None:
        with self._lock:
            self._counters[name] += count

    def _renew(self) -> None:
        """Reset the state, as a forked process must: nobody there would release a lock that another thread held, and
        its connections belong to the parent."""
        self._lock = threading.Lock()
        self._counters: Counter[str] = Counter()
        self._breaker, self._misses = Breaker(), Misses()
        self._single_flight: SingleFlight[Artifact | Miss] = SingleFlight()
        connections = Connections(self._address, self._certificate)
        self._protocol = Protocol(self.url, connections, self._token, self._trusted, self._count)


def _has_waited(miss: Miss, deadline: Deadline) -> bool:
    """Wait as long as a busy remote asked, plus a random part, so that not all clients come back at once. Return
    whether there was time for that."""
    if miss.reason != "busy":
        return False
    pause = _AGAIN_SECONDS if miss.pause is None else max(_SOONEST_SECONDS, miss.pause)
    seconds = pause * (1 + 0.5 * random.random())
    try:
        is_soon = seconds < deadline.left()
    except TimeoutError:
        return False
    if is_soon:
        time.sleep(seconds)
    return is_soon


@cache
def _remote_of(
    url: str,
    mode: RemoteMode,
    deadline: float,
    token: str | Path | None,
    certificate: Path | None,
    sign: Path | None,
    keys: str | None,
) -> Remote:
    """Return the one remote of a process with these settings."""
    trusted, problem = None, None
    try:
        trusted = TrustedKeys.of_settings()
        if trusted is None:
            problem = "GEMMILL_TRUSTED_KEYS is not set, and remote kernels need a signature by a trusted key"
    except TrustError as error:
        problem = str(error)
    remote = Remote(url, trusted=trusted, mode=mode, deadline=deadline, token=token, certificate=certificate, sign=sign)
    remote.problem = Miss("no keys", f"{remote.url} is not used: {problem}") if problem else None
    return remote


def _renew_all() -> None:
    global _lock
    _lock = threading.Lock()
    for remote in _remotes:
        remote._renew()


os.register_at_fork(after_in_child=_renew_all)
