"""Finds NVRTC and the headers for compiling kernels, each with its version and location.

It picks what matches cuda-bindings: wheels of CUDA 12 and 13 may be installed next to each other, for example with a
PyTorch for CUDA 13, and cuda.pathfinder would pick the newest.
"""

from __future__ import annotations

import ctypes
import importlib.util
import os
import re
import signal
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from gemmill.library.errors import ToolchainError
from gemmill.library.extras import cuda_major, install
from gemmill.runtime.settings import Settings

VERSION_HEADERS: Mapping[str, str] = MappingProxyType(
    {"cutlass": "cutlass/version.h", "cccl": "cuda/std/__cccl/version.h", "cudart": "cuda_runtime_api.h"}
)
"""The header with the version of each piece."""
NAMES: Mapping[str, str] = MappingProxyType(
    {"nvrtc": "NVRTC", "cutlass": "CUTLASS", "cccl": "CCCL", "cudart": "the CUDA runtime"}
)
"""Names of the pieces in errors."""
WHEELS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "cuda-bindings": ("cuda-bindings", "cuda-pathfinder"),
        "nvrtc": ("nvidia-cuda-nvrtc-cu12", "nvidia-cuda-nvrtc"),
        "cutlass": ("nvidia-cutlass",),
        "cccl": ("nvidia-cuda-cccl-cu12", "nvidia-cuda-cccl"),
        "cudart": ("nvidia-cuda-runtime-cu12", "nvidia-cuda-runtime", "nvidia-cuda-crt"),
    }
)
"""The wheels with each piece, and with the bindings."""
OPTIONS = ("--std=c++17", "-default-device")
"""NVRTC's options for every kernel. -default-device: CUTLASS headers have functions without annotation."""
UNRECORDED_OPTIONS = ("--ptxas-options=-v", "--no-cache")
"""Options that do not change the cubin. --no-cache: if NVRTC answers from its own cache, it does not log registers and
spills."""
_FOLDERS = {12: {"nvrtc": "cuda_nvrtc", "cccl": "cuda_cccl", "cudart": "cuda_runtime"}}
"""Folders below ``nvidia/`` of the wheels of a major version of CUDA; later versions share ``cu13`` and so on."""


IN_ENVIRONMENT = ("site-packages", "cutlass_library", "conda")
"""Ways of finding a piece (:attr:`Piece.via`) that belongs to the Python environment, and not to the system."""


class Piece(NamedTuple):
    """A piece of the toolchain."""

    version: str
    via: str
    """How it was found."""
    place: Path
    """The library, or the folder of headers."""
    include: tuple[Path, ...] = ()
    """Folders of headers, in search order."""
    refusal: str = ""
    """What NVRTC logs if it refuses the options of kernels."""


def bindings_version() -> str:
    """Return the version of cuda-bindings; ToolchainError where they cannot be imported."""
    try:
        from cuda.bindings import __version__
    except ImportError as error:
        raise ToolchainError(f"cuda-bindings cannot be imported ({error}): {way_out()}") from error
    return str(__version__)


def way_out(piece: str = "") -> str:
    """Return what to install for the CUDA version of this environment: everything, or one piece if cuda-bindings
    work."""
    extra = f"cu{cuda_major()}"
    try:
        import cuda.bindings  # noqa: F401
    except ImportError:
        return install(extra)
    return install(extra, WHEELS.get(piece, ()))


def numbers(version: str) -> tuple[int, ...]:
    """Return ``12.9.86`` as integers; any number of parts."""
    return tuple(int(part) for part in re.findall(r"\d+", version))


def nvrtc() -> Piece:
    """Load NVRTC.

    Raises:
        ToolchainError: it is missing, or does not work.
    """
    major = numbers(bindings_version())[0]
    try:
        from cuda.bindings import nvrtc as library
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError as error:
        raise ToolchainError(f"cuda-bindings cannot be imported ({error}): {way_out()}") from error
    wheel = _loaded_from_wheel(major)
    try:
        library_file = load_nvidia_dynamic_lib("nvrtc")
        place = Path(library_file.abs_path or "libnvrtc")
        via = "site-packages" if wheel and place == wheel else library_file.found_via
        if library_file.was_already_loaded_from_elsewhere and place != wheel:
            via = "loaded earlier by another part of this process"
        # The first compilation temporarily installs its own signal handlers, which end the process silently.
        mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            ptx, log = _empty_program(library, (*OPTIONS, *UNRECORDED_OPTIONS))
            refusal = "" if ptx else log
            if refusal:
                ptx, log = _empty_program(library, ())
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    except (DynamicLibNotFoundError, RuntimeError) as error:
        raise ToolchainError(
            f"NVRTC was not found or cannot be loaded ({_brief(error)}): {way_out('nvrtc')}"
        ) from error
    # nvrtcVersion omits the patch level; the PTX of an empty program has it.
    match = re.search(r"Cuda compilation tools, release [\d.]+, V([\d.]+)", ptx)
    if match is None:
        message = log or "its output has no version"
        raise ToolchainError(f"NVRTC ({via}: {place}) cannot compile: {message}. Install it again: {way_out('nvrtc')}")
    return Piece(match[1], via, place, refusal=refusal)


def _empty_program(library: Any, options: tuple[str, ...]) -> tuple[str, str]:
    """Compile an empty program; return its PTX, empty where that fails, and the log."""
    _, program = library.nvrtcCreateProgram(b"", b"version.cu", 0, [], [])
    library.nvrtcCompileProgram(program, len(options), [option.encode() for option in options])
    texts = []
    for size_of, get in (
        (library.nvrtcGetPTXSize, library.nvrtcGetPTX),
        (library.nvrtcGetProgramLogSize, library.nvrtcGetProgramLog),
    ):
        _, size = size_of(program)
        text = bytes(size)
        if size > 1:  # shorter bytes are shared by the whole interpreter and must not be overwritten
            get(program, text)
        texts.append(text.rstrip(b"\0").decode(errors="replace").strip())
    library.nvrtcDestroyProgram(program)
    return texts[0], texts[1]


def _loaded_from_wheel(major: int) -> Path | None:
    """Load NVRTC of a major version from its wheel, unless the process has loaded one; None where there is no such
    wheel."""
    name = f"libnvrtc.so.{major}"
    with suppress(OSError):
        ctypes.CDLL(name, mode=os.RTLD_NOLOAD | os.RTLD_NOW)
        return None
    if (path := _in_wheel("nvrtc", major, f"lib/{name}")) is not None:
        with suppress(OSError):  # pathfinder, which searches other places too, then reports the error
            for builtins in sorted(path.parent.glob("libnvrtc-builtins.so.*")):
                ctypes.CDLL(str(builtins))  # the NVRTC of some wheels, such as 13.0.88, does not search here
            ctypes.CDLL(str(path))
            return path
    return None


def _in_wheel(piece: str, major: int, relative: str) -> Path | None:
    """Return a path in the wheel of a piece for a major version of CUDA; None where it does not exist."""
    folder = _FOLDERS.get(major, {}).get(piece, f"cu{major}")
    places = (Path(os.path.abspath(root)) / "nvidia" / folder / relative for root in sys.path if root)
    return next((place for place in places if place.exists()), None)


def headers(piece: str) -> Piece:
    """Find a piece of headers: ``cutlass``, ``cccl`` or ``cudart``.

    Raises:
        ToolchainError: they were not found, or have no version.
    """
    include = Settings.read().include
    roots, via = _roots(piece) if include is None else (include, "GEMMILL_INCLUDE")
    header = VERSION_HEADERS[piece]
    place = next((root for root in roots if (root / header).is_file()), None)
    if place is None:
        unset = "unset GEMMILL_INCLUDE, or add the folder with this header to it"
        raise ToolchainError(
            f"{header} of {NAMES[piece]} was not found in {', '.join(map(str, roots))}; "
            f"{way_out(piece) if include is None else unset}"
        )
    return Piece(version_in(place, piece), via, place, roots)


def version_in(place: Path, piece: str) -> str:
    """Return the version of a piece from its headers in a folder.

    Raises:
        ToolchainError: they have no version.
        OSError: they are not there, or cannot be read.
    """
    return _VERSIONS[piece]((place / VERSION_HEADERS[piece]).read_text(encoding="utf-8", errors="replace"))


def _roots(piece: str) -> tuple[tuple[Path, ...], str]:
    """Return the folders with the headers of a piece, and how they were found."""
    if piece == "cutlass":
        # pathfinder searches only site-packages; the import system knows every place where a wheel may be.
        spec = importlib.util.find_spec("cutlass_library")
        for package in (spec.submodule_search_locations or ()) if spec else ():
            root = Path(package) / "source" / "include"
            if root.is_dir():
                return (root,), "cutlass_library"
    major = numbers(bindings_version())[0]
    below = "include/cccl" if piece == "cccl" and major > 12 else "include"
    root_of_wheel = _in_wheel(piece, major, f"{below}/{VERSION_HEADERS[piece]}") if piece != "cutlass" else None
    if root_of_wheel is not None:
        root, via = root_of_wheel.parents[VERSION_HEADERS[piece].count("/")], "site-packages"
    else:
        try:
            from cuda.pathfinder import locate_nvidia_header_directory
        except ImportError as error:
            raise ToolchainError(f"cuda-pathfinder cannot be imported ({error}): {way_out()}") from error
        located = locate_nvidia_header_directory(piece)
        if located is None or located.abs_path is None:
            raise ToolchainError(f"the headers of {NAMES[piece]} were not found: {way_out(piece)}")
        root, via = Path(located.abs_path), located.found_via
    # CUDA 13 has CCCL's headers in a separate folder; the two sets of headers include each other.
    if root.name == "cccl":
        return (root, root.parent), via
    return ((root, root / "cccl") if (root / "cccl").is_dir() else (root,)), via


def _define(text: str, macro: str) -> int:
    match = re.search(rf"^\s*#\s*define\s+{macro}\s+(\d+)", text, re.MULTILINE)
    if match is None:
        raise ToolchainError(f"the headers do not define {macro}, which has their version: {way_out()}")
    return int(match[1])


def _cutlass_version(text: str) -> str:
    return ".".join(str(_define(text, f"CUTLASS_{part}")) for part in ("MAJOR", "MINOR", "PATCH"))


def _cccl_version(text: str) -> str:
    number = _define(text, "CCCL_VERSION")
    return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"


def _cuda_version(text: str) -> str:
    number = _define(text, "CUDART_VERSION")
    return f"{number // 1000}.{number // 10 % 100}"


_VERSIONS = {"cutlass": _cutlass_version, "cccl": _cccl_version, "cudart": _cuda_version}


def _brief(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0][:200]
