"""Kernels of a set with another epilogue, other types of C and D, types alike."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
from tests.cases.manifests import shipped_kernels
from tests.cases.problems import plain
from tests.runtime.select.problems import H200, KERNELS, problem

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.dtypes import DTypeName
from gemmill.library.epilogues.parse import canonical, unstaged
from gemmill.library.errors import UnsupportedProblemError
from gemmill.library.legality.rules import legal
from gemmill.library.problem import GemmProblem
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.kernels.faults import needs_swap
from gemmill.runtime.select.kernels.variations import with_epilogue
from gemmill.runtime.select.selector import Selector


def test_any_epilogue_is_served_by_the_linear_kernels(varied: Selector) -> None:
    plain = problem(4096, 4096, 4096)
    fused = varied.select(replace(plain, epilogue="d = gelu(acc + bias[n])"))
    assert fused.config.epilogue == f"d = gelu(acc + bias[{'m' if fused.swap_ab else 'n'}])"
    assert fused.name == kernel_name(fused.config)
    assert replace(fused.config, epilogue="linear") in varied.configs.values()
    with pytest.raises(UnsupportedProblemError, match="epilogue-c: the epilogue reads C"):
        varied.select(replace(plain, epilogue="d = acc + c"))


@pytest.mark.parametrize(("d_dtype", "c_dtype"), [("f32", None), ("bf16", "bf16"), ("f32", "f32")])
def test_kernels_of_a_set_are_taken_with_another_c_and_d(
    kernels: dict[str, GemmConfig], varied: Selector, d_dtype: DTypeName, c_dtype: DTypeName | None
) -> None:
    asked = replace(
        problem(256, 7168, 2048),
        d_dtype=d_dtype,
        c_dtype=c_dtype,
        c_major="n" if c_dtype else None,
        c_align=16,
    )
    fixed = Selector(kernels, H200)
    choice = varied.select(asked)
    assert needs_swap(choice.config, asked) is choice.swap_ab
    assert legal(choice.config)
    assert choice.name == kernel_name(choice.config) not in kernels
    assert choice.predicted_us < fixed.select(asked).predicted_us
    assert fixed.times(asked).keys() < varied.times(asked).keys()
    fused = replace(asked, c_dtype=None, c_major=None, c_align=16, epilogue="d = relu(acc)")
    assert varied.select(fused).config.epilogue == fused.epilogue
    # Formats of which the set has none stay out of it.
    with pytest.raises(UnsupportedProblemError):
        varied.select(replace(problem(256, 7168, 2048), d_dtype="e5m2"))


@pytest.mark.parametrize(
    ("own", "a", "b", "d"),
    [
        ("fp8", ("e5m2", "k"), ("e4m3", "k"), "bf16"),
        ("fp8", ("e5m2", "mn"), ("e4m3", "mn"), "bf16"),
        ("fp8", ("e4m3", "k"), ("e4m3", "mn"), "f32"),
        ("int8", ("u8", "k"), ("u8", "mn"), "s32"),
    ],
)
def test_kernels_of_a_set_are_taken_with_types_alike(own: str, a: Any, b: Any, d: DTypeName) -> None:
    configs = shipped_kernels(own)
    asked = plain((64, 7168, 2048, 1), a, b, "s32" if d == "s32" else "f32", None, (d, "n"))
    choice = Selector(configs, H200, varies=True).select(asked)
    assert choice.name == kernel_name(choice.config) not in configs
    assert choice.config.family == "wgmma"
    assert legal(choice.config)
    assert needs_swap(choice.config, asked) is choice.swap_ab
    first, second = (choice.config.b, choice.config.a) if choice.swap_ab else (choice.config.a, choice.config.b)
    assert (first.dtype, second.dtype, choice.config.d.dtype) == (a[0], b[0], d)
    assert all(choice.predicted_us < us for us in Selector(configs, H200).times(asked).values())
    with pytest.raises(UnsupportedProblemError):  # not of these types
        Selector(configs, H200, varies=True).select(replace(asked, batching="grouped", batch=4, d_dtype="f16"))


@pytest.mark.parametrize(
    "line",
    [
        "4096x7168x2048 e4m3",  # which was measured with scales in f32
        "1000x4096x7168 e4m3",
        "1000x4096x7168 e4m3 grouped=64 epilogue='d = silu(gate) * up'",
        "1000x4096x7168 e4m3 masked=8",
        "1000x4096x7168 e4m3 nested=6",
    ],
)
def test_block_scaled_kernels_are_taken_with_scales_of_a_byte(line: str) -> None:
    asked = GemmProblem.from_text(f"{line} a_scale=1x128e8 b_scale=128x128e8")
    selector = Selector(shipped_kernels("fp8"), H200, varies=True)
    choice, in_f32 = (selector.select(problem) for problem in (asked, asked.but(a_scale="1x128", b_scale="128x128")))
    assert choice.name == in_f32.name.replace("x128_", "x128e8_", 2)
    assert (choice.config.a.scale, choice.config.b.scale) == ("1x128e8", "128x128e8")


def test_a_registry_makes_kernels_of_types_alike() -> None:
    asked = plain((16, 4096, 4096, 1), ("u8", "k"), ("u8", "k"), "s32", None, ("s32", "n"))
    choice = Registry(manifests=["int8"], gpu=H200).select(asked)
    assert (choice.config.a.dtype, choice.config.b.dtype) == ("u8", "u8")
    assert choice.config.tile.n < 128, "the manifest has a tile of 128 x 128"


def test_matrices_are_staged_by_the_kernels_that_can(varied: Selector) -> None:
    plain = problem(4096, 4096, 4096)
    epilogue = "d = acc + r.n[m, n]"
    linear = parse_name(KERNELS[0])
    config = with_epilogue(linear, epilogue)
    assert config is not None
    assert config.epilogue == epilogue
    assert config.stages < linear.stages, "stages make room for the matrix"
    assert legal(config)
    split = next(c for c in varied.configs.values() if c.scheduler.decomposition == "splitk" and c.c is None)
    assert with_epilogue(split, epilogue) == replace(split, epilogue=unstaged(epilogue))
    varied.select(replace(plain, epilogue=unstaged(epilogue)))  # asked for before, it changes nothing
    staged = replace(plain, epilogue=epilogue)
    choice = varied.select(staged)
    assert choice.config.epilogue == (staged.transposed if choice.swap_ab else staged).epilogue
    assert parse_name(kernel_name(config)) == config
    # A declared kernel that takes any strides serves the problem as well.
    anywhere = replace(linear, epilogue=unstaged(epilogue))
    assert needs_swap(anywhere, replace(plain, epilogue=epilogue)) is False
    declared = Selector({kernel_name(anywhere): anywhere}, H200)
    assert declared.select(replace(plain, epilogue=epilogue)).config == anywhere


def test_a_matrix_takes_a_stage_rather_than_the_second_d_subtile() -> None:
    linear = parse_name("sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear")
    epilogue = canonical("d = relu(acc); aux.n = acc")
    assert legal(replace(linear, epilogue=epilogue)), "with a single D subtile"
    assert with_epilogue(linear, epilogue) == replace(linear, epilogue=epilogue, stages=3)
    deeper = parse_name("sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x112x64_2x1_pingpong_s7_m8_k1_linear")
    relu = "d = relu(acc)"
    assert with_epilogue(deeper, relu) == replace(deeper, epilogue=relu), "asked for, and still fits"


def test_a_declared_epilogue_is_served(kernels: dict[str, GemmConfig]) -> None:
    wgmma = next(config for config in kernels.values() if config.family == "wgmma" and config.c is None)
    declared = replace(wgmma, epilogue="d = relu(acc)")
    selector = Selector({kernel_name(declared): declared}, H200)
    wanted = plain(
        (512, 512, 512, 1),
        (declared.a.dtype, declared.a.major),
        (declared.b.dtype, declared.b.major),
        declared.accumulator,
        (declared.c.dtype, declared.c.major) if declared.c else None,
        (declared.d.dtype, declared.d.major),
    )
    assert selector.select(replace(wanted, epilogue="d = relu(acc)")).config == declared


def test_a_fixed_set_runs_as_it_is() -> None:
    """Of packs alone nothing else can be compiled, though a kernel with the matrix staged would be faster."""
    plain = problem(4096, 4096, 4096)
    linear = parse_name(KERNELS[0])
    declared = replace(linear, epilogue="d = silu(acc + r.bf16[m, n])")
    fixed = Selector({kernel_name(config): config for config in (linear, declared)}, H200)
    assert fixed.select(replace(plain, epilogue="d = silu(acc + r.bf16.n[m, n])")).config == declared
    with pytest.raises(UnsupportedProblemError, match="kernels of packs cannot be changed: pass a manifest"):
        fixed.select(replace(plain, epilogue="d = gelu(acc)"))
