"""Access tokens and their scopes.

The tokens file stores SHA-256 digests, not tokens; the server reads it again when it changes. Each line is
``NAME SCOPES SHA256HEX [EXPIRES]``: scopes are separated by commas, and the expiry date (``2027-01-31``) is the last
valid day, in UTC. Lines that begin with ``#`` are comments. Quotas are accounted per name.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import re
import secrets
import stat
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path

from gemmill.library.errors import SettingError
from gemmill.library.files import is_sha256, read_regular
from gemmill.library.wording import one_of
from gemmill.service.refusal import Refusal

SCOPES = ("read", "compile", "source", "write", "admin")
"""All scopes. ``admin`` includes every other one."""
OPEN_SCOPES = frozenset({"read", "compile"})
"""Scopes of every caller of a server without a tokens file."""
_MAX_BYTES = 1 << 20
_NAME = re.compile(r"[\w@-][\w.@-]{0,63}", re.ASCII)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    """The sender of a request: the name of its token, and the scopes."""

    name: str
    scopes: Collection[str]


@dataclass(frozen=True, slots=True)
class Token:
    """One line of the tokens file."""

    name: str
    scopes: frozenset[str]
    digest: bytes
    expires: date | None

    def line(self) -> str:
        """The line as the file contains it."""
        scopes = ",".join(scope for scope in SCOPES if scope in self.scopes)
        expires = f" {self.expires}" if self.expires else ""
        return f"{self.name} {scopes} {self.digest.hex()}{expires}"


def new_token(name: str, scopes: Collection[str], expires: date | None = None) -> tuple[str, Token]:
    """Make a token; returns the secret, which is stored nowhere, and the line for the file.

    Raises:
        SettingError: the name or a scope is invalid.
    """
    secret = f"gemmill_{secrets.token_urlsafe(32)}"
    digest = hashlib.sha256(secret.encode()).hexdigest()
    words = name or "?", ",".join(scopes) or "?", digest, expires.isoformat() if expires else ""
    return secret, read_line(" ".join(words), "the token")


def read_line(line: str, place: str) -> Token:
    """Parse a line of the tokens file.

    Raises:
        SettingError: the line is invalid; the message begins with ``place``.
    """
    words = line.split()
    if len(words) not in (3, 4):
        raise SettingError(f"{place}: expected NAME SCOPES SHA256HEX [YYYY-MM-DD], found {len(words)} words")
    name, scopes, digest = words[0], words[1].split(","), words[2]
    if not _NAME.fullmatch(name):
        raise SettingError(
            f"{place}: invalid name {name!r:.80}; use 1 to 64 letters, digits and . _ @ -, not beginning with a period"
        )
    if unknown := [scope for scope in scopes if scope not in SCOPES]:
        raise SettingError(f"{place}: unknown scope {unknown[0]!r:.80}; expected {one_of([*SCOPES])}")
    if not is_sha256(digest):
        raise SettingError(
            f"{place}: the digest of {name} must be a SHA-256 in hex; `gemmill serve token new` makes a valid line"
        )
    expires = None
    if len(words) == 4:
        try:
            expires = date.fromisoformat(words[3])
        except ValueError:
            raise SettingError(f"{place}: invalid date {words[3]!r:.40}; expected a date such as 2027-01-31") from None
    return Token(name, frozenset(scopes), bytes.fromhex(digest), expires)


class Tokens:
    """The tokens of a file; without a file, every caller has :data:`OPEN_SCOPES`.

    If the file becomes invalid or unreadable, the tokens read before stay in force, an error is logged and
    :attr:`sound` becomes false.

    Raises:
        SettingError: the file is invalid at the start.
        OSError: the file cannot be read at the start.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.sound = True
        """Whether the tokens in force are those of the current file."""
        self._seen: tuple[int, ...] = ()
        self._tokens: list[Token] = []
        if path is not None:
            self._seen = _status(path)
            self._tokens = _read(path)

    def caller(self, authorization: str | None, today: date | None = None) -> Caller:
        """The caller that an ``Authorization`` header identifies; Refusal 401 without a valid token."""
        if self._path is None:
            return Caller("anyone", OPEN_SCOPES)
        self._renew(self._path)
        if authorization is None:
            raise _unauthorised("Missing token.")
        digest = hashlib.sha256(_secret(authorization)).digest()
        # Compares with every token in constant time, so that the time does not reveal a partial match.
        tokens = [token for token in self._tokens if hmac.compare_digest(token.digest, digest)]
        if not tokens:
            raise _unauthorised("Unknown or revoked token.")
        if tokens[0].expires is not None and (today or datetime.now(UTC).date()) > tokens[0].expires:
            raise _unauthorised(f"The token of {tokens[0].name} expired on {tokens[0].expires}.")
        return Caller(tokens[0].name, tokens[0].scopes)

    def _renew(self, path: Path) -> None:
        try:
            if (status := _status(path)) != self._seen:
                self._seen = status
                self._tokens = _read(path)
                self.sound = True
        except (OSError, SettingError) as error:
            if self.sound:
                _log.error("tokens: %s; the tokens read before stay in force", error)
            self.sound = False


def allowed(caller: Caller, scope: str) -> None:
    """Raise Refusal 403 if the caller does not have the scope."""
    if scope not in caller.scopes and "admin" not in caller.scopes:
        scopes = ", ".join(sorted(caller.scopes))
        raise Refusal(
            403, "scope", f"Missing scope: {scope}. {caller.name} has: {scopes}.", f"use a token with the scope {scope}"
        )


def _unauthorised(why: str) -> Refusal:
    return Refusal(401, "token", why, "send Authorization: Bearer TOKEN; with gemmill, set GEMMILL_REMOTE_TOKEN")


def _secret(authorization: str) -> bytes:
    """The token of the header: a bearer token, or the password of basic authentication, which browsers send."""
    scheme, _, credentials = authorization.partition(" ")
    if scheme.lower() == "basic":
        with suppress(ValueError):
            return base64.b64decode(credentials, validate=True).partition(b":")[2]
    return credentials.strip().encode(errors="replace") if scheme.lower() == "bearer" else b""


def _status(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read(path: Path) -> list[Token]:
    tokens = [*_lines(path)]
    for attribute in ("name", "digest"):
        values = [getattr(token, attribute) for token in tokens]
        if duplicate := next((token for i, token in enumerate(tokens) if values[i] in values[:i]), None):
            raise SettingError(f"{path}: two lines have the same {attribute}: {duplicate.name}; remove one")
    return tokens


def _lines(path: Path) -> Iterator[Token]:
    if (mode := stat.S_IMODE(path.stat().st_mode)) & stat.S_IWOTH:
        raise SettingError(f"{path}: anybody may add tokens to it (mode {mode:03o}); run chmod o-w {path}")
    try:
        text = read_regular(path, _MAX_BYTES).decode()
    except UnicodeDecodeError:
        raise SettingError(f"{path}: not valid UTF-8") from None
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield read_line(line, f"{path}:{number}")
