"""Shared by all tests: which of them can run here, and a store of their own."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings
from tests.cases import shared_folders
from tests.cases.browser import Browser, browser

# Examples compile kernels or run on busy machines; how long one takes says nothing about its correctness.
settings.register_profile("gemmill", deadline=None, derandomize="CI" in os.environ)
settings.register_profile("brief", settings.get_profile("gemmill"), max_examples=25)  # of make test
settings.load_profile("gemmill")


def gpu_count() -> int:
    """GPUs the driver reports, asked without creating a context; 0 where there is no driver."""
    try:
        libcuda = ctypes.CDLL("libcuda.so.1")
    except OSError:
        return 0
    count = ctypes.c_int()
    if libcuda.cuInit(0) != 0 or libcuda.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if any(item.get_closest_marker("gpu") for item in items) and gpu_count() == 0:
        skip = pytest.mark.skip(reason="no GPU")
        for item in items:
            if item.get_closest_marker("gpu"):
                item.add_marker(skip)


@pytest.fixture(scope="session", autouse=True)
def store_of_this_run(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Point the default store at a folder that all workers of this run share, so no test meets the user's store."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GEMMILL_STORE", str(shared_folders.root(tmp_path_factory) / "store"))
        yield


@pytest.fixture(scope="module")
def eyes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """Chromium, for the pages of a module."""
    with browser(tmp_path_factory.mktemp("browser") / "profile") as found:
        yield found
