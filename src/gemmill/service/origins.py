"""Refuse requests that web pages of other sites send through a browser.

A browser adds its user's credentials to the requests of any page, and reaches servers that the page's author does not.
Two checks keep such pages out:

- The ``Host`` header must be a name of this server. A site can make its own name resolve to this server's address, and
  then read the answers (DNS rebinding). No site can do so with an IP address, so these are always allowed.
- A page that sends a request must be a page of this server (``Sec-Fetch-Site``, else ``Origin``). Other pages may only
  link here, as with cookies of ``SameSite=Lax``. Programs send neither header.

Starlette's ``TrustedHostMiddleware`` refuses IP addresses, accepts two ``Host`` headers, and does not say how to
allow a name.
"""

from __future__ import annotations

import ipaddress
import re
import socket
from functools import lru_cache

from starlette.types import Scope

from gemmill.service.refusal import Refusal
from gemmill.service.service_options import HOST_NAME, ServeOptions

_HOST = re.compile(rf"(\[[0-9A-Fa-f:.]+\]|{HOST_NAME.pattern})(?::\d*)?")


def host_names(options: ServeOptions) -> frozenset[str]:
    """The names that a ``Host`` header may have: those of this machine, ``--host`` and ``--allow-host``."""
    names = "localhost", socket.gethostname(), options.host, *options.allow_host
    return frozenset(name.lower().rstrip(".") for name in names)


def refuse_foreign(scope: Scope, names: frozenset[str]) -> None:
    """Raise Refusal for a request to another host, or of a page of another site."""
    headers = dict(scope["headers"])
    hosts = [value for name, value in scope["headers"] if name == b"host"]
    if len(hosts) != 1 and (hosts or scope["http_version"] != "1.0"):
        raise Refusal(400, "host", f"The request has {len(hosts)} Host headers; it must have one.")
    if hosts and (name := _name(hosts[0])) is not None and name not in names:
        way_out = f"use its IP address, or start it with --allow-host {name}"
        raise Refusal(421, "host", f"This server is not called {name}; {way_out}.")
    if (site := headers.get(b"sec-fetch-site")) is not None:
        is_foreign = site not in (b"same-origin", b"none")
    else:
        is_foreign = b"origin" in headers and headers[b"origin"].partition(b"://")[2] != headers.get(b"host")
    if is_foreign and not _follows_a_link(scope["method"], headers):
        raise Refusal(403, "cross_site", "A page of another site sent this request.", "open a page of this server")


def _follows_a_link(method: str, headers: dict[bytes, bytes]) -> bool:
    """Whether a request opens a page in its own tab, and not in a frame."""
    is_page = headers.get(b"sec-fetch-mode"), headers.get(b"sec-fetch-dest")
    return method == "GET" and is_page == (b"navigate", b"document")


@lru_cache(1024)
def _name(host: bytes) -> str | None:
    """The name in a ``Host`` header, in lower case and without the port; None for an IP address."""
    if (match := _HOST.fullmatch(host.decode("latin-1"))) is None:
        raise Refusal(400, "host", f"Invalid Host header {host!r:.100}; expected a name or an IP address.")
    name = match[1].strip("[]").lower().rstrip(".")
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name
    return None
