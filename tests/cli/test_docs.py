"""What README and docs show works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import typer

from gemmill.cli import commands
from gemmill.library.manifest import load_manifest

ROOT = Path(__file__).parents[2]


def test_the_manifest_in_the_docs_is_one(tmp_path: Path) -> None:
    block = re.search(r"^```yaml\n(name: .*?)^```", (ROOT / "docs/manifests.md").read_text(), re.MULTILINE | re.DOTALL)
    assert block is not None
    path = tmp_path / "projections.yaml"
    path.write_text(block[1])
    kernels = load_manifest(path)
    assert {config.schedule for config in kernels.expand("quick")} == {"cooperative", "pingpong"}


def test_every_command_and_option_in_the_docs_exists() -> None:
    known = typer.main.get_command(commands())
    for file in (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))):
        for line in re.findall(r"^ {4}gemmill (.*)|`gemmill ([^`]+)`", file.read_text(), re.MULTILINE):
            words = "".join(line).partition("#")[0].split()
            command: Any = known
            while words and words[0] in getattr(command, "commands", {}):
                command = command.commands[words.pop(0)]
            if hasattr(command, "commands") and words[:1] != ["--help"]:
                command = command.commands.get("make", command)
            assert command is not known or words == ["--help"], f"{file.name}: gemmill {''.join(line)}"
            options = {option for parameter in command.params for option in parameter.opts} | {"--help"}
            unknown = {word for word in words if word.startswith("-")} - options
            assert not unknown, f"{file.name}: gemmill {''.join(line)}"


def test_links_in_the_docs_lead_somewhere() -> None:
    for file in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))):
        for target in re.findall(r"\]\(([^)#:]+)\)", file.read_text()):
            assert (file.parent / target).exists(), f"{file.name}: {target}"
