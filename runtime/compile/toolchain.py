"""The toolchain: NVRTC and headers, and which combinations of them are known not to work."""

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
from gemmill.library.extras import install, reinstall
from gemmill.runtime.compile import toolchain_pieces
from gemmill.runtime.compile.toolchain_pieces import NAMES, WHEELS, Piece, numbers, way_out

if TYPE_CHECKING:
    from importlib import metadata

OLDEST_NVRTC = (12, 9)
"""The first NVRTC with ``--no-cache``. That of 12.8 also serialises the WGMMAs of kernels that 12.9 does not."""
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
    """A fault of a piece of a toolchain."""

    piece: str
    says: str
    """Names the pieces, where they were found, and what to do."""


@dataclass(frozen=True, slots=True)
class Toolchain:
    """NVRTC and headers of one machine."""

    pieces: Mapping[str, Piece]
    """``nvrtc``, ``cutlass``, ``cccl`` (``cuda::std``) and ``cudart``, the headers of the CUDA runtime."""
    include_dirs: tuple[Path, ...]
    """Header folders, in search order."""
    bindings_version: str
    """Version of cuda-bindings, through which NVRTC is called."""

    @classmethod
    def of(cls, pieces: Mapping[str, Piece]) -> Toolchain:
        """Return the toolchain of some pieces, without checking that they are compatible."""
        include_dirs = dict.fromkeys(path for piece in pieces.values() for path in piece.include)
        return cls(pieces, tuple(include_dirs), toolchain_pieces.bindings_version())

    @property
    def versions(self) -> dict[str, str]:
        """Versions that affect what a source compiles to: ``12.9.86`` for NVRTC, ``12.9`` for the CUDA runtime."""
        return {name: piece.version for name, piece in self.pieces.items()}

    def described(self, name: str) -> str:
        """Return a piece for messages: its version, origin and location."""
        piece, words = self.pieces[name], "CUDA headers" if name == "cudart" else NAMES[name]
        return f"{words} {piece.version} ({piece.via}: {piece.place})"

    def compiles_for(self, target: Arch) -> bool:
        """Whether this NVRTC still supports a target."""
        return target.last_cuda is None or numbers(self.versions["nvrtc"])[0] <= target.last_cuda

    def check_target(self, target: Arch) -> None:
        """Raise an error for a target that this NVRTC no longer supports.

        Raises:
            ToolchainError: names both, and what to install.
        """
        if not self.compiles_for(target):
            raise ToolchainError(
                f"{self.described('nvrtc')} does not support {target.nvrtc}; CUDA {target.last_cuda} is the last "
                f"version that does. In a separate environment, {install(f'cu{target.last_cuda}')}"
            )

    @staticmethod
    @cache
    def find() -> Toolchain:
        """Return the toolchain of this process, found once. Needs neither a GPU nor a driver.

        Raises:
            ToolchainError: a piece is missing or pieces conflict; names them and what to install.
        """
        nvrtc = toolchain_pieces.nvrtc()  # first: its errors name packages that the search for headers imports
        headers = {name: toolchain_pieces.headers(name) for name in HEADERS}
        toolchain = Toolchain.of({"nvrtc": nvrtc, **headers})
        check(toolchain)
        return toolchain


def check(toolchain: Toolchain) -> None:
    """Raise an error for combinations that do not compile.

    Raises:
        ToolchainError: names all faults.
    """
    if messages := [fault.says for fault in faults(toolchain)]:
        raise ToolchainError("\n".join(messages))


def faults(toolchain: Toolchain) -> Iterator[Fault]:
    """Yield what is known not to compile: pieces that are too old, incompatible or incomplete. It takes a
    millisecond."""
    nvrtc, cutlass, cccl, cudart = map(numbers, toolchain.versions.values())
    bindings = numbers(toolchain.bindings_version)
    described = toolchain.described
    if nvrtc < OLDEST_NVRTC:
        oldest = ".".join(map(str, OLDEST_NVRTC))
        yield Fault("nvrtc", f"{described('nvrtc')} is too old; gemmill needs {oldest} or newer: {way_out('nvrtc')}")
    elif refusal := toolchain.pieces["nvrtc"].refusal:
        yield Fault("nvrtc", f"{described('nvrtc')} refuses gemmill's options ({refusal}): {way_out('nvrtc')}")
    if nvrtc[0] != bindings[0]:
        says = f"{described('nvrtc')} and cuda-bindings {toolchain.bindings_version} have different major versions"
        yield Fault("nvrtc", f"{says}: {way_out('nvrtc')}")
    if cudart[0] != bindings[0]:
        says = f"{described('nvrtc')} and {described('cudart')} have different major versions"
        yield Fault("cudart", f"{says}. Install both from one extra: {way_out()}")
    # cute/container/array.hpp of CUTLASS 4.2 does not compile with the CCCL of CUDA 13.2 (CCCL 3.2) or newer.
    if cutlass[:2] <= (4, 2) and cccl[:2] >= (3, 2):
        says = f"{described('cutlass')} does not compile with {described('cccl')}; it needs CCCL older than 3.2"
        yield Fault("cccl", f"{says}: {way_out('cccl')}")
    yield from _incomplete_pieces(toolchain)


def _incomplete_pieces(toolchain: Toolchain) -> Iterator[Fault]:
    """Yield pieces whose headers are not all in one folder, the first that is searched."""
    for piece, needed_headers in HEADERS.items():
        for header in needed_headers:
            first = next((root for root in toolchain.include_dirs if (root / header).is_file()), None)
            if first != toolchain.pieces[piece].place and not _is_like(toolchain, piece, first):
                yield _misplaced_header(toolchain, piece, header, first)
                break


def _is_like(toolchain: Toolchain, piece: str, place: Path | None) -> bool:
    """Whether a folder has the same version of a piece, as where wheels are installed next to a toolkit."""
    with suppress(ToolchainError, OSError):
        return place is not None and toolchain_pieces.version_in(place, piece) == toolchain.versions[piece]
    return False


def _misplaced_header(toolchain: Toolchain, piece: str, header: str, first: Path | None) -> Fault:
    """Return the fault of a header that is found in another folder, or not at all."""
    what = f"{header} of {toolchain.described(piece)}"
    if first is None:
        return Fault(piece, f"{what} is missing, so the installation is incomplete. Install it again: {way_out(piece)}")
    says = f"{what} is found first in {first}, which belongs to another installation"
    if toolchain.pieces[piece].via == "GEMMILL_INCLUDE":
        return Fault(piece, f"{says}: put one complete set of headers first in GEMMILL_INCLUDE, or unset it")
    owner = next((other for other, x in toolchain.pieces.items() if first in (x.place, x.place.parent)), piece)
    where = f", with {toolchain.described(owner)}" if owner != piece else ""
    return Fault(owner, f"{says}{where}. Install both from the same source: {way_out(owner)}")


def damaged_wheels() -> Iterator[Fault]:
    """Yield wheels with files that are missing, or that differ in size from what was installed."""
    from importlib import metadata  # deferred: only needed after a failure

    for piece, names in WHEELS.items():
        for name in names:
            try:
                wheel = metadata.distribution(name)
            except metadata.PackageNotFoundError:
                continue
            # Several wheels have an __init__.py.
            files = [file for file in wheel.files or () if file.size and file.name != "__init__.py"]
            if damaged := [file for file in files if _size(wheel, file) != file.size]:
                yield Fault(
                    piece,
                    f"{len(damaged)} of {len(files)} files of {name} {wheel.version} are missing or changed, such as "
                    f"{damaged[0]}: {reinstall(name, wheel.version)}",
                )


def _size(wheel: metadata.Distribution, file: metadata.PackagePath) -> int | None:
    try:
        return Path(str(wheel.locate_file(file))).stat().st_size
    except OSError:
        return None
