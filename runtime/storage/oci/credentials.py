"""Credentials for a registry: those of ``GEMMILL_OCI_TOKEN`` if it names its host, else those of `docker login`."""

from __future__ import annotations

import base64
import os
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

from gemmill.library.errors import SettingError
from gemmill.library.files import read_given
from gemmill.library.input.strict_json import parse, typed
from gemmill.runtime.settings import Settings, checked_oci_token
from gemmill.runtime.storage.remote.misses import Miss

_MAX_BYTES = 1 << 20
"""Largest configuration, token and answer of a helper, in bytes."""
_HELPER_SECONDS = 30
_NAMES = {"registry-1.docker.io": ("https://index.docker.io/v1/", "docker.io")}
"""Names of a host in Docker's configuration, where they differ from the host."""


class Credentials(NamedTuple):
    """What a client shows to a registry."""

    user: str
    """Name of the user; empty where the secret is a bearer token."""
    secret: str

    @property
    def basic(self) -> str:
        """The header of basic authentication."""
        return f"Basic {base64.b64encode(f'{self.user}:{self.secret}'.encode()).decode()}"


def credentials_for(host: str) -> Credentials | None:
    """Return the credentials for a registry; None where there are none.

    Raises:
        Miss: they cannot be read.
    """
    token = Settings.read().oci_token
    if token is None or token.host not in (host, *_NAMES.get(host, ())):
        return _of_docker(host)
    secret = token.secret
    if isinstance(secret, Path):
        try:
            secret = checked_oci_token(str(secret), read_given(secret, _MAX_BYTES).decode().strip())
        except (OSError, SettingError, UnicodeDecodeError) as error:
            raise Miss("token", f"the token of GEMMILL_OCI_TOKEN cannot be read: {error}") from None
    user, secret = secret.split(":", 1) if ":" in secret else ("", secret)
    return Credentials(user, secret)


def _of_docker(host: str) -> Credentials | None:
    """Return the credentials in Docker's configuration."""
    try:
        path = Path(os.environ.get("DOCKER_CONFIG") or "~/.docker").expanduser() / "config.json"
    except RuntimeError:  # a user without a home
        return None
    try:
        config = parse(read_given(path, _MAX_BYTES))
        logins, helpers = config.get("auths") or {}, config.get("credHelpers") or {}
        for name in (host, f"https://{host}", *_NAMES.get(host, ())):
            login = logins.get(name) or {}
            if login.get("identitytoken"):
                raise _identity_token(str(path), name)
            if login.get("auth"):
                user, _, secret = base64.b64decode(login["auth"], validate=True).decode().partition(":")
                return Credentials(user, secret)
            if helper := helpers.get(name) or (name in logins and config.get("credsStore")):
                return _of_helper(str(helper), name)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except (AttributeError, KeyError, OSError, TypeError, ValueError) as error:
        raise Miss("token", f"{path} cannot be used: {type(error).__name__}: {error}") from None
    return None


def _of_helper(helper: str, name: str) -> Credentials | None:
    """Return the credentials that Docker's helper program has for a registry."""
    program = f"docker-credential-{helper}"
    try:
        done = subprocess.run(
            [program, "get"], input=name.encode(), capture_output=True, timeout=_HELPER_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise Miss("token", f"{program} of Docker's configuration does not run: {error}") from None
    if done.returncode:
        return None  # it has none
    answer: Any = parse(done.stdout[:_MAX_BYTES])
    if answer["Username"] == "<token>":
        raise _identity_token(program, name)
    return Credentials(typed(answer["Username"], (str,), "Username"), answer["Secret"])


def _identity_token(place: str, name: str) -> Miss:
    says = "which gemmill does not exchange: set GEMMILL_OCI_TOKEN to HOST=USER:PASSWORD or HOST=TOKEN"
    return Miss("token", f"{place} has an identity token for {name}, {says}")
