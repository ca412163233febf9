"""Envelopes: what a trusted key signed comes out, all else is refused by its reason."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gemmill.library.errors import TrustError
from gemmill.runtime.storage.trust.signatures import MAX_SEALED_BYTES, SigningKey, TrustedKeys, open_sealed, seal

KIND = "gemmill.kernel/1"
OLD, NEW, FOREIGN = SigningKey.new(), SigningKey.new(), SigningKey.new()
TRUSTED = TrustedKeys((OLD.public, NEW.public))


def reason(data: bytes, trusted: TrustedKeys | None = TRUSTED, kind: str = KIND) -> str:
    with pytest.raises(TrustError) as refused:
        open_sealed(data, kind, trusted)
    return refused.value.reason


def changed(data: bytes, **fields: Any) -> bytes:
    return json.dumps(json.loads(data) | fields).encode()


@given(st.binary())
def test_what_is_sealed_is_opened(payload: bytes) -> None:
    data = seal(KIND, payload, [OLD])
    assert data == seal(KIND, payload, [OLD])
    assert open_sealed(data, KIND, TRUSTED) == payload
    assert open_sealed(data, KIND, None) == payload
    assert open_sealed(seal(KIND, payload, []), KIND, None) == payload


def test_one_trusted_signature_is_enough_while_keys_rotate() -> None:
    for keys in ([OLD, NEW], [NEW, OLD], [FOREIGN, NEW], [NEW]):
        assert open_sealed(seal(KIND, b"x", keys), KIND, TRUSTED) == b"x"
    without_old = TRUSTED.revoking(frozenset({OLD.public.id}))
    assert open_sealed(seal(KIND, b"x", [OLD, NEW]), KIND, without_old) == b"x"


def test_each_refusal_has_its_reason() -> None:
    data = seal(KIND, b"digest", [OLD])
    assert reason(seal(KIND, b"digest", [])) == "unsigned"
    assert reason(seal(KIND, b"digest", [FOREIGN])) == "unknown_key"
    assert reason(data, TRUSTED.revoking(frozenset({OLD.public.id}))) == "revoked"
    assert reason(changed(data, payload=base64.b64encode(b"digets").decode())) == "bad_signature"
    assert reason(data, kind="gemmill.pack/1") == "wrong_kind"
    assert reason(changed(data, type="gemmill.pack/1"), kind="gemmill.pack/1") == "bad_signature"
    assert reason(b" " * (MAX_SEALED_BYTES + 1)) == "too_large"
    assert reason(data[:-1]) == "malformed"


def test_a_signature_of_another_key_under_a_trusted_id_is_bad() -> None:
    forged = json.loads(seal(KIND, b"x", [FOREIGN]))
    forged["signatures"][0]["key"] = OLD.public.id
    assert reason(json.dumps(forged).encode()) == "bad_signature"


def test_kind_and_payload_cannot_trade_bytes() -> None:
    """What one kind and payload are signed as is no other pair's message."""
    moved = json.loads(seal("gemmill.a 1 b", b"", [OLD])) | {
        "type": "gemmill.a",
        "payload": base64.b64encode(b"b").decode(),
    }
    assert reason(json.dumps(moved).encode(), kind="gemmill.a") == "bad_signature"


@pytest.mark.parametrize(
    "fields",
    [
        {"signatures": None},
        {"signatures": [{}]},
        {"signatures": [{"key": 1, "signature": ""}]},
        {"signatures": [{"key": "a", "signature": "", "more": 1}]},
        {"signatures": [{"key": "a", "signature": ""}] * 9},
        {"payload": "eA"},
        {"payload": "eB=="},
        {"payload": "e A="},
        {"payload": "\ud800"},
        {"payload": 1},
        {"type": None},
        {"more": 1},
    ],
)
def test_other_forms_are_malformed_also_where_signatures_do_not_count(fields: dict[str, Any]) -> None:
    data = changed(seal(KIND, b"x", [OLD]), **fields)
    assert reason(data) == reason(data, None) == "malformed"


def test_no_byte_can_be_flipped() -> None:
    """But in the names of keys and in signatures beside a good one, nothing means the same after a change."""
    data = seal(KIND, b"digest", [OLD])
    for place in range(len(data)):
        for bit in (1, 4, 32):
            mutated = bytearray(data)
            mutated[place] ^= bit
            with pytest.raises(TrustError):
                open_sealed(bytes(mutated), KIND, TRUSTED)


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
envelopes = st.fixed_dictionaries(
    {
        "type": st.just(KIND) | json_values,
        "payload": st.binary(max_size=9).map(lambda raw: base64.b64encode(raw).decode()) | json_values,
        "signatures": json_values
        | st.lists(
            st.fixed_dictionaries(
                {
                    "key": st.just(OLD.public.id) | json_values,
                    "signature": st.binary(max_size=70).map(lambda raw: base64.b64encode(raw).decode()) | json_values,
                }
            ),
            max_size=3,
        ),
    }
)


@given(st.binary() | (envelopes | json_values).map(lambda value: json.dumps(value).encode()))
@example(b"[" * 100_000)
@example(b"9" * 10_000)
def test_nothing_that_was_not_signed_is_opened(data: bytes) -> None:
    with pytest.raises(TrustError):
        open_sealed(data, KIND, TRUSTED)
