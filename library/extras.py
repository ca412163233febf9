"""How to install what some part of gemmill needs.

The name gemmill on the public package index is not ours, so no hint says to install that: it says what the extra's
packages are, or where it is installed from.
"""

from __future__ import annotations

import re
from collections.abc import Collection


def install(extra: str, only: Collection[str] = ()) -> str:
    """``pip install`` with the packages of one of gemmill's extras as this installation declares them, or with some,
    between backquotes: what stands there can be typed as it is."""
    from importlib import metadata  # where nothing is wrong, it is left alone

    try:
        declared = metadata.requires("gemmill") or ()
    except metadata.PackageNotFoundError:  # run from a checkout
        declared = ()
    marked = (requirement.partition(";") for requirement in declared)
    packages = [name.strip() for name, _, marker in marked if re.search(rf"extra\s*==\s*['\"]{extra}['\"]", marker)]
    required = [package for package in packages if not only or re.match(r"[\w.-]+", package)[0] in only]  # type: ignore[index]
    if not required:
        return f"install gemmill's extra {extra!r}: in its checkout, `pip install '.[{extra}]'`"
    return f"`pip install {' '.join(map(repr, required))}` (gemmill's extra {extra!r})"
