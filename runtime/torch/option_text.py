"""Plain options of a call as one text, which an operator takes: a constant of what is compiled.

``"tf32=True;kernel='sm90a_…'"``: what differs from the defaults, by name, as Python writes the values. Operators have
arguments of their own for what tensors and gradients depend on.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from typing import Any

from gemmill.library.errors import OperandError
from gemmill.runtime.operands.call_keywords import Options

_ARGUMENTS = ("alpha", "beta", "out_dtype", "a_dtype", "b_dtype", "registry")
NAMES = (*(name for name in Options._fields if name not in _ARGUMENTS), "explain")
"""Options that such a text may hold: all but those that operators have arguments for, and registries."""

_OF_ONE_PROBLEM = frozenset(("expected_rows", "kernel", "slices", "sm_count", "batch_invariant", "autotune", "explain"))
"""Those that say nothing of the products of a gradient."""


def written(options: dict[str, Any]) -> str:
    """The text of options, in the order in which they are given. Traced by Dynamo, so as simple as can be."""
    return ";".join([f"{name}={value!r}" for name, value in options.items()])


@lru_cache(256)
def read(text: str) -> dict[str, Any]:
    """The options that a text holds; OperandError where it cannot be read."""
    try:
        pairs = [part.split("=", 1) for part in text.split(";")] if text else []
        options = {name: ast.literal_eval(value) for name, value in pairs}
    except (ValueError, SyntaxError) as error:
        raise OperandError(f'options are {text!r}; they must be as in "tf32=True;sm_count=100": {error}') from None
    for name in options:
        if name not in NAMES:
            raise OperandError(f"options are {text!r}; {name} is none, there are {', '.join(NAMES)}")
    return options


@lru_cache(256)
def for_gradient(text: str) -> str:
    """The options that hold for the products of a gradient too."""
    return written({name: value for name, value in read(text).items() if name not in _OF_ONE_PROBLEM})
