"""Examines the installation: what is installed, where it comes from, and what is wrong with it. `gemmill doctor` prints
the findings."""

from __future__ import annotations

import importlib
import os
import platform
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from importlib import metadata
from pathlib import Path
from typing import Literal

from gemmill.library.arch import ARCHS, serving
from gemmill.library.errors import DeviceError, GemmillError, InstallationError, RecordError, SettingError, TrustError
from gemmill.library.extras import cuda_major, install, install_torch
from gemmill.library.process_caches import process_caches
from gemmill.library.version import __version__
from gemmill.runtime import driver, workers
from gemmill.runtime.compile import pch, toolchain_pieces
from gemmill.runtime.compile.toolchain import HEADERS, Toolchain, damaged_wheels, faults
from gemmill.runtime.registry import Registry
from gemmill.runtime.registry_inputs import opened_packs
from gemmill.runtime.select.model_file import origin
from gemmill.runtime.settings import Settings
from gemmill.runtime.storage import file_locks
from gemmill.runtime.storage.store import Store
from gemmill.runtime.storage.trust.signatures import TrustedKeys


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor's report."""

    what: str
    state: Literal["ok", "missing", "wrong"]
    """``missing``: optional, and its feature is not available. ``wrong``: does not work."""
    detail: str
    advice: str = ""
    """What to install or change."""


def examination(store: Path | None = None) -> Iterator[Finding]:
    """Yield the findings about this installation. Where nothing that compilation needs is wrong, compile trial kernels.

    Args:
        store: folder of the store; None: the user's.
    """
    compiling = [*packages(), *toolchain()]
    yield from compiling
    findings = [*gpus(), model(), pytorch(), *places(store), *trusted_keys(), *packs(store), *remote(), caches()]
    yield from findings
    if culprits := [f.what for f in (*compiling, *findings) if f.state == "wrong" and f.what in _NEEDED]:
        yield Finding("kernels", "missing", f"not tried, because these do not work: {', '.join(culprits)}")
    elif any(finding.what == "toolchain" for finding in compiling):
        yield Finding("kernels", "missing", "not tried, because there is no toolchain")
    else:
        from gemmill.runtime.health.trial_kernels import kernels  # deferred: it needs all of the above

        yield from kernels()


_NEEDED = ("gemmill", "cuda-bindings", "nvrtc", "cutlass", "cccl", "cudart", "temporary files")
"""What compiling needs."""


def packages() -> Iterator[Finding]:
    """Examine gemmill itself, and the Python packages that compiling and launching need."""
    yield _python()
    yield _bindings()


def _python() -> Finding:
    detail = f"gemmill {__version__}, Python {platform.python_version()}, {platform.system()} {platform.machine()}"
    if sys.platform != "linux":
        return Finding("gemmill", "wrong", detail, "gemmill compiles and runs kernels only on Linux")
    try:
        workers.command("")
    except InstallationError as error:
        return Finding("gemmill", "wrong", detail, str(error))
    return Finding("gemmill", "ok", detail)


def version(distribution: str) -> str | None:
    """Return the version of an installed distribution; None where it is not installed."""
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return None


def _bindings() -> Finding:
    """Examine whether cuda-bindings is complete and can be imported."""
    name = "cuda-bindings"
    damaged = [fault.says for fault in damaged_wheels() if fault.piece == name]
    try:
        package = importlib.import_module("cuda.bindings")
    except Exception as error:  # noqa: BLE001 - whatever a broken package raises
        says = f"{version(name) or 'not installed'}: {type(error).__name__}: {error}"
        return Finding(name, "wrong", says, "; ".join(damaged) or install(f"cu{cuda_major()}", ("cuda-python",)))
    return Finding(name, "wrong" if damaged else "ok", f"{version(name)}, {package.__file__}", "; ".join(damaged))


def pytorch() -> Finding:
    """Examine PyTorch, and whether it is compatible with cuda-bindings."""
    installed = version("torch")
    if installed is None:
        return Finding(
            "PyTorch",
            "missing",
            "not installed; `gemmill bench` and `gemmill profile` need it",
            install_torch(),
        )
    bindings = version("cuda-bindings") or ""
    requirement = next((r for r in metadata.requires("torch") or () if r.startswith("cuda-bindings")), "")
    major = re.search(r"(?:==|>=|~=)\s*(\d+)", requirement)
    if major and bindings.partition(".")[0] != major[1]:
        return Finding(
            "PyTorch",
            "wrong",
            f"{installed} requires {requirement.partition(';')[0].strip()}; cuda-bindings is {bindings}",
            f"for this PyTorch, {install(f'cu{major[1]}')}",
        )
    return Finding("PyTorch", "ok", installed)


def toolchain() -> Iterator[Finding]:
    """Examine every piece; a single line on machines without any, which can only run packs."""
    search: dict[str, Callable[[], toolchain_pieces.Piece]] = {
        "nvrtc": toolchain_pieces.nvrtc,
        **{piece: partial(toolchain_pieces.headers, piece) for piece in HEADERS},
    }
    pieces: dict[str, toolchain_pieces.Piece] = {}
    missing: dict[str, str] = {}
    for name, find in search.items():
        try:
            pieces[name] = find()
        except GemmillError as error:
            missing[name] = str(error)
    if missing and not any(version(wheel) for piece in search for wheel in toolchain_pieces.WHEELS[piece]):
        yield Finding(
            "toolchain", "missing", "kernels cannot be compiled; packs work without it", toolchain_pieces.way_out()
        )
        return
    wrong = {name: [says] for name, says in missing.items()}
    if not missing:
        for fault in faults(Toolchain.of(pieces)):
            wrong.setdefault(fault.piece, []).append(fault.says)
    for fault in damaged_wheels():
        wrong.setdefault(fault.piece, []).append(fault.says)
    for name in search:
        piece = pieces.get(name)
        detail = f"{piece.version}, found via {piece.via}: {piece.place}" if piece else "not found or not working"
        if piece and piece.via not in toolchain_pieces.IN_ENVIRONMENT:
            detail += ", outside of this environment"
        yield Finding(name, "wrong" if name in wrong else "ok", detail, "; ".join(wrong.get(name, ())))


def gpus() -> Iterator[Finding]:
    """Examine the driver, and every GPU that it shows."""
    try:
        cuda = driver.cuda_version()
        count = driver.device_count()
    except DeviceError as error:
        yield Finding("GPU", "missing", "kernels cannot run here; compiling works without a GPU", str(error))
        return
    bindings = (version("cuda-bindings") or "").partition(".")[0]
    if bindings.isdecimal() and int(bindings) > cuda[0]:
        detail = f"supports CUDA {cuda[0]}.{cuda[1]}; cuda-bindings is for CUDA {bindings}"
        yield Finding("driver", "wrong", detail, f"install a newer driver, or {install(f'cu{cuda[0]}')}")
    else:
        yield Finding("driver", "ok", f"supports CUDA {cuda[0]}.{cuda[1]}")
    if count == 0:
        yield Finding(
            "GPU", "missing", "the driver shows no GPU; kernels cannot run here, compiling works without a GPU"
        )
    for device in range(count):
        name, capability = driver.device_name(device), driver.capability(device)
        detail = f"{name}, compute capability {capability[0]}.{capability[1]}"
        if serving(capability):
            yield Finding(f"GPU {device}", "ok", detail)
        else:
            capabilities = ", ".join(
                f"{major}.{minor}" for major, minor in sorted({a.capability for a in ARCHS.values()})
            )
            yield Finding(f"GPU {device}", "missing", detail, f"gemmill needs compute capability {capabilities}")


def model() -> Finding:
    """Examine the model that selects kernels."""
    try:
        return Finding("model", "ok", origin(Registry(manifests=[]).gpu))
    except RecordError as error:
        return Finding("model", "wrong", "GEMMILL_MODEL has no model of this GPU", str(error))


STORE_BYTES = 16 << 20
"""Space for a hundred kernels, in bytes."""


def places(store: Path | None) -> Iterator[Finding]:
    """Examine the folder of temporary files, and the store."""
    try:
        folder = Path(tempfile.gettempdir())
    except OSError as error:
        yield Finding("temporary files", "wrong", str(error), "set TMPDIR to a writable folder")
    else:
        fault = _fault(folder, pch.ROOM_BYTES)
        advice = f"{fault}; set TMPDIR to another folder" if fault else ""
        yield Finding("temporary files", "wrong" if fault else "ok", str(folder), advice)
    try:
        yield _store(store)
    except (GemmillError, OSError) as error:
        yield Finding("store", "wrong", str(store or ""), f"{error}; set GEMMILL_STORE to a writable folder")


def _store(path: Path | None) -> Finding:
    stats = (store := Store(path)).stats()
    size = f"{stats.bytes:,} of at most {stats.max_bytes:,} bytes"
    detail = f"{stats.path}: {stats.entries} kernels and {stats.packs} packs, {size}"
    existing = next(folder for folder in (store.path, *store.path.parents) if os.path.lexists(folder))
    if fault := _fault(existing, STORE_BYTES):
        advice = f"{fault}, so compiled kernels are not kept; set GEMMILL_STORE to another folder"
        return Finding("store", "wrong", detail, advice)
    return Finding("store", "ok", detail)


def _fault(folder: Path, room: int) -> str:
    """Return what is wrong with a folder that must be writable; empty if nothing. Leaves nothing behind."""
    try:
        with tempfile.TemporaryDirectory(prefix="gemmill-doctor-", dir=folder) as scratch:
            try:
                if (handle := file_locks.acquire(Path(scratch) / "lock")) is not None:
                    file_locks.release(handle)
            except OSError as error:
                return f"files in {folder} cannot be locked ({error}), so several processes may compile the same kernel"
        free = pch.room_in(folder)
    except OSError as error:
        return f"{folder} cannot be written ({error.strerror or error})"
    if free < room:
        return f"{folder} has only {free >> 20} MiB free; {room >> 20} MiB are needed"
    return ""


def caches() -> Finding:
    """Report the sizes of this process's function caches."""
    sizes = {name: cache.cache_info().currsize for name, cache in process_caches().items()}
    largest = max(sizes, key=sizes.__getitem__)
    detail = f"{len(sizes)} functions cache {sum(sizes.values()):,} results, most in {largest}"
    return Finding("caches of this process", "ok", f"{detail} ({sizes[largest]:,})")


def trusted_keys() -> Iterator[Finding]:
    """Examine the keys of ``GEMMILL_TRUSTED_KEYS``; nothing where it is not set."""
    try:
        keys = TrustedKeys.of_settings()
    except TrustError as error:
        yield Finding(
            "trusted keys", "wrong", "GEMMILL_TRUSTED_KEYS", f"{error}; signed packs and remote kernels cannot be used"
        )
        return
    if keys is not None:
        counting = [key.id for key in keys.keys if key.id not in keys.revoked]
        detail = ", ".join(counting) or "none"
        if keys.revoked:
            detail += f"; revoked: {', '.join(sorted(keys.revoked))}"
        advice = (
            "" if counting else "every key is revoked, so signed packs and remote kernels cannot be used: add a new key"
        )
        yield Finding("trusted keys", "ok" if counting else "wrong", detail, advice)


def packs(store: Path | None) -> Iterator[Finding]:
    """Open the packs of ``GEMMILL_PACKS`` as the first call of a process does; nothing where it is not set."""
    try:
        names = Settings.read().packs or ()
    except SettingError as error:
        yield Finding("packs", "wrong", "the settings are invalid", str(error))
        return
    for name in names:
        try:
            (pack,) = opened_packs([name], store)
        except GemmillError as error:
            yield Finding("pack", "wrong", name, str(error))
        else:
            yield Finding("pack", "ok", f"{name}: {len(pack.names())} kernels, {pack.bytes:,} bytes, {pack.path}")


_ADVICE = {
    "no keys": "set GEMMILL_TRUSTED_KEYS to the server's public key, as `gemmill key show` prints it",
    "unauthorised": "set GEMMILL_REMOTE_TOKEN to a token with the scope read",
    "token": "set GEMMILL_REMOTE_TOKEN to a token, or to @FILE for a file with a token",
    "unreachable": "start the server, or set GEMMILL_REMOTE to its address",
    "tls": "set SSL_CERT_FILE to the trusted authorities, and GEMMILL_REMOTE_CERT to the client certificate",
}
"""What to do, by the reason of a miss."""


def remote() -> Iterator[Finding]:
    """Examine the remote; nothing where none is set."""
    try:
        if Settings.read().url_of(None) is None:
            return
        from gemmill.runtime.storage.remote.client import Remote

        client = Remote.of_settings()
    except SettingError as error:
        yield Finding("remote", "wrong", "its settings are invalid", str(error))
        return
    assert client is not None
    start = time.monotonic()
    miss = client.probe()
    detail = f"{client.url}, mode {client.mode}, at most {client.deadline:g} s per kernel"
    if miss is None:
        yield Finding("remote", "ok", f"{detail}; answers in {1000 * (time.monotonic() - start):.0f} ms")
    else:
        where = "" if client.mode == "only" else "; kernels are compiled here instead"
        yield Finding(
            "remote", "wrong", f"{detail}: {miss.says}{where}", _ADVICE.get(miss.reason, "check the log of the server")
        )
