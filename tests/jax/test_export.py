"""Programs that leave the process: lowered and exported for GPUs on a machine without one, and for the CPU."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

jax: Any = pytest.importorskip("jax")
pytest.importorskip("flatbuffers")  # of jax.export

import numpy as np  # noqa: E402
from jax import export  # noqa: E402
from tests.jax.cases import double, whole  # noqa: E402

import gemmill.jax  # noqa: E402
from gemmill.library.config.names import parse_name  # noqa: E402
from gemmill.runtime.jax import ffi  # noqa: E402

jnp = jax.numpy
CHECKS = [export.DisabledSafetyCheck.custom_call(ffi.TARGET)]


def layer(x: Any, w: Any) -> Any:
    return gemmill.jax.matmul(x, w.T, b_major="k", epilogue="d = relu(acc)")


X, W = whole(16, 24), whole(8, 24)
EXPECTED = np.maximum(double(X) @ double(W).T, 0)


def test_programs_for_gpus_name_their_kernels() -> None:
    exported = export.export(jax.jit(layer), platforms=["cuda"], disabled_checks=CHECKS)(X, W)
    loaded = export.deserialize(exported.serialize())
    assert loaded.platforms == ("cuda",)
    (name,) = re.findall(r"kernel\\22,\\22(\w+)\\22", loaded.mlir_module())
    assert parse_name(name).epilogue == "d = relu(acc)"
    text = jax.jit(jax.grad(lambda x, w: layer(x, w).sum().astype("float32"), (0, 1))).trace(X, W)
    assert text.lower(lowering_platforms=("cuda",)).as_text().count("@gemmill_gemm") == 3


def test_an_exported_program_runs_in_another_process(tmp_path: Path) -> None:
    exported = export.export(jax.jit(layer), platforms=["cpu", "cuda"], disabled_checks=CHECKS)(X, W)
    (tmp_path / "program").write_bytes(exported.serialize())
    np.save(tmp_path / "x.npy", np.asarray(X, "float32"))
    np.save(tmp_path / "w.npy", np.asarray(W, "float32"))
    program = f"""
        import jax, numpy as np, gemmill.jax
        from pathlib import Path
        gemmill.jax.run_on_cpu()
        here = Path({str(tmp_path)!r})
        x, w = (jax.numpy.asarray(np.load(here / name), "bfloat16") for name in ("x.npy", "w.npy"))
        found = jax.export.deserialize(bytearray((here / "program").read_bytes())).call(x, w)
        np.save(here / "found.npy", np.asarray(found, "float32"))
    """
    subprocess.run([sys.executable, "-c", f"import jax.export\n{textwrap.dedent(program)}"], check=True)
    np.testing.assert_array_equal(np.load(tmp_path / "found.npy"), EXPECTED)


def test_one_program_holds_any_m() -> None:
    """Its kernel is selected when it runs, so none is named."""
    (m,) = export.symbolic_shape("m")
    of_any_m = jax.ShapeDtypeStruct((m, 24), "bfloat16")
    exported = export.export(jax.jit(layer), platforms=["cpu", "cuda"], disabled_checks=CHECKS)(of_any_m, W)
    assert "kernel" not in exported.mlir_module()
    for rows in (1, 16):
        np.testing.assert_array_equal(double(exported.call(X[:rows], W)), EXPECTED[:rows])
