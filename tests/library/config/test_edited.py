"""Names of edited kernels: one form, read strictly, and never taken for a config's."""

from __future__ import annotations

import hashlib

import pytest

from gemmill.library.config.edited import edited_name, is_edited, plain_name
from gemmill.library.config.names import parse_name
from gemmill.library.errors import ConfigError

NAME = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x32x64_1x1_pingpong_s4_m1_k1_linear"
DIGEST = hashlib.sha256(b"a page").hexdigest()


def test_a_name_says_its_config_and_its_page() -> None:
    name = edited_name(NAME, DIGEST)
    assert name == f"{NAME}+src.{DIGEST[:12]}"
    assert plain_name(name) == plain_name(NAME) == NAME
    assert is_edited(name)
    assert not is_edited(NAME)


@pytest.mark.parametrize(
    "rest",
    [
        *("+", "+src", "+src.", "+src.1234", f"+src.{DIGEST}", "+src.ABCDEF012345", "+srcx123456789abc"),
        *("+src.123456789abc\n", f"+src.{DIGEST[:12]}+src.{DIGEST[:12]}"),
    ],
)
def test_what_stands_behind_a_name_is_read_strictly(rest: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a kernel name: it ends in"):
        plain_name(NAME + rest)
    with pytest.raises(ConfigError, match=r"is not a kernel name: it ends in"):
        parse_name(NAME + rest)


def test_no_config_has_the_name_of_an_edited_kernel() -> None:
    with pytest.raises(
        ConfigError, match=rf"is an edited kernel, which gemmill cannot generate from {NAME}: .*add_source.*, or a pack"
    ):
        parse_name(edited_name(NAME, DIGEST))
