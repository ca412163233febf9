"""doctor: what is installed, what clashes, what to install."""

from __future__ import annotations

import os
import platform
import re
import sys
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from importlib import metadata
from pathlib import Path
from typing import Literal

import typer

from gemmill import __version__
from gemmill.cli import output
from gemmill.cli.app import app
from gemmill.cli.options import Json, StorePath
from gemmill.cli.output import Status
from gemmill.library.arch import ARCHS
from gemmill.library.errors import DeviceError, RecordError, ToolchainError
from gemmill.runtime import driver
from gemmill.runtime.compile.toolchain import Toolchain
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.models import origin
from gemmill.runtime.storage.store import Store


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report."""

    what: str
    state: Literal["ok", "missing", "wrong"]
    """``missing``: something gemmill works without, as far as that goes. ``wrong``: something that does not work."""
    detail: str
    advice: str = ""
    """What to install or change."""


@app.command()
def doctor(store: StorePath = None, as_json: Json = False) -> None:
    """Say what is installed, which versions clash, and what to install.

    Exits with 1 when something is wrong. What is merely missing (a GPU, a toolchain, PyTorch) is listed with what it
    would be needed for.

    \b
    Examples:
      gemmill doctor
      gemmill doctor --json
    """
    found = [_python(), _bindings(), *_toolchain(), *_gpus(), _model(), _torch(), _store(store)]
    if as_json:
        output.print_json([asdict(finding) for finding in found])
    else:
        output.print_table(("", "state", "detail"), [(f.what, f.state, f.detail) for f in found])
        for finding in found:
            if finding.advice:
                typer.echo(f"{finding.what}: {finding.advice}")
    if any(finding.state == "wrong" for finding in found):
        raise typer.Exit(Status.WRONG)


def _version(distribution: str) -> str | None:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _python() -> Finding:
    detail = f"gemmill {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    if sys.platform != "linux":
        return Finding("gemmill", "wrong", detail, "kernels are compiled and run on Linux")
    return Finding("gemmill", "ok", detail)


def _bindings() -> Finding:
    version = _version("cuda-bindings")
    if version is None:
        return Finding("cuda-bindings", "wrong", "not installed", "pip install cuda-bindings")
    return Finding("cuda-bindings", "ok", version)


def _toolchain() -> Iterator[Finding]:
    try:
        toolchain = Toolchain.find()
    except ToolchainError as error:
        wheels = [name for name in ("nvidia-cutlass", "nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc") if _version(name)]
        state: Literal["wrong", "missing"] = "wrong" if wheels else "missing"
        yield Finding("toolchain", state, "cannot compile kernels; packs need none", str(error))
        return
    for piece, version in toolchain.versions.items():
        yield Finding(piece, "ok", f"{version}, found via {toolchain.found_via[piece]}")


def _gpus() -> Iterator[Finding]:
    try:
        version = int(driver.check(driver.bindings().cuDriverGetVersion(), "reading the driver's version"))
        count = driver.device_count()
    except DeviceError as error:
        yield Finding("GPU", "missing", "kernels cannot run here; compiling needs none", str(error))
        return
    cuda = f"{version // 1000}.{version // 10 % 100}"
    bindings = (_version("cuda-bindings") or "").partition(".")[0]
    if bindings.isdecimal() and int(bindings) > version // 1000:
        detail = f"runs CUDA {cuda}; cuda-bindings is {bindings}"
        yield Finding("driver", "wrong", detail, "install gemmill[cu12] or a newer driver")
    else:
        yield Finding("driver", "ok", f"runs CUDA {cuda}")
    if count == 0:
        yield Finding("GPU", "missing", "the driver shows none; kernels cannot run here, compiling needs none")
    for device in range(count):
        name, capability = driver.device_name(device), driver.capability(device)
        detail = f"{name}, compute capability {capability[0]}.{capability[1]}"
        served = {arch.capability for arch in ARCHS.values()}
        if capability in served:
            yield Finding(f"GPU {device}", "ok", detail)
        else:
            needed = ", ".join(f"{major}.{minor}" for major, minor in sorted(served))
            yield Finding(f"GPU {device}", "missing", detail, f"kernels need compute capability {needed}")


def _model() -> Finding:
    try:
        return Finding("model", "ok", origin(Registry(manifests=[]).gpu))
    except RecordError as error:
        return Finding("model", "wrong", "GEMMILL_MODEL names none of this GPU", str(error))


def _torch() -> Finding:
    version = _version("torch")
    if version is None:
        return Finding("PyTorch", "missing", "`run` and `profile` need it", "pip install 'gemmill[cu13,torch]'")
    bindings = _version("cuda-bindings") or ""
    wanted = next((r for r in metadata.requires("torch") or () if r.startswith("cuda-bindings")), "")
    major = re.search(r"(?:==|>=|~=)\s*(\d+)", wanted)
    if major and bindings.partition(".")[0] != major[1]:
        return Finding(
            "PyTorch",
            "wrong",
            f"{version} requires {wanted.partition(';')[0].strip()}; cuda-bindings is {bindings}",
            "install gemmill[cu13] beside this PyTorch, not gemmill[cu12]",
        )
    return Finding("PyTorch", "ok", version)


def _store(path: Path | None) -> Finding:
    store = Store(path)
    stats = store.stats()
    detail = f"{stats.path}: {stats.entries} kernels, {stats.bytes:,} of at most {stats.max_bytes:,} bytes"
    existing = next(folder for folder in (store.path, *store.path.parents) if os.path.lexists(folder))
    if existing.is_dir() and os.access(existing, os.W_OK | os.X_OK):
        return Finding("store", "ok", detail)
    advice = f"{existing} cannot be written, so nothing is kept; set GEMMILL_STORE to a folder that can"
    return Finding("store", "wrong", detail, advice)
