"""The pages for people: what they say, that nothing a client sends can run, and that they look right in Chromium."""

from __future__ import annotations

import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.cases.browser import HARD_TO_READ, Browser
from tests.service.conftest import filled
from tests.service.running import KERNEL, Running, serving

from gemmill.runtime.storage.artifact import Artifact

PAGES = {
    "kernels": "/",
    "kernel": "/kernels/{key}",
    "problems": "/problems",
    "problem": "/problems?problem=4096x4096x4096+bf16+tn&gpu=NVIDIA+H200",
    "queue": "/queue",
}
ASKED = "64x64x64 f64 tn"
THIRD = KERNEL.replace("128x128x8", "64x64x8")
PAIRS = {"html", "body", "main", "header", "footer", "nav", "form", "table", "thead", "tbody", "tr", "div", "dl", "ol"}


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, artifacts: tuple[Artifact, Artifact]) -> Iterator[Running]:
    """One that has been asked for a problem, and has compiled a kernel."""
    with serving(filled(tmp_path_factory.mktemp("shown"), *artifacts)) as server:
        server.ask("POST", "/v1/select", {"problem": ASKED})
        server.ask("POST", "/v1/select", {"problem": ASKED})
        assert server.instantiate(THIRD).events[-1]["ready"] == 1
        yield server


class Balance(HTMLParser):
    """Elements that are open."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag in PAIRS:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in PAIRS:
            assert self.open.pop() == tag


@pytest.mark.slow
@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_pages_are_whole_and_run_nothing(shown: Running, artifact: Artifact, page: str) -> None:
    answer = shown.ask("GET", page.format(key=artifact.key))
    assert (answer.status, "default-src 'none'" in answer.headers["content-security-policy"]) == (200, True)
    html = answer.body.decode()
    balance = Balance()
    balance.feed(html)
    assert not balance.open
    assert not re.search(r"<script|style=|\son\w+=|https?://", html.partition("<pre")[0])


@pytest.mark.slow
def test_kernels_are_filtered_and_shown(shown: Running, artifacts: tuple[Artifact, Artifact]) -> None:
    def listed(query: str) -> set[str]:
        return set(re.findall(r'href="/kernels/(\w+)"', shown.ask("GET", f"/?{query}").body.decode()))

    first, other = artifacts
    third = {key for key in listed("tile=64x64x8") if key not in (first.key, other.key)}
    assert listed("") == listed("arch=sm90&types=f32+f32+f32") == {first.key, other.key} | third
    assert listed("tile=128x128x8&schedule=simt") == {first.key, other.key}
    assert listed("words=f32mn16+simt") == {other.key}
    assert listed("arch=sm90a") == listed("words=nothing") == set()
    page = shown.ask("GET", f"/kernels/{first.key}").body.decode()
    assert f"<dd>{first.resources.registers}</dd>" in page
    assert "#include &lt;gemmill/" in page


@pytest.mark.slow
def test_what_clients_asked_for_and_what_became_of_jobs_is_shown(shown: Running) -> None:
    page = shown.ask("GET", "/problems").body.decode()
    [row] = re.findall(rf"<tr>.*{ASKED}.*</tr>", page)
    kernel = shown.ask("POST", "/v1/select", {"problem": ASKED}).json["kernel"]
    assert kernel in row
    assert '<td class="n">2</td>' in row or '<td class="n">3</td>' in row
    page = shown.ask("GET", "/queue").body.decode()
    assert re.search(rf'<a href="/kernels/\w{{64}}">{THIRD}</a></td><td>anyone</td><td class="long">ready', page)
    assert "http-equiv" not in page
    assert '<meta http-equiv="refresh"' in shown.ask("GET", "/queue?refresh").body.decode()


@pytest.mark.slow
def test_problems_say_why_and_what_is_wrong(shown: Running) -> None:
    page = shown.ask("GET", PAGES["problem"]).body.decode()
    assert "under sustained load, at the power limit of " in page
    assert page.count("<small>") == 36
    wrong = shown.ask("GET", "/problems?problem=%3Cscript%3Ealert(1)%3C/script%3E&gpu=x").body.decode()
    assert "<script" not in wrong
    assert 'role="alert"' in wrong


@pytest.mark.slow
@pytest.mark.browser
@pytest.mark.parametrize("page", PAGES.values(), ids=PAGES)
def test_pages_fit_and_can_be_read(
    eyes: Browser, shown: Running, artifact: Artifact, page: str, tmp_path: Path
) -> None:
    """No width scrolls sideways, dark is dark, and text is told from what is behind it."""
    del eyes.errors[:], eyes.fetched[:]
    eyes.open(f"http://127.0.0.1:{shown.port}{page.format(key=artifact.key)}")
    for width in (400, 1400):
        for dark in (False, True):
            eyes.show(width, dark=dark)
            assert eyes.value("document.documentElement.scrollWidth") == width
            assert eyes.value(HARD_TO_READ) == []
            assert eyes.value("getComputedStyle(document.body).backgroundColor === 'rgb(20, 24, 28)'") is dark
            (tmp_path / f"{width}-{dark}.png").write_bytes(eyes.picture())
    assert not eyes.errors
    assert all(f":{shown.port}/" in url or url.startswith("data:") for url in eyes.fetched)
