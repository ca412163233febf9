"""A fresh process that has a remote, and no toolkit: its kernels come over HTTP, and run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cases.kernels import BASE, configs
from tests.cases.remotes import Honest, Server

from gemmill.library.config.names import kernel_name
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.trust.signatures import SigningKey

pytestmark = pytest.mark.gpu

FIRST_GEMM = """
import sys
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(("cuda.bindings.nvrtc", "cutlass_library", "starlette")):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
import torch
a, b = (torch.randint(-2, 3, (512, 256), device="cuda").to(torch.bfloat16) for _ in range(2))
sys.meta_path.insert(0, Gone())
import gemmill
registry = gemmill.Registry(manifests=())
d = gemmill.matmul(a, b.t(), kernel=sys.argv[1], registry=registry)
print(torch.equal(d, (a.double() @ b.double().t()).bfloat16()), registry.remote.counters().get("hits", 0))
"""


def first_gemm(kernel: str, store: Path, key: SigningKey, url: str) -> str:
    """What a fresh process prints: whether D is right, and how many kernels came from a remote."""
    environ = {
        "GEMMILL_STORE": str(store),
        "GEMMILL_REMOTE": url,
        "GEMMILL_REMOTE_MODE": "only",
        "GEMMILL_REMOTE_DEADLINE": "120",
        "GEMMILL_TRUSTED_KEYS": str(key.public),
    }
    command = [sys.executable, "-c", FIRST_GEMM, kernel]
    done = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=False)
    assert not done.returncode, done.stderr
    return done.stdout.strip()


def test_a_fresh_process_multiplies_with_what_a_remote_makes(registry: Registry, tmp_path: Path) -> None:
    artifact = registry.get(configs(BASE)[0])
    key = SigningKey.new()
    with Server(Honest([], [key], made=[artifact])) as server:
        assert first_gemm(artifact.name, tmp_path / "store", key, server.url) == "True 1"
        assert server.asked() == ["POST /v1/instantiate", "GET /v1/blobs"]


def test_a_server_compiles_for_a_fresh_process_whose_store_then_does_without_it(tmp_path: Path) -> None:
    """How soon: ``python -m benchmarks first_gemm``."""
    pytest.importorskip("uvicorn")
    from tests.service.running import serving

    kernel = kernel_name(configs(BASE)[0])
    (key := SigningKey.new()).save(tmp_path / "server.key")
    with serving(tmp_path / "server", "--sign", str(tmp_path / "server.key")) as server:
        url = f"http://127.0.0.1:{server.port}"
        assert first_gemm(kernel, tmp_path / "store", key, url) == "True 1"
        assert server.metric('gemmill_compiles_total{outcome="ok"}') == 1
    assert first_gemm(kernel, tmp_path / "store", key, url) == "True 0"
