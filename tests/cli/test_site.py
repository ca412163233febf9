"""The site that ``make docs`` makes: its links, its headings, and how it looks."""

from __future__ import annotations

import subprocess
import sys
from html.parser import HTMLParser
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from urllib.parse import unquote

import pytest
from tests.cases.browser import HARD_TO_READ, Browser

ROOT = Path(__file__).parents[2]

try:
    distribution("sphinx")  # asked so, as a folder of the name can be imported, and scipy would take it for Sphinx
except PackageNotFoundError:
    pytest.skip("Sphinx is not installed", allow_module_level=True)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A site that was made without a warning."""
    made = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "--builder", "html", "--quiet", "--fail-on-warning", "--keep-going"]
    done = subprocess.run([*command, ROOT / "docs", made], text=True, capture_output=True, timeout=300, check=False)
    assert not done.returncode, done.stderr
    return made


class Page(HTMLParser):
    """What a page has: ids, links to others, levels of headings, and images without a text in their place."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.levels: list[int] = []
        self.without_text = 0
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Called by the parser."""
        of = dict(attrs)
        self.ids.add(of.get("id") or "")
        self.without_text += tag == "img" and not of.get("alt")
        if tag == "a" and (link := of.get("href")):
            self.links.append(link)
        if len(tag) == 2 and tag[0] == "h" and tag[1].isdigit():
            self.levels.append(int(tag[1]))


@pytest.mark.heavy
def test_links_lead_somewhere_and_headings_are_in_order(site: Path) -> None:
    pages = {path: Page(path) for path in site.rglob("*.html")}
    wrong = []
    for path, page in pages.items():
        for link in page.links:
            to, _, anchor = link.partition("#")
            target = (path.parent / unquote(to)).resolve() if to else path
            if ":" not in to and (not target.exists() or (anchor and unquote(anchor) not in pages[target].ids)):
                wrong.append((path.name, link))
        if path.name not in ("genindex.html", "search.html"):
            assert page.levels[:1] == [1], path
            assert page.levels.count(1) == 1, path
        assert all(after - before <= 1 for before, after in zip(page.levels, page.levels[1:], strict=False)), path
        assert not page.without_text, path
    assert not wrong
    assert len(pages) > 40


@pytest.mark.slow
@pytest.mark.browser
def test_pages_fit_and_can_be_read(eyes: Browser, site: Path) -> None:
    """No width scrolls sideways, text is told from what is behind it, and nothing comes from elsewhere."""
    for page in ("index", "tutorials/kernel", "kernels", "reference/api", "reference/commands"):
        eyes.open(site / f"{page}.html")
        for width in (400, 1400):
            for dark in (False, True):
                eyes.show(width, dark=dark)
                assert eyes.value("document.documentElement.scrollWidth") == width, page
                assert eyes.value(HARD_TO_READ) == [], page
    assert not eyes.errors
    assert all(url.startswith(("file:", "data:")) for url in eyes.fetched)
