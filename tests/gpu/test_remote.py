"""A fresh process that has a remote, and no toolkit: its kernels come over HTTP, and run."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cases.kernels import BASE, configs
from tests.cases.remotes import Honest, Server

from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.trust.keys import SigningKey

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
print(torch.equal(d, (a.double() @ b.double().t()).bfloat16()), registry.remote.counters()["hits"])
"""


def test_a_fresh_process_multiplies_with_what_a_remote_makes(registry: Registry, tmp_path: Path) -> None:
    artifact = registry.get(configs(BASE)[0])
    key = SigningKey.new()
    with Server(Honest([], [key], made=[artifact])) as server:
        environ = {
            "GEMMILL_STORE": str(tmp_path / "store"),
            "GEMMILL_REMOTE": server.url,
            "GEMMILL_REMOTE_MODE": "only",
            "GEMMILL_TRUSTED_KEYS": str(key.public),
        }
        command = [sys.executable, "-c", FIRST_GEMM, artifact.name]
        done = subprocess.run(command, env={**os.environ, **environ}, capture_output=True, text=True, check=False)
        assert done.stdout == "True 1\n", done.stderr
        assert server.asked() == ["POST /v1/instantiate", "GET /v1/blobs"]
