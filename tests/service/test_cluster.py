"""Kernels compiled by processes that are killed, and by the workers of a dask cluster."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path

import psutil
import pytest
from tests.service.running import KERNEL, OTHER, Running, serving
from tests.service.test_instantiate import until

pytest.importorskip("distributed")
from tests.cases.dask_cluster import dask_cluster

pytestmark = [pytest.mark.slow, pytest.mark.heavy]


def is_ready(server: Running, says: str = "") -> bool:
    answer = server.ask("GET", "/readyz")
    assert answer.status in (200, 503)
    return answer.status == 200 if not says else answer.status == 503 and says in answer.json["error"]["message"]


def test_workers_of_a_scheduler_compile_and_are_waited_for_while_it_is_away(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("distributed")

    with dask_cluster(tmp_path) as cluster:
        for name, path in cluster.environ.items():
            monkeypatch.setenv(name, path)
        # Dask's client gives up after so long, and the server makes another.
        monkeypatch.setenv("DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT", "3s")
        # Its disk is full, for what is larger than this: it compiles all the same, and keeps nothing.
        cluster.worker("--no-nanny", before=("prlimit", "--fsize=4096"))
        with serving(tmp_path / "server", "--scheduler", cluster.address) as server:
            until(lambda: is_ready(server))
            assert server.instantiate(KERNEL).events[-1]["ready"] == 1
            assert not [*(tmp_path / "store-0").rglob("*.gemmill")]

            cluster.scheduler.kill()
            until(lambda: is_ready(server, f"lost the dask scheduler at {cluster.address}"))
            assert server.instantiate(KERNEL).events[-1]["ready"] == 1, "what is there is served"
            refused = server.instantiate(OTHER)
            assert (refused.status, refused.code) == (503, "workers")
            assert int(refused.headers["retry-after"]) >= 1

            until(lambda: "closing client" in (tmp_path / "server" / "log").read_text())
            cluster.start()
            until(lambda: is_ready(server, f"no worker of the dask scheduler at {cluster.address} compiles"))
            cluster.worker()
            until(lambda: is_ready(server))
            assert server.instantiate(OTHER).events[-1]["ready"] == 1
            assert server.metric('gemmill_compiles_total{outcome="ok"}') == 2
            assert [*(tmp_path / "store-1").rglob("*.gemmill")]
            assert server.end() == 0


def test_a_scheduler_that_anybody_may_talk_to_is_refused(tmp_path: Path) -> None:
    limited = serving(tmp_path, "--scheduler", "tcp://127.0.0.1:1")
    with pytest.raises(AssertionError, match="does not use TLS"), limited:
        pass


def test_a_kernel_that_kills_what_compiles_it_takes_down_two_processes_a_minute(tmp_path: Path) -> None:
    killed: set[int] = set()
    done = threading.Event()

    def kill(server: Running) -> None:
        while not done.is_set():
            for child in psutil.Process(server.process.pid).children():
                with suppress(psutil.NoSuchProcess):
                    if (
                        "gemmill.runtime.compile.compile_worker" in " ".join(child.cmdline())
                        and child.pid not in killed
                    ):
                        child.kill()
                        killed.add(child.pid)

    with serving(tmp_path, jobs=1) as server:
        thread = threading.Thread(target=kill, args=[server])
        thread.start()
        try:
            failed = server.instantiate(KERNEL).events[-2]["error"]
            again = server.instantiate(KERNEL)
        finally:
            done.set()
            thread.join()
        assert failed["code"] == "workers"
        assert f"{KERNEL}: failed twice: each time its compile worker died (SIGKILL)" in failed["message"]
        assert (again.status, again.code, again.json["error"]["message"]) == (503, "workers", failed["message"])
        assert len(killed) == 2
        assert server.instantiate(OTHER).events[-1]["ready"] == 1, "others are compiled"
