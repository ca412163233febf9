"""Names of operands that look like words of the language."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmill.library.epilogues.misspelt import check_names, is_one_edit
from gemmill.library.errors import ExpressionError

WORDS = st.sampled_from(("acc", "gate", "up", "alpha", "beta", "a_scale", "b_scale"))
LETTERS = st.sampled_from(string.ascii_lowercase)


@pytest.mark.parametrize(
    ("name", "word"),
    [("alhpa", "alpha"), ("bta", "beta"), ("upp", "up"), ("accc", "acc"), ("gats", "gate"), ("a_scalee", "a_scale")],
)
def test_a_name_that_is_an_edit_away_from_a_word_is_refused_with_it(name: str, word: str) -> None:
    with pytest.raises(ExpressionError, match=f"{name!r} is unknown, did you mean {word}.*{name}.f32") as refused:
        check_names(f"d = acc * {name} + bias[n]")
    assert refused.value.column == 10
    for declared in (f"{name}.f32", f"{name}[n]", f"{name}.bf16"):
        check_names(f"d = acc * {declared}")


def test_local_values_are_words() -> None:
    with pytest.raises(ExpressionError, match="'tpo' is unknown, did you mean top"):
        check_names("top = relu(acc); d = top * tpo")


@pytest.mark.parametrize(
    "name",
    [
        *(
            "x",
            "s",
            "t",
            "u",
            "p",
            "ac",
            "up2",
            "beta1",
            "alpha0",
            "bias",
            "scale",
            "rate",
            "eta",
            "zeta",
            "theta",
        ),
        *(
            "act",
            "gamma",
            "gain",
            "slope",
            "lo",
            "hi",
            "cap",
            "eps",
            "tau",
            "amax",
            "temperature",
            "times",
            "low",
            "top",
        ),
    ],
)
def test_usual_names_of_scalars_are_operands(name: str) -> None:
    check_names(f"d = alpha * acc * {name} + beta * c")
    check_names(f"d = silu(gate) * up + {name}")


@given(WORDS, LETTERS, st.data())
def test_every_edit_counts_and_no_two(word: str, letter: str, data: st.DataObject) -> None:
    place = data.draw(st.integers(0, len(word) - 1))
    before, at, after = word[:place], word[place], word[place + 1 :]
    swapped = before + after[:1] + at + after[1:]
    for edited in (before + after, before + letter + after, before + letter + at + after, swapped):
        assert is_one_edit(edited, word) == is_one_edit(word, edited) == (edited != word)
    assert not is_one_edit(f"{word}__", word)
    assert not is_one_edit(f"_{word[1:]}_", word)
