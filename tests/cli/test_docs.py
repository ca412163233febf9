"""What README and docs show works."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import indent
from typing import Any

import typer
from tests.cases.pages import SHELLS, blocks

from gemmill.cli import application
from gemmill.cli.dsl import WORDS
from gemmill.library.manifest.load import load_manifest
from gemmill.profiler.sweep.shape_suites import load_shapes

ROOT = Path(__file__).parents[2]


def files(page: str, folder: Path) -> list[Path]:
    """The YAML files that a page of the docs shows."""
    blocks = re.findall(r"^```yaml\n(name: (\w+)\n.*?)^```", (ROOT / page).read_text(), re.MULTILINE | re.DOTALL)
    paths = [folder / f"{name}.yaml" for _, name in blocks]
    for path, (text, _) in zip(paths, blocks, strict=True):
        path.write_text(text)
    return paths


def test_manifests_and_suites_in_the_docs_are_such(tmp_path: Path) -> None:
    projections, filtered = files("docs/manifests.md", tmp_path)
    assert {config.schedule for config in load_manifest(projections).expand("quick")} == {"cooperative", "pingpong"}
    assert 0 < len({*load_manifest(filtered).expand("quick")}) < len({*load_manifest("bf16").expand("quick")})
    mine, wide = files("docs/tuning.md", tmp_path)
    assert len(load_shapes(mine).shapes) == 3
    new, shipped = {*load_manifest(wide).expand("new")}, {*load_manifest("bf16").expand()}
    assert len(new) == 9
    assert not new & shipped
    assert {*load_manifest(wide).expand()} == new | shipped


def test_every_command_and_option_in_the_docs_exists() -> None:
    known = typer.main.get_command(application())
    for file in (ROOT / "README.md", ROOT / "deploy" / "README.md", *sorted((ROOT / "docs").rglob("*.md"))):
        fenced = "".join(text for _, kind, text in blocks(file) if kind in SHELLS)
        shown = f"{file.read_text()}\n{indent(fenced, ' ' * 4)}"
        for line in re.findall(r"^ {4}gemmill (.*)|`gemmill ([^`]+)`", shown, re.MULTILINE):
            words = [WORDS.get(word, word) for word in "".join(line).partition("#")[0].split()]
            command: Any = known
            while words and words[0] in getattr(command, "commands", {}):
                command = command.commands[words.pop(0)]
            if hasattr(command, "commands") and words[:1] != ["--help"]:
                command = command.commands.get("make", command)
            assert command is not known or words == ["--help"], f"{file.name}: gemmill {''.join(line)}"
            options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
            unknown = {word for word in words if word.startswith("-")} - options
            assert not unknown, f"{file.name}: gemmill {''.join(line)}"
