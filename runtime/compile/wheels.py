"""Whether the wheels that the toolchain comes in are whole: asked by the doctor, and once a compilation has failed."""

from __future__ import annotations

from collections.abc import Iterator
from importlib import metadata
from pathlib import Path

from gemmill.runtime.compile.locate import WHEELS
from gemmill.runtime.compile.toolchain import Fault


def damaged() -> Iterator[Fault]:
    """Wheels that lack files which they were installed with, or have others in their place, by size."""
    for piece, names in WHEELS.items():
        for name in names:
            try:
                wheel = metadata.distribution(name)
            except metadata.PackageNotFoundError:
                continue
            files = [
                file for file in wheel.files or () if file.size and file.name != "__init__.py"
            ]  # which others have
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
