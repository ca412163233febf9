"""NVRTC and headers as one: what compiles kernels here, and what of it is known not to go together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, NamedTuple

from gemmill.library.arch import Arch
from gemmill.library.errors import ToolchainError
from gemmill.library.extras import install
from gemmill.runtime.compile import toolchain_pieces
from gemmill.runtime.compile.toolchain_pieces import NAMES, WHEELS, Piece, numbers, way_out

if TYPE_CHECKING:
    from importlib import metadata

OLDEST_NVRTC = (12, 8)
"""Precompiled headers, without which each kernel takes seconds, came with it."""
HEADERS: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {
        "cutlass": ("cutlass/version.h", "cutlass/cutlass.h", "cute/tensor.hpp"),
        "cccl": (
            *("cuda/std/__cccl/version.h", "cuda/std/utility", "cuda/std/cstdint", "cuda/std/type_traits"),
            *("cuda/std/tuple", "cuda/std/limits", "cuda/std/detail/__config", "nv/target"),
        ),
        "cudart": ("cuda_runtime_api.h", "cuda_fp16.h", "cuda_bf16.h", "cuda_fp8.h", "vector_types.h"),
    }
)
"""Headers of each piece that kernels include, one for each of its folders."""


class Fault(NamedTuple):
    """What is wrong with a piece of a toolchain."""

    piece: str
    says: str
    """Names the pieces, where they were found, and what to do."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """NVRTC and headers of one machine."""

    pieces: Mapping[str, Piece]
    """``nvrtc``, ``cutlass``, ``cccl`` (``cuda::std``) and ``cudart``, the headers of the CUDA runtime."""
    include_dirs: tuple[Path, ...]
    """Header directories, in the order they are searched."""
    bindings_version: str
    """Version of cuda-bindings, through which NVRTC is called."""

    @classmethod
    def of(cls, pieces: Mapping[str, Piece]) -> Toolchain:
        """That of some pieces, whether or not they go together."""
        include_dirs = dict.fromkeys(path for piece in pieces.values() for path in piece.include)
        return cls(pieces, tuple(include_dirs), toolchain_pieces.bindings_version())

    @property
    def versions(self) -> dict[str, str]:
        """The versions that decide what a source compiles to: ``12.9.86`` of NVRTC, ``12.9`` of the CUDA runtime."""
        return {name: piece.version for name, piece in self.pieces.items()}

    def described(self, name: str) -> str:
        """A piece as errors name it: with version, origin and place."""
        piece, words = self.pieces[name], "CUDA headers" if name == "cudart" else NAMES[name]
        return f"{words} {piece.version} ({piece.via}: {piece.place})"

    def compiles_for(self, target: Arch) -> bool:
        """Whether this NVRTC still compiles for a target."""
        return target.last_cuda is None or numbers(self.versions["nvrtc"])[0] <= target.last_cuda

    def check_target(self, target: Arch) -> None:
        """Refuse a target that this NVRTC no longer compiles for.

        Raises:
            ToolchainError: names both, and what to install.
        """
        if not self.compiles_for(target):
            raise ToolchainError(
                f"{self.described('nvrtc')} does not compile for {target.nvrtc}: CUDA {target.last_cuda} is the last "
                f"that does. In an environment of its own, {install(f'cu{target.last_cuda}')}"
            )

    @staticmethod
    @cache
    def find() -> Toolchain:
        """The toolchain of this process; needs neither a GPU nor a driver. Found once.

        Raises:
            ToolchainError: a piece is missing or pieces clash; names them and what to install.
        """
        nvrtc = toolchain_pieces.nvrtc()  # first: its errors name missing packages that the search for headers imports
        headers = {name: toolchain_pieces.headers(name) for name in HEADERS}
        toolchain = Toolchain.of({"nvrtc": nvrtc, **headers})
        check(toolchain)
        return toolchain


def check(toolchain: Toolchain) -> None:
    """Refuse combinations that do not compile.

    Raises:
        ToolchainError: says all that is wrong.
    """
    if messages := [fault.says for fault in faults(toolchain)]:
        raise ToolchainError("\n".join(messages))


def faults(toolchain: Toolchain) -> Iterator[Fault]:
    """What is known not to compile: pieces that are too old, clash, or are not whole. It takes a millisecond."""
    nvrtc, cutlass, cccl, cudart = map(numbers, toolchain.versions.values())
    bindings = numbers(toolchain.bindings_version)
    described = toolchain.described
    if nvrtc < OLDEST_NVRTC:
        oldest = ".".join(map(str, OLDEST_NVRTC))
        yield Fault("nvrtc", f"{described('nvrtc')} is too old: kernels need {oldest} or newer; {way_out('nvrtc')}")
    if nvrtc[0] != bindings[0]:
        says = f"{described('nvrtc')} and cuda-bindings {toolchain.bindings_version} are of different major versions"
        yield Fault("nvrtc", f"{says}; {way_out('nvrtc')}")
    if cudart[0] != bindings[0]:
        says = f"{described('nvrtc')} and {described('cudart')} are of different major versions"
        yield Fault("cudart", f"{says}. Install both from one extra: {way_out()}")
    # cute/container/array.hpp of CUTLASS 4.2 does not compile with the CCCL of CUDA 13.2 (CCCL 3.2) or newer.
    if cutlass[:2] <= (4, 2) and cccl[:2] >= (3, 2):
        says = f"{described('cutlass')} does not compile with {described('cccl')}: it needs CCCL below 3.2"
        yield Fault("cccl", f"{says}. Install 'nvidia-cuda-cccl<13.2'")
    yield from _incomplete(toolchain)


def _incomplete(toolchain: Toolchain) -> Iterator[Fault]:
    """Pieces whose headers are not all in one place, the first that is searched."""
    for piece, wanted in HEADERS.items():
        for header in wanted:
            first = next((root for root in toolchain.include_dirs if (root / header).is_file()), None)
            if first != toolchain.pieces[piece].place and not _is_like(toolchain, piece, first):
                yield _misplaced(toolchain, piece, header, first)
                break


def _is_like(toolchain: Toolchain, piece: str, place: Path | None) -> bool:
    """Whether a folder has the same version of a piece, as wheels beside a toolkit may."""
    with suppress(ToolchainError, OSError):
        return place is not None and toolchain_pieces.version_in(place, piece) == toolchain.versions[piece]
    return False


def _misplaced(toolchain: Toolchain, piece: str, header: str, first: Path | None) -> Fault:
    """The fault of a header that is found elsewhere, or nowhere."""
    what = f"{header} of {toolchain.described(piece)}"
    if first is None:
        return Fault(piece, f"{what} is missing: it is not whole. Install it again: {way_out(piece)}")
    says = f"{what} is found in {first} first, which is another's"
    if toolchain.pieces[piece].via == "GEMMILL_INCLUDE":
        return Fault(piece, f"{says}: name one whole set of headers first, or unset GEMMILL_INCLUDE")
    owner = next((other for other, x in toolchain.pieces.items() if first in (x.place, x.place.parent)), piece)
    where = f", where {toolchain.described(owner)} lies" if owner != piece else ""
    return Fault(owner, f"{says}{where}. Install it from where the rest is: {way_out(owner)}")


def damaged_wheels() -> Iterator[Fault]:
    """Wheels that lack files which they were installed with, or have others in their place, by size."""
    from importlib import metadata  # where nothing fails, it is left alone

    for piece, names in WHEELS.items():
        for name in names:
            try:
                wheel = metadata.distribution(name)
            except metadata.PackageNotFoundError:
                continue
            # __init__.py is in several wheels.
            files = [file for file in wheel.files or () if file.size and file.name != "__init__.py"]
            if lost := [file for file in files if _size(wheel, file) != file.size]:
                yield Fault(
                    piece,
                    f"{len(lost)} of {len(files)} files of {name} {wheel.version} are missing or changed, {lost[0]} "
                    f"first; pip install --force-reinstall --no-deps '{name}=={wheel.version}'",
                )


def _size(wheel: metadata.Distribution, file: metadata.PackagePath) -> int | None:
    try:
        return Path(str(wheel.locate_file(file))).stat().st_size
    except OSError:
        return None
