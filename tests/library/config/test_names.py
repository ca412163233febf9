import keyword
import re
from typing import Annotated, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from gemmill.library.config import field_table
from gemmill.library.config.domains import WORDS, are_valid
from gemmill.library.config.field import Field
from gemmill.library.config.field_table import GROUPS, TABLE, Row
from gemmill.library.config.fields import FIELD_NAMES, Value, config_of, fields_of, made_of, parts_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import formats, kernel_name, parse_name
from gemmill.library.errors import ConfigError

NAME = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear"


def values(row: Row) -> st.SearchStrategy[Value]:
    return st.sampled_from(row.values) if row.values else st.integers(1, 10**9)


# Any config that validates, legal or not; of whatever fields the table has.
WITH_C = st.fixed_dictionaries({row.name: values(row) for row in TABLE.values()})
NO_C = {row.name: row.absent for row in GROUPS["c"] if row.absent is not None}
SPLIT_K: dict[str, Value] = {"scheduler.decomposition": "splitk", "scheduler.splits": 1}
"""Names with another number are former ones, of a kernel and the slices of K of its launch."""


@st.composite
def any_configs(draw: st.DrawFn) -> GemmConfig:
    fields = draw(WITH_C)
    if fields["scheduler.decomposition"] == "splitk":
        fields |= SPLIT_K
    return config_of(fields | draw(st.sampled_from([{}, NO_C])))


CONFIGS = any_configs()


@given(CONFIGS)
def test_a_name_parses_back_to_its_config(config: GemmConfig) -> None:
    name = kernel_name(config)
    assert parse_name(name) == config
    assert kernel_name(parse_name(name)) == name


@given(CONFIGS)
def test_names_are_c_identifiers(config: GemmConfig) -> None:
    name = kernel_name(config)
    assert re.fullmatch("[a-z][a-z0-9_]*", name)
    assert not keyword.iskeyword(name)


@given(CONFIGS, CONFIGS)
def test_different_configs_have_different_names(one: GemmConfig, other: GemmConfig) -> None:
    assert (kernel_name(one) == kernel_name(other)) == (one == other)


@given(CONFIGS)
def test_nothing_that_changes_the_kernel_is_missing_from_the_name(config: GemmConfig) -> None:
    fields = fields_of(config)
    assert config_of(fields) == config
    for field, value in fields.items():
        others = [other for other in TABLE[field].values if other != value]
        if isinstance(value, int) and not others:
            others = [value + 1]
        if not (field.startswith("c.") and config.c is None):
            for other in others:
                assert kernel_name(config_of({**fields, field: other})) != kernel_name(config)


@pytest.mark.parametrize("field", FIELD_NAMES)
@pytest.mark.parametrize("name", [NAME, NAME.replace("none", "bf16n16")])
def test_what_is_valid_is_told_without_pydantic(name: str, field: str) -> None:
    """So that names from packs are read without it."""
    valid = fields_of(parse_name(name))
    wrong: tuple[Any, ...] = ("", "nonsense", "d=acc", -1, True, 4.0)
    for value in (*WORDS.get(field, ()), "d = acc", 0, 1, 4, *wrong):
        fields = {**valid, field: value}
        try:
            config = config_of(fields)
        except ValidationError:
            assert not are_valid(fields), value
        else:
            assert are_valid(fields_of(config)), value
            assert config == GemmConfig(**made_of(parts_of(fields)))


def test_the_documented_name() -> None:
    assert kernel_name(parse_name(NAME)) == NAME


def test_rows_stand_before_the_batching() -> None:
    scheduler = parse_name(NAME.replace("m8_", "m8gatheredgrouped_")).scheduler
    assert (scheduler.rows, scheduler.batching) == ("gathered", "grouped")


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("", "1 parts separated by underscores; a kernel name has 13"),
        ("gemm_kernel", "2 parts"),
        (NAME + "_x", "14 parts"),
        (NAME.replace("sm90a", "sm81"), "arch is 'sm81'"),
        (NAME.replace("bf16k16_bf16k16", "bf16n16_bf16k16"), "A is 'bf16n16'; it must look like bf16k16"),
        (NAME.replace("none", "bf16k16"), "C is 'bf16k16'; it must look like none or bf16n16"),
        (NAME.replace("128x256x64", "128x256"), "tile is '128x256'; it must look like 128x256x64"),
        (NAME.replace("128x256x64", "0128x256x64"), "tile is '0128x256x64'"),
        (NAME.replace("128x256x64", "128x256x٦٤"), "it must look like 128x256x64"),
        (NAME.replace("128x256x64", "9" * 5000 + "x256x64"), "it must look like 128x256x64"),
        (NAME.replace("s4", "s0"), "stages is 's0'"),
        (NAME.replace("s4", "s4\n"), "it must look like s4"),
        (NAME.replace("cooperative", "pingpnog"), "schedule is 'pingpnog'"),
        (NAME.replace("k1_", "k1tiles_"), "'k1tiles' contains the default 'tiles', which names must omit"),
        (NAME.replace("m8_", "m8strided_"), "'m8strided' contains the default 'strided'"),
        (NAME.replace("m8_", "m8storedgrouped_"), "'m8storedgrouped' contains the default 'stored'"),
        (NAME.upper(), "arch is 'SM90A'"),
    ],
)
def test_other_names_are_refused_with_the_part_that_is_wrong(wrong: str, says: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_name(wrong)
    assert says in str(refused.value)


@pytest.mark.parametrize("wrong", ["gemm_kernel", NAME.replace("bf16k16_bf16k16", "bf16n16_bf16k16")])
def test_formats_refuses_a_name_in_the_same_words(wrong: str) -> None:
    with pytest.raises(ConfigError) as refused:
        parse_name(wrong)
    with pytest.raises(ConfigError, match=re.escape(str(refused.value))) as refused_formats:
        formats(wrong)
    assert str(refused_formats.value).count("is not a kernel name") == 1


@given(st.text(alphabet="abfkmnsx0123456789_", max_size=90) | st.permutations(NAME.split("_")).map("_".join))
def test_text_is_a_name_or_a_config_error(name: str) -> None:
    try:
        config = parse_name(name)
    except ConfigError:
        return
    assert kernel_name(config) == name


def test_the_table_explains_the_words_that_there_are_and_gives_usual_values() -> None:
    for row in TABLE.values():
        assert row.field.means.keys() <= set(row.values), row.name
        assert row.example in row.values or (row.type is int and not row.values), row.name
        assert row.field.doc.endswith("."), row.name


def test_a_field_stands_in_a_part_of_names_that_there_is() -> None:
    hint = Annotated[int, Field(doc="Split.", part="split")]
    with pytest.raises(TypeError, match=r"scheduler\.x: part is 'split'; it must be one of arch, A, B"):
        field_table._row("scheduler", "x", hint, 1, False)
