"""Parameters, grids and refusals of plans, as far as they go without a GPU."""

from __future__ import annotations

import itertools
import struct
import weakref
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmill.emitters.emit import launch_spec
from gemmill.library.config.model import MajorAB
from gemmill.library.config.names import parse_name
from gemmill.library.errors import OperandError, UnsupportedProblemError
from gemmill.library.problem import GemmProblem
from gemmill.runtime.api import caches
from gemmill.runtime.api.matmul import matmul, plan
from gemmill.runtime.api.streams import stream_handle
from gemmill.runtime.launch.launcher import PreparedCall, grid_ctas
from gemmill.runtime.launch.parameters import ParameterBlock, fetched_bytes
from gemmill.runtime.operands.call import GemmCall

CONFIG = parse_name("sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear")
PROBLEM = GemmProblem(512, 512, 512, 1, "bf16", "k", "bf16", "k", "f32", "bf16", "n")


@given(st.integers(64, 4096))
def test_parameters_are_aligned_for_descriptors(size: int) -> None:
    block = ParameterBlock(size)
    assert block.address % 64 == 0
    block.write(size - 4, "f", 0.5)
    block.write(0, "i", -7)
    data = block.read()
    assert len(data) == size
    assert struct.unpack("<i", data[:4]) == (-7,)
    assert struct.unpack("<f", data[-4:]) == (0.5,)
    for offset in (-1, size - 3, size):
        with pytest.raises(ValueError, match="outside"):
            block.write(offset, "i", 1)


@pytest.mark.parametrize("max_clusters", [1, 5, 66])
@pytest.mark.parametrize("batch", [1, 3])
def test_grid_is_whole_clusters_and_no_more_than_there_is_work(max_clusters: int, batch: int) -> None:
    spec = launch_spec(CONFIG)
    for m, n in itertools.product((1, 255, 256, 257, 4096), repeat=2):
        tiles = -(-m // 256) * -(-n // 256) * batch
        blocks = grid_ctas(spec, replace(PROBLEM, m=m, n=n, batch=batch), max_clusters)
        assert blocks == 2 * min(tiles, max_clusters)


@pytest.mark.parametrize("sm_count", [2, 3, 20, 131, 500])
def test_a_bound_on_sms_bounds_the_grid_to_whole_clusters(sm_count: int) -> None:
    spec = launch_spec(CONFIG)
    blocks = grid_ctas(spec, replace(PROBLEM, m=9999, n=9999), 66, sm_count)
    assert blocks == min(132, sm_count // 2 * 2)
    with pytest.raises(UnsupportedProblemError, match=r"sm_count is 1; gemmill_sm90a_.* runs in clusters of 2 SMs"):
        grid_ctas(spec, PROBLEM, 66, 1)


class Stream:
    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, 0x1234


@pytest.mark.parametrize(
    ("m", "b_major", "of_b"), [(1, "k", 128), (64, "k", 128), (65, "k", 256), (512, "mn", 128), (512, "k", 256)]
)
def test_operands_that_meet_few_rows_or_whose_neighbours_another_tile_reads_are_fetched_by_lines(
    m: int, b_major: MajorAB, of_b: int
) -> None:
    problem = replace(PROBLEM, m=m, b_major=b_major)
    transposed = replace(CONFIG, a=replace(CONFIG.b, major=b_major), b=CONFIG.a, d=replace(CONFIG.d, major="m"))
    for config, asked, weights in (
        (replace(CONFIG, b=replace(CONFIG.b, major=b_major)), problem, "b"),
        (transposed, problem.transposed, "a"),
    ):
        boxes = launch_spec(config).boxes
        assert {fetched_bytes(box, asked, 8208) for box in boxes} == {128}, "rows begin within sectors"
        fetched = {box.operand: fetched_bytes(box, asked, 8192) for box in boxes}
        assert fetched.pop(weights) == of_b
        assert fetched == {"d": 128, "a" if weights == "b" else "b": 256}, "activations meet all columns"


def test_rows_of_a_group_count_not_those_of_all() -> None:
    grouped = replace(CONFIG, scheduler=replace(CONFIG.scheduler, batching="grouped"))
    (of_b, *_) = (box for box in launch_spec(grouped).boxes if box.operand == "b")
    problem = replace(PROBLEM, m=4096, batch=64, batching="grouped")
    assert fetched_bytes(of_b, problem, 8192) == 128
    assert fetched_bytes(of_b, replace(problem, batch=32), 8192) == 256


def test_streams_by_handle_and_by_protocol() -> None:
    assert stream_handle(0) == 0
    assert stream_handle(0x55) == 0x55
    assert stream_handle(Stream()) == 0x1234
    for wrong in ("default", True, 1.5):
        with pytest.raises(OperandError, match="stream is"):
            stream_handle(wrong)  # type: ignore[arg-type]


class Empty:
    """A tensor of (0, 8) elements, which needs no GPU."""

    __cuda_array_interface__ = {"shape": (0, 8), "typestr": "<f2", "data": (0, False), "version": 3}  # noqa: RUF012


class Weights(Empty):
    __cuda_array_interface__ = Empty.__cuda_array_interface__ | {"shape": (8, 8)}


def array(rows: int, typestr: str) -> Empty:
    interface = Empty.__cuda_array_interface__ | {"shape": (rows, 8), "typestr": typestr}
    made: Empty = type("Array", (Empty,), {"__cuda_array_interface__": interface})()
    return made


def test_a_plan_keeps_its_stream_alive() -> None:
    stream = Stream()
    alive = weakref.ref(stream)
    launch = plan(Empty(), Weights(), out=Empty(), stream=stream)
    del stream
    assert alive() is not None, "its owner would have destroyed the stream that later launches go to"
    launch()
    del launch
    assert alive() is None


@pytest.mark.parametrize(("former", "name"), [("blocks", "ctas"), ("copied", "realigned"), ("swapped", "swap_ab")])
def test_former_names_are_read_with_a_warning(former: str, name: str) -> None:
    launch = plan(Empty(), Weights(), out=Empty())
    with pytest.warns(DeprecationWarning, match=f"Plan.{former} is deprecated: use {name}"):
        assert getattr(launch, former) == getattr(launch, name)


def test_plans_and_calls_of_one_signature_are_prepared_once(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[PreparedCall] = []

    def noted(call: GemmCall, known: PreparedCall, stream: Callable[[], int]) -> None:
        prepared.append(known)

    caches.forget_calls()
    monkeypatch.setattr("gemmill.runtime.api.matmul.Plan", noted)
    matmul(Empty(), Weights(), out=Empty())
    for stream in (None, 0):
        plan(Empty(), Weights(), out=Empty(), stream=stream)
    plan(Empty(), Weights(), out=Empty(), alpha=2.0)
    assert prepared[0] is prepared[1] is not prepared[2]
    assert caches.prepared.cache_info().currsize == 2


def test_rebind_takes_bytes_for_another_type_only_where_the_plan_was_told_so() -> None:
    signed, unsigned, out = array(8, "|i1"), array(8, "|u1"), array(0, "<i4")
    launch = plan(array(0, "|i1"), signed, out=out)
    launch.rebind(b=array(8, "|i1"))
    with pytest.raises(OperandError, match="b is u8"):
        launch.rebind(b=unsigned)
    told = plan(array(0, "|i1"), unsigned, out=out, b_dtype="s8")
    told.rebind(b=array(8, "|u1"))


def test_a_number_of_an_epilogue_stays() -> None:
    launch = plan(Empty(), Weights(), out=Empty(), epilogue="d = acc * s", s=2.0)
    with pytest.raises(OperandError, match="s: this plan was made with a number"):
        launch.rebind(s=3.0)  # type: ignore[arg-type]


def test_a_warm_call_is_checked_as_a_cold_one() -> None:
    interface = Empty.__cuda_array_interface__ | {"data": (0, True)}
    read_only = type("Array", (), {"__cuda_array_interface__": interface})()
    for epilogue in (None, "d = relu(acc)"):
        matmul(Empty(), Weights(), out=Empty(), epilogue=epilogue)
        with pytest.raises(OperandError, match="out is read-only"):
            matmul(Empty(), Weights(), out=read_only, epilogue=epilogue)
    with pytest.raises(TypeError, match="bogus"):
        matmul(Empty(), Weights(), out=Empty(), bogus=None)  # type: ignore[arg-type]


def test_dtypes_of_other_libraries_are_not_taken_for_ours_by_what_they_equal() -> None:
    assert np.dtype("uint32") == "u4"
    with pytest.raises(OperandError, match=r"out_dtype is dtype\('uint32'\)"):
        matmul(Empty(), Weights(), out=Empty(), out_dtype=np.dtype("uint32"))


@pytest.mark.parametrize(
    ("dtype", "says"), [("int32", "has dtype int32; it must be int64"), ("int64", r"pass addresses\.contiguous\(\)")]
)
def test_addresses_are_packed_words_of_64_bits(dtype: str, says: str) -> None:
    addresses = np.zeros((3, 10), dtype)[:, ::2]
    with pytest.raises(OperandError, match=says):
        plan(Weights(), Weights(), out=Weights(), addresses=addresses)


def test_factors_are_bounded_by_what_kernels_take() -> None:
    plan(array(0, "<f8"), array(8, "<f8"), out=array(0, "<f8"), c=array(0, "<f8"), alpha=1e39, beta=-1e39)
    with pytest.raises(OperandError, match=r"beta is -1e\+39; it must fit in a float32, at most 3\.403e\+38"):
        plan(Empty(), Weights(), out=Empty(), c=Empty(), beta=-1e39)


@pytest.mark.parametrize("call", [matmul, plan])
def test_host_arrays_are_refused(call: object) -> None:
    a = np.zeros((16, 16), np.float16)
    with pytest.raises(OperandError, match=r"^a is in host memory; it must be in GPU memory"):
        call(a, a)  # type: ignore[operator]
