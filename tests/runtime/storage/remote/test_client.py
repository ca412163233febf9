"""A remote: what it serves is verified, and whatever else it does is a miss with a reason, in time, told once."""

from __future__ import annotations

import os
import socket
import threading
import time
import warnings
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases.misbehaving import CASES
from tests.cases.remotes import CLOSE, Honest, Parts, Request, Server, http
from tests.cases.waiters import until_waiting

from gemmill.library.errors import RemoteWarning, SettingError
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.remote.client import Remote
from gemmill.runtime.storage.remote.misses import REASONS, Miss
from gemmill.runtime.storage.remote.protocol import Machine, RequestedKernel
from gemmill.runtime.storage.trust.signatures import SigningKey, TrustedKeys

DEADLINE = 1.0
GENEROUS = 5.0
"""Seconds beyond a deadline that a busy machine may take."""
CHANGES = st.tuples(
    st.sampled_from(["flip", "cut", "double", "insert"]), st.floats(0, 1), st.binary(min_size=1, max_size=8)
)
"""What becomes of an answer, where in it, and with which bytes."""


def without_bytes(remote: Remote) -> dict[str, int]:
    return {name: count for name, count in remote.counters().items() if name != "bytes"}


@pytest.fixture
def honest(artifact: Artifact, key: SigningKey) -> Honest:
    return Honest([artifact], [key])


def test_a_kernel_comes_by_its_key(
    honest: Honest, trusted: TrustedKeys, requested: RequestedKernel, machine: Machine
) -> None:
    with Server(honest) as server:
        remote = Remote(server.url, trusted=trusted)
        assert remote.kernel(requested, machine) == honest.artifacts[0]
        assert server.asked() == ["GET /v1/kernels", "GET /v1/blobs"]
        assert len(server.connections) == 1, "one connection is kept"
        assert without_bytes(remote) == {"hits": 1, "requests": 2}


def test_a_kernel_comes_by_its_name(
    honest: Honest, trusted: TrustedKeys, requested: RequestedKernel, machine: Machine
) -> None:
    with Server(honest) as server:
        remote = Remote(server.url, trusted=trusted)
        assert remote.kernel(requested._replace(key=None), machine) == honest.artifacts[0]
        assert server.asked() == ["POST /v1/instantiate", "GET /v1/blobs"]


def test_a_kernel_that_is_not_there_is_made(
    artifact: Artifact, key: SigningKey, trusted: TrustedKeys, requested: RequestedKernel, machine: Machine
) -> None:
    with Server(Honest([], [key], made=[artifact])) as server:
        remote = Remote(f"{server.url}/", trusted=trusted)
        assert remote.kernel(requested, machine) == artifact
        assert server.asked() == ["GET /v1/kernels", "POST /v1/instantiate", "GET /v1/blobs"]


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.slow) if CASES[case].reason == "timeout" else case for case in CASES]
)
def test_whatever_it_does_is_a_miss(
    case: str,
    honest: Honest,
    trusted: TrustedKeys,
    requested: RequestedKernel,
    machine: Machine,
    recwarn: pytest.WarningsRecorder,
) -> None:
    answer, reason, requests = CASES[case]
    with Server(partial(answer, honest)) as server:
        remote = Remote(server.url, trusted=trusted, deadline=DEADLINE if reason == "timeout" else 30)
        start = time.monotonic()
        missed = remote.kernel(requested, machine)
        assert time.monotonic() - start < remote.deadline + GENEROUS
        assert isinstance(missed, Miss)
        assert missed.reason == reason, missed.says
        assert missed.says.isprintable()
        assert without_bytes(remote) == {reason: 1, "requests": requests}
        again = remote.kernel(requested, machine)
        assert isinstance(again, Miss)
        assert again.reason == ("paused" if REASONS[reason].opens else "remembered")
        assert len(server.requests) == requests, "it is left alone"
    assert [warning.category for warning in recwarn.list] == [RemoteWarning]


def test_one_that_is_not_there(trusted: TrustedKeys, requested: RequestedKernel, machine: Machine) -> None:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    remote = Remote(f"http://127.0.0.1:{port}", trusted=trusted)
    with pytest.warns(RemoteWarning, match=f"127.0.0.1:{port} refuses connections"):
        remote.kernel(requested, machine)
    assert remote.counters() == {"unreachable": 1, "requests": 1}


def test_one_that_takes_no_connections(trusted: TrustedKeys, requested: RequestedKernel, machine: Machine) -> None:
    with ExitStack() as stack:
        full = stack.enter_context(socket.socket())
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for _ in range(3):  # as many as the system keeps waiting, and more
            waiting = stack.enter_context(socket.socket())
            waiting.setblocking(False)
            waiting.connect_ex(full.getsockname())
        remote = Remote(f"http://127.0.0.1:{full.getsockname()[1]}", trusted=trusted, deadline=DEADLINE)
        start = time.monotonic()
        with pytest.warns(RemoteWarning, match="did not answer in time"):
            remote.kernel(requested, machine)
        assert time.monotonic() - start < DEADLINE + GENEROUS
        assert remote.counters() == {"timeout": 1, "requests": 1}


def test_one_whose_name_means_nothing(trusted: TrustedKeys, requested: RequestedKernel, machine: Machine) -> None:
    remote = Remote("http://kernels.invalid", trusted=trusted, deadline=DEADLINE)
    with pytest.warns(RemoteWarning, match="kernels.invalid"):
        missed = remote.kernel(requested, machine)
    assert isinstance(missed, Miss)
    assert missed.reason in ("unreachable", "timeout")


def test_a_kernel_of_another_name_under_the_key(
    artifacts: tuple[Artifact, ...], key: SigningKey, trusted: TrustedKeys, requested: RequestedKernel, machine: Machine
) -> None:
    other = Honest([artifacts[1]], [key])

    def answer(request: Request) -> Parts:
        if "/kernels/" in request.path:
            return [http(200, other.documents()[f"/v1/kernels/{artifacts[1].key}"])]
        return other(request)

    with Server(answer) as server, pytest.warns(RemoteWarning, match=rf"the remote sent .* for {requested.name}"):
        missed = Remote(server.url, trusted=trusted).kernel(requested, machine)
    assert isinstance(missed, Miss)
    assert missed.reason == "another"


def test_a_kernel_that_the_driver_cannot_load(
    honest: Honest, trusted: TrustedKeys, requested: RequestedKernel, machine: Machine
) -> None:
    with Server(honest) as server:
        remote = Remote(server.url, trusted=trusted)
        with pytest.warns(RemoteWarning, match="driver supports at most 11.8"):
            remote.kernel(requested, machine._replace(cuda=(11, 8)))
        assert server.asked() == ["GET /v1/kernels"], "no byte of it is fetched"
    assert without_bytes(remote) == {"driver": 1, "requests": 1}


def test_a_key_that_was_revoked(
    honest: Honest, key: SigningKey, trusted: TrustedKeys, requested: RequestedKernel, machine: Machine
) -> None:
    with Server(honest) as server, pytest.warns(RemoteWarning, match="revoked"):
        Remote(server.url, trusted=trusted.revoking(frozenset({key.public.id}))).kernel(requested, machine)


def test_what_is_not_signed_is_taken_where_nobody_is_trusted(
    artifact: Artifact, requested: RequestedKernel, machine: Machine
) -> None:
    with Server(Honest([artifact], [])) as server:
        assert Remote(server.url, trusted=None).kernel(requested, machine) == artifact


def test_http_1_0_does(honest: Honest, trusted: TrustedKeys, requested: RequestedKernel, machine: Machine) -> None:
    def answer(request: Request) -> Iterator[bytes]:
        for part in honest(request):
            assert isinstance(part, bytes)
            yield part.replace(b"HTTP/1.1", b"HTTP/1.0", 1)

    with Server(answer) as server:
        assert Remote(server.url, trusted=trusted).kernel(requested, machine) == honest.artifacts[0]
        assert len(server.connections) == 2


def test_a_connection_that_was_closed_meanwhile_is_opened_again(
    honest: Honest, trusted: TrustedKeys, requested: RequestedKernel, machine: Machine
) -> None:
    with Server(honest) as server:
        remote = Remote(server.url, trusted=trusted)
        assert remote.probe() is None
        server.connections[0].shutdown(socket.SHUT_RDWR)
        assert remote.kernel(requested, machine) == honest.artifacts[0]
        assert without_bytes(remote)["hits"] == 1


def test_of_threads_that_want_one_kernel_one_asks(
    honest: Honest, trusted: TrustedKeys, requested: RequestedKernel, machine: Machine
) -> None:
    all_wait = threading.Event()

    def answer(request: Request) -> Parts:
        all_wait.wait(30)
        return honest(request)

    with Server(answer) as server, ThreadPoolExecutor(16) as threads:
        remote = Remote(server.url, trusted=trusted, deadline=30)
        found = [threads.submit(remote.kernel, requested, machine) for _ in range(16)]
        until_waiting(remote._single_flight, 15)
        all_wait.set()
        assert {id(each.result()) for each in found} == {id(found[0].result())}
        assert server.asked() == ["GET /v1/kernels", "GET /v1/blobs"]
        assert without_bytes(remote) == {"hits": 1, "joined": 15, "requests": 2}


def test_who_has_nothing_else_waits_for_one_that_is_busy(
    honest: Honest, trusted: TrustedKeys, requested: RequestedKernel, machine: Machine
) -> None:
    refusals = [http(429, Retry_After=0), http(503, b"{}", Retry_After="0")]
    with Server(lambda request: [refusals.pop()] if refusals else honest(request)) as server:
        remote = Remote(server.url, trusted=trusted, deadline=30)
        assert remote.kernel(requested._replace(key=None), machine, patient=True) == honest.artifacts[0]
        assert without_bytes(remote) == {"hits": 1, "requests": 4}


def test_a_forked_process_asks_over_connections_of_its_own(
    honest: Honest, trusted: TrustedKeys, requested: RequestedKernel, machine: Machine
) -> None:
    with Server(honest) as server:
        remote = Remote(server.url, trusted=trusted)
        assert remote.probe() is None
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # of forks beside threads
            child = os.fork()
        if child == 0:
            found = remote.kernel(requested, machine) == honest.artifacts[0]
            os._exit(0 if found and without_bytes(remote) == {"hits": 1, "requests": 2} else 1)
        assert os.waitpid(child, 0)[1] == 0
        assert remote.kernel(requested, machine) == honest.artifacts[0]
        assert len(server.connections) == 2


def test_a_token_is_sent_and_a_file_of_it_read_each_time(
    tmp_path: Path, honest: Honest, trusted: TrustedKeys, requested: RequestedKernel, machine: Machine
) -> None:
    (file := tmp_path / "token").write_text("first\n")
    with Server(honest) as server:
        remote = Remote(server.url, trusted=trusted, token=file)
        assert remote.probe() is None
        file.write_text("second")
        assert remote.probe() is None
        assert [request.headers["authorization"] for request in server.requests] == ["Bearer first", "Bearer second"]
        file.write_text("two\r\nlines: of headers")
        with pytest.warns(RemoteWarning, match="does not hold a valid token"):
            remote.kernel(requested, machine)
        assert len(server.requests) == 2


def test_a_kernel_is_uploaded_blob_first(artifact: Artifact, key: SigningKey, trusted: TrustedKeys) -> None:
    with Server(honest := Honest([], [key])) as server:
        remote = Remote(server.url, trusted=trusted, mode="readwrite")
        assert remote.put(artifact, [key]) == "stored"
        assert remote.put(artifact, [key]) == "there"
        assert server.asked() == ["GET /v1/kernels", "PUT /v1/blobs", "PUT /v1/kernels", "GET /v1/kernels"]
        assert honest.put == Honest([artifact], [key]).documents()
        assert without_bytes(remote) == {"uploads": 2, "requests": 4}


def test_what_is_uploaded_is_signed_by_the_remotes_key(
    tmp_path: Path, artifact: Artifact, key: SigningKey, trusted: TrustedKeys
) -> None:
    with Server(honest := Honest([], [])) as server:
        remote = Remote(server.url, trusted=trusted, mode="readwrite", sign=tmp_path / "key.pem")
        with pytest.warns(RemoteWarning, match="nothing is uploaded.*gemmill key new"):
            assert isinstance(remote.put(artifact), Miss)
        key.save(tmp_path / "key.pem")
        assert Remote(server.url, trusted=trusted, sign=tmp_path / "key.pem").put(artifact) == "stored"
        assert honest.put == Honest([artifact], [key]).documents()


def test_a_full_remote_is_read_all_the_same(honest: Honest, requested: RequestedKernel, machine: Machine) -> None:
    def answer(request: Request) -> Parts:
        if request.path.startswith("/v1/kernels/") and len(server.requests) == 1:
            return [http(404)]
        return [http(507)] if request.method == "PUT" else honest(request)

    with Server(answer) as server:
        remote = Remote(server.url, trusted=None)
        with pytest.warns(RemoteWarning, match="507"):
            remote.put(honest.artifacts[0])
        assert remote.kernel(requested, machine) == honest.artifacts[0]
        assert without_bytes(remote) == {"hits": 1, "uploads full": 1, "requests": 4}


def test_who_signs_nothing_is_told_what_does(artifact: Artifact) -> None:
    def answer(request: Request) -> Parts:
        status = {"GET": 404, "PUT": 201 if "/blobs/" in request.path else 403}[request.method]
        return [http(status)]

    with (
        Server(answer) as server,
        pytest.warns(RemoteWarning, match="403; the upload is unsigned: set GEMMILL_REMOTE_SIGN, or pass --sign"),
    ):
        Remote(server.url, trusted=None).put(artifact)


def test_who_may_not_upload_asks_once(artifact: Artifact, trusted: TrustedKeys) -> None:
    with Server(lambda request: [http(403)]) as server:
        remote = Remote(server.url, trusted=trusted, mode="readwrite")
        with pytest.warns(RemoteWarning, match="403"):
            reasons = [getattr(remote.put(artifact), "reason", "") for _ in range(2)]
        assert reasons == ["forbidden", "remembered"]
        assert server.asked() == ["GET /v1/kernels", "PUT /v1/blobs"]


def test_warnings_that_are_errors_cost_no_kernel(
    trusted: TrustedKeys, requested: RequestedKernel, machine: Machine
) -> None:
    with Server(lambda request: [http(404)]) as server, warnings.catch_warnings():
        warnings.simplefilter("error")
        assert isinstance(Remote(server.url, trusted=trusted).kernel(requested, machine), Miss)


@pytest.mark.parametrize(
    ("url", "rule"),
    [
        ("ftp://host", "https or http"),
        ("host:80", "https or http"),
        ("https://", "https or http"),
        ("http://host:99999", "ut of range"),
        ("http://host/?x=1", r"without \? and #"),
        ("http://[::1", "expected https"),
        ("http://host name", "expected an https or http URL"),
        ("http://h\u00f6st", "expected an https or http URL"),
    ],
)
def test_urls_that_are_none(url: str, rule: str, trusted: TrustedKeys) -> None:
    with pytest.raises(SettingError, match=rule):
        Remote(url, trusted=trusted)


def test_a_password_in_a_url_is_refused_and_not_repeated(trusted: TrustedKeys) -> None:
    with pytest.raises(SettingError, match="GEMMILL_REMOTE_TOKEN") as error:
        Remote("https://me:secret@host", trusted=trusted)
    assert "secret" not in str(error.value)


@given(by_name=st.booleans(), changes=st.lists(CHANGES, min_size=1, max_size=3))
def test_bytes_that_are_drawn_are_a_miss_or_the_kernel(
    by_name: bool,
    changes: list[tuple[str, float, bytes]],
    artifact: Artifact,
    key: SigningKey,
    trusted: TrustedKeys,
    requested: RequestedKernel,
    machine: Machine,
) -> None:
    honest = Honest([artifact], [key])

    def answer(request: Request) -> Parts:
        whole = b"".join(part for part in honest(request) if isinstance(part, bytes))
        for kind, where, drawn in changes:
            at = int(where * (len(whole) - 1))
            whole = {
                "flip": whole[:at] + bytes([whole[at] ^ drawn[0]]) + whole[at + 1 :],
                "cut": whole[:at] or b"H",
                "double": whole[:at] + whole,
                "insert": whole[:at] + drawn + whole[at:],
            }[kind]
        return [whole, CLOSE]

    with Server(answer) as server, warnings.catch_warnings():
        warnings.simplefilter("ignore", RemoteWarning)
        remote = Remote(server.url, trusted=trusted, deadline=30)
        found = remote.kernel(requested._replace(key=None) if by_name else requested, machine)
    assert found == artifact or (isinstance(found, Miss) and found.reason != "error"), found
