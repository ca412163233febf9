"""The text in which operators take the options of a call, which is a constant of a compiled program.

``"tf32=True;kernel='sm90a_…'"`` names the options that differ from the defaults, with their values as Python literals.
Options that affect outputs or gradients are arguments of the operators instead.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import Any

from gemmill.library.errors import OperandError
from gemmill.runtime.operands.call_keywords import Options

_ARGUMENTS = ("alpha", "beta", "out_dtype", "a_dtype", "b_dtype", "registry")
NAMES = (*(name for name in Options._fields if name not in _ARGUMENTS), "explain")
"""Options that the text may contain: all except ``registry`` and those that are arguments of the operators."""

_OF_ONE_PROBLEM = frozenset(("expected_rows", "kernel", "slices", "sm_count", "symmetric", "autotune", "explain"))
"""Options that do not apply to the products of a gradient. ``bits`` does: they get the class that it means for them."""


def written(options: dict[str, Any]) -> str:
    """The text of some options, in their order. Dynamo traces this function, so it is simple."""
    return ";".join([f"{name}={value!r}" for name, value in options.items()])


@lru_cache(256)
def read(text: str) -> dict[str, Any]:
    """Parse the text into options by name. Raises OperandError for invalid texts and unknown options."""
    try:
        pairs = [part.split("=", 1) for part in text.split(";")] if text else []
        options = {name: ast.literal_eval(value) for name, value in pairs}
    except (ValueError, SyntaxError) as error:
        raise OperandError(f'options is {text!r}; expected a text like "tf32=True;sm_count=100": {error}') from None
    for name in options:
        if name not in NAMES:
            raise OperandError(f"options is {text!r}; {name} is not an option, expected {', '.join(NAMES)}")
    return options


@lru_cache(256)
def for_gradient(text: str) -> str:
    """The text of those options that also apply to the products of a gradient."""
    return written({name: value for name, value in read(text).items() if name not in _OF_ONE_PROBLEM})
