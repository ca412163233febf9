"""Envelopes: bytes of a kind, and who signed them.

After DSSE (https://github.com/secure-systems-lab/dsse): the signature is of the bytes as they are and of their kind, so
nothing is parsed before it is checked, and what was signed as one thing is never read as another.
"""

from __future__ import annotations

import base64
import binascii
import json
from collections.abc import Iterable
from typing import Any, Final

from gemmill.library.errors import TrustError
from gemmill.library.input.strict_json import parse
from gemmill.runtime.storage.trust.keys import SigningKey, TrustedKeys

MAX_SEALED_BYTES: Final = 4 << 20
"""Most bytes of an envelope."""
_MAX_SIGNATURES = 8
"""Keys that sign at the same time while one takes the place of another; each costs who checks 0.2 ms."""
_WORST = ("bad_signature", "revoked", "unknown_key")
"""Of several signatures that do not count, what is said is of the first of these."""


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
        found, payload, signatures = _read(parse(data))
    except (KeyError, TypeError, ValueError) as error:  # a UnicodeDecodeError and a binascii.Error are the last
        raise TrustError(f"it is no signed envelope: {error!r:.200}", "malformed") from None
    if found != kind:
        raise TrustError(f"it is signed as {found!r:.80}, and must be {kind!r}", "wrong_kind")
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


def _read(content: Any) -> tuple[str, bytes, list[tuple[str, bytes]]]:
    """Kind, payload and signatures of an envelope; KeyError, TypeError or ValueError where it is none."""
    if type(content) is not dict or content.keys() != {"type", "payload", "signatures"}:
        raise ValueError("it must have type, payload and signatures, and nothing else")
    rows = content["signatures"]
    if type(content["type"]) is not str or type(rows) is not list or len(rows) > _MAX_SIGNATURES:
        raise ValueError(f"its type must be a text, its signatures a list of at most {_MAX_SIGNATURES}")
    signatures = []
    for row in rows:
        if type(row) is not dict or row.keys() != {"key", "signature"} or type(row["key"]) is not str:
            raise ValueError("a signature must have key, a text, and signature, and nothing else")
        signatures.append((row["key"], _bytes(row["signature"])))
    return content["type"], _bytes(content["payload"]), signatures


def _message(kind: str, payload: bytes) -> bytes:
    """What is signed: lengths stand first, so that no two pairs of kind and payload have the same."""
    name = kind.encode()
    return b"gemmill %d %s %d %s" % (len(name), name, len(payload), payload)


def _text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def _bytes(text: Any) -> bytes:
    """The inverse of :func:`_text`; ValueError for anything that it does not make."""
    if type(text) is not str:
        raise ValueError("payload and signature must be texts in base64")
    try:
        data = base64.b64decode(text, validate=True)
    except binascii.Error as error:
        raise ValueError(str(error)) from None
    if _text(data) != text:
        raise ValueError("the base64 is not as an encoder writes it")
    return data
