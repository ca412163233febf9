"""Installation hints for optional dependencies.

The name gemmill on the public package index belongs to another project. Hints therefore list the packages of an extra,
or say how to install it from a checkout.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Collection, Iterable
from contextlib import suppress

_CUDA = ("cu12", "cu13")
"""Extras that exclude each other."""


def install(extra: str, only: Collection[str] = ()) -> str:
    """A ``pip install`` command in backquotes with the packages of an extra, or with those in ``only``."""
    from importlib import metadata  # imported here, because only errors need it

    try:
        declared = metadata.requires("gemmill") or ()
    except metadata.PackageNotFoundError:  # run from a checkout
        declared = ()
    marked = (requirement.partition(";") for requirement in declared)
    packages = [name.strip() for name, _, marker in marked if re.search(rf"extra\s*==\s*['\"]{extra}['\"]", marker)]
    required = [package for package in packages if not only or _name(package) in only]
    if not required:
        return f"install gemmill's extra {extra!r}: in its checkout, `pip install '.[{extra}]'`"
    return f"`pip install {' '.join(map(repr, required))}` (gemmill's extra {extra!r})"


def reinstall(package: str, version: str) -> str:
    """The command in backquotes that installs a damaged package again."""
    return f"`pip install --force-reinstall --no-deps {f'{package}=={version}'!r}`"


_COMMAND = re.compile(r"`pip install ((?:--\S+ )*)([^`]+)`(?: \(gemmill's extra '(\w+)'\))?")


def one_command(texts: Iterable[str]) -> str | None:
    """One command for everything that the commands in some texts install; None for fewer than two commands.

    A damaged package is installed again, with its dependencies only if others are installed too. The extras cu12 and
    cu13 exclude each other; the last one that is named counts.
    """
    commands = [command for text in texts for command in _COMMAND.findall(text)]
    if len(commands) < 2:
        return None
    cuda = [extra for *_, extra in commands if extra in _CUDA]
    damaged, missing = dict[str, str](), dict[str, str]()
    for options, packages, extra in commands:
        if extra not in _CUDA or extra == cuda[-1]:
            for package in shlex.split(packages):
                (damaged if options else missing)[_name(package)] = package
    others = [package for name, package in missing.items() if name not in damaged]
    options = [] if not damaged else ["--force-reinstall"] if others else ["--force-reinstall", "--no-deps"]
    return f"`pip install {' '.join([*options, *map(repr, (*damaged.values(), *others))])}`"


def _name(requirement: str) -> str:
    """The package of a requirement; of a checkout such as ``.[cu12]`` the whole."""
    match = re.match(r"\w[\w.-]*", requirement)
    return match[0] if match else requirement


def without_commands(text: str) -> str:
    """A text that refers to a command below it in place of its own commands."""
    return _COMMAND.sub("see below", text)


def cuda_major() -> int:
    """The major version of CUDA in this environment: of cuda-bindings, else of PyTorch or NVRTC; without these 13."""
    from importlib import metadata

    for package, version in (
        ("cuda-bindings", r"(\d+)\."),
        ("torch", r".*\+cu(\d\d)"),
        ("nvidia-cuda-nvrtc-cu12", r"(12)\."),
        ("nvidia-cuda-nvrtc", r"(\d+)\."),
    ):
        with suppress(metadata.PackageNotFoundError):
            if match := re.match(version, metadata.version(package)):
                return int(match[1])
    return 13


def install_torch() -> str:
    """How to install PyTorch for the CUDA version of this environment. PyTorch on the package index is for CUDA 13."""
    if cuda_major() == 12:
        return "install PyTorch 2.9 or newer, built for CUDA 12.9 (cu129), from PyTorch's own index"
    return install("torch")
