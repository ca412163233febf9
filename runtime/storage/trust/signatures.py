"""Ed25519 keys, and envelopes: typed bytes with signatures.

Only code that signs or checks imports cryptography, the package that computes signatures. Envelopes follow DSSE
(https://github.com/secure-systems-lab/dsse): the signature covers the raw bytes and their type. So nothing is parsed
before it is checked, and bytes that were signed as one type are never read as another.
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
from gemmill.library.file_kinds import wrong_kind
from gemmill.library.files import open_regular, os_error_text
from gemmill.library.input.strict_json import parse, read_row
from gemmill.runtime.settings import Settings

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

_PREFIX = "ed25519:"
_ID = re.compile(r"[0-9a-f]{16}")
_MAX_PRIVATE_BYTES = 4 << 10
_MAX_FILE_BYTES = 1 << 20
"""Largest file of public keys, in bytes: ten thousand keys."""
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
"""Public keys, ignoring the sign bit, for which anybody can make signatures: points of order 8 or less."""


@dataclass(frozen=True)
class PublicKey:
    """A key that checks signatures.

    Args:
        raw: its 32 bytes.
    """

    raw: bytes

    def __str__(self) -> str:
        """Return the key in the form that :meth:`read` takes."""
        return _PREFIX + base64.b64encode(self.raw).decode()

    @cached_property
    def id(self) -> str:
        """The name of the key in signatures and revocations: the first 16 hex digits of the SHA-256 of its bytes."""
        return hashlib.sha256(self.raw).hexdigest()[:16]

    @classmethod
    def read(cls, text: str) -> PublicKey:
        """Parse a key of the form ``ed25519:BASE64``.

        Raises:
            TrustError: it is not a key, or one for which anybody can make signatures.
        """
        raw = b""
        if text.startswith(_PREFIX):
            with suppress(binascii.Error, ValueError):
                raw = base64.b64decode(text.removeprefix(_PREFIX), validate=True)
        if len(raw) != 32 or str(key := cls(raw)) != text:
            raise TrustError(
                f"{text!r:.100} is not a public key; expected ed25519:BASE64 with 32 bytes, as `gemmill key show` "
                "prints"
            )
        if raw[:31] + bytes([raw[31] & 0x7F]) in _SMALL_ORDER:
            raise TrustError(
                f"{text!r} is a public key for which anybody can make signatures; create a key with `gemmill key new`"
            )
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
    """A private key, from :meth:`new` or :meth:`load`; it is never printed."""

    def __init__(self, key: Ed25519PrivateKey) -> None:
        self._key = key
        self.public = PublicKey(key.public_key().public_bytes_raw())
        """Its public key."""

    def __repr__(self) -> str:
        return f"<SigningKey {self.public.id}>"

    @classmethod
    def new(cls) -> SigningKey:
        """Return a new key."""
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

        return cls(Ed25519PrivateKey.generate())

    @classmethod
    def load(cls, path: Path | str) -> SigningKey:
        """Load a key from a file: PKCS8 in PEM, without a password.

        Raises:
            TrustError: the file does not exist, others may read it, or it is not such a key.
        """
        from cryptography.exceptions import UnsupportedAlgorithm
        from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key

        if says := wrong_kind(Path(path), "private key"):
            raise TrustError(f"{path} {says}")
        try:
            data, mode = _read_with_mode(path, _MAX_PRIVATE_BYTES)
        except OSError as error:
            raise TrustError(f"{os_error_text(error)}; create a key with `gemmill key new FILE`") from error
        if mode & stat.S_IRWXO:
            raise TrustError(f"{path}: others may read this private key (mode {mode:03o}); run chmod 600 {path}")
        try:
            key = load_pem_private_key(data, password=None)
        except (TypeError, ValueError, UnsupportedAlgorithm):  # TypeError: it has a password
            key = None
        if not isinstance(key, Ed25519PrivateKey):
            raise TrustError(
                f"{path}: not an Ed25519 private key in PEM without a password; create one with `gemmill key new`"
            )
        return cls(key)

    def save(self, path: Path | str) -> None:
        """Write the key to a new file that nobody else may read.

        Raises:
            TrustError: the file exists already, or cannot be written.
        """
        from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

        data = self._key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        try:
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
            try:
                with os.fdopen(handle, "wb") as file:
                    os.fchmod(handle, 0o600)  # the umask may have removed more
                    file.write(data)
                    file.flush()
                    os.fsync(handle)
            except BaseException:
                with suppress(OSError):
                    os.unlink(path)
                raise
        except FileExistsError:
            raise TrustError(
                f"{path} exists already, and private keys are not replaced: use another file name"
            ) from None
        except OSError as error:
            raise TrustError(f"{path}: cannot be written: {error.strerror or error}") from error

    def sign(self, message: bytes) -> bytes:
        """Return the signature of a message, 64 bytes; equal messages have equal signatures."""
        return self._key.sign(message)


@dataclass(frozen=True)
class TrustedKeys:
    """The keys whose signatures count; several allow replacing one by another."""

    keys: tuple[PublicKey, ...]
    revoked: frozenset[str] = frozenset()
    """Ids of keys whose signatures no longer count, including keys above."""

    @classmethod
    def read(cls, text: str) -> TrustedKeys:
        """Parse the keys of ``GEMMILL_TRUSTED_KEYS``: keys and absolute paths of files of keys, separated by commas.

        A line of a file is a key, ``ed25519:BASE64`` with an optional comment; ``revoked ID``; or a comment after
        ``#``.

        Raises:
            TrustError: a key is invalid, a file cannot be read or others may write to it, or there is no key.
        """
        keys = cls(())
        for part in filter(None, map(str.strip, text.split(","))):
            if part.startswith((_PREFIX, "revoked ")):
                keys = keys._with_line(part)
            elif not os.path.isabs(part):
                raise TrustError(
                    f"{part!r:.100} is neither a key (ed25519:BASE64) nor an absolute path of a file of keys"
                )
            else:
                for number, line in enumerate(_lines(part), 1):
                    try:
                        keys = keys._with_line(line)
                    except TrustError as error:
                        raise TrustError(f"{part}:{number}: {error}") from None
        if not keys.keys:
            raise TrustError(f"{text!r:.100} has no key: add at least one public key")
        return keys

    @classmethod
    def of_settings(cls) -> TrustedKeys | None:
        """Return the keys in the environment; None where it sets none, so that local files are not checked.

        Raises:
            TrustError: as for :meth:`read`.
        """
        text = Settings.read().trusted_keys
        try:
            return None if text is None else cls.read(text)
        except TrustError as error:
            raise TrustError(f"GEMMILL_TRUSTED_KEYS: {error}") from None

    def revoking(self, ids: frozenset[str]) -> TrustedKeys:
        """Return these keys without those with some ids."""
        return TrustedKeys(self.keys, self.revoked | ids)

    def key(self, key_id: str) -> PublicKey:
        """Return the key with an id.

        Raises:
            TrustError: none of the keys has it, or it is revoked.
        """
        if key_id in self.revoked:
            raise TrustError(f"signed by the key {key_id}, which is revoked", "revoked")
        for key in self.keys:
            if key.id == key_id:
                return key
        ids = ", ".join(key.id for key in self.keys)
        raise TrustError(
            f"signed by the key {key_id!r:.40}, which is not trusted; trusted keys are {ids}", "unknown_key"
        )

    def _with_line(self, line: str) -> TrustedKeys:
        """Return these keys with the content of a line."""
        first, _, rest = line.partition("#")[0].strip().partition(" ")
        if not first:
            return self
        if first != "revoked":
            key = PublicKey.read(first)  # the rest is a comment
            return self if key in self.keys else TrustedKeys((*self.keys, key), self.revoked)
        if not is_id(key_id := rest.strip()):
            raise TrustError(
                f"revoked {key_id!r:.40}: expected the id of a key, 16 hex digits as `gemmill key show` prints"
            )
        return self.revoking(frozenset({key_id}))


def is_id(text: str) -> bool:
    """Whether a text is the id of a key."""
    return _ID.fullmatch(text) is not None


def _read_with_mode(path: Path | str, limit: int) -> tuple[bytes, int]:
    """Return the content of a file, and its permissions."""
    with open_regular(Path(path), limit) as file:
        return file.read(), stat.S_IMODE(os.fstat(file.fileno()).st_mode)


def _lines(path: str) -> list[str]:
    """Return the lines of a file of public keys."""
    try:
        data, mode = _read_with_mode(path, _MAX_FILE_BYTES)
    except OSError as error:
        raise TrustError(os_error_text(error)) from error
    if mode & stat.S_IWOTH:
        raise TrustError(f"{path}: anybody may add keys to it (mode {mode:03o}); run chmod o-w {path}")
    try:
        return data.decode().splitlines()
    except UnicodeDecodeError:
        raise TrustError(f"{path}: not a UTF-8 text") from None


MAX_SEALED_BYTES: Final = 4 << 20
"""Largest envelope, in bytes."""
_MAX_SIGNATURES = 8
"""Most signatures, for replacing keys; checking one takes 0.2 ms."""
_WORST = ("bad_signature", "revoked", "unknown_key")
"""Where no signature counts, the error has the first of these reasons."""


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
    """Return an envelope: JSON that :func:`open_sealed` takes. Equal inputs give equal bytes.

    Args:
        kind: type and version of the payload, such as ``gemmill.kernel/1``.
        payload: any bytes.
        keys: keys that sign it; none leaves it unsigned.
    """
    message = _message(kind, payload)
    signatures = [{"key": key.public.id, "signature": _text(key.sign(message))} for key in keys]
    return json.dumps({"type": kind, "payload": _text(payload), "signatures": signatures}).encode()


def open_sealed(data: bytes, kind: str, trusted: TrustedKeys | None) -> bytes:
    """Return the payload of an envelope that a trusted key signed; one such signature is enough.

    Args:
        data: the envelope.
        kind: the expected type.
        trusted: the keys whose signatures count; None checks no signature.

    Raises:
        TrustError: it is too large, not an envelope, of another type, unsigned, or signed only by unknown or revoked
            keys or for other bytes; see ``reason``.
    """
    if len(data) > MAX_SEALED_BYTES:
        raise TrustError(f"it has {len(data):,} bytes; the limit is {MAX_SEALED_BYTES:,}", "too_large")
    try:
        envelope = read_row("it", parse(data), _Envelope)
        if len(envelope.signatures) > _MAX_SIGNATURES:
            raise ValueError(f"it has {len(envelope.signatures):,} signatures; the limit is {_MAX_SIGNATURES}")
        payload = _bytes(envelope.payload)
        signatures = [(row.key, _bytes(row.signature)) for row in envelope.signatures]
    except ValueError as error:  # includes UnicodeDecodeError and binascii.Error
        raise TrustError(f"it is not a signed envelope: {error!r:.200}", "malformed") from None
    if envelope.type != kind:
        raise TrustError(f"it is signed as {envelope.type!r:.80}; it must be {kind!r}", "wrong_kind")
    if trusted is not None:
        _check(_message(kind, payload), signatures, trusted)
    return payload


def _check(message: bytes, signatures: list[tuple[str, bytes]], trusted: TrustedKeys) -> None:
    """Raise TrustError where no signature counts."""
    refused: list[TrustError] = []
    for key_id, signature in signatures:
        try:
            if trusted.key(key_id).verifies(signature, message):
                return
            refused.append(
                TrustError(f"the signature by the key {key_id} is not valid for this content", "bad_signature")
            )
        except TrustError as error:
            refused.append(error)
    if not refused:
        raise TrustError("it is unsigned", "unsigned")
    raise min(refused, key=lambda error: _WORST.index(error.reason))


def _message(kind: str, payload: bytes) -> bytes:
    """Return the signed message. Lengths come first, so that no two pairs of type and payload give the same message."""
    name = kind.encode()
    return b"gemmill %d %s %d %s" % (len(name), name, len(payload), payload)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: str) -> bytes:
    """Return the inverse of :func:`_text`; ValueError for anything that it does not make."""
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if _text(data) != text:
        raise ValueError("the base64 is not in canonical form")
    return data
