"""One compiler for all tests of emitted text: its precompiled headers are made once a worker."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gemmill.runtime.compile import pch
from gemmill.runtime.compile.compiler import Compiler


@pytest.fixture(scope="session")
def compiler() -> Iterator[Compiler]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pch, "KEPT", 16)  # for all targets, in whatever order tests run
        yield Compiler()
