"""Kernels made on request: each once, however many ask, and whoever leaves."""

from __future__ import annotations

import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from tests.service.conftest import filled
from tests.service.running import KERNEL, OTHER, Running, serving, tokens_file

from gemmill.emitters import headers_digest
from gemmill.library.version import __version__
from gemmill.runtime.storage.artifact import Artifact

pytestmark = pytest.mark.slow
MAKE = "secret-of-maker"


def until(holds: Callable[[], bool], seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_64_cold_clients_of_two_servers_cost_one_compilation(tmp_path: Path) -> None:
    with serving(tmp_path) as one, serving(tmp_path) as two, ThreadPoolExecutor(64) as threads:
        asked = [threads.submit((one, two)[i % 2].instantiate, KERNEL) for i in range(64)]
        events = [answer.result().events for answer in asked]
        assert {tuple(last.items()) for *_, last in events} == {
            (("event", "done"), ("ready", 1), ("failed", 0), ("pending", 0))
        }
        manifests = {str(next(e["manifest"] for e in each if e["event"] == "ready")) for each in events}
        assert len(manifests) == 1
        servers = (one, two)
        assert sum(server.metric('gemmill_compiles_total{outcome="ok"}') for server in servers) == 1
        assert sum(server.metric("gemmill_joined_total") for server in servers) <= 62
        again = one.instantiate(KERNEL)
        assert [event["event"] for event in again.events] == ["resolved", "ready", "done"]


def test_a_client_that_leaves_does_not_lose_the_compilation(tmp_path: Path) -> None:
    with serving(tmp_path) as server:
        connection = server.connect()
        connection.request("POST", "/v1/instantiate", f'{{"kernels": ["{KERNEL}"]}}')
        answer = connection.getresponse()
        assert b'"resolved"' in answer.readline()
        connection.close()
        until(lambda: server.metric('gemmill_compiles_total{outcome="ok"}') == 1)
        [resolved, ready, done] = server.instantiate(KERNEL).events
        assert (ready["event"], done["ready"]) == ("ready", 1)
        assert server.manifest(resolved["key"])["kernel"] == KERNEL


def test_problems_become_kernels(server: Running, artifact: Artifact) -> None:
    answer = server.ask(
        "POST", "/v1/select", {"problem": "4096x4096x4096 bf16 tn", "gpu": {"name": "NVIDIA H200"}}, MAKE
    )
    chosen = answer.json
    assert chosen["kernel"].startswith("sm90a_bf16")
    assert len(chosen["key"]) == 64
    assert chosen["arithmetic"] == "k16"
    assert all(runner["arithmetic"] for runner in chosen["runners_up"])
    few = {"problem": "16x512x16384 bf16 tn", "gpu": {"name": "NVIDIA H200"}}
    fastest, same = (server.ask("POST", "/v1/select", {**few, "bits": bits}, MAKE).json for bits in ("any", "cublas"))
    assert (fastest["arithmetic"] == "k16", same["arithmetic"]) == (False, "k16")
    resolved = server.instantiate(token=MAKE, problems=[few["problem"]], bits="cublas", wait=0).events[0]
    assert resolved["kernel"] == same["kernel"]
    events = server.instantiate(token=MAKE, problems=["4096x4096x4096 bf16 tn"], wait=0).events
    assert [event["event"] for event in (events[0], events[-1])] == ["resolved", "done"]
    assert (events[0]["kernel"], events[-1]["pending"]) == (chosen["kernel"], 1)


def test_some_fail_and_others_do_not(server: Running, artifact: Artifact) -> None:
    events = server.instantiate(artifact.name, "nonsense", token=MAKE, problems=["1x2"]).events
    failed = {event.get("kernel", event.get("problem")): event["error"]["code"] for event in events if "error" in event}
    assert failed == {"nonsense": "config", "1x2": "problem"}
    assert events[-1] == {"event": "done", "ready": 1, "failed": 2, "pending": 0}


@pytest.mark.parametrize(
    ("more", "status", "code"),
    [
        ({"gemmill": "0.0.1"}, 409, "version"),
        ({"headers": "0" * 64}, 409, "version"),
        ({"kernels": []}, 422, "malformed"),
        ({"kernels": [1]}, 422, "malformed"),
        ({"kernels": "x"}, 422, "malformed"),
        ({"kernel": []}, 422, "malformed"),
        ({"wait": 1e9}, 422, "malformed"),
        ({"gpu": {"nam": "x"}}, 422, "malformed"),
        ({"gpu": {"name": "x", "arch": "hopper"}}, 422, "malformed"),
        ({"gpu": {"name": "NVIDIA H800"}}, 422, "malformed"),
        ({"gpu": {"name": "../../x", "arch": "sm90"}}, 422, "malformed"),
        ({"gpu": {"name": "NVIDIA H200/../x", "sm_count": 8}}, 422, "malformed"),
        ({"driver_cuda": [12]}, 422, "malformed"),
        ({"bits": "fast"}, 422, "malformed"),
        ({"bits": "k16/stream@64"}, 422, "malformed"),
    ],
)
def test_requests_that_mean_nothing(server: Running, more: dict[str, object], status: int, code: str) -> None:
    answer = server.ask("POST", "/v1/instantiate", {"kernels": [KERNEL], **more}, MAKE)
    assert (answer.status, answer.code) == (status, code)


def test_bits_that_no_kernel_gives_are_refused_with_the_rule(server: Running) -> None:
    body = {"problem": "64x64x64 f64", "gpu": {"name": "NVIDIA H200"}}
    words = ("fast; x", "cublas")
    wrong, unknown = (server.ask("POST", "/v1/select", {**body, "bits": bits}, MAKE) for bits in words)
    assert wrong.json["error"]["message"].startswith(
        "Invalid bits 'fast; x': it must be 'any', 'invariant', 'cublas' or"
    )
    assert (unknown.status, unknown.code) == (422, "unsupported_problem")


def test_gpus_that_are_not_known_are_refused_with_those_that_are(server: Running) -> None:
    def status(path: str, **gpu: object) -> tuple[int, str]:
        body = {"problem": "64x64x64 f32", "gpu": gpu} if gpu else None
        answer = server.ask("POST" if gpu else "GET", path, body, "secret-of-boss")
        return answer.status, answer.body.decode()

    for path, gpu in (
        ("/v1/select", {"name": "x"}),
        ("/v1/models/x", {}),
        ("/problems?problem=64x64x64&gpu=..%2f..%2fx", {}),
        ("/problems?gpu=x", {}),
    ):
        refused, message = status(path, **gpu)
        assert (refused, "NVIDIA H200" in message, "none of" in message) == (422, True, True), path
    for gpu in ({"name": "H100"}, {"name": "NVIDIA H100 PCIe MIG 1g.10gb"}, {"name": "NVIDIA H800", "arch": "sm90"}):
        assert status("/v1/select", **gpu)[0] == 200


def test_a_server_takes_source_where_it_was_started_so(server: Running) -> None:
    refused = server.ask("POST", "/v1/instantiate", {"sources": [{"kernel": KERNEL, "source": "x"}]}, "secret-of-boss")
    assert (refused.status, refused.code) == (403, "no_source")


def test_a_machine_that_cannot_run_a_kernel_is_told(server: Running) -> None:
    same = {"gemmill": __version__, "headers": headers_digest()}
    for more, code in (
        ({"gpu": {"name": "NVIDIA A100", "arch": "sm80"}}, "arch"),
        ({"gpu": {"name": "NVIDIA B200", "arch": "sm100"}}, "arch"),
        ({"driver_cuda": [11, 8]}, "driver"),
    ):
        failed, done = server.instantiate(KERNEL, token=MAKE, **same, **more).events
        assert (failed["error"]["code"], done["failed"]) == (code, 1)


def test_quotas_and_a_full_queue_say_when_to_ask_again(tmp_path: Path, artifact: Artifact) -> None:
    secrets = tokens_file(tmp_path / "tokens", poor="compile,read", rich="compile,read")
    options = ("--tokens", str(tmp_path / "tokens"), "--quota", "6", "--queue", "1")
    with serving(filled(tmp_path / "server", artifact), *options, jobs=1) as server:
        assert server.instantiate(OTHER, token=secrets["poor"], wait=0).status == 200
        third = OTHER.replace("128x128x8", "64x64x8")
        refused = server.instantiate(third, token=secrets["poor"], wait=0)
        assert (refused.status, refused.code) == (429, "quota")
        assert int(refused.headers["retry-after"]) >= 1
        assert server.instantiate(artifact.name, token=secrets["poor"]).events[-1]["ready"] == 1, (
            "what is there is free"
        )
        assert server.instantiate(third, token=secrets["rich"], wait=0).status == 200
        busy = server.instantiate(OTHER.replace("128x128x8", "64x128x8"), token=secrets["rich"], wait=0)
        assert (busy.status, busy.code) in ((503, "busy"), (429, "quota"))
