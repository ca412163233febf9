"""Browsers as clients: people enter a token, and pages of other sites get nothing, in Chromium."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from tests.cases.browser import HARD_TO_READ, Browser, browser
from tests.service.running import KERNEL, serving, tokens_file

pytestmark = [pytest.mark.slow, pytest.mark.browser]


@pytest.fixture
def chromium(tmp_path: Path) -> Iterator[Browser]:
    """Chromium that remembers no password of another test."""
    with browser(tmp_path / "profile") as found:
        yield found


@contextmanager
def elsewhere() -> Iterator[int]:
    """The port of another site, with an empty page."""

    class Page(BaseHTTPRequestHandler):
        timeout = 0.2  # Chromium opens connections in advance, and would use them after the end

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"<!doctype html><link rel=icon href=data:,>")

        def log_message(self, *_: object) -> None: ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Page) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_port
        server.shutdown()


def text(page: Browser) -> str:
    return str(page.value("document.body.innerText"))


def test_people_enter_a_token_until_it_is_revoked(chromium: Browser, tmp_path: Path) -> None:
    path = tmp_path / "tokens"
    token = tokens_file(path, eyes="read")["eyes"]
    with serving(tmp_path / "server", "--tokens", str(path)) as server:
        url = f"http://127.0.0.1:{server.port}"
        chromium.enter()
        chromium.open(url)
        assert [challenge["scheme"] for challenge in chromium.challenges] == ["basic"]
        assert "Missing token." in text(chromium)
        assert "enter any name, and as the password a token with the scope read" in text(chromium)
        for dark in (False, True):
            chromium.show(400, dark=dark)
            assert chromium.value("document.documentElement.scrollWidth") == 400
            assert chromium.value(HARD_TO_READ) == []
        chromium.enter("mistyped", token)
        chromium.open(url)
        assert len(chromium.challenges) == 2
        assert chromium.value("document.querySelector('h1').innerText") == "Kernels"
        chromium.enter()
        chromium.open(f"{url}/queue")
        assert not chromium.challenges
        path.write_text("")
        chromium.open(f"{url}/queue")
        assert len(chromium.challenges) == 1
        assert "Unknown or revoked token." in text(chromium)


REACH = """
(async () => {
  const send = async (path, options) => {
    try { const got = await fetch(URL + path, options); return got.type + ' ' + await got.text() }
    catch (error) { return error.name }
  };
  const post = {method: 'POST', mode: 'no-cors', body: BODY};
  const image = await new Promise(done => {
    const img = new Image(); img.onload = () => done('loaded'); img.onerror = () => done('failed');
    img.src = URL + '/problems?problem=64x64x64';
  });
  const frame = document.createElement('iframe');
  frame.src = URL + '/';
  document.body.append(frame);
  await new Promise(done => frame.onload = done);
  return [await send('/v1/instantiate', post), await send('/openapi.json', {mode: 'no-cors'}),
          await send('/openapi.json'), await send('/v1/records', {method: 'PUT', body: 'x'}), image];
})()
"""
"""What a page can try: a request without CORS that compiles, reads with and without CORS, a preflight, and pictures."""


@pytest.mark.parametrize("host", ["elsewhere.test", "127.0.0.1"])
@pytest.mark.parametrize("has_tokens", [False, True])
def test_pages_of_other_sites_reach_nothing(chromium: Browser, tmp_path: Path, host: str, has_tokens: bool) -> None:
    """Neither those of another name nor those of another port, although the browser has a token."""
    token = tokens_file(tmp_path / "tokens", eyes="read,compile")["eyes"]
    options = ("--tokens", str(tmp_path / "tokens")) if has_tokens else ()
    with serving(tmp_path / "server", *options) as server, elsewhere() as port:
        url = f"http://127.0.0.1:{server.port}"
        chromium.enter(token)
        chromium.open(url)
        chromium.open(f"http://{host}:{port}")
        script = REACH.replace("URL", json.dumps(url)).replace("BODY", repr(json.dumps({"kernels": [KERNEL]})))
        assert chromium.value(script) == ["opaque ", "opaque ", "TypeError", "TypeError", "failed"]
        assert server.metric('gemmill_refused_total{code="cross_site"}', token) == 6
        assert server.metric("gemmill_kernels_total", token) == 0
        chromium.value(f"location.href = {json.dumps(url + '/problems')}; 0")
        while chromium.value("document.readyState + location.pathname") != "complete/problems":
            pass
        assert chromium.value("document.querySelector('h1').innerText") == "Problems", "links are followed"


def test_a_name_that_comes_to_mean_the_server_is_refused(chromium: Browser, tmp_path: Path) -> None:
    """The page of a site whose name then resolves to the server (DNS rebinding), unless that name is allowed."""
    with elsewhere() as port:
        chromium.open(f"http://rebound.test:{port}")
    with serving(tmp_path, "--port", str(port), "--allow-host", "kernels.test"):
        answer = chromium.value("fetch('/openapi.json').then(async got => `${got.status} ${await got.text()}`)")
        assert answer.startswith("421 ")
        assert "This server is not called rebound.test" in answer
        chromium.open(f"http://rebound.test:{port}")
        assert "start it with --allow-host rebound.test" in text(chromium)
        for name in ("kernels.test", "localhost"):
            chromium.open(f"http://{name}:{port}")
            assert chromium.value("document.querySelector('h1').innerText") == "Kernels"
