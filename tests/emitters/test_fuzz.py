"""Configs at random: legal ones compile, their descriptors can be encoded, and none from just outside is emitted."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import replace
from itertools import islice, product

import pytest
from tests.gpu.fuzz import accepted, legal_configs, outside

from gemmill.emitters.emit import emit, launch_spec
from gemmill.library.config.fields import Value
from gemmill.library.config.model import FAMILIES, GemmConfig
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.dtypes import DTYPES
from gemmill.library.epilogues.parse import canonical
from gemmill.library.legality.rules import DOMAINS, broken
from gemmill.library.legality.search import any_legal
from gemmill.runtime.compile.compiler import Compiler

TMA_BOX = 256
"""Most elements of a box along an extent (CUDA driver API, cuTensorMapEncodeTiled)."""
VECTORS = [f"v{i}[n]" for i in range(12)]


def compile_all(compiler: Compiler, configs: Iterable[GemmConfig]) -> None:
    """Compile kernels. One that fails or spills is an error that names it."""
    for config in configs:
        compiler.compile(emit(config), config)


@pytest.mark.slow
@pytest.mark.parametrize("drawn", [slice(1), pytest.param(slice(1, 6), marks=pytest.mark.heavy)])
def test_random_legal_configs_compile_without_spills(drawn: slice, compiler: Compiler) -> None:
    configs = list(islice(legal_configs(random.Random(2026), {"arch": "sm90a"}), 6))[drawn]
    compile_all(compiler, configs)


@pytest.mark.slow
@pytest.mark.parametrize(
    "name",
    [
        "sm90a_bf16mn16_bf16k16_f32_none_bf16n16_256x192x64_2x1_cooperative_s3_m8_k1_linear",
        "sm90a_e5m2k16_e5m2k16_f32_none_f16m4_8x80x128_1x1_gemv_s2_m2_k1_xdEaccVs",
        *(
            pytest.param(name, marks=pytest.mark.heavy)
            for name in (
                "sm90a_bf16k16_bf16mn16_f32_none_bf16n16_256x192x64_2x1_cooperative_s3_m8_k1_linear",
                "sm90a_s4k16s1x32_f16k16_f32_none_f16m16_64x32x256_2x1_cooperative_s4_m1_k1_linear",
            )
        ),
    ],
)
def test_kernels_with_no_register_left_do_not_spill(name: str, compiler: Compiler) -> None:
    """With a value more that lives from tile to tile, or a bound that forgets the epilogue, they did and others not."""
    compile_all(compiler, [parse_name(name)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("tile", "epilogue"),
    [
        ("128x96x64_1x1_pingpong", f"d = acc * ({' + '.join(VECTORS[:4])}) + x[m, n] + y[m, n]"),
        pytest.param("192x128x64_1x1_cooperative", f"d = acc + {' + '.join(VECTORS)}", marks=pytest.mark.heavy),
        pytest.param(
            "128x128x64_1x1_pingpong", f"d = acc * ({' + '.join(VECTORS[:8])}) + x[m, n]", marks=pytest.mark.heavy
        ),
    ],
)
def test_epilogues_that_read_all_they_may_do_not_spill(tile: str, epilogue: str, compiler: Compiler) -> None:
    config = parse_name(f"sm90a_bf16k16_bf16k16_f32_none_bf16n16_{tile}_s3_m8_k1_linear")
    compile_all(compiler, [replace(config, epilogue=canonical(epilogue))])


def test_an_epilogue_that_reads_a_vector_more_is_refused() -> None:
    config = parse_name("sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x96x64_1x1_pingpong_s4_m8_k1_linear")
    beyond = replace(config, epilogue=canonical(f"d = acc * ({' + '.join(VECTORS[:5])}) + x[m, n] + y[m, n]"))
    assert [rule.id for rule, _ in broken(beyond)] == ["epilogue-matrices"]


@pytest.mark.slow
@pytest.mark.parametrize("drawn", [slice(1), pytest.param(slice(1, None), marks=pytest.mark.heavy)])
def test_block_scales_compile_in_every_order_of_work(drawn: slice, compiler: Compiler) -> None:
    """A tile's first MMAs overlap the epilogue before, wherever a scheduler tells what comes next."""
    orders = product(DOMAINS["scheduler.decomposition"], DOMAINS["scheduler.batching"])
    configs: list[GemmConfig] = []
    for decomposition, batching in orders:
        fixed: dict[str, Value] = {"a.scale": "1x128", "promote": 4, "schedule": "cooperative"}
        fixed |= {"scheduler.decomposition": decomposition, "scheduler.batching": batching}
        if any_legal(fixed) is not None:
            configs += islice(legal_configs(random.Random(7), fixed), 1)
    assert len(configs) > 4
    compile_all(compiler, configs[drawn])


@pytest.mark.parametrize("drawn", [slice(8), pytest.param(slice(8, 60), marks=pytest.mark.heavy)])
@pytest.mark.parametrize("schedule", FAMILIES)
def test_a_random_config_of_every_schedule_is_named_and_emitted(schedule: str, drawn: slice) -> None:
    fixed: dict[str, Value] = {"schedule": schedule}
    if any_legal(fixed) is None:
        pytest.skip(f"there are no {schedule} kernels")
    for config in islice(legal_configs(random.Random(7), fixed), drawn.start, drawn.stop):
        assert parse_name(kernel_name(config)) == config
        assert emit(config).text == emit(config).text


@pytest.mark.parametrize("drawn", [slice(40), pytest.param(slice(40, 400), marks=pytest.mark.heavy)])
def test_boxes_of_random_configs_are_what_tma_takes(drawn: slice) -> None:
    for config in islice(legal_configs(random.Random(1), {"arch": "sm90a"}), drawn.start, drawn.stop):
        for box in launch_spec(config).boxes:
            contiguous, strided = box.box
            row = contiguous * DTYPES[box.dtype].bits // 8
            assert row % 16 == 0, f"{kernel_name(config)}: {box}"
            assert 0 < contiguous <= TMA_BOX
            assert 0 < strided <= TMA_BOX
            assert box.swizzle in (16, 32, 64, 128)
            assert box.swizzle == 16 or row <= box.swizzle


@pytest.mark.parametrize("drawn", [slice(30), pytest.param(slice(30, 60), marks=pytest.mark.heavy)])
def test_nothing_from_just_outside_is_emitted(drawn: slice) -> None:
    for fields in islice(outside(random.Random(3)), drawn.start, drawn.stop):
        assert not accepted(fields), fields
