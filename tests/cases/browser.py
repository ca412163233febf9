"""Chromium without a window, told what to do over a pipe by its own protocol: nothing but the browser is needed."""

from __future__ import annotations

import base64
import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

NEEDED = "TESTS_NEED_CHROMIUM"
"""Environment variable that makes a missing browser a failure, as `make test-browser` has it."""
FLAGS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage"),
    *("--hide-scrollbars", "--remote-debugging-pipe", "--host-resolver-rules=MAP *.test 127.0.0.1"),
)


def chromium() -> str:
    """The browser; the test is skipped where there is none."""
    found = shutil.which("chromium") or shutil.which("google-chrome")
    if found is None:
        (pytest.fail if os.environ.get(NEEDED) else pytest.skip)("no Chromium here (Debian: apt install chromium)")
    return found


class Browser:
    """A page of Chromium's; what scripts complain of is in ``errors``, what would be fetched in ``fetched``."""

    def __init__(self, to: int, back: int) -> None:
        self._to, self._back, self._heard = to, back, b""
        self._sent, self._session = 0, ""
        self.errors: list[str] = []
        self.fetched: list[str] = []
        self.challenges: list[dict[str, Any]] = []
        """What servers asked for in the dialog for a name and a password."""
        self._passwords: list[str] = []
        self._loaded = False
        page = self.do("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.do("Target.attachToTarget", targetId=page, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.do(f"{domain}.enable")

    def do(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Have something done; what Chromium answers."""
        number = self._send(method, **parameters)
        while (answer := self._read()).get("id") != number:
            pass
        assert "error" not in answer, answer
        return dict(answer["result"])

    def _send(self, method: str, **parameters: Any) -> int:
        """Have something done; the number of its answer."""
        self._sent += 1
        told = {"id": self._sent, "method": method, "params": parameters}
        if self._session:
            told["sessionId"] = self._session
        os.write(self._to, json.dumps(told).encode() + b"\0")
        return self._sent

    def _read(self) -> dict[str, Any]:
        heard = [self._heard]
        while b"\0" not in heard[-1]:
            heard.append(os.read(self._back, 1 << 16))
            assert heard[-1], "Chromium has ended"
        said, _, self._heard = b"".join(heard).partition(b"\0")
        message = json.loads(said)
        what, how = message.get("method"), message.get("params", {})
        if what == "Runtime.exceptionThrown":
            self.errors.append(json.dumps(how["exceptionDetails"]))
        elif what == "Log.entryAdded" and how["entry"]["level"] in ("error", "warning"):
            self.errors.append(how["entry"]["text"])
        elif what == "Network.requestWillBeSent":
            self.fetched.append(how["request"]["url"])
        elif what == "Fetch.requestPaused":
            self._send("Fetch.continueRequest", requestId=how["requestId"])
        elif what == "Fetch.authRequired":
            self.challenges.append(how["authChallenge"])
            typed = self._passwords.pop(0) if self._passwords else None
            answer = {"response": "ProvideCredentials", "username": "anyone", "password": typed}
            self._send(
                "Fetch.continueWithAuth",
                requestId=how["requestId"],
                authChallengeResponse=answer if typed else {"response": "CancelAuth"},
            )
        self._loaded |= what == "Page.loadEventFired"
        return dict(message)

    def open(self, path: Path | str) -> None:
        """Load a file, or what has a URL, to the end."""
        self._loaded = False
        self.do("Page.navigate", url=path if isinstance(path, str) else path.as_uri())
        while not self._loaded:
            self._read()

    def follow(self, script: str) -> None:
        """Run a script that leads to another page, and load that to the end."""
        self._loaded = False
        self.value(f"{script}; 0")
        while not self._loaded:
            self._read()

    def press_enter(self) -> None:
        """Press a key that leads to another page, and load that to the end."""
        self._loaded = False
        key = {"key": "Enter", "code": "Enter", "windowsVirtualKeyCode": 13}
        self.do("Input.dispatchKeyEvent", type="keyDown", text="\r", **key)
        while not self._loaded:
            self._read()

    def enter(self, *passwords: str) -> None:
        """Enter these in the dialogs that follow, and cancel later ones. Nobody can type without a window, so the
        protocol fills in the dialog; it appears, and remembers, as in a window."""
        self.challenges, self._passwords = [], [*passwords]
        self.do("Fetch.enable", handleAuthRequests=True)

    def show(self, width: int, *, dark: bool = False, paper: bool = False) -> None:
        """Make the page so wide, in CSS pixels, dark or light, or as it is printed."""
        self.do("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=width < 600)
        scheme = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        self.do("Emulation.setEmulatedMedia", media="print" if paper else "screen", features=scheme)

    def value(self, script: str) -> Any:
        """What an expression comes to on the page."""
        answer = self.do("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def picture(self) -> bytes:
        """The whole page as it looks, PNG."""
        taken = self.do("Page.captureScreenshot", captureBeyondViewport=True)
        return base64.b64decode(taken["data"])

    def printed(self) -> bytes:
        """The page on paper, PDF."""
        return base64.b64decode(self.do("Page.printToPDF", preferCSSPageSize=True)["data"])


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Chromium with an empty profile in a folder that it may make."""
    command = [chromium(), *FLAGS, f"--user-data-dir={profile}"]
    (theirs, to), (back, its) = os.pipe(), os.pipe()
    # Chromium reads descriptor 3 and writes 4.
    shell = ["bash", "-c", f'exec "$@" 3<&{theirs} 4>&{its}', "bash", *command]
    with open(profile.with_suffix(".log"), "wb") as log:
        child = subprocess.Popen(shell, pass_fds=(theirs, its), stdout=log, stderr=log, start_new_session=True)
    os.close(theirs)
    os.close(its)
    try:
        yield Browser(to, back)
    finally:
        os.close(to)  # at which it ends
        os.close(back)
        child.wait(timeout=30)


HARD_TO_READ = """
(() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[\\d.]+/g).slice(0, 3).map(x => x / 255)
      .map(x => x <= 0.04045 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (; element; element = element.parentElement) {
      const colour = getComputedStyle(element).backgroundColor;
      if (!/, 0\\)$/.test(colour)) return colour;
    }
    return 'rgb(255, 255, 255)';
  };
  return [...document.querySelectorAll('body *')]
    .filter(e => [...e.childNodes].some(n => n.nodeType === 3 && n.data.trim()) && e.getClientRects().length)
    .filter(e => {
      const [a, b] = [light(getComputedStyle(e).color), light(behind(e))].sort((x, y) => y - x);
      return (a + 0.05) / (b + 0.05) < 4.5;
    })
    .map(e => e.outerHTML.slice(0, 100));
})()
"""
"""A script that gives elements whose text has less contrast than WCAG 2 asks for (AA, 4.5)."""
