"""Edited pages: whose kernel they are, and what their digest must tell."""

from __future__ import annotations

import pytest

from gemmill.emitters.edited_page import MAX_BYTES, config_of_page, edited
from gemmill.emitters.emit import emit
from gemmill.library.config.names import parse_name
from gemmill.library.errors import CompileError, ConfigError

NAMES = (
    "sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x32x64_1x1_pingpong_s4_m1_k1_linear",
    "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_splitk_xdEreluPaccQ",
    "sm90_bf16k16_bf16k16_f32_none_bf16any2_64x64x64_1x1_multistage_s4_m8_k1_linear",
    "sm90_f32any4_f32any4_f32_none_f32any4_64x64x16_1x1_simt_s2_m8_k1_linear",
    "sm80_bf16any2_bf16mn2_f32_none_bf16any2_8x16x128_1x1_gemv_s8_m1_k1_linear",
)
CONFIG = parse_name(NAMES[0])
TEXT = emit(CONFIG).text


@pytest.mark.parametrize("name", NAMES)
def test_a_page_says_whose_it_is(name: str) -> None:
    config = parse_name(name)
    assert config_of_page(emit(config).text) == config


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (TEXT.replace("_spec", "_facts"), "the source defines no kernel"),
        (TEXT + emit(parse_name(NAMES[1])).text, "the source defines 2 kernels"),
        (TEXT.replace("_64x32x64_", "_64x32_"), "is not a kernel name"),
    ],
)
def test_a_page_that_does_not_say_it_is_an_error(text: str, says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        config_of_page(text)


def test_an_edited_page_is_launched_as_its_kernel_and_called_otherwise() -> None:
    source, original = edited(CONFIG, TEXT + "// mine\n"), emit(CONFIG)
    assert (source.launch, source.constants, source.entry) == (original.launch, original.constants, original.entry)
    assert source.name == f"{NAMES[0]}+src.{source.digest[:12]}"
    assert edited(CONFIG, TEXT).name != original.name, "also where nothing was edited"


@pytest.mark.parametrize(
    "line",
    ['#include "mine.cuh"', "#include </etc/passwd>", "# include <gemmill/../../x.h>", "#include MINE", "  #include"],
)
def test_a_page_includes_nothing_that_its_digest_does_not_tell_of(line: str) -> None:
    with pytest.raises(CompileError, match=r"gemmill.cu:2: '#.*copy other code into the source"):
        edited(CONFIG, f"// mine\n{line}\n{TEXT}")


def test_a_page_is_all_compiled_and_of_bounded_size() -> None:
    edited(CONFIG, f"#include <cute/tensor.hpp>  // more\n{TEXT}")
    with pytest.raises(CompileError, match="NUL"):
        edited(CONFIG, TEXT + "\0")
    with pytest.raises(CompileError, match=f"the limit is {MAX_BYTES:,}"):
        edited(CONFIG, TEXT + " " * MAX_BYTES)
