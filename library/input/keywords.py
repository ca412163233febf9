"""Errors for unexpected keyword arguments, with a suggestion."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Collection
from typing import ParamSpec, TypeVar

from gemmill.library.errors import KeywordError
from gemmill.library.wording import suggest

_Arguments = ParamSpec("_Arguments")
_Result = TypeVar("_Result")


def unexpected(name: str, known: Collection[str], what: str = "") -> KeywordError:
    """The error for a keyword. ``what`` is the hint if no known keyword is similar; by default it lists all of them."""
    hint = suggest(name, known) or f"; {what or 'expected ' + ', '.join(known)}"
    return KeywordError(f"unexpected argument {name!r}{hint}")


def strict(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """Decorator that raises :func:`unexpected` for unknown keywords, since Python's TypeError suggests no other."""
    parameter_names = [name for name in inspect.signature(function).parameters if name != "self"]

    @functools.wraps(function)
    def checked(*arguments: _Arguments.args, **keywords: _Arguments.kwargs) -> _Result:
        for name in keywords:
            if name not in parameter_names:
                raise unexpected(name, parameter_names)
        return function(*arguments, **keywords)

    return checked
