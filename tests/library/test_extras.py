"""What to install is said so that it can be typed as it is."""

from __future__ import annotations

import re
import shlex
from importlib import metadata

import pytest
from packaging.requirements import Requirement

from gemmill.library.extras import install, one_command, reinstall, without_commands

EXTRAS = sorted({*(metadata.metadata("gemmill").get_all("Provides-Extra") or ())} - {"dev"})


@pytest.mark.parametrize("extra", EXTRAS)
def test_hints_can_be_typed(extra: str) -> None:
    """And none asks for gemmill, a name that is not ours on the package index."""
    (command,) = re.findall("`(.*)`", install(extra))
    pip, word, *packages = shlex.split(command)
    assert (pip, word) == ("pip", "install")
    assert packages
    assert "gemmill" not in {Requirement(package).name for package in packages}


def names(command: str | None) -> list[str]:
    assert command
    return sorted(Requirement(word).name for word in shlex.split(command.strip("`"))[2:] if not word.startswith("-"))


def test_one_command_installs_what_several_do() -> None:
    torch, report, damaged = install("torch"), install("report"), reinstall("jinja2", "3.1.6")
    again = "`pip install --force-reinstall"
    assert one_command([]) is one_command(["nothing", f"one: {torch}."]) is None
    assert names(one_command([f"one: {torch}.", f"two: {report}, {torch}"])) == ["jinja2", "torch"]
    assert one_command([damaged, reinstall("a", "1")]) == f"{again} --no-deps 'jinja2==3.1.6' 'a==1'`"
    assert one_command([damaged, report]) == damaged
    assert one_command([damaged, torch]) == f"{again} 'jinja2==3.1.6' 'torch>=2.9'`"
    of_12, of_13 = install("cu12"), install("cu13")
    assert names(one_command([of_12, torch, of_13])) == names(one_command([of_13, torch]))
    assert one_command([install("none"), install("neither")]) == "`pip install '.[none]' '.[neither]'`"
    assert without_commands(f"it is missing: {torch}; {damaged}") == "it is missing: see below; see below"


def test_an_extra_that_is_not_declared_is_one_of_a_checkout() -> None:
    assert "`pip install '.[nonsense]'`" in install("nonsense")
