"""Python, and the packages that work with gemmill: their versions, and whether they go together."""

from __future__ import annotations

import importlib
import platform
import re
import sys
from collections.abc import Iterator
from importlib import metadata

from gemmill.library.errors import InstallationError
from gemmill.library.extras import install
from gemmill.library.version import __version__
from gemmill.runtime import workers
from gemmill.runtime.health.finding import Finding


def packages() -> Iterator[Finding]:
    """gemmill itself, and the Python packages that compiling and launching need."""
    yield _python()
    yield _bindings()


def _python() -> Finding:
    detail = f"gemmill {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    if sys.platform != "linux":
        return Finding("gemmill", "wrong", detail, "kernels are compiled and run on Linux")
    try:
        workers.command("")
    except InstallationError as error:
        return Finding("gemmill", "wrong", detail, str(error))
    return Finding("gemmill", "ok", detail)


def version(distribution: str) -> str | None:
    """Version of an installed distribution; None where there is none."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _bindings() -> Finding:
    """cuda-bindings by whether they can be imported, which is what counts."""
    name = "cuda-bindings"
    try:
        found = importlib.import_module("cuda.bindings")
    except Exception as error:  # noqa: BLE001 - whatever a broken package raises
        says = f"{version(name) or 'not installed'}: {type(error).__name__}: {error}"
        return Finding(name, "wrong", says, f"install what gemmill depends on: `pip install {name}`")
    return Finding(name, "ok", f"{version(name)}, {found.__file__}")


def pytorch() -> Finding:
    """PyTorch, and whether it goes with cuda-bindings."""
    found = version("torch")
    if found is None:
        return Finding("PyTorch", "missing", "`run` and `profile` need it", f"{install('torch')}, with extra 'cu13'")
    bindings = version("cuda-bindings") or ""
    wanted = next((r for r in metadata.requires("torch") or () if r.startswith("cuda-bindings")), "")
    major = re.search(r"(?:==|>=|~=)\s*(\d+)", wanted)
    if major and bindings.partition(".")[0] != major[1]:
        return Finding(
            "PyTorch",
            "wrong",
            f"{found} requires {wanted.partition(';')[0].strip()}; cuda-bindings is {bindings}",
            f"beside this PyTorch, {install(f'cu{major[1]}')}",
        )
    return Finding("PyTorch", "ok", found)
