"""What to install is said so that it can be typed as it is."""

from __future__ import annotations

import re
import shlex
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from gemmill.library.extras import install

EXTRAS = sorted({*(metadata.metadata("gemmill").get_all("Provides-Extra") or ())} - {"dev"})


@pytest.mark.parametrize("extra", EXTRAS)
def test_hints_can_be_typed(extra: str) -> None:
    """And none asks for gemmill, a name that is not ours on the package index."""
    (command,) = re.findall("`(.*)`", install(extra))
    pip, word, *packages = shlex.split(command)
    assert (pip, word) == ("pip", "install")
    assert packages
    assert "gemmill" not in {Requirement(package).name for package in packages}


def test_an_extra_that_is_not_declared_is_one_of_a_checkout() -> None:
    assert "`pip install '.[nonsense]'`" in install("nonsense")
