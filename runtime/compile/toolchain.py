"""Finds NVRTC and the headers that kernels are compiled with, and refuses versions that are known to clash."""

from __future__ import annotations

import importlib.util
import re
import signal
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType

from gemmill.library.arch import Arch
from gemmill.library.errors import ToolchainError
from gemmill.runtime.settings import Settings

INSTALL = "pip install 'gemmill[cu12]' (or 'gemmill[cu13]' beside a PyTorch built for CUDA 13)"
"""The way out of every missing piece."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """NVRTC and headers of one machine."""

    nvrtc_version: str
    """Version of the loaded NVRTC, such as ``12.9.86``."""
    cutlass_version: str
    """Version of the CUTLASS headers."""
    cccl_version: str
    """Version of the CCCL headers (``cuda::std``)."""
    cudart_version: str
    """CUDA version of the runtime headers, such as ``12.9``."""
    include_dirs: tuple[Path, ...]
    """Header directories, in the order they are searched."""
    found_via: Mapping[str, str]
    """Where each of ``nvrtc``, ``cutlass``, ``cccl`` and ``cudart`` came from."""

    @property
    def versions(self) -> dict[str, str]:
        """The versions that decide what a source compiles to."""
        return {
            "nvrtc": self.nvrtc_version,
            "cutlass": self.cutlass_version,
            "cccl": self.cccl_version,
            "cudart": self.cudart_version,
        }

    def compiles_for(self, target: Arch) -> bool:
        """Whether this NVRTC still compiles for a target."""
        return target.last_cuda is None or _numbers(self.nvrtc_version)[0] <= target.last_cuda

    def check_target(self, target: Arch) -> None:
        """Refuse a target that this NVRTC no longer compiles for.

        Raises:
            ToolchainError: names both, and what to install.
        """
        if not self.compiles_for(target):
            raise ToolchainError(
                f"NVRTC {self.nvrtc_version} ({self.found_via['nvrtc']}) does not compile for {target.nvrtc}: CUDA "
                f"{target.last_cuda} is the last that does. In an environment of its own, "
                f"pip install 'gemmill[cu{target.last_cuda}]'"
            )

    @staticmethod
    def find() -> Toolchain:
        """The toolchain of this process; needs neither a GPU nor a driver. Found once.

        Raises:
            ToolchainError: a piece is missing or two pieces clash; names them and what to install.
        """
        return _find()


@cache
def _find() -> Toolchain:
    include = Settings.read().include
    nvrtc, nvrtc_via = _nvrtc()  # first: it tells of missing packages that the search for headers imports
    roots: dict[str, tuple[tuple[Path, ...], str]]
    if include is None:
        roots = {piece: _locate(piece) for piece in ("cutlass", "cccl", "cudart")}
    else:
        roots = dict.fromkeys(("cutlass", "cccl", "cudart"), (include, "GEMMILL_INCLUDE"))
    toolchain = Toolchain(
        nvrtc,
        _cutlass_version(roots["cutlass"][0]),
        _cccl_version(roots["cccl"][0]),
        _cuda_version(roots["cudart"][0]),
        tuple(dict.fromkeys(path for paths, _ in roots.values() for path in paths)),
        MappingProxyType({"nvrtc": nvrtc_via} | {piece: via for piece, (_, via) in roots.items()}),
    )
    check(toolchain)
    return toolchain


def check(toolchain: Toolchain) -> None:
    """Refuse combinations that do not compile.

    Raises:
        ToolchainError: names the two pieces, where they were found, and what to install instead.
    """
    cutlass, cccl = _numbers(toolchain.cutlass_version), _numbers(toolchain.cccl_version)
    # cute/container/array.hpp of CUTLASS 4.2 does not compile with the CCCL of CUDA 13.2 (CCCL 3.2) or newer.
    if cutlass[:2] <= (4, 2) and cccl[:2] >= (3, 2):
        raise ToolchainError(
            f"CUTLASS {toolchain.cutlass_version} ({toolchain.found_via['cutlass']}) does not compile with CCCL "
            f"{toolchain.cccl_version} ({toolchain.found_via['cccl']}): it needs CCCL below 3.2. "
            "Install 'nvidia-cuda-cccl<13.2'"
        )
    nvrtc, cudart = _numbers(toolchain.nvrtc_version), _numbers(toolchain.cudart_version)
    if nvrtc[0] != cudart[0]:
        raise ToolchainError(
            f"NVRTC {toolchain.nvrtc_version} ({toolchain.found_via['nvrtc']}) and CUDA headers "
            f"{toolchain.cudart_version} ({toolchain.found_via['cudart']}) are of different major versions. "
            f"Install both from one extra: {INSTALL}"
        )


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(part) for part in version.split("."))


def _nvrtc() -> tuple[str, str]:
    """Version and origin of NVRTC."""
    try:
        from cuda.bindings import nvrtc
        from cuda.pathfinder import DynamicLibNotFoundError, load_nvidia_dynamic_lib
    except ImportError as error:
        raise ToolchainError(f"cuda-bindings cannot be imported ({error}); {INSTALL}") from error
    try:
        library = load_nvidia_dynamic_lib("nvrtc")
        # nvrtcVersion leaves out the patch level; the PTX of an empty program names it.
        _, program = nvrtc.nvrtcCreateProgram(b"", b"version.cu", 0, [], [])
        # The first compilation has handlers of its own for a while, which end the process without a word.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
        try:
            nvrtc.nvrtcCompileProgram(program, 0, [])
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        _, size = nvrtc.nvrtcGetPTXSize(program)
        ptx = bytes(size)
        nvrtc.nvrtcGetPTX(program, ptx)
        nvrtc.nvrtcDestroyProgram(program)
    except (DynamicLibNotFoundError, RuntimeError) as error:
        raise ToolchainError(f"NVRTC was not found; {INSTALL}") from error
    match = re.search(rb"Cuda compilation tools, release [\d.]+, V([\d.]+)", ptx)
    if match is None:
        raise ToolchainError(f"NVRTC at {library.abs_path} does not tell its version")
    return match[1].decode(), library.found_via


def _locate(piece: str) -> tuple[tuple[Path, ...], str]:
    """Header directories of one piece, and how they were found."""
    from cuda.pathfinder import locate_nvidia_header_directory

    if piece == "cutlass":
        # pathfinder looks into site-packages only; the import system knows every place a wheel may lie in.
        spec = importlib.util.find_spec("cutlass_library")
        for package in (spec.submodule_search_locations or ()) if spec else ():
            root = Path(package) / "source" / "include"
            if root.is_dir():
                return (root,), "cutlass_library"
    located = locate_nvidia_header_directory(piece)
    if located is None or located.abs_path is None:
        raise ToolchainError(f"the headers of {piece} were not found; {INSTALL}")
    root = Path(located.abs_path)
    # CUDA 13 keeps CCCL's headers in a folder of their own; its headers include each other both ways.
    if root.name == "cccl":
        return (root, root.parent), located.found_via
    return ((root, root / "cccl") if (root / "cccl").is_dir() else (root,)), located.found_via


def _read(what: str, roots: tuple[Path, ...], header: str) -> str:
    for root in roots:
        if (root / header).is_file():
            return (root / header).read_text(encoding="utf-8", errors="replace")
    places = ", ".join(str(root) for root in roots)
    named = Settings.read().include is not None
    way = "GEMMILL_INCLUDE names where to look: unset it, or add the folder that has it" if named else INSTALL
    raise ToolchainError(f"{header} of {what} was not found in {places}; {way}")


def _define(what: str, text: str, macro: str) -> int:
    match = re.search(rf"^\s*#\s*define\s+{macro}\s+(\d+)", text, re.MULTILINE)
    if match is None:
        raise ToolchainError(f"the headers of {what} do not define {macro}")
    return int(match[1])


def _cutlass_version(roots: tuple[Path, ...]) -> str:
    text = _read("CUTLASS", roots, "cutlass/version.h")
    return ".".join(str(_define("CUTLASS", text, f"CUTLASS_{part}")) for part in ("MAJOR", "MINOR", "PATCH"))


def _cccl_version(roots: tuple[Path, ...]) -> str:
    number = _define("CCCL", _read("CCCL", roots, "cuda/std/__cccl/version.h"), "CCCL_VERSION")
    return f"{number // 1_000_000}.{number // 1000 % 1000}.{number % 1000}"


def _cuda_version(roots: tuple[Path, ...]) -> str:
    number = _define("the CUDA runtime", _read("the CUDA runtime", roots, "cuda_runtime_api.h"), "CUDART_VERSION")
    return f"{number // 1000}.{number // 10 % 100}"
