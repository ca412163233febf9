"""Calls of JAX on a GPU: values, gradients, command buffers, workspaces, threads, misuse, exported programs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import textwrap
import threading
from functools import partial
from pathlib import Path
from typing import Any

import pytest

# Memory that other tests need is left to them, and every call that can be is captured into a command buffer.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
os.environ["XLA_FLAGS"] = f"{os.environ.get('XLA_FLAGS', '')} --xla_gpu_graph_min_graph_size=1"
jax: Any = pytest.importorskip("jax")
pytestmark = pytest.mark.gpu

import numpy as np  # noqa: E402
from tests.jax.cases import CASES, double, real, whole  # noqa: E402
from tests.jax.kernels import SHARED_K, chain  # noqa: E402
from tests.jax.test_handler import MISUSES, PLAIN, call  # noqa: E402
from tests.jax.test_values import assert_near, listed  # noqa: E402

import gemmill.jax  # noqa: E402
from gemmill.runtime.api import caches  # noqa: E402
from gemmill.runtime.jax import gpu_handler  # noqa: E402

jnp = jax.numpy
VALUES = [
    "bf16",
    "f16, B column by column",
    "A column by column",
    "tf32",
    "f64 by alpha",
    "integers",
    "fp8",
    "odd extents",
    "vectors",
    "C",
    "a batch of one weight",
    "batches that broadcast",
    "scales of rows and columns",
    "scales of blocks",
    "weights of 4 bits",
    "an expression",
    "a gate",
    "groups of rows",
    "groups of gathered rows",
    "groups along K",
    "groups along K of gathered columns",
    "slots",
]
GRADIENTS = [
    *("bf16", "f16, B column by column", "C", "an expression"),
    *("groups of rows", "groups of gathered rows", "groups along K", "groups along K of gathered columns"),
]


@pytest.fixture(scope="module", autouse=True)
def kernels() -> None:
    """All kernels of the cases, compiled in parallel."""
    if jax.default_backend() != "gpu":
        pytest.skip("JAX sees no GPU")
    told = subprocess.run(
        [sys.executable, "-m", "tests.jax.kernels", *VALUES],
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        capture_output=True,
        text=True,
        check=True,
    )
    caches.default_registry().warm(told.stdout.split())


@pytest.mark.parametrize("name", VALUES)
def test_values_are_those_of_float64(name: str) -> None:
    case = CASES[name]
    wanted = listed(case.expected(**case.arrays))
    for x, y in zip(listed(jax.jit(case.call)(**case.arrays)), wanted, strict=True):
        found = (
            jnp.where(jnp.arange(x.shape[1])[:, None] < case.arrays["counts"][:, None, None], x, 0)
            if name == "slots"
            else x
        )
        exact = not jnp.issubdtype(x.dtype, jnp.floating)
        assert_near(found, y, 0 if exact else max(float(jnp.finfo(x.dtype).eps), 2**-20))


@pytest.mark.parametrize("name", GRADIENTS)
def test_gradients_are_those_of_the_same_in_jax(name: str) -> None:
    case = CASES[name]
    some = {x: jnp.asarray(case.arrays[x]) for x in case.differentiable}
    fixed = {x: y for x, y in case.arrays.items() if x not in some}

    def loss(function: Any, some: dict[str, Any]) -> Any:
        made = listed(function(**fixed, **some))
        return sum((double(x) * jnp.cos(jnp.arange(x.size)).reshape(x.shape)).sum() for x in made)

    found = jax.jit(jax.grad(lambda some: loss(case.call, some)))(some)
    with jax.default_device(jax.devices("cpu")[0]):  # where an operation compiles sooner
        wanted = jax.grad(lambda some: loss(case.expected, some))({x: double(case.arrays[x]) for x in some})
    for x in some:
        assert_near(np.asarray(found[x]), np.asarray(wanted[x]), 2**-6)


@pytest.mark.parametrize("name", ["bf16", "C", "an expression", "groups of rows"])
def test_tangents_are_those_of_the_same_in_jax(name: str) -> None:
    """Also of the gradient, in forward mode over reverse mode."""
    case = CASES[name]
    some = {x: jnp.asarray(case.arrays[x]) for x in case.differentiable}
    fixed = {x: y for x, y in case.arrays.items() if x not in some}

    def steepness(function: Any, some: dict[str, Any]) -> Any:
        return jax.grad(lambda some: sum((double(x) ** 2).mean() for x in listed(function(**fixed, **some))[:2]))(some)

    def derived(function: Any, some: dict[str, Any]) -> Any:
        outputs = jax.jvp(lambda x: listed(function(**fixed, **x))[:2], (some,), (some,))[1]
        return outputs, jax.jvp(lambda x: steepness(function, x), (some,), (some,))[1]

    found = jax.jit(lambda x: derived(case.call, x))(some)
    with jax.default_device(jax.devices("cpu")[0]):
        wanted = derived(case.expected, {x: double(case.arrays[x]) for x in some})
    for x, y in zip(jax.tree.leaves(found), jax.tree.leaves(wanted), strict=True):
        assert_near(np.asarray(x), np.asarray(y), 2**-5)


def test_factors_may_be_traced() -> None:
    """Their values are read at run time, also in a command buffer."""
    a, b, c = whole(16, 24), whole(24, 8), whole(16, 8, dtype="float32")
    scaled = jax.jit(lambda x, y: gemmill.jax.matmul(a, b, c=c, alpha=x, beta=y, out_dtype="float32"))
    for x, y in ((2.0, 0.5), (3.0, -1.0), (0.0, 4.0)):
        assert_near(scaled(x, y), x * (double(a) @ double(b)) + y * double(c), 2**-20)
    found = jax.grad(lambda x: scaled(x, 0.5).sum())(2.0)
    assert_near(np.asarray(found), (double(a) @ double(b)).sum(), 2**-6)


def test_command_buffers_are_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """On arrays at the same addresses the handler is not asked again; gradients too."""
    asked = []
    looked_up = gpu_handler._ready_call

    def counted(*given: Any) -> Any:
        asked.append(given)
        return looked_up(*given)

    monkeypatch.setattr(gpu_handler, "_ready_call", counted)
    w, bias = (jnp.asarray(0.1 * real(*shape), "bfloat16") for shape in ((64, 64), (64,)))
    compiled = jax.jit(chain)
    kept = []
    for i in range(6):
        x = jnp.asarray(real(32, 64) * (i + 1), "bfloat16")
        h = np.maximum(double(np.asarray(x)) @ double(np.asarray(w)) + double(np.asarray(bias)), 0)
        wanted = h @ double(np.asarray(w)).T @ double(np.asarray(w))
        found = compiled(x, w, bias)
        assert_near(np.asarray(found), wanted, 2**-5)
        kept += [x, found] if i % 2 else []  # so that later arrays lie elsewhere
    asked.clear()
    for _ in range(40):
        jax.block_until_ready(compiled(x, w, bias))
    assert len(asked) < 60  # of 120 calls
    gradient = jax.jit(jax.grad(lambda w, x: chain(x, w, bias).astype("float32").sum()))
    first = gradient(w, x)
    for _ in range(4):
        np.testing.assert_array_equal(double(np.asarray(gradient(w, x))), double(np.asarray(first)))


@pytest.mark.parametrize(("kernel", "extents"), SHARED_K.values(), ids=SHARED_K)
def test_partial_sums_lie_in_memory_of_xla_s(kernel: str, extents: tuple[int, int, int]) -> None:
    """Several calls of it in one command buffer, each with its own, and on the same values the same bits."""
    m, n, k = extents
    a, b = (jnp.asarray(np.random.default_rng(0).integers(-2, 3, shape), "bfloat16") for shape in ((m, k), (k, n)))

    def twice(a: Any, b: Any) -> Any:
        return tuple(gemmill.jax.matmul(x, b, kernel=kernel) for x in (a, -a))

    text = jax.jit(twice).lower(a, b).compile().as_text()
    assert set(re.findall(r"sm90a_\w+", text)) == {kernel}
    assert re.search(r"u8\[\d+\]", text)
    wanted = np.asarray(a, "float32") @ np.asarray(b, "float32")
    compiled = jax.jit(twice)
    for _ in range(4):
        for sign, found in zip((1, -1), compiled(a, b), strict=True):
            assert_near(np.asarray(found), sign * wanted, 2**-7)


def test_d_is_written_to_where_out_was() -> None:
    a, b = jnp.asarray(whole(16, 24)), jnp.asarray(whole(24, 8))
    out = jnp.zeros((16, 8), "bfloat16")
    there = out.unsafe_buffer_pointer()
    found = jax.jit(lambda out, a, b: gemmill.jax.matmul(a, b, out=out), donate_argnums=0)(out, a, b)
    assert found.unsafe_buffer_pointer() == there
    added = jax.jit(lambda c, a, b: gemmill.jax.matmul(a, b, c=c, out=c), donate_argnums=0)(found, a, b)
    assert added.unsafe_buffer_pointer() == there
    assert_near(np.asarray(added), 2 * (double(np.asarray(a)) @ double(np.asarray(b))), 2**-7)


def test_a_batch_reads_what_is_not_batched_where_it_is() -> None:
    a, b = whole(5, 16, 24), whole(24, 8)
    found = jax.jit(jax.vmap(gemmill.jax.matmul, (0, None)))(a, b)
    assert_near(found, double(a) @ double(b), 2**-7)
    found = jax.jit(jax.vmap(gemmill.jax.matmul, (None, 0)))(whole(16, 24), whole(5, 24, 8))
    assert_near(found, double(whole(16, 24)) @ double(whole(5, 24, 8)), 2**-7)


def test_bits_of_a_row_are_the_same_in_every_batch() -> None:
    a, b = real(48, 1024, dtype="bfloat16"), real(1024, 96, dtype="bfloat16")
    multiply = jax.jit(partial(gemmill.jax.matmul, bits="invariant"))
    wanted = multiply(a, b)
    assert (multiply(a[:3], b) == wanted[:3]).all()
    assert (jax.vmap(multiply, (0, None))(a.reshape(4, 12, 1024), b).reshape(48, 96) == wanted).all()
    assert (jax.vmap(multiply, (0, None), 0)(a, b) == wanted).all()  # rows as vectors


def test_threads_call_at_once() -> None:
    multiply = jax.jit(gemmill.jax.matmul)
    a, b = whole(16, 24), whole(24, 8)
    found: dict[int, list[Any]] = {}

    def many(i: int) -> None:
        found[i] = [multiply(jnp.asarray(a) * i, b) for _ in range(50)]

    threads = [threading.Thread(target=many, args=(i,)) for i in range(1, 3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i, each in found.items():
        for x in each:
            assert_near(x, i * (double(a) @ double(b)), 2**-7)


@pytest.mark.parametrize("name", MISUSES)
def test_after_misuse_the_next_call_is_right(name: str) -> None:
    said, given = MISUSES[name]
    a, b = whole(16, 24), whole(24, 8)
    with pytest.raises(jax.errors.JaxRuntimeError, match=re.escape(said)):
        call(a, b, **given)
    assert_near(call(a, b, call=PLAIN), double(a) @ double(b), 2**-7)


def test_an_exported_program_runs_in_another_process(tmp_path: Path) -> None:
    """Which traces nothing, and so loads the kernel when it runs, perhaps into a command buffer."""
    pytest.importorskip("flatbuffers")
    from jax import export

    checks = [export.DisabledSafetyCheck.custom_call("gemmill_gemm")]
    w, bias = (jnp.asarray(0.1 * real(*shape), "bfloat16") for shape in ((64, 64), (64,)))
    exported = export.export(jax.jit(chain), disabled_checks=checks)(w, w, bias)
    (tmp_path / "program").write_bytes(exported.serialize())
    program = f"""
        import jax, numpy as np
        import jax.export
        import gemmill.jax
        from pathlib import Path
        from tests.jax.cases import real
        w, bias = (jax.numpy.asarray(0.1 * real(*shape), "bfloat16") for shape in ((64, 64), (64,)))
        program = jax.export.deserialize(bytearray(Path({str(tmp_path / "program")!r}).read_bytes()))
        found = [np.asarray(jax.jit(program.call)(w, w, bias), "float32") for _ in range(3)]
        assert (found[0] == found[2]).all()
        np.save({str(tmp_path / "found.npy")!r}, found[0])
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=True)
    wanted = jax.jit(chain)(w, w, bias)
    np.testing.assert_array_equal(np.load(tmp_path / "found.npy"), np.asarray(wanted, "float32"))
