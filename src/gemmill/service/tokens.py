"""Tokens: who may do what. The file holds their digests, never themselves, and is read again when it changes.

A line is ``NAME SCOPES SHA256HEX [EXPIRES]``, with scopes separated by commas and the last as a date, ``2027-01-31``,
the end of which is meant in UTC. Lines that begin with ``#`` are comments. The name is the tenant that quotas are of.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import re
import secrets
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
"""What a token may allow. ``admin`` allows all."""
OPEN_SCOPES = frozenset({"read", "compile"})
"""What everybody may where there are no tokens."""
_MAX_BYTES = 1 << 20
_NAME = re.compile(r"[\w@-][\w.@-]{0,63}", re.ASCII)
_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks: a tenant and what it may do."""

    name: str
    scopes: Collection[str]


@dataclass(frozen=True, slots=True)
class Token:
    """One line of the file."""

    name: str
    scopes: frozenset[str]
    digest: bytes
    expires: date | None

    def line(self) -> str:
        """What stands in the file."""
        scopes = ",".join(scope for scope in SCOPES if scope in self.scopes)
        expires = f" {self.expires}" if self.expires else ""
        return f"{self.name} {scopes} {self.digest.hex()}{expires}"


def new_token(name: str, scopes: Collection[str], expires: date | None = None) -> tuple[str, Token]:
    """A new secret, which is shown once, and its line; SettingError where name or scopes cannot be."""
    secret = f"gemmill_{secrets.token_urlsafe(32)}"
    digest = hashlib.sha256(secret.encode()).hexdigest()
    words = name or "?", ",".join(scopes) or "?", digest, expires.isoformat() if expires else ""
    return secret, read_line(" ".join(words), "the token")


def read_line(line: str, place: str) -> Token:
    """The token of a line; SettingError names the place and what is wrong there."""
    words = line.split()
    if len(words) not in (3, 4):
        raise SettingError(f"{place}: {len(words)} words; a line is NAME SCOPES SHA256HEX [YYYY-MM-DD]")
    name, scopes, digest = words[0], words[1].split(","), words[2]
    if not _NAME.fullmatch(name):
        raise SettingError(
            f"{place}: the name {name!r:.80} must be of 1 to 64 letters, digits and . _ @ -, and begin with no point"
        )
    if unknown := [scope for scope in scopes if scope not in SCOPES]:
        raise SettingError(f"{place}: {unknown[0]!r:.80} is no scope; there are {one_of([*SCOPES])}")
    if not is_sha256(digest):
        raise SettingError(
            f"{place}: the digest of {name} is no SHA-256 in hex; `gemmill serve token new` makes a line"
        )
    expires = None
    if len(words) == 4:
        try:
            expires = date.fromisoformat(words[3])
        except ValueError:
            raise SettingError(f"{place}: {words[3]!r:.40} is no date such as 2027-01-31") from None
    return Token(name, frozenset(scopes), bytes.fromhex(digest), expires)


class Tokens:
    """The tokens of a file, or of none.

    A file that has become unreadable or wrong leaves the last that was sound in force, with an error in the log and
    :attr:`sound` false; SettingError or OSError where there is none at the start.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self.sound = True
        """Whether the file that is there is the one in force."""
        self._seen: tuple[int, ...] = ()
        self._tokens: list[Token] = []
        if path is not None:
            self._seen = _status(path)
            self._tokens = _read(path)

    def caller(self, authorization: str | None, today: date | None = None) -> Caller:
        """Who sends a header ``Authorization``; Refusal 401 where that is nobody."""
        if self._path is None:
            return Caller("anyone", OPEN_SCOPES)
        self._renew(self._path)
        if authorization is None:
            raise _unauthorised("no token was sent")
        digest = hashlib.sha256(_secret(authorization)).digest()
        # Each is compared, in constant time: how long it takes tells nothing of which is near.
        tokens = [token for token in self._tokens if hmac.compare_digest(token.digest, digest)]
        if not tokens:
            raise _unauthorised("the token is unknown, or was taken back")
        if tokens[0].expires is not None and (today or datetime.now(UTC).date()) > tokens[0].expires:
            raise _unauthorised(f"the token of {tokens[0].name} expired on {tokens[0].expires}")
        return Caller(tokens[0].name, tokens[0].scopes)

    def _renew(self, path: Path) -> None:
        try:
            if (status := _status(path)) != self._seen:
                self._seen = status
                self._tokens = _read(path)
                self.sound = True
        except (OSError, SettingError) as error:
            if self.sound:
                _log.error("tokens: %s; those read before stay in force", error)
            self.sound = False


def allowed(caller: Caller, scope: str) -> None:
    """Refuse, with 403, a caller whose token does not allow what it takes."""
    if scope not in caller.scopes and "admin" not in caller.scopes:
        has = ", ".join(sorted(caller.scopes))
        raise Refusal(
            403, "scope", f"{caller.name} may {has}; this takes the scope {scope}", "ask for a token that has it"
        )


def _unauthorised(why: str) -> Refusal:
    return Refusal(401, "token", why, "send Authorization: Bearer TOKEN; clients of gemmill take GEMMILL_REMOTE_TOKEN")


def _secret(authorization: str) -> bytes:
    """The token of a header: as it is, or as the password that a browser asks for."""
    scheme, _, rest = authorization.partition(" ")
    if scheme.lower() == "basic":
        with suppress(ValueError):
            return base64.b64decode(rest, validate=True).partition(b":")[2]
    return rest.strip().encode(errors="replace") if scheme.lower() == "bearer" else b""


def _status(path: Path) -> tuple[int, ...]:
    status = path.stat()
    return status.st_ino, status.st_size, status.st_mtime_ns


def _read(path: Path) -> list[Token]:
    tokens = [*_lines(path)]
    for attribute in ("name", "digest"):
        seen = [getattr(token, attribute) for token in tokens]
        if again := next((token for i, token in enumerate(tokens) if seen[i] in seen[:i]), None):
            raise SettingError(f"{path}: two lines have the {attribute} of {again.name}")
    return tokens


def _lines(path: Path) -> Iterator[Token]:
    try:
        text = read_regular(path, _MAX_BYTES).decode()
    except UnicodeDecodeError:
        raise SettingError(f"{path}: is no text in UTF-8") from None
    for number, line in enumerate(text.splitlines(), 1):
        if line.strip() and not line.lstrip().startswith("#"):
            yield read_line(line, f"{path}:{number}")
