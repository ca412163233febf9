"""A remote that has kernels: asked by key or by name, believed only as far as trusted keys have signed, and left alone
while it fails.

By key it is asked ``GET /v1/kernels/KEY`` and ``GET /v1/blobs/SHA256``, which any server of files answers; what is not
there, and a kernel whose key is not known for want of a toolchain, ``POST /v1/instantiate``, which has it made.
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
"""What a remote may cost one kernel unless ``GEMMILL_REMOTE_DEADLINE`` says otherwise."""
_AGAIN_SECONDS = 1.0
"""When a remote that is busy is asked again, where it does not say."""
_SOONEST_SECONDS = 0.1
"""When it is asked again at the earliest."""
_INSTANTIATE = "POST /v1/instantiate"
"""What is remembered of a remote that makes nothing, or nothing for this client."""
_OF_ENDPOINTS = ("absent", "forbidden", "version")
"""Reasons that are not of the kernel that it was asked for."""
_PUT = "PUT"
"""What is remembered of a remote that takes nothing from this client."""
_log = logging.getLogger(__name__)
T = TypeVar("T")

_lock = threading.Lock()
_remotes: WeakSet[Remote] = WeakSet()


class Remote:
    """One remote. Threads, and registries, may share it.

    Args:
        url: where it is, such as ``https://kernels.example``.
        mode: ``read``; ``readwrite``, which uploads what is compiled here; ``only``, in which nothing is compiled.
        deadline: seconds that it may cost one kernel.
        trusted: whose signatures count. None takes what nobody has signed, too: for a server of one's own.
        token: sent with every request; a path names the file that holds it, which is read each time.
        certificate: a file in PEM with the certificate that this client shows, and its private key.
        sign: a file with the private key that signs what is uploaded.

    Raises:
        SettingError: the URL is none.
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
        """Why it is not asked for kernels; None where it is."""
        self._has_warned = False
        self._renew()
        _remotes.add(self)

    def __repr__(self) -> str:
        counted = ", ".join(f"{count:,} {name}" for name, count in self.counters().items())
        return f"<Remote {self.url}, {self.mode}{f': {counted}' if counted else ''}>"

    @staticmethod
    def of_settings(url: str | None = None) -> Remote | None:
        """The remote of the environment, or the one of another URL with all else as the environment has it; the same
        one whenever a process asks. None where no URL is named.

        Raises:
            SettingError: a variable means nothing, or nothing is to be compiled and no remote is named.
        """
        settings = Settings.read()
        if (address := settings.url_of(url)) is None:
            return None
        deadline = DEADLINE_SECONDS if settings.remote_deadline is None else settings.remote_deadline
        with _lock:  # so that threads which ask at the same time share it as well
            return _remote_of(
                *(address, settings.remote_mode, deadline, settings.remote_token, settings.remote_certificate),
                *(settings.remote_sign, settings.trusted_keys),
            )

    def kernel(
        self, requested: RequestedKernel, machine: Machine, seconds: float | None = None, patient: bool = False
    ) -> Artifact | Miss:
        """A kernel, verified; or why it did not come. Raises nothing.

        Args:
            requested: the kernel.
            machine: what it is to run on.
            seconds: most that it may take; by default the deadline.
            patient: whether a remote that is busy is worth waiting for, as nothing else makes kernels here.
        """
        name, is_first_request = requested.key or requested.note, True
        limit = self.deadline if seconds is None else seconds
        result: Artifact | Miss
        try:
            result, is_first_request = self._single_flight.get(
                name, lambda: self._request(name, requested, machine, limit, patient), limit
            )
        except TimeoutError:
            result = Miss("timeout", f"another thread still waits for {requested.name} from {self.url}")
        if isinstance(result, Miss):
            self._warn_once(result)
        self._count("joined" if not is_first_request else result.reason if isinstance(result, Miss) else "hits")
        return result

    def put(
        self, artifact: Artifact, keys: Sequence[SigningKey] | None = None, seconds: float | None = None
    ) -> Put | Miss:
        """Upload a kernel; or why it could not be. Raises nothing.

        Args:
            artifact: the kernel.
            keys: who signs its manifest; by default the key that the remote was made with.
            seconds: most that it may take; by default the deadline.
        """
        deadline = Deadline(self.deadline if seconds is None else seconds)
        done: Put | Miss
        if (hindrance := self._hindrance(_PUT)) is not None:
            done = hindrance
        else:
            done = self._attempt(lambda: self._protocol.put(artifact, self._keys() if keys is None else keys, deadline))
            self._remember(_PUT, done)
        if isinstance(done, Miss):
            self._warn_once(done)
        self._count(f"uploads {done.reason}" if isinstance(done, Miss) else "uploads")
        return done

    def probe(self) -> Miss | None:
        """Ask for what nobody has, whatever was before: None where the remote answers as it should."""
        return self.problem or self._attempt(lambda: self._protocol.probe(Deadline(self.deadline)))

    def counters(self) -> dict[str, int]:
        """What has happened in this process, by name: ``hits``, ``joined`` (threads that waited for the request of
        another), the reasons of misses (:data:`~gemmill.runtime.storage.remote.misses.REASONS`), ``uploads`` and
        ``uploads REASON`` of those that failed, ``requests``, ``bytes`` received. What is 0 is left out."""
        with self._lock:
            return dict(sorted(self._counters.items()))

    def _request(
        self, name: str, requested: RequestedKernel, machine: Machine, seconds: float, patient: bool
    ) -> Artifact | Miss:
        """A kernel, from few requests; and what follows for others."""
        if self.problem is not None:
            return self.problem
        if seconds <= 0:
            return Miss("timeout", f"waiting for another process left no time to ask {self.url} for {requested.name}")
        deadline = Deadline(seconds)
        if patient and 0 < (pause := self._breaker.seconds()) < seconds:
            time.sleep(pause)
        if (miss := self._hindrance(name)) is not None:
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
        """A kernel that is there, or is made for this client."""
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
        """Who signs what is uploaded."""
        try:
            return [] if self._sign is None else [SigningKey.load(self._sign)]
        except TrustError as error:
            raise Miss("signing", f"nothing is uploaded to {self.url}: {error}") from error

    def _hindrance(self, name: str) -> Miss | None:
        """Why no request is sent of something."""
        with self._lock:
            if (remembered := self._misses.get(name)) is not None:
                return Miss("remembered", f"a moment ago: {remembered.says}")
            if not self._breaker.passes():
                cause, seconds = self._breaker.cause, self._breaker.seconds()
                return Miss("paused", f"{self.url} is left alone for {seconds:.0f} s more: {cause and cause.says}")
        return None

    def _attempt(self, call: Callable[[], T]) -> T | Miss:
        """What a call returns, or why it failed."""
        try:
            return call()
        except Miss as miss:
            return miss
        except TimeoutError as error:
            return Miss("timeout", f"{self.url}: {error}")
        except Exception as error:  # noqa: BLE001 - whatever a remote sends, it must not cost a kernel
            return Miss("error", f"{self.url}: {error!r:.200}")

    def _remember(self, name: str, result: object) -> None:
        """What follows from an answer for what is asked next."""
        with self._lock:
            if not isinstance(result, Miss):
                self._breaker.succeeded()
            elif result.follows.opens:
                self._breaker.failed(result)
            else:
                self._breaker.succeeded()
                self._misses.add(name, result)

    def _warn_once(self, miss: Miss) -> None:
        """Warn of the first miss, and log each."""
        _log.info("%s", miss)
        with self._lock:
            has_warned, self._has_warned = self._has_warned, True
        if not has_warned:
            warning = (
                f"the remote is skipped: {miss.says}. Further misses are counted alone: Registry.remote.counters()"
            )
            try:
                warnings.warn(warning, RemoteWarning, stacklevel=5)
            except RemoteWarning:  # where warnings are errors: no kernel is to be lost for one
                _log.warning("%s", warning)

    def _count(self, name: str, count: int = 1) -> None:
        with self._lock:
            self._counters[name] += count

    def _renew(self) -> None:
        """Begin anew, as a forked process must: nobody there lets go of a lock that another thread held, and its
        connections are its parent's."""
        self._lock = threading.Lock()
        self._counters: Counter[str] = Counter()
        self._breaker, self._misses = Breaker(), Misses()
        self._single_flight: SingleFlight[Artifact | Miss] = SingleFlight()
        connections = Connections(self._address, self._certificate)
        self._protocol = Protocol(self.url, connections, self._token, self._trusted, self._count)


def _has_waited(miss: Miss, deadline: Deadline) -> bool:
    """Whether a remote that is busy was given the time that it wants, with some more, so that not all who wait come
    back at the same moment."""
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
    """The one remote of a process with these settings."""
    trusted, problem = None, None
    try:
        trusted = TrustedKeys.of_settings()
        if trusted is None:
            problem = "GEMMILL_TRUSTED_KEYS names no key whose signatures count, so nothing from elsewhere is run"
    except TrustError as error:
        problem = str(error)
    remote = Remote(url, trusted=trusted, mode=mode, deadline=deadline, token=token, certificate=certificate, sign=sign)
    remote.problem = Miss("no keys", f"{remote.url} is not asked: {problem}") if problem else None
    return remote


def _renew_all() -> None:
    global _lock
    _lock = threading.Lock()
    for remote in _remotes:
        remote._renew()


os.register_at_fork(after_in_child=_renew_all)
