"""The index of packs: neither an old one, nor an expired one, nor what a revoked key signed comes back."""

from __future__ import annotations

import json
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmill.library.errors import StoreWarning, TrustError
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.pack import Pack, write_pack
from gemmill.runtime.storage.store import Store
from gemmill.runtime.storage.trust.signatures import SigningKey, TrustedKeys, open_sealed, seal
from gemmill.runtime.storage.trust.signed_packs import INDEX, NewestIndex, PackIndex, sign_pack

NOW = datetime(2026, 11, 27, 15, tzinfo=UTC)
DAY, YEAR = timedelta(days=1), timedelta(days=365)
MONTH = 30 * DAY
UNSEEN = NewestIndex()


@pytest.fixture
def pack(path: Path, trusted: TrustedKeys) -> Pack:
    return Pack.open(path, trusted=trusted)


def index(pack: Pack, version: int = 7, **fields: Any) -> PackIndex:
    return PackIndex.of([pack], MONTH, **{"version": version, "now": NOW, **fields})


def reason(data: bytes, trusted: TrustedKeys, seen: NewestIndex = UNSEEN, now: datetime = NOW) -> str:
    with pytest.raises(TrustError) as refused:
        PackIndex.open(data, trusted, seen, now)
    return refused.value.reason


def test_an_index_lists_packs(pack: Pack, key: SigningKey, trusted: TrustedKeys) -> None:
    made = index(pack)
    assert (made.issued, made.expires) == ("2026-11-27T15:00:00Z", "2026-12-27T15:00:00Z")
    assert PackIndex.open(made.seal([key]), trusted, now=NOW) == made
    assert made.packs[0].digest == pack.digest
    made.check(pack, trusted)
    assert PackIndex.of([pack], MONTH, now=NOW).version == NOW.timestamp()
    assert PackIndex.of([pack], MONTH).version > PackIndex.of([pack], MONTH, now=NOW - DAY).version


def test_an_index_signed_otherwise_is_refused(
    pack: Pack, key: SigningKey, foreign: SigningKey, trusted: TrustedKeys
) -> None:
    data = index(pack).seal([key])
    assert reason(index(pack).seal([]), trusted) == "unsigned"
    assert reason(index(pack).seal([foreign]), trusted) == "unknown_key"
    assert reason(data, trusted.revoking(frozenset({key.public.id}))) == "revoked"
    tampered = json.loads(data) | {"payload": json.loads(index(pack, 8).seal([key]))["payload"]}
    assert reason(json.dumps(tampered).encode(), trusted) == "bad_signature"
    assert reason(seal("gemmill.pack/1", b"{}", [key]), trusted) == "wrong_kind"


def test_an_older_index_is_refused_by_who_saw_a_newer_one(
    pack: Pack, key: SigningKey, trusted: TrustedKeys, tmp_path: Path
) -> None:
    old, new = index(pack, 7).seal([key]), index(pack, 8).seal([key])
    assert reason(old, trusted, NewestIndex(8)) == "replayed"
    store = Store(tmp_path / "store")
    for data in (old, old, new, new):
        PackIndex.accept(data, trusted, store, NOW)
    for again in (store, Store(store.path)):  # as another process would see it
        with pytest.raises(
            TrustError, match=r"version 7 of .* 'default' is older than version 8, which was accepted before"
        ):
            PackIndex.accept(old, trusted, again, NOW)
    other = index(pack, 1, name="nightly").seal([key])
    assert PackIndex.accept(other, trusted, store, NOW).version == 1, "versions of one name are compared"
    with pytest.warns(StoreWarning, match="nothing is written to the store"):
        PackIndex.accept(old, trusted, Store("/proc/nowhere"), NOW)


def test_what_is_refused_is_not_remembered(
    pack: Pack, key: SigningKey, foreign: SigningKey, trusted: TrustedKeys, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")
    for data, now in ((index(pack, 99).seal([foreign]), NOW), (index(pack, 99).seal([key]), NOW + YEAR)):
        with pytest.raises(TrustError):
            PackIndex.accept(data, trusted, store, now)
    assert not store.path.exists()


def test_a_version_that_a_stolen_key_signed_goes_with_the_key(
    pack: Pack, key: SigningKey, foreign: SigningKey, trusted: TrustedKeys, tmp_path: Path
) -> None:
    store, both = Store(tmp_path / "store"), TrustedKeys((key.public, foreign.public))
    PackIndex.accept(index(pack, 1 << 62).seal([foreign]), both, store, NOW)
    ours = index(pack, 8).seal([key])
    with pytest.raises(TrustError, match="is older than version 4611686018427387904"):
        PackIndex.accept(ours, both, store, NOW)
    assert PackIndex.accept(ours, both.revoking(frozenset({foreign.public.id})), store, NOW).version == 8


def test_a_clock_a_year_off_is_refused(pack: Pack, key: SigningKey, trusted: TrustedKeys) -> None:
    data = index(pack).seal([key])
    for wrong, says in (
        (NOW + YEAR, "expired at 2026-12-27T15:00:00Z; this machine's clock is at 2027-11-27T15:00:00Z"),
        (NOW - YEAR, "was issued at 2026-11-27T15:00:00Z, but this machine's clock is at 2025-11-27T15:00:00Z"),
    ):
        with pytest.raises(TrustError, match=says) as refused:
            PackIndex.open(data, trusted, now=wrong)
        assert refused.value.reason == "expired"
    for right in (NOW - timedelta(hours=23), NOW + MONTH - timedelta(seconds=1)):
        PackIndex.open(data, trusted, now=right)


def test_a_clock_that_goes_back_makes_no_expired_index_count_again(
    pack: Pack, key: SigningKey, trusted: TrustedKeys, tmp_path: Path
) -> None:
    store = Store(tmp_path / "store")
    PackIndex.accept(index(pack, 7, now=NOW + YEAR).seal([key]), trusted, store, NOW + YEAR)
    with pytest.raises(TrustError, match="expired"):
        PackIndex.accept(index(pack, 9).seal([key]), trusted, store, NOW)


def test_a_key_that_the_index_revokes_signs_nothing_more(
    pack: Pack, path: Path, key: SigningKey, foreign: SigningKey
) -> None:
    both = TrustedKeys((key.public, foreign.public))
    revoking = index(pack, revoked=[key.public.id])
    assert reason(revoking.seal([key]), both) == "revoked"
    taken = PackIndex.open(revoking.seal([foreign]), both, now=NOW)
    with pytest.raises(TrustError, match=f"kernels.pack.sig: signed by the key {key.public.id}, which is revoked"):
        taken.check(pack, both)
    sign_pack(path, [key, foreign])
    taken.check(pack, both)


def test_a_pack_that_is_not_the_listed_one_is_refused(
    pack: Pack, path: Path, key: SigningKey, artifact: Artifact, trusted: TrustedKeys
) -> None:
    """As an older pack is, that was signed in its time."""
    made = index(pack)
    write_pack(path, [artifact])
    sign_pack(path, [key])
    with pytest.raises(
        TrustError, match=r"differ from the [\d,]+ bytes with digest \w+ that were signed as kernels.pack"
    ) as refused:
        made.check(older := Pack.open(path, trusted=trusted), trusted)
    assert refused.value.reason == "tampered"
    with pytest.raises(TrustError, match=r"does not list this pack; it lists other\.pack"):
        replace(made, packs=(replace(made.packs[0], name="other.pack"),)).check(older, trusted)


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"version": "7"}, "it.version is '7'; it must be a whole number"),
        ({"version": -1}, "it.version is -1"),
        ({"name": "\x1b"}, "it.name is"),
        ({"issued": "2026-11-27"}, "does not match format"),
        ({"issued": "2026-11-27T15:00:0Z"}, "is not a time such as"),
        ({"expires": "2026-11-27T15:00:00Z"}, "must be later than its issue"),
        ({"packs": None}, "packs is None; it must be a list"),
        ({"packs": [{"name": "a"}]}, r"packs\[0\]: "),
        ({"revoked": ["abc"]}, "revoked has 'abc'; expected the id of a key, 16 hex digits"),
        ({"more": 1}, "more"),
    ],
)
def test_other_indexes_are_malformed(
    change: dict[str, Any], says: str, pack: Pack, key: SigningKey, trusted: TrustedKeys
) -> None:
    payload = json.loads(open_sealed(index(pack).seal([key]), INDEX, trusted)) | change
    with pytest.raises(TrustError, match=says) as refused:
        PackIndex.open(seal(INDEX, json.dumps(payload).encode(), [key]), trusted, now=NOW)
    assert refused.value.reason == "malformed"


def test_an_index_that_cannot_be_is_not_made(pack: Pack) -> None:
    with pytest.raises(TrustError, match="two packs have the same name"):
        PackIndex.of([pack, pack], MONTH)
    with pytest.raises(TrustError, match="expected the id of a key, 16 hex digits"):
        index(pack, revoked=["all"])


values = st.recursive(
    st.none() | st.booleans() | st.integers(-(1 << 70), 1 << 70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
)
FIELDS = st.sampled_from(["name", "version", "issued", "expires", "packs", "revoked", "more"])


@given(st.dictionaries(FIELDS, values), values | st.none(), st.binary())
def test_no_payload_makes_the_reader_fail_otherwise(
    key: SigningKey, trusted: TrustedKeys, fields: dict[str, Any], whole: Any, raw: bytes
) -> None:
    sound = {"name": "a", "version": 1, "issued": "2026-11-27T15:00:00Z", "expires": "2026-12-27T15:00:00Z"}
    for payload in (
        json.dumps(sound | {"packs": [], "revoked": []} | fields).encode(),
        json.dumps(whole).encode(),
        raw,
    ):
        try:
            found = PackIndex.open(seal(INDEX, payload, [key]), trusted, now=NOW)
        except TrustError:
            continue
        assert open_sealed(found.seal([key]), INDEX, trusted) is not None
