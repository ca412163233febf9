"""Ten thousand requests of every kind at a server that is killed, whose disk fills and whose bucket fails, from clients
that are killed, lied to, locked out, or a year off: all get their kernels, and what is counted is exact."""

from __future__ import annotations

import hashlib
import json
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path

import pytest
from tests.service.bucket import Bucket
from tests.service.conftest import filled
from tests.service.flipping import FlippingProxy
from tests.service.running import Running, serving, tokens_file
from tests.service.storming import YEAR_SECONDS, Pods, Storm
from tests.torture import plan

from gemmill.library.config.names import parse_name
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.store import Store
from gemmill.runtime.storage.trust.signatures import SigningKey

pytestmark = [pytest.mark.slow, pytest.mark.heavy]
THIRD = "sm90_f32mn16_f32mn16_f32_none_f32n16_128x128x8_1x1_simt_s2_m8_k1_linear"
THREADS, REQUESTS, KILLS = 24, 10_000, 2
HIT, MISS = 'gemmill_kernels_total{result="hit"}', 'gemmill_kernels_total{result="miss"}'
COMPILED, ERRORS = 'gemmill_compiles_total{outcome="ok"}', 'gemmill_requests_total{status="500"}'
LOCKED_OUT = 'gemmill_refused_total{code="token"}'


class Lives:
    """A server that is killed and started again, at one port and with one folder."""

    def __init__(self, stack: ExitStack, folder: Path, artifacts: tuple[Artifact, Artifact]) -> None:
        self.folder, self._stack = folder, stack
        key = SigningKey.new()
        key.save(folder / "key")
        self.secrets = tokens_file(
            folder / "tokens", reader="read", maker="read,compile", late="read,compile 2020-01-31"
        )
        with socket.create_server(("127.0.0.1", 0)) as found:
            self._port = str(found.getsockname()[1])
        self.server = self.begin()
        digest = self.server.manifest(artifacts[0].key, self.secrets["reader"])["digest"]
        self.storm = Storm(self.server, artifacts[0], digest, self.secrets)
        self.pods = Pods(
            str(key.public), {each.name: hashlib.sha256(each.to_bytes()).hexdigest() for each in artifacts}
        )

    def begin(self) -> Running:
        options = ("--tokens", str(self.folder / "tokens"), "--sign", str(self.folder / "key"))
        more = ("--bucket", "s3://kernels/gemmill", "--port", self._port, "--connections", "200")
        return self._stack.enter_context(serving(self.folder, *options, *more))

    def kill(self) -> None:
        """End it as a machine does that loses power, and begin anew."""
        assert self.server.end(signal.SIGKILL) == -signal.SIGKILL
        self.server = self.storm.server = self.begin()

    def counted(self, *metrics: str) -> list[float]:
        return [self.server.metric(metric, self.secrets["reader"]) for metric in metrics]

    def holds(self, artifact: Artifact) -> bool:
        """Whether the store on disk has a kernel."""
        return Store(self.folder / "store").holds(artifact.key)


@pytest.fixture
def lives(tmp_path: Path, artifacts: tuple[Artifact, Artifact], bucket: Bucket) -> Iterator[Lives]:
    bucket.fails = 0.3
    with ExitStack() as stack:
        yield Lives(stack, filled(tmp_path / "server", artifacts[0]), artifacts)


def test_a_storm(lives: Lives, artifacts: tuple[Artifact, Artifact], bucket: Bucket, tmp_path: Path) -> None:
    storm, pods = lives.storm, lives.pods
    killed(lives, artifacts[1])
    calm(lives, bucket, tmp_path)
    flipped(lives)
    full(lives, bucket)
    assert not storm.wrong
    assert storm.requests + pods.requests >= REQUESTS
    assert lives.counted(ERRORS) == [0]
    assert lives.server.files() < 200 + 60
    assert lives.server.end() == 0
    assert not Store(lives.folder / "store").verify()
    assert "Traceback" not in (lives.folder / "log").read_text()


def killed(lives: Lives, other: Artifact) -> None:
    """The server is killed while it compiles and while it sends, and pods are killed."""
    storm, pods, maker = lives.storm, lives.pods, lives.secrets["maker"]
    port = lives.server.port
    threads = storm.threads(
        (storm.manifest, storm.blob, storm.part, storm.made, storm.refused, storm.leaving), THREADS, 170
    )
    rounds = 30
    running = [pods.start(port, maker, rounds) for _ in range(2)]
    victims = [pods.start(port, maker, 1000) for _ in range(2)]
    while lives.counted("gemmill_compiling") != [1]:
        time.sleep(0.01)
    lives.kill()
    expected = 0 if lives.holds(other) else 1
    while not lives.holds(other):
        time.sleep(0.05)
    for _ in range(KILLS):
        while lives.counted(COMPILED) < [expected] or not storm.count(200, "blob"):
            time.sleep(0.05)
        time.sleep(1)
        assert lives.counted(COMPILED) == [expected], "one compile over all lives that ended one"
        lives.kill()
        expected = 0
    for victim in victims:
        assert victim.stdout is not None
        lines = [json.loads(victim.stdout.readline()) for _ in range(3)]
        victim.kill()
        victim.wait()
        victim.stdout.close()
        pods.checked(lines)
    for thread in threads:
        thread.join()
    for pod in running:
        told = pods.told(pod, rounds)
        assert any(line.get("hits") for line in told)
    assert storm.count(200, "made") > 0
    assert lives.counted(COMPILED) == [0]


def calm(lives: Lives, bucket: Bucket, tmp_path: Path) -> None:
    """Half of what the bucket is asked fails, pods are a year off or locked out: the server counts what clients do."""
    storm, pods = lives.storm, lives.pods
    bucket.fails = 0.5
    before = lives.counted(HIT, MISS, LOCKED_OUT, COMPILED)
    storm.begin()
    threads = storm.threads(
        (storm.manifest, storm.blob, storm.part, storm.made, storm.absent, storm.refused, storm.expired), THREADS, 240
    )
    rounds, injector = 15, str(plan.build(tmp_path))
    running = []
    for years in (-1, 1):
        plan.write(path := tmp_path / f"{years}.plan", tmp_path, tmp_path, ahead_s=years * YEAR_SECONDS)
        shift = {"LD_PRELOAD": injector, "TORTURE_PLAN": str(path)}
        running.append(pods.start(lives.server.port, lives.secrets["maker"], rounds, **shift))
    locked_out = [pods.start(lives.server.port, token, 1) for token in ("wrong", lives.secrets["late"])]
    for years, pod in zip((-1, 1), running, strict=True):
        for line in pods.told(pod, rounds):
            assert line["hits"] == 1
            assert abs(line["time"] - time.time() - years * YEAR_SECONDS) < 3600
    for pod in locked_out:
        first, then = pods.told(pod, 1)
        assert (first["unauthorised"], then["paused"]) == (1, 1)
    for thread in threads:
        thread.join()
    hits = storm.count(200, "manifest") + 2 * storm.count(200, "made") + 2 * rounds * len(running)
    expected = [hits, storm.count(404), storm.count(401) + len(locked_out), 0]
    found = lives.counted(HIT, MISS, LOCKED_OUT, COMPILED)
    assert [now - then for now, then in zip(found, before, strict=True)] == expected


def flipped(lives: Lives) -> None:
    """Bits flip on the way: what is wrong is not taken."""
    rounds, pods = 15, lives.pods
    with FlippingProxy(lives.server.port, 0.08) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        running = [pods.start(proxy.server_address[1], lives.secrets["maker"], rounds) for _ in range(2)]
        told = [line for pod in running for line in pods.told(pod, rounds)]
        proxy.shutdown()
        assert proxy.flipped > 0
        assert any(line.get("hits") for line in told)
        assert lives.counted(COMPILED) == [0]


def full(lives: Lives, bucket: Bucket) -> None:
    """The disk takes no kernel, nor does the bucket: it is compiled once, served from memory, and once more by the
    next life."""
    bucket.fails = 1.0
    [compiled] = lives.counted(COMPILED)
    wanted = Registry(manifests=(), store=lives.folder / "own").get(parse_name(THIRD))
    subprocess.run(["prlimit", f"--pid={lives.server.process.pid}", "--fsize=4096:unlimited"], check=True)
    for is_full in (True, False):
        with ThreadPoolExecutor(64) as clients:
            answers = [*clients.map(lambda _: lives.server.instantiate(THIRD, token=lives.secrets["maker"]), range(64))]
        assert [answer.events[-1]["ready"] for answer in answers] == [1] * 64, answers[0].events
        assert lives.counted(COMPILED) == [compiled + 1]
        digest = lives.server.manifest(wanted.key, lives.secrets["reader"])["digest"]
        assert lives.server.ask("GET", f"/v1/blobs/{digest}", token=lives.secrets["reader"]).body == wanted.to_bytes()
        assert (lives.server.ask("GET", "/readyz").status == 200) is not is_full
        assert lives.holds(wanted) is not is_full
        if is_full:
            lives.kill()
            compiled = 0
