"""A fresh process that has a pack, and neither a toolkit nor a store."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cases.kernels import BASE, configs
from tests.cli.test_cli import ok

import gemmill
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.pack import Pack, write_pack

pytestmark = pytest.mark.gpu

FIRST_GEMM = """
import sys
GONE = ("cuda.bindings.nvrtc", "cutlass_library", "elftools", "pydantic")
class Gone:
    def find_spec(self, name, path=None, target=None):
        if name.startswith(GONE):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
import torch
a, b = (torch.randint(-2, 3, (512, 256), device="cuda").to(torch.bfloat16) for _ in range(2))
sys.meta_path.insert(0, Gone())
import gemmill
d = gemmill.matmul(a, b.t(), registry=gemmill.Registry(packs=[sys.argv[1]]))
print(torch.equal(d, (a.double() @ b.double().t()).bfloat16()))
"""


def test_a_fresh_process_multiplies_from_a_pack(registry: Registry, tmp_path: Path) -> None:
    pack, store = tmp_path / "kernels.pack", tmp_path / "store"
    write_pack(pack, [registry.get(config) for config in configs(BASE)])
    done = subprocess.run(
        [sys.executable, "-c", FIRST_GEMM, str(pack)],
        env={**os.environ, "GEMMILL_STORE": str(store)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout == "True\n", done.stderr
    assert not list(store.rglob("*.gemmill"))  # but what was verified of the pack


def test_a_pack_for_bits_gives_a_row_the_same_bits_in_every_batch(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    pack, sizes = tmp_path / "sliced.pack", (1, 48, 2048)
    problems = [word for m in sizes for word in ("--problem", f"{m}x512x8192 bf16 tn")]
    ok("pack", "bf16", *problems, "--bits", "k16/8", "-o", pack)
    assert len(Pack.open(pack).names()) > 1, "few rows and many rows run different kernels"
    a, b = (torch.randn(rows, 8192, device="cuda", dtype=torch.bfloat16) for rows in (max(sizes), 512))
    packed = Registry(packs=[pack], store=tmp_path / "store")
    found = [gemmill.matmul(a[:m], b.t(), bits="k16/8", registry=packed) for m in sizes]
    assert all(torch.equal(d[:1], found[0]) for d in found)
