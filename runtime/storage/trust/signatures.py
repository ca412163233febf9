"""Keys of Ed25519, and envelopes: bytes of a kind, and who signed them.

The package that computes signatures, cryptography, is imported by who signs or checks. Envelopes are after DSSE
(https://github.com/secure-systems-lab/dsse): the signature is of the bytes as they are and of their kind, so nothing is
parsed before it is checked, and what was signed as one thing is never read as another.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import os
import re
import stat
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final

from gemmill.library.errors import TrustError
from gemmill.library.files import open_regular, os_error_text
from gemmill.library.input.strict_json import parse, read_row
from gemmill.runtime.settings import Settings

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_PREFIX = "ed25519:"
_ID = re.compile(r"[0-9a-f]{16}")
_MAX_PRIVATE_BYTES = 4 << 10
_MAX_FILE_BYTES = 1 << 20
"""Most bytes of a file of public keys: ten thousand of them."""
_SMALL_ORDER = frozenset(
    bytes.fromhex(text)
    for text in (
        "00" * 32,
        "01" + "00" * 31,
        "26e8958fc2b227b045c3f489f2ef98f0d5dfac05d3c63339b13802886d53fc05",
        "c7176a703d4dd84fba3c0b760d10670f2a2053fa2c39ccc64ec7fd7792ac037a",
        "ec" + "ff" * 30 + "7f",
        "ed" + "ff" * 30 + "7f",
        "ee" + "ff" * 30 + "7f",
    )
)
"""Public keys, but for the sign bit, under which anybody can sign: points of order 8 or less."""


@dataclass(frozen=True)
class PublicKey:
    """A key that checks signatures.

    Args:
        raw: its 32 bytes.
    """

    raw: bytes

    def __str__(self) -> str:
        """As :meth:`read` takes it."""
        return _PREFIX + base64.b64encode(self.raw).decode()

    @cached_property
    def id(self) -> str:
        """What signatures and revocations name it by: the first 16 hex digits of the SHA-256 of its bytes."""
        return hashlib.sha256(self.raw).hexdigest()[:16]

    @classmethod
    def read(cls, text: str) -> PublicKey:
        """The key of ``ed25519:BASE64``.

        Raises:
            TrustError: it is none, or one under which anybody can sign.
        """
        raw = b""
        if text.startswith(_PREFIX):
            with suppress(binascii.Error, ValueError):
                raw = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
        if len(raw) != 32 or str(key := cls(raw)) != text:
            raise TrustError(
                f"{text!r:.100} is no public key; it must be ed25519:BASE64, of 32 bytes, as `gemmill key show` prints"
            )
        if raw[:31] + bytes([raw[31] & 0x7F]) in _SMALL_ORDER:
            raise TrustError(f"{text!r} is a public key under which anybody can sign; `gemmill key new` makes one")
        return key

    def verifies(self, signature: bytes, message: bytes) -> bool:
        """Whether its private key signed a message."""
        from cryptography.exceptions import InvalidSignature
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

        try:
            Ed25519PublicKey.from_public_bytes(self.raw).verify(signature, message)
        except InvalidSignature:
            return False
        return True


class SigningKey:
    """A private key. Made by :meth:`new` and :meth:`load`; nothing prints it."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = PublicKey(key.public_key().public_bytes_raw())
        """Its public key."""

    def __repr__(self) -> str:
        return f"<SigningKey {self.public.id}>"

    @classmethod
    def new(cls) -> SigningKey:
        """A new key."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path | str) -> SigningKey:
        """The key of a file: PKCS8 in PEM, without a password.

        Raises:
            TrustError: there is no such file, others may read it, or it holds something else.
        """
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        try:
            data, mode = _read_with_mode(path, _MAX_PRIVATE_BYTES)
        except OSError as error:
            raise TrustError(f"{os_error_text(error)}; `gemmill key new FILE` makes a key") from error
        if mode & stat.S_IRWXO:
            raise TrustError(f"{path}: others may read this private key (mode {mode:03o}); chmod 600 {path}")
        try:
            key = load_pem_private_key(data, password=None)
        except (TypeError, ValueError, UnsupportedAlgorithm):  # the first: it has a password
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise TrustError(
                f"{path}: no private key of Ed25519 in PEM without a password; `gemmill key new` makes one"
            )
        return cls(key)

    def save(self, path: Path | str) -> None:
        """Write it into a new file that nobody else may read.

        Raises:
            TrustError: the file is there already, or cannot be written.
        """
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        data = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                with os.fdopen(handle, "wb") as file:
                    os.fchmod(handle, 0o600)  # the umask may have taken more away
                    file.write(data)
                    file.flush()
                    os.fsync(handle)
            except BaseException:
                with suppress(OSError):
                    os.unlink(path)
                raise
        except FileExistsError:
            raise TrustError(f"{path} is there already, and a private key is not replaced: name another file") from None
        except OSError as error:
            raise TrustError(f"{path}: cannot be written: {error.strerror or error}") from error

    def sign(self, message: bytes) -> bytes:
        """Its signature, 64 bytes; equal messages have equal ones."""
        return self._key.sign(message)


@dataclass(frozen=True)
class TrustedKeys:
    """The keys whose signatures count: several, so that one can take the place of another."""

    keys: tuple[PublicKey, ...]
    revoked: frozenset[str] = frozenset()
    """Ids of keys whose signatures do not count any more, also of keys above."""

    @classmethod
    def read(cls, text: str) -> TrustedKeys:
        """The keys of ``GEMMILL_TRUSTED_KEYS``: separated by commas, keys and absolute paths of files of keys.

        A line of a file is a key, ``ed25519:BASE64`` and perhaps a comment; ``revoked ID``; or a comment after ``#``.

        Raises:
            TrustError: one is no key, a file cannot be read or may be written to by others, or no key is named.
        """
        found = cls(())
        for part in filter(None, map(str.strip, text.split(","))):
            if part.startswith((_PREFIX, "revoked ")):
                found = found._with(part)
            elif not os.path.isabs(part):
                raise TrustError(
                    f"{part!r:.100} is neither a key (ed25519:BASE64) nor the absolute path of a file of keys"
                )
            else:
                for number, line in enumerate(_lines(part), 1):
                    try:
                        found = found._with(line)
                    except TrustError as error:
                        raise TrustError(f"{part}:{number}: {error}") from None
        if not found.keys:
            raise TrustError(f"{text!r:.100} names no key, so nothing could be trusted")
        return found

    @classmethod
    def of_settings(cls) -> TrustedKeys | None:
        """The keys that the environment names; None where it names none, and local files go unchecked.

        Raises:
            TrustError: as for :meth:`read`.
        """
        text = Settings.read().trusted_keys
        try:
            return None if text is None else cls.read(text)
        except TrustError as error:
            raise TrustError(f"GEMMILL_TRUSTED_KEYS: {error}") from None

    def revoking(self, ids: frozenset[str]) -> TrustedKeys:
        """These keys, less those of some ids."""
        return TrustedKeys(self.keys, self.revoked | ids)

    def key(self, key_id: str) -> PublicKey:
        """The key of an id.

        Raises:
            TrustError: none of the keys has it, or it is revoked.
        """
        if key_id in self.revoked:
            raise TrustError(f"signed by the key {key_id}, which is revoked", "revoked")
        for key in self.keys:
            if key.id == key_id:
                return key
        ids = ", ".join(key.id for key in self.keys)
        raise TrustError(f"signed by the key {key_id!r:.40}, which is not trusted; trusted are {ids}", "unknown_key")

    def _with(self, line: str) -> TrustedKeys:
        """These and what a line says."""
        first, _, rest = line.partition("#")[0].strip().partition(" ")
        if not first:
            return self
        if first != "revoked":
            key = PublicKey.read(first)  # what follows is a comment
            return self if key in self.keys else TrustedKeys((*self.keys, key), self.revoked)
        if not is_id(key_id := rest.strip()):
            raise TrustError(f"revoked {key_id!r:.40}: the id of a key has 16 hex digits, as `gemmill key show` prints")
        return self.revoking(frozenset({key_id}))


def is_id(text: str) -> bool:
    """Whether a text is the id of a key."""
    return _ID.fullmatch(text) is not None


def _read_with_mode(path: Path | str, limit: int) -> tuple[bytes, int]:
    """What a file holds, and its permissions."""
    with open_regular(Path(path), limit) as file:
        return file.read(), stat.S_IMODE(os.fstat(file.fileno()).st_mode)


def _lines(path: str) -> list[str]:
    """The lines of a file of public keys."""
    try:
        data, mode = _read_with_mode(path, _MAX_FILE_BYTES)
    except OSError as error:
        raise TrustError(os_error_text(error)) from error
    if mode & stat.S_IWOTH:
        raise TrustError(f"{path}: anybody may add keys to it (mode {mode:03o}); chmod o-w {path}")
    try:
        return data.decode().splitlines()
    except UnicodeDecodeError:
        raise TrustError(f"{path}: no text in UTF-8") from None


MAX_SEALED_BYTES: Final = 4 << 20
"""Most bytes of an envelope."""
_MAX_SIGNATURES = 8
"""Keys that sign at the same time while one takes the place of another; each costs who checks 0.2 ms."""
_WORST = ("bad_signature", "revoked", "unknown_key")
"""Of several signatures that do not count, what is said is of the first of these."""


@dataclass(frozen=True, slots=True)
class _Signature:
    key: str
    signature: str


@dataclass(frozen=True, slots=True)
class _Envelope:
    type: str
    payload: str
    signatures: tuple[_Signature, ...]


def seal(kind: str, payload: bytes, keys: Iterable[SigningKey]) -> bytes:
    """An envelope: JSON that :func:`open_sealed` takes. Equal input gives equal bytes.

    Args:
        kind: what the payload is, and its version: ``gemmill.kernel/1``.
        payload: any bytes.
        keys: who signs; none leaves it unsigned.
    """
    message = _message(kind, payload)
    signatures = [{"key": key.public.id, "signature": _text(key.sign(message))} for key in keys]
    return json.dumps({"type": kind, "payload": _text(payload), "signatures": signatures}).encode()


def open_sealed(data: bytes, kind: str, trusted: TrustedKeys | None) -> bytes:
    """The payload of an envelope that a trusted key signed; one such signature is enough.

    Args:
        data: the envelope.
        kind: what it must hold.
        trusted: whose signatures count; with None it may be unsigned, and no signature is looked at.

    Raises:
        TrustError: it has too many bytes, is no envelope or one of another kind, is unsigned, or is signed by unknown
            or revoked keys alone, or by none that signed these bytes; ``reason`` says which.
    """
    if len(data) > MAX_SEALED_BYTES:
        raise TrustError(f"it has {len(data):,} bytes; at most {MAX_SEALED_BYTES:,} are read", "too_large")
    try:
        envelope = read_row("it", parse(data), _Envelope)
        if len(envelope.signatures) > _MAX_SIGNATURES:
            raise ValueError(f"it has {len(envelope.signatures):,} signatures; at most {_MAX_SIGNATURES} are looked at")
        payload = _bytes(envelope.payload)
        signatures = [(row.key, _bytes(row.signature)) for row in envelope.signatures]
    except ValueError as error:  # a UnicodeDecodeError and a binascii.Error are such
        raise TrustError(f"it is no signed envelope: {error!r:.200}", "malformed") from None
    if envelope.type != kind:
        raise TrustError(f"it is signed as {envelope.type!r:.80}, and must be {kind!r}", "wrong_kind")
    if trusted is not None:
        _check(_message(kind, payload), signatures, trusted)
    return payload


def _check(message: bytes, signatures: list[tuple[str, bytes]], trusted: TrustedKeys) -> None:
    """TrustError where no signature counts."""
    refused: list[TrustError] = []
    for key_id, signature in signatures:
        try:
            if trusted.key(key_id).verifies(signature, message):
                return
            refused.append(TrustError(f"the key {key_id} signed something else", "bad_signature"))
        except TrustError as error:
            refused.append(error)
    if not refused:
        raise TrustError("it is unsigned", "unsigned")
    raise min(refused, key=lambda error: _WORST.index(error.reason))


def _message(kind: str, payload: bytes) -> bytes:
    """What is signed: lengths stand first, so that no two pairs of kind and payload have the same."""
    name = kind.encode()
    return b"gemmill %d %s %d %s" % (len(name), name, len(payload), payload)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    """The inverse of :func:`_text`; ValueError for anything that it does not make."""
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if _text(data) != text:
        raise ValueError("the base64 is not as an encoder writes it")
    return data
