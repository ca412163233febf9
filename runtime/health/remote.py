"""The remote, if the environment names one: whether it answers, and whether what it sends would be believed."""

from __future__ import annotations

import time
from collections.abc import Iterator

from gemmill.library.errors import SettingError
from gemmill.runtime.health.finding import Finding
from gemmill.runtime.settings import Settings

_ADVICE = {
    "no keys": "set GEMMILL_TRUSTED_KEYS to the server's public key, as `gemmill key show` prints it",
    "unauthorised": "set GEMMILL_REMOTE_TOKEN to a token that may read",
    "token": "GEMMILL_REMOTE_TOKEN=@FILE names a file that holds a token",
    "unreachable": "start the server, or set GEMMILL_REMOTE to where it is",
    "tls": "SSL_CERT_FILE names the authorities that are trusted, GEMMILL_REMOTE_CERT the certificate to show",
}
"""What to do, by the reason of a miss."""


def remote() -> Iterator[Finding]:
    """One line; none where no remote is named."""
    try:
        if Settings.read().url_of(None) is None:
            return
        from gemmill.runtime.storage.remote.client import Remote

        found = Remote.of_settings()
    except SettingError as error:
        yield Finding("remote", "wrong", "its settings mean nothing", str(error))
        return
    assert found is not None
    start = time.monotonic()
    miss = found.probe()
    detail = f"{found.url}, mode {found.mode}, at most {found.deadline:g} s a kernel"
    if miss is None:
        yield Finding("remote", "ok", f"{detail}; it answers in {1000 * (time.monotonic() - start):.0f} ms")
    else:
        where = "" if found.mode == "only" else "; kernels are compiled here instead"
        yield Finding("remote", "wrong", f"{detail}: {miss.says}{where}", _ADVICE.get(miss.reason, "see the server"))
