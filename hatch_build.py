"""Puts libgemmill into wheels that are built on Linux with CMake, a C++ compiler and its libraries."""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

PACKAGE = Path("gemmill", "runtime", "native")
"""The prefix of the installed library: its header is there already."""


class NativeLibrary(BuildHookInterface):  # type: ignore[type-arg]
    """Compiles the library and adds it, with the tag of this platform. Without the tools the wheel stays pure."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Build before the wheel is written. Editable installations have no library."""
        self._folder = tempfile.TemporaryDirectory()
        if version == "editable":
            return
        if sys.platform != "linux":
            self.app.display_warning("The wheel is pure, without libgemmill, which is for Linux alone.")
            return
        source = Path(self.root, "src", PACKAGE).resolve()
        build, prefix = (Path(self._folder.name).resolve() / name for name in ("build", "prefix"))
        # Neither folders nor versions of the linker are in the bytes; other machines need no newer C++ runtime.
        maps = f"-ffile-prefix-map={source}=. -ffile-prefix-map={build}=."
        links = "-static-libstdc++ -static-libgcc -Wl,--build-id=none -s"
        options = {
            "CMAKE_CXX_FLAGS": maps,
            "CMAKE_SHARED_LINKER_FLAGS": links,
            "CMAKE_INSTALL_LIBDIR": "lib",
            "CMAKE_INSTALL_PREFIX": prefix,
            "VERSIONED_NAME": "OFF",  # wheels have no links
        }
        defined = [f"-D{name}={value}" for name, value in options.items()]
        if fault := _fault("cmake", "-S", source, "-B", build, *defined):
            self.app.display_warning(f"The wheel is pure, without libgemmill, which cannot be built here: {fault}")
            return
        jobs = str(os.cpu_count() or 1)
        for command in (("cmake", "--build", build, "--parallel", jobs), ("cmake", "--install", build)):
            if fault := _fault(*command):
                raise RuntimeError(f"building libgemmill failed: {fault}; to do without, set HATCH_BUILD_NO_HOOKS=true")
        for file in sorted(path for path in (prefix / "lib").rglob("*") if path.is_file()):
            build_data["force_include"][str(file)] = str(PACKAGE / file.relative_to(prefix))
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data |= {"pure_python": False, "tag": f"py3-none-{platform}"}

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the build."""
        self._folder.cleanup()


def _fault(*command: str | Path) -> str:
    """Run a command; return why it failed, or an empty text."""
    try:
        done = subprocess.run(command, capture_output=True, text=True)
    except OSError as error:
        return str(error)
    return f"{' '.join(map(str, command[:2]))}: {done.stderr.strip()[-2000:]}" if done.returncode else ""
