"""Where C and C++ programs find libgemmill in an installation of the Python package."""

from __future__ import annotations

from pathlib import Path

from gemmill.library.errors import InstallationError

_PREFIX = Path(__file__).parent


def include_dir() -> Path:
    """Return the folder of ``gemmill/gemmill.h``, for compilers."""
    return _PREFIX / "include"


def cmake_dir() -> Path:
    """Return the folder of ``gemmillConfig.cmake``, as ``gemmill_DIR`` or part of ``CMAKE_PREFIX_PATH`` of CMake.

    Raises:
        InstallationError: this installation has no compiled library.
    """
    folder = _PREFIX / "lib" / "cmake" / "gemmill"
    if not folder.is_dir():
        raise InstallationError(
            f"{_PREFIX} has no compiled libgemmill: build it with CMake from there (docs/native.md), or install a "
            "wheel that was built on a machine with CMake, a C++ compiler and the libraries"
        )
    return folder
