"""Keywords that nobody takes: named, with the nearest that is taken."""

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
    """The error for a keyword; ``what`` says what there is where none is near, by default all that is known."""
    hint = suggest(name, known) or f"; {what or 'there are ' + ', '.join(known)}"
    return KeywordError(f"unexpected argument {name!r}{hint}")


def strict(function: Callable[_Arguments, _Result]) -> Callable[_Arguments, _Result]:
    """A function that refuses keywords it does not take by :func:`unexpected`, where Python names no other."""
    known = [name for name in inspect.signature(function).parameters if name != "self"]

    @functools.wraps(function)
    def checked(*arguments: _Arguments.args, **keywords: _Arguments.kwargs) -> _Result:
        for name in keywords:
            if name not in known:
                raise unexpected(name, known)
        return function(*arguments, **keywords)

    return checked
