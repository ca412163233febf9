"""The handler: what is wrong becomes an error of JAX's that says so, and the process goes on; XLA's structures."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
import textwrap
import threading
from pathlib import Path
from typing import Any

import pytest

jax: Any = pytest.importorskip("jax")

import numpy as np  # noqa: E402
from hypothesis import HealthCheck, given, settings  # noqa: E402
from hypothesis import strategies as st  # noqa: E402
from tests.jax.cases import CASES, double, whole  # noqa: E402

import gemmill.jax  # noqa: E402
from gemmill.library.decompositions.workspace_layout import WorkspaceSize  # noqa: E402
from gemmill.runtime.jax import ffi  # noqa: E402
from gemmill.runtime.jax.description import Array, Description, abstract_call, read, written  # noqa: E402  # noqa: E402
from gemmill.runtime.jax.gpu_handler import places_of  # noqa: E402

jnp = jax.numpy
A, B = whole(16, 24), whole(24, 8)
PLAIN = written(Description(("a", "b")))


def call(
    *arrays: Any, shape: tuple[int, ...] = (16, 8), dtype: Any = "bfloat16", target: str = ffi.TARGET, **attributes: Any
) -> Any:
    """The target, past everything that makes its calls."""
    result = jax.ShapeDtypeStruct(shape, dtype)
    return jax.block_until_ready(jax.ffi.ffi_call(target, result, vmap_method="sequential")(*arrays, **attributes))


MISUSES: dict[str, tuple[str, dict[str, Any]]] = {
    "no attribute": ("attributes none; expected one text attribute, call", {}),
    "other attributes": ("attributes alpha, call", {"call": PLAIN, "alpha": 1.0}),
    "an attribute of another type": ("expected one text attribute, call", {"call": np.float32(1)}),
    "no description": ("cannot read the description of the call", {"call": "a @ b"}),
    "no object": ("cannot read the description of the call", {"call": "[]"}),
    "another version's": ("cannot read the description of the call", {"call": '{"operands":["a","b"],"later":1}'}),
    "more operands than arrays": (
        "the call has 3 arrays; expected 4",
        {"call": written(Description(("a", "b", "c")))},
    ),
    "an unknown kernel": ("kernel", {"call": written(Description(("a", "b")).but(kernel="fast"))}),
    "unknown bits": ("bits is 'same'", {"call": written(Description(("a", "b")).but(bits="same"))}),
    "rows of slots that are not there": (
        "expected_rows is 8 and counts is missing",
        {"call": written(Description(("a", "b")).but(expected_rows=8))},
    ),
    "another shape of D": ("out is bfloat16 (8, 16); it must be bfloat16 (16, 8)", {"call": PLAIN, "shape": (8, 16)}),
    "another dtype of D": ("out is float32", {"call": PLAIN, "dtype": "float32"}),
    "a dtype that gemmill has not": ("XLA's dtype 3", {"call": PLAIN, "dtype": "int16"}),
    "an expression that cannot be read": (
        "epilogue",
        {"call": written(Description(("a", "b")).but(epilogue="d = acc +"))},
    ),
}


@pytest.mark.parametrize("name", MISUSES)
def test_misuse_is_an_error_that_says_what_is_wrong(name: str) -> None:
    said, given = MISUSES[name]
    if name == "an unknown kernel":
        pytest.skip("the CPU takes none: tests/gpu/test_jax.py")
    with pytest.raises(jax.errors.JaxRuntimeError, match=re.escape(said)):
        call(A, B, **given)
    np.testing.assert_array_equal(double(call(A, B, call=PLAIN)), double(A) @ double(B))


@settings(max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(st.one_of(st.text(), st.sampled_from(range(len(PLAIN))).map(lambda i: PLAIN[:i] + PLAIN[i + 1 :])))
def test_no_text_ends_the_process(text: str) -> None:
    try:
        call(A, B, call=text)
    except jax.errors.JaxRuntimeError as error:
        assert "gemmill" in str(error)  # noqa: PT017 some texts are descriptions


def test_nothing_that_a_body_raises_leaves_the_handler() -> None:
    """Interrupts, exits, and errors that cannot be told, in a process that would die of one."""
    program = """
        import jax, numpy as np
        from gemmill.runtime.jax import ffi

        class Untold(Exception):
            def __str__(self):
                raise KeyboardInterrupt

        raised = [KeyboardInterrupt(), SystemExit(3), MemoryError(), Untold(), GeneratorExit(), ValueError("a\\0b")]

        def body(frame):
            if frame.stage == ffi.EXECUTE:
                raise raised.pop()

        ffi.TARGET = "raises"
        ffi.register("cpu", body)
        call = jax.ffi.ffi_call("raises", jax.ShapeDtypeStruct((2,), "float32"), vmap_method="sequential")
        told = 0
        while raised:
            try:
                jax.block_until_ready(call(np.ones(2, "float32"), call="x"))
            except jax.errors.JaxRuntimeError:
                told += 1
        print(told, jax.numpy.ones(3).sum())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["6", "3.0"], done.stderr


def test_a_cpu_is_refused_unless_it_is_asked_for() -> None:
    program = """
        import jax, gemmill.jax
        a = jax.numpy.ones((8, 8))
        try:
            gemmill.jax.matmul(a, a).block_until_ready()
        except jax.errors.JaxRuntimeError as error:
            print(error)
        gemmill.jax.run_on_cpu()
        print(gemmill.jax.matmul(a, a).sum())
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, check=False)
    assert "run_on_cpu" in done.stdout, done.stderr
    assert done.stdout.split()[-1] == "512.0"


def test_threads_call_at_once() -> None:
    multiply = jax.jit(gemmill.jax.matmul)
    multiply(A, B)
    found: dict[int, list[Any]] = {}

    def many(i: int) -> None:
        found[i] = [multiply(A * i, B) for _ in range(5)]

    threads = [threading.Thread(target=many, args=(i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for i in range(4):
        for x in found[i]:
            np.testing.assert_array_equal(double(x), i * (double(A) @ double(B)))


@pytest.mark.parametrize("name", [*CASES, "out", "C in place"])
def test_a_launch_finds_its_arrays(name: str) -> None:
    """The addresses of a call, each from its place among operands and results."""
    case = CASES.get(name, CASES["bf16"])
    keywords = {"out": {"out": whole(16, 8)}, "C in place": dict.fromkeys(("c", "out"), whole(16, 8))}.get(name, {})
    text = str(jax.make_jaxpr(lambda: case.call(**case.arrays, **keywords))())
    description = read(re.findall(r"call=(\{.*\})", text)[0].encode())
    arrays = [Array(x, y) for x, y in shapes_of(description, {**case.arrays, **keywords})]
    call = abstract_call(description, arrays)
    own = [(place + 1) << 40 for place in range(len(arrays) + len(description.results))]
    if description.into_c:
        own[len(arrays)] = own[description.operands.index("c")]
    addresses = (0, *own)
    assert tuple(addresses[place] for place in places_of(description, call)) == call.addresses
    assert len({*call.addresses} - {0}) == len({*own}) - (name == "out")  # of the memory for D


def shapes_of(description: Description, arrays: dict[str, Any]) -> list[tuple[tuple[int, ...], str]]:
    """Shapes and dtypes of operands, as matrices."""
    found = []
    for name in description.operands:
        shape = arrays[name].shape
        if len(shape) == 1 and name in "ab":
            shape = (1, *shape) if name == "a" else (*shape, 1)
        found.append((shape, str(arrays[name].dtype)))
    return found


def test_descriptions_are_read_as_written() -> None:
    full = Description(
        ("a", "b", "c", "x"),
        ("b",),
        (("alpha", 0.1), ("epilogue", "d = acc * x + y")),
        (("y", float("inf")),),
        True,
        WorkspaceSize(8, 4),
    )
    assert read(written(full).encode()) == full
    assert read(PLAIN.encode()) == Description(("a", "b"))


def test_structures_are_those_of_xla_s_header() -> None:
    """Functions in the order in which they stand there, and the fields of the frame and of a buffer."""
    header = (Path(jax.ffi.include_dir()) / "xla/ffi/api/c_api.h").read_text()
    functions = re.findall(r"^  _XLA_FFI_API_STRUCT_FIELD\((\w+)\);", header, re.MULTILINE)
    first = 8 + 8 + 24 + 8  # struct_size, extension, api_version, internal_api
    assert {name: first + 8 * functions.index(name) for name in ffi.API_FUNCTIONS} == ffi.API_FUNCTIONS
    codes = {name: int(code) for name, code in re.findall(r"XLA_FFI_DataType_(\w+) = (\d+)", header)}
    named = {"e4m3": "F8E4M3FN", "e5m2": "F8E5M2", "ue8m0": "F8E8M0FNU"}
    assert {codes[named.get(dtype, dtype.upper())]: dtype for dtype in ffi.DTYPE_CODES.values()} == ffi.DTYPE_CODES
    fields = {
        name: re.findall(r"(\w+);", re.sub(r"//.*", "", body))
        for name, body in re.findall(r"struct (XLA_FFI_\w+) \{(.*?)\n\};", header, re.DOTALL)
    }
    assert fields["XLA_FFI_Buffer"][2:] == ["dtype", "data", "rank", "dims"]
    assert fields["XLA_FFI_CallFrame"][2:8] == ["api", "ctx", "stage", "args", "rets", "attrs"]
    assert fields["XLA_FFI_Attrs"][2:] == ["size", "types", "names", "attrs"]
    stages = dict(re.findall(r"XLA_FFI_ExecutionStage_(\w+) = (\d)", header))
    assert (int(stages["INSTANTIATE"]), int(stages["EXECUTE"])) == (ffi.INSTANTIATE, ffi.EXECUTE)
    assert struct.calcsize("P") == 8
