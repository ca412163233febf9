"""The configuration of Sphinx, which builds the site from these pages (``make docs``).

Each build generates parts of pages from code (:data:`PARTS`): the help of commands, errors, rules, coverage. Files in
``project`` include pages from outside this folder.
"""

from __future__ import annotations

import inspect
import posixpath
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import gemmill
from gemmill.cli import application
from gemmill.cli.output import MEANS
from gemmill.library import errors
from gemmill.library.legality.coverage import coverage_tables
from gemmill.library.legality.rules_page import rule_tables
from gemmill.profiler.imports.file_formats import FORMATS

DOCS = Path(__file__).resolve().parent

project = "gemmill"
author = "the authors of gemmill"
release = gemmill.__version__
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["README.md"]
html_theme = "furo"
html_title = f"gemmill {release}"
html_copy_source = False
html_show_copyright = False
copybutton_exclude = ".linenos, .gp, .go"
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
autodoc_typehints = "description"
autodoc_member_order = "bysource"
autodoc_preserve_defaults = True

OUTSIDE = {
    "README.md": "index.md",
    "CHANGELOG.md": "project/changelog.md",
    "CONTRIBUTING.md": "project/contributing.md",
    "SECURITY.md": "project/security.md",
    "deploy/README.md": "project/deploy.md",
    "examples/README.md": "project/examples.md",
    "integrations/README.md": "project/integrations.md",
    "profiler/results/README.md": "project/results.md",
}
"""Pages of the repository, and where the site has them."""


def setup(app: Any) -> None:
    """Called by Sphinx."""
    app.connect("source-read", lambda _, page, source: source.__setitem__(0, read(page, source[0])))
    app.connect("include-read", lambda _, path, page, source: source.__setitem__(0, with_links(page, source[0], path)))


def read(page: str, text: str) -> str:
    """The text of a page as the site has it."""
    text = with_parts(with_links(page, text))
    return with_lines(text) if page == "terms" else text


def with_links(page: str, text: str, path: Path | None = None) -> str:
    """A page's text, or that of a file that it includes, with links to pages outside this folder as the site has them;
    of links to other files, which it has not, the text alone."""
    own, folder = posixpath.dirname(f"docs/{page}"), posixpath.dirname(path.as_posix() if path else f"docs/{page}")

    def changed(found: re.Match[str]) -> str:
        told, target, anchor = found.groups(default="")
        to = posixpath.normpath(posixpath.join(folder, target))
        to = f"docs/{OUTSIDE[to]}" if to in OUTSIDE else to
        is_page = to.startswith("docs/") and to.endswith(".md")
        return f"[{told}]({posixpath.relpath(to, own)}{anchor})" if is_page else told

    return re.sub(r"(?<!!)\[([^\]]*)\]\((?![a-z]+:|#)([^)#\s]+)(#[^)\s]*)?\)", changed, text)


def with_parts(text: str) -> str:
    """The text of a page, with what is made of code where a comment says so."""
    return re.sub(r"<!-- made: (.*) -->", lambda found: "\n".join(PARTS[found[1]]()), text)


def with_lines(text: str) -> str:
    """The table of terms, with the line of a file in which the words are first."""

    def numbered(found: re.Match[str]) -> str:
        lines = (DOCS.parent / found[1]).read_text(encoding="utf-8").splitlines()
        return f"| `{found[1]}:{next(i for i, line in enumerate(lines, 1) if found[2] in line)}` | `{found[2]}` |"

    return re.sub(r"\| `([\w/.]+)` \| `([^`]+)` \|$", numbered, text, flags=re.MULTILINE)


def commands() -> Iterator[str]:
    """The help of all commands, as the command line prints it."""
    command = typer.main.get_command(application())
    yield from _help(command, _context(command, "gemmill"))


def _help(command: Any, context: Any) -> Iterator[str]:
    yield from (f"## {context.command_path}", "", "```text", command.get_help(context).rstrip(), "```", "")
    for name, inner in getattr(command, "commands", {}).items():
        if not inner.hidden:
            yield from _help(inner, _context(inner, name, context))


def _context(command: Any, name: str, parent: Any = None) -> Any:
    return command.context_class(command, info_name=name, parent=parent, max_content_width=100)


def codes_of_errors() -> Iterator[str]:
    """A table of every error that gemmill raises, with its code in JSON."""
    yield from ("| error | code | meaning |", "|---|---|---|")
    for name, found in inspect.getmembers(errors, inspect.isclass):
        if issubclass(found, errors.GemmillError) and found is not errors.GemmillError:
            told = " ".join((inspect.getdoc(found) or "").split()).replace("``", "`").replace("|", "\\|")
            yield f"| `{name}` | `{found.code()}` | {re.sub(r':[a-z]+:`', '`', told)} |"


def exit_codes() -> Iterator[str]:
    """A table of the exit codes of the command line."""
    yield from ("| code | means |", "|---|---|", *(f"| {status} | {means} |" for status, means in MEANS.items()))


def formats() -> Iterator[str]:
    """A table of the formats of lists of problems."""
    rows = (f"| {form.name} | {form.sign.replace('|', '&#124;')} |" for form in FORMATS)
    yield from ("| list | recognized by |", "|---|---|", *rows)


PARTS = {
    "commands": commands,
    "coverage": coverage_tables,
    "errors": codes_of_errors,
    "exit codes": exit_codes,
    "formats": formats,
    "rules": rule_tables,
}
"""Generators of page parts. In a page, the comment ``<!-- made: NAME -->`` marks the place."""
