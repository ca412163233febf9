"""What the words for scales say."""

from __future__ import annotations

import pytest

from gemmill.library.config.domains import WORDS
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.config.scales import in_f32, scale_block, scale_dtype
from gemmill.library.errors import ConfigError
from gemmill.library.legality.rules import verdicts

NAME = "sm90a_e4m3k16s{}_e4m3k16s{}_f32p4_none_bf16n16_128x128x128_1x1_pingpong_s4_m8_k1_linear"


def test_every_word_says_how_many_elements_share_a_scale() -> None:
    said = {word: scale_block(word) for word in WORDS["a.scale"] if word != "none"}
    across = {word: (128 if word.startswith("128x") else 1) for word in said}
    assert said == {word: (across[word], int(word.split("x")[1].removesuffix("e8").rstrip("z"))) for word in said}
    assert {scale_dtype(word) for word in ("1x128", "128x128")} == {"f32"}
    assert {scale_dtype(word) for word in ("1x128e8", "128x128e8")} == {"ue8m0"}
    assert scale_dtype("1x64z") is scale_dtype("none") is None


def test_sets_declare_scales_of_blocks_in_f32() -> None:
    assert in_f32("1x128e8", "128x128e8") == in_f32("1x128", "128x128") == ("1x128", "128x128")
    assert in_f32("1x128", "none") == ("1x128", "none")
    assert in_f32("1x128e8", "128x128") == ("1x128e8", "128x128")


def test_scales_of_both_operands_have_one_type() -> None:
    name = NAME.format("1x128e8", "128x128e8")
    assert kernel_name(parse_name(name)) == name
    assert not verdicts(parse_name(name))
    mixed = verdicts(parse_name(NAME.format("1x128e8", "128x128")))
    assert "none and none, or 1x128 and 128x128, or 1x128e8 and 128x128e8" in str(mixed[0])
    with pytest.raises(ConfigError, match=r"a\.scale is '1x128e9', did you mean 1x128e8"):
        parse_name(NAME.format("1x128e9", "128x128e8"))
