"""gemmill as a kernel repository, loaded by Hugging Face's ``kernels``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("kernels", reason="needs Hugging Face's kernels")

ROOT = Path(__file__).parents[2]
WRITE = [sys.executable, str(ROOT / "integrations" / "kernels" / "write.py")]
PACK = ROOT / "tests" / "data" / "formats" / "written.pack"
LOADED = """
import sys
from pathlib import Path

sys.path = [folder for folder in sys.path if not (Path(folder) / "gemmill").exists()]
variant = Path(sys.argv[1]) / "build" / "torch-cuda"

import torch
from kernels import LocalLayerRepository, Mode, get_local_kernel, kernelize, use_kernel_mapping
from kernels import replace_kernel_forward_from_hub

kernel = get_local_kernel(variant)
import gemmill
from gemmill.runtime.api.caches import default_registry

assert Path(gemmill.__file__).is_relative_to(variant)
print(default_registry())
gemmill.torch.run_on_cpu()

class Linear(torch.nn.Linear):
    pass

replace_kernel_forward_from_hub(Linear, "Linear")
model = torch.nn.Sequential(*(Linear(64, 64, bias=bias) for bias in (True, False))).bfloat16()
x = torch.randn(2, 3, 64, dtype=torch.bfloat16)
wanted = model(x)
with use_kernel_mapping({"Linear": {"cpu": LocalLayerRepository(variant, layer_name="Linear")}}):
    kernelize(model, mode=Mode.TRAINING, device="cpu")
assert all("gemmill" in layer.forward.__module__ for layer in model), [layer.forward for layer in model]
torch.testing.assert_close(model(x), wanted, atol=2e-2, rtol=2e-2)
model(x).sum().backward()
assert model[0].bias.grad is not None
"""


def test_a_repository_loads_and_replaces_layers(tmp_path: Path) -> None:
    folder = tmp_path / "gemmill-kernel"
    subprocess.run([*WRITE, str(PACK), str(folder)], check=True)
    done = subprocess.run([sys.executable, "-c", LOADED, str(folder)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "kernels.pack" in done.stdout


def test_what_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged.pack"
    damaged.write_bytes(PACK.read_bytes()[:100])
    for pack, folder, says in ((damaged, "new", "damaged.pack"), (PACK, ".", "exists")):
        done = subprocess.run([*WRITE, str(pack), str(tmp_path / folder)], capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert says in done.stderr
        assert "Traceback" not in done.stderr
    assert not (tmp_path / "new").exists()
