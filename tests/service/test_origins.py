"""Which hosts and which pages a request may come from."""

from __future__ import annotations

import re
import socket
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.test_cli import gemmill

from gemmill.service.application import ENDPOINTS
from gemmill.service.origins import host_names, refuse_foreign
from gemmill.service.refusal import Refusal
from gemmill.service.service_options import Options

NAMES = host_names(Options(state=Path(), host="0.0.0.0", allow_host=["Kernels.Example"]))


def refusal(*headers: tuple[str, str], method: str = "GET", version: str = "1.1") -> tuple[int, str]:
    """Status and code; 200 for a request that passes."""
    raw = [(name.lower().encode(), value.encode("latin-1")) for name, value in headers]
    try:
        refuse_foreign({"headers": raw, "method": method, "http_version": version}, NAMES)
    except Refusal as refused:
        return refused.status, refused.code
    return 200, ""


@pytest.mark.parametrize(
    ("host", "status"),
    [
        *((name, 200) for name in ("localhost", "LOCALHOST:8470", "localhost.:1", "kernels.example:443")),
        *((address, 200) for address in ("127.0.0.1", "10.1.2.3:8470", "[::1]:8470", "[fd00::1]", "0.0.0.0")),
        *((name, 421) for name in ("evil.test", "localhost.evil.test", "127.0.0.1.evil.test:8470", "x", "1.2.3.4.5")),
        *(
            (odd, 400)
            for odd in ("", ":80", "a:b", "a@localhost", "a b", "\xe9", "localhost:80:80", "[::1", "[localhost]", "a]")
        ),
    ],
)
def test_hosts(host: str, status: int) -> None:
    assert refusal(("Host", host))[0] == status


def test_a_machine_has_its_own_name_and_one_host() -> None:
    here = ("Host", socket.gethostname())
    assert refusal(here) == (200, "")
    assert refusal(here, here) == (400, "host")
    assert refusal() == (400, "host")
    assert refusal(version="1.0") == (200, ""), "load balancers probe so"


ODD = st.text(".:0189axA@ %-_/[]\xe9", max_size=12)


@given(ODD, st.sampled_from(["localhost", "kernels.example"]), ODD)
def test_a_name_with_anything_but_a_port_is_another_name(before: str, name: str, after: str) -> None:
    is_own = not before and re.fullmatch(r"\.*(:[0-9]*)?", after) is not None
    assert (refusal(("Host", before + name + after))[0] == 200) is is_own


LINK = {"Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.mark.parametrize(
    ("headers", "method", "is_allowed"),
    [
        ({}, "POST", True),
        ({"Sec-Fetch-Site": "same-origin"}, "POST", True),
        ({"Sec-Fetch-Site": "none"} | LINK, "GET", True),
        ({"Sec-Fetch-Site": "cross-site"} | LINK, "GET", True),
        ({"Sec-Fetch-Site": "cross-site"} | LINK, "POST", False),
        ({"Sec-Fetch-Site": "cross-site"} | LINK | {"Sec-Fetch-Dest": "iframe"}, "GET", False),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors"}, "GET", False),
        ({"Sec-Fetch-Site": "same-site"}, "GET", False),
        ({"Origin": "http://localhost:8470"}, "POST", True),
        ({"Origin": "https://localhost:8470"}, "POST", True),
        ({"Origin": "http://localhost:3000"}, "POST", False),
        ({"Origin": "null"}, "POST", False),
        ({"Origin": "http://localhost:3000", "Sec-Fetch-Site": "same-origin"}, "POST", True),
    ],
)
def test_pages(headers: dict[str, str], method: str, is_allowed: bool) -> None:
    expected = (200, "") if is_allowed else (403, "cross_site")
    assert refusal(("Host", "localhost:8470"), *headers.items(), method=method) == expected


def test_links_change_nothing() -> None:
    """Pages of other sites may link to what GET answers."""
    assert {endpoint.scope for endpoint in ENDPOINTS if "GET" in endpoint.methods} <= {"", "read"}


def test_names_are_written_alone() -> None:
    refused = gemmill("serve", "--allow-host", "https://kernels.example:8470")
    assert refused.exit_code == 2
    assert "is not a host name; write it without https:// and port" in refused.stderr
