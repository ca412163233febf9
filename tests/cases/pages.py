"""What pages of the docs show, run as a reader would: in order, in one folder."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from tests.cases import compilers
from tests.cases.models import CONFIGS
from tests.cases.registries import PROGRAM, registry

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "SECURITY.md")),
    *(ROOT / name / "README.md" for name in ("deploy", "examples", "integrations", "profiler/results")),
    *(ROOT / "integrations" / name / "README.md" for name in ("kernels", "vllm")),
    *sorted((ROOT / "docs").rglob("*.md")),
]
"""Every page that people read."""
ON_GPU = "<!-- needs a GPU -->"
"""Stands above a block that does."""

_BLOCK = re.compile(rf"(^{ON_GPU}\n)?^```(yaml|sh|bash|python)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_SHOWN = re.compile(rf"(^{ON_GPU}\n)?^```text\n(.*?)^```", re.MULTILINE | re.DOTALL)
_REMEMBERED = re.compile(r"^[A-Z]+=.*\n", re.MULTILINE)
"""What a shell is told, and later blocks take from it."""

SHELLS = ("sh", "bash")
"""Languages of blocks that the shell of this name runs."""

UNRUN: Mapping[tuple[str, str], str] = {
    ("docs/epilogues.md", "_function("): "a row, which tests/library/epilogues/test_functions.py adds",
    ("docs/manifests.md", "# yaml-language-server"): "a comment for an editor",
    ("docs/tuning.md", "registry = gemmill.Registry(manifests"): "the commands before it measure for minutes",
}
"""Blocks that no test runs, by page and beginning, and why."""


def name(page: Path) -> str:
    """Of a page, by its path in the project."""
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> list[tuple[bool, str, str]]:
    """Those of a page that are run: whether a GPU is needed, the language, the text."""
    unrun = tuple(beginning for of, beginning in UNRUN if of == name(page))
    found = _BLOCK.findall(page.read_text(encoding="utf-8"))
    return [(bool(gpu), kind, text) for gpu, kind, text in found if not (unrun and text.startswith(unrun))]


def missing_output(page: Path, printed: str, gpu: bool) -> list[str]:
    """The ``text`` blocks of a page that its commands did not print; ``...`` stands for any text, a space for any white
    space."""
    shown = [text for on_gpu, text in _SHOWN.findall(page.read_text(encoding="utf-8")) if gpu or not on_gpu]
    patterns = [re.escape(" ".join(text.split())).replace(r"\.\.\.", ".*") for text in shown]
    line = " ".join(printed.split())
    return [text for text, pattern in zip(shown, patterns, strict=True) if not re.search(pattern, line)]


PAGES = [page for page in DOCUMENTS if blocks(page)]
"""Those that have such blocks."""
GIVEN: Mapping[str, Callable[[], bytes]] = {
    "Llama-3.1-8B/config.json": lambda: json.dumps(dict(CONFIGS["Llama-3.1-8B"])).encode(),
    "Qwen3-30B-A3B.gguf": (ROOT / "tests" / "data" / "models" / "Qwen3-30B-A3B.gguf").read_bytes,
    "decoder.onnx": lambda: _decoder(),
}
"""Files that pages name and a reader has."""
REGISTRY = "$REGISTRY"
"""The host of a registry in pages that need one."""
CLONED = ("examples", "integrations", "runtime")
"""Folders of a clone that pages name."""


def missing(page: Path) -> str:
    """The programs that a page needs and this machine lacks."""
    text = "".join(text for _, _, text in blocks(page))
    if REGISTRY in text and PROGRAM is None:
        return "docker-registry"
    return compilers.missing() if "cmake " in text else ""


def run_page(page: Path, folder: Path, gpu: bool, variables: Mapping[str, str] | None = None) -> list[str]:
    """Run the blocks of a page, those that need a GPU if there is one: a manifest or suite is saved by its name,
    commands and programs must succeed. The folder has what a reader has: folders of a clone, and files of models.
    What each command and program printed.

    Args:
        page: the page.
        folder: where its blocks run.
        gpu: whether there is a GPU.
        variables: the whole environment of the blocks. Default: that of this process, with this interpreter.
    """
    for cloned in CLONED:
        (folder / cloned).symlink_to(ROOT / cloned)
    if variables is None:
        variables = os.environ | {"PATH": f"{_programs(folder / '.programs')}{os.pathsep}{os.environ['PATH']}"}
    chosen = [(kind, text) for needs_gpu, kind, text in blocks(page) if gpu or not needs_gpu]
    whole = "".join(text for _, text in chosen)
    for file, content in GIVEN.items():
        if file.partition("/")[0] in whole:
            (folder / file).parent.mkdir(exist_ok=True)
            (folder / file).write_bytes(content())
    with ExitStack() as stack:
        if REGISTRY in whole:
            (folder / ".registry").mkdir()
            variables = {**variables, "REGISTRY": stack.enter_context(registry(folder / ".registry"))}
        return _run(chosen, folder, variables)


def _run(chosen: Sequence[tuple[str, str]], folder: Path, variables: Mapping[str, str]) -> list[str]:
    printed = []
    remembered = ""
    for kind, text in chosen:
        if kind == "yaml":
            (named,) = re.findall(r"\Aname: (\w+)$", text, re.MULTILINE)
            (folder / f"{named}.yaml").write_text(text, encoding="utf-8")
            continue
        script = f"set -e\n{remembered}{text}" if kind in SHELLS else text
        done = subprocess.run(
            [kind, "-c", script], cwd=folder, env=variables, text=True, capture_output=True, timeout=600, check=False
        )
        if done.returncode:  # what the page has started, it will not end
            for process in folder.glob("*.pid"):
                with suppress(ProcessLookupError):
                    os.kill(int(process.read_text()), signal.SIGTERM)
        assert not done.returncode, f"{text}\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}"
        printed.append(done.stdout + done.stderr)
        remembered += "".join(_REMEMBERED.findall(text)) if kind in SHELLS else ""
    return printed


def _decoder() -> bytes:
    from tests.cases.onnx_graphs import decoder  # where onnx may be missing, only the page that needs it fails

    return decoder()


def _programs(folder: Path) -> Path:
    """A folder with ``python`` and ``gemmill``, those of this interpreter, for PATH."""
    folder.mkdir()
    for name, module in (("python", ""), ("gemmill", "-m gemmill")):
        program = folder / name
        program.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n', encoding="utf-8")
        program.chmod(0o755)
    return folder
