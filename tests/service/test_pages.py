"""The pages for people: what they say, that nothing a client sends can run, and that they look right in Chromium."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path

import pytest
from tests.cases.browser import HARD_TO_READ, Browser
from tests.service.conftest import filled
from tests.service.running import KERNEL, Running, serving

from gemmill.runtime.storage.artifact import Artifact

TENSOR = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear"
"""A kernel that no test compiles."""
PAGES = {
    "kernels": "/",
    "kernel": "/kernels/{key}",
    "not-compiled": f"/kernels/{TENSOR}",
    "problems": "/problems",
    "problem": "/problems?problem=4096x4096x4096+bf16+tn&gpu=NVIDIA+H200",
    "other-gpu": "/problems?problem=96x96x96+f64+tn&gpu=NVIDIA+GH200+480GB",
    "sliced": "/problems?problem=64x64x65536+bf16+tn",
    "bits": "/problems?problem=16x512x16384+bf16+tn&gpu=NVIDIA+H200&bits=k16%2F8",
    "explorer": "/explorer",
    "explored": "/explorer?suite=quick&show=2",
    "queue": "/queue",
}
ASKED = "64x64x64 f64 tn"
OTHER_GPU = {"name": "NVIDIA GH200 480GB", "arch": "sm90a", "sm_count": 132}
"""A GPU without figures."""
THIRD = KERNEL.replace("128x128x8", "64x64x8")
PAIRS = {"html", "body", "main", "header", "footer", "nav", "form", "table", "thead", "tbody", "tr", "div", "dl", "ol"}

CUT_OFF = """
[...document.querySelectorAll('body *')]
  .filter(e => e.clientWidth > 1 && e.scrollWidth > e.clientWidth && e.tagName !== 'PRE')
  .map(e => e.outerHTML.slice(0, 200))
"""
"""A script that gives elements other than source whose content is wider than they are."""
NOT_LINKED = """
(() => {
  const texts = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT), found = [];
  while (texts.nextNode()) {
    const parent = texts.currentNode.parentElement;
    if (!/\\bsm\\d+a?_\\w+/.test(texts.currentNode.data) || parent.closest('h1, pre')) continue;
    if (!parent.matches('a[href^="/kernels/"]:has(+ a[href^="/drawings/"])')) found.push(parent.outerHTML);
  }
  return found;
})()
"""
"""A script that gives kernel names that do not link to the kernel's page, with a link to its drawing beside."""


@pytest.fixture(scope="module")
def shown(tmp_path_factory: pytest.TempPathFactory, artifacts: tuple[Artifact, Artifact]) -> Iterator[Running]:
    """One that has been asked for a problem, and has compiled a kernel."""
    with serving(filled(tmp_path_factory.mktemp("shown"), *artifacts)) as server:
        server.ask("POST", "/v1/select", {"problem": ASKED})
        server.ask("POST", "/v1/select", {"problem": ASKED})
        assert server.ask("POST", "/v1/select", {"problem": "96x96x96 f64 tn", "gpu": OTHER_GPU}).status == 200
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
    page_text = answer.body.decode()
    balance = Balance()
    balance.feed(page_text)
    assert not balance.open
    assert not re.search(r"<script|style=|\son\w+=|https?://|\b(None|nan)\b", page_text.partition("<pre")[0])


@pytest.mark.slow
def test_kernels_are_filtered_and_shown(shown: Running, artifacts: tuple[Artifact, Artifact]) -> None:
    def listed(query: str) -> set[str]:
        return set(re.findall(r'href="/kernels/(\w+)"', shown.ask("GET", f"/?{query}").body.decode()))

    first, other = artifacts
    third = {key for key in listed("tile=64x64x8") if key not in (first.key, other.key)}
    assert listed("") == listed("arch=sm90&types=f32+f32+f32") == {first.key, other.key} | third
    assert listed("tile=128x128x8&schedule=simt") == {first.key, other.key}
    assert listed("words=f32mn16+simt") == {other.key}
    assert listed("arithmetic=fma") == listed("")
    assert listed("arithmetic=k16") == set()
    assert listed("arch=sm90a") == listed("words=nothing") == set()
    page = shown.ask("GET", f"/kernels/{first.key}").body.decode()
    assert f"<dd>{first.resources.registers}</dd>" in page
    assert "#include &lt;gemmill/" in page
    assert page == shown.ask("GET", f"/kernels/{first.name}").body.decode(), "a name leads to the same page as the key"


@pytest.mark.slow
def test_a_kernel_is_explained_and_drawn_before_it_is_compiled(shown: Running) -> None:
    page = shown.ask("GET", f"/kernels/{TENSOR}").body.decode()
    assert "not compiled yet" in page
    assert "<dd>cooperative (consumer warpgroups share a tile)</dd>" in page
    assert "<dd>232,448</dd>" in page, "bytes of shared memory"
    assert "<dt>class</dt><dd>k16</dd>" in page
    drawing = shown.ask("GET", f"/drawings/{TENSOR}?problem=4096x4096x4096+bf16+tn&gpu=H200")
    assert "4096x4096x4096 bf16 tn" in drawing.body.decode()
    [digest] = re.findall(r"script-src 'sha256-([^']+)'", drawing.headers["content-security-policy"])
    [script] = re.findall(rb"<script>(.*?)</script>", drawing.body, re.DOTALL)
    assert base64.b64encode(hashlib.sha256(script).digest()).decode() == digest
    link = re.findall(r'href="(/drawings/\S+slices=64)"', shown.ask("GET", PAGES["sliced"]).body.decode())[0]
    drawing = shown.ask("GET", html.unescape(link))
    assert b"128 units of work are 1 wave" in drawing.body, "of 2 tiles"
    edited = f"{TENSOR}%2Bsrc.0123456789ab"
    assert [shown.ask("GET", f"/{kind}/{edited}").status for kind in ("kernels", "drawings")] == [200, 200]
    for wrong in (
        f"kernels/{TENSOR}x",
        f"drawings/{TENSOR}?problem=1x",
        f"drawings/{TENSOR}?problem=1x1x1+bf16+tn&gpu=x",
        f"drawings/{TENSOR}?problem=1x1x1+bf16+tn&slices=2",
        f"drawings/{TENSOR}?problem=1x1x1+bf16+tn&slices=x",
    ):
        assert shown.ask("GET", f"/{wrong}").status == 422
    assert shown.ask("GET", f"/drawings/{'0' * 64}").status == 404


@pytest.mark.slow
def test_what_clients_asked_for_and_what_became_of_jobs_is_shown(shown: Running) -> None:
    page = shown.ask("GET", "/problems").body.decode()
    [row] = re.findall(rf"<tr>.*{ASKED}.*</tr>", page)
    kernel = shown.ask("POST", "/v1/select", {"problem": ASKED}).json["kernel"]
    assert kernel in row
    assert re.search(r'data-label="Requests">[23]</td>', row)
    page = shown.ask("GET", "/queue").body.decode()
    assert re.search(
        rf'<a href="/kernels/\w{{64}}">{THIRD}</a>.*>anyone</td><td class="long" data-label="Outcome">ready', page
    )
    assert "http-equiv" not in page
    assert '<meta http-equiv="refresh"' in shown.ask("GET", "/queue?refresh").body.decode()


@pytest.mark.slow
def test_problems_say_why_and_what_is_wrong(shown: Running) -> None:
    page = shown.ask("GET", PAGES["problem"]).body.decode()
    assert "under sustained load, at the power limit of " in page
    assert page.count("<small>") == 2 * 36, "microseconds and TFLOP/s of each cell"
    assert len(re.findall(r'data-label="TFLOP/s">\d', page)) == 5
    page = shown.ask("GET", PAGES["bits"]).body.decode()
    assert "; arithmetic k16/8, as required" in page
    assert {*re.findall(r'data-label="Arithmetic">([^<]*)<', page)} == {"k16/8"}
    assert {*re.findall(r'href="/problems\?([^"]*)"', page)} - {
        *re.findall(r'href="/problems\?([^"]*bits=k16[^"]*)"', page)
    } == set()
    refused = shown.ask("GET", "/problems?problem=64x64x64+bf16+tn&bits=fast")
    assert (refused.status, "it must be &#39;any&#39;" in refused.body.decode()) == (422, True)
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
            assert eyes.value(CUT_OFF) == []
            assert eyes.value(HARD_TO_READ) == []
            assert eyes.value("getComputedStyle(document.body).backgroundColor === 'rgb(20, 24, 28)'") is dark
            (tmp_path / f"{width}-{dark}.png").write_bytes(eyes.picture())
    assert not eyes.errors
    assert all(f":{shown.port}/" in url or url.startswith("data:") for url in eyes.fetched)


@pytest.mark.slow
@pytest.mark.browser
def test_every_named_kernel_links_to_its_page_and_drawing_and_every_link_works(
    eyes: Browser, shown: Running, artifact: Artifact
) -> None:
    links: set[str] = set()
    for page in PAGES.values():
        eyes.open(f"http://127.0.0.1:{shown.port}{page.format(key=artifact.key)}")
        assert eyes.value(NOT_LINKED) == []
        links |= {*eyes.value("[...document.links].map(a => a.pathname + a.search)")}
    assert {link.split("/")[1].partition("?")[0] for link in links} >= {"kernels", "drawings", "problems", "explorer"}
    assert {link: status for link in links if (status := shown.ask("GET", link).status) != 200} == {}


@pytest.mark.slow
@pytest.mark.browser
def test_no_two_kernels_of_a_map_share_a_colour(eyes: Browser, shown: Running) -> None:
    eyes.open(f"http://127.0.0.1:{shown.port}{PAGES['problem']}")
    cells = eyes.value(
        "[...document.querySelectorAll('.map td')]"
        ".map(e => [e.innerText.split('\\n')[0], getComputedStyle(e).backgroundColor])"
    )
    other = eyes.value("getComputedStyle(document.querySelector('summary .mark')).backgroundColor")
    kernels: dict[str, set[str]] = {}
    for kernel, colour in cells:
        kernels.setdefault(colour, set()).add(kernel)
    rare = kernels.pop(other)
    assert all(len(same) == 1 for same in kernels.values())
    assert f"{len(rare)} rarer kernels share this colour" in eyes.value("document.querySelector('summary').innerText")
    eyes.value("document.querySelector('summary').click()")
    listed = eyes.value("[...document.querySelectorAll('.legend .mark')].map(e => e.innerText)")
    assert sorted(listed) == sorted(rare.union(*kernels.values()))


@pytest.mark.slow
@pytest.mark.browser
def test_the_slider_of_a_drawing_runs_and_nothing_else(eyes: Browser, shown: Running) -> None:
    del eyes.errors[:]
    eyes.open(f"http://127.0.0.1:{shown.port}/drawings/{TENSOR}?problem=4096x4096x4096+bf16+tn")
    assert "256 of 256" in eyes.value("document.getElementById('said').textContent")
    assert not eyes.errors
    eyes.value("document.body.appendChild(document.createElement('script')).textContent = 'window.other = 1'")
    assert eyes.value("window.other") is None
