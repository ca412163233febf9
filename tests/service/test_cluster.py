"""Kernels compiled by the workers of a dask cluster."""

from __future__ import annotations

import json
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.service.running import KERNEL, serving

dask = pytest.importorskip("dask")
pytest.importorskip("distributed")
from tests.profiler.sweep.test_cluster import command  # noqa: E402, F401 (a fixture)

pytestmark = [pytest.mark.slow, pytest.mark.heavy]


def test_workers_of_a_scheduler_compile(
    tmp_path: Path,
    command: Callable[..., subprocess.Popen[bytes]],  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    scheduler = command("scheduler", "--host", "127.0.0.1", "--protocol", "tls://", "--port", "0")
    file = tmp_path / "scheduler.json"
    while not file.exists() or not file.read_text():
        assert scheduler.poll() is None
        time.sleep(0.1)
    command("worker", "--nthreads", "1", GEMMILL_STORE=str(tmp_path / "of the worker"))
    for name, setting in (("CA_FILE", "ca-file"), ("CLIENT__CERT", "client.cert"), ("CLIENT__KEY", "client.key")):
        monkeypatch.setenv(f"DASK_DISTRIBUTED__COMM__TLS__{name}", dask.config.get(f"distributed.comm.tls.{setting}"))
    monkeypatch.setenv("DASK_DISTRIBUTED__COMM__REQUIRE_ENCRYPTION", "True")
    with serving(tmp_path / "server", "--scheduler", json.loads(file.read_text())["address"]) as server:
        assert server.instantiate(KERNEL).events[-1]["ready"] == 1
        assert server.metric('gemmill_compiles_total{outcome="ok"}') == 1
        assert server.end() == 0
    assert [*(tmp_path / "of the worker").rglob("*.gemmill")]


def test_a_scheduler_that_anybody_may_talk_to_is_refused(tmp_path: Path) -> None:
    limited = serving(tmp_path, "--scheduler", "tcp://127.0.0.1:1")
    with pytest.raises(AssertionError, match="runs what anyone sends it"), limited:
        pass
