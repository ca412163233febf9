"""Installation hints for optional dependencies.

The name gemmill on the public package index belongs to another project. Hints therefore list the packages of an extra,
or say how to install it from a checkout.
"""

from __future__ import annotations

import re
from collections.abc import Collection


def install(extra: str, only: Collection[str] = ()) -> str:
    """A ``pip install`` command in backquotes with the packages of an extra, or with those in ``only``."""
    from importlib import metadata  # imported here, because only errors need it

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
