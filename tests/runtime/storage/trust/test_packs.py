"""Signed packs: opened where a trusted key signed these bytes, and nowhere else."""

from __future__ import annotations

import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.runtime.storage.test_hostile import chances, mutated, small

from gemmill.library.errors import PackError, TrustError
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.pack import Pack, write_pack
from gemmill.runtime.storage.trust.signatures import SigningKey, TrustedKeys, seal
from gemmill.runtime.storage.trust.signed_packs import PACK, PackFacts, sign_pack, signature_path


def refused(path: Path, trusted: TrustedKeys) -> tuple[str, str]:
    """Why a pack is not opened, in a word and in words."""
    with pytest.raises(TrustError, match=str(path.name)) as error:
        Pack.open(path, trusted=trusted)
    return error.value.reason, str(error.value)


def test_a_signed_pack_serves(
    path: Path, key: SigningKey, artifacts: tuple[Artifact, ...], trusted: TrustedKeys
) -> None:
    pack = Pack.open(path, trusted=trusted)
    assert [pack.get(artifact.name) for artifact in artifacts] == [*artifacts]
    before = signature_path(path).read_bytes()
    assert sign_pack(path, [key]) == PackFacts.of(pack)
    assert signature_path(path).read_bytes() == before, "equal packs have equal signatures"
    renamed = path.rename(path.with_name("other.pack"))
    signature_path(path).rename(signature_path(renamed))
    assert Pack.open(renamed, trusted=trusted).names() == pack.names()


def test_a_registry_with_trusted_keys_takes_signed_packs_alone(
    path: Path, key: SigningKey, foreign: SigningKey, artifact: Artifact, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GEMMILL_TRUSTED_KEYS", str(key.public))
    assert Registry(packs=[path]).get(artifact.name) == artifact
    unsigned = path.with_name("unsigned.pack")
    shutil.copy(path, unsigned)
    with pytest.raises(TrustError, match=r"unsigned.pack: it is unsigned \(there is no unsigned.pack.sig next to it\)"):
        Registry(packs=[path, unsigned])
    monkeypatch.setenv("GEMMILL_TRUSTED_KEYS", str(foreign.public))
    with pytest.raises(
        TrustError, match=f"kernels.pack.sig: signed by the key '{key.public.id}', which is not trusted"
    ):
        Registry(packs=[path])
    monkeypatch.delenv("GEMMILL_TRUSTED_KEYS")
    assert len(Registry(packs=[path, unsigned]).packs) == 2, "a file that the user names is the user's"


def test_each_refusal_has_its_reason(
    path: Path, key: SigningKey, foreign: SigningKey, artifact: Artifact, trusted: TrustedKeys
) -> None:
    signature = signature_path(path)
    assert refused(path, TrustedKeys((foreign.public,)))[0] == "unknown_key"
    assert refused(path, trusted.revoking(frozenset({key.public.id})))[0] == "revoked"
    sound, pack = signature.read_bytes(), path.read_bytes()
    write_pack(path, [artifact])  # another, whose checksums hold
    assert refused(path, trusted)[0] == "tampered"
    path.write_bytes(pack + b"\0")
    assert refused(path, trusted)[0] == "tampered"
    path.write_bytes(pack)
    for other, reason in (
        (seal(PACK, b"{}", []), "unsigned"),
        (seal("gemmill.kernel/1", b"{}", [key]), "wrong_kind"),
        (seal(PACK, b"{}", [key]), "malformed"),
        (sound.replace(b'"payload": "eyJi', b'"payload": "eyJj'), "bad_signature"),
        (b"", "malformed"),
    ):
        signature.write_bytes(other)
        assert refused(path, trusted)[0] == reason
    signature.unlink()
    signature.mkdir()
    assert "is a folder" in refused(path, trusted)[1]


def test_a_kernel_of_a_signed_pack_cannot_be_exchanged(path: Path, artifact: Artifact, trusted: TrustedKeys) -> None:
    """Nor once the pack is open: what was signed is the digest of each."""
    pack, data = Pack.open(path, trusted=trusted), bytearray(path.read_bytes())
    data[-10] ^= 1
    path.write_bytes(data)
    last = pack.names()[-1]
    for opened in (pack, Pack.open(path, trusted=trusted)):
        with pytest.raises(PackError, match=rf"{last} is damaged \(checksum mismatch\)"):
            opened.get(last)


@small
@given(st.binary(), st.booleans())
def test_no_signature_makes_the_reader_fail_otherwise(
    path: Path, key: SigningKey, trusted: TrustedKeys, data: bytes, is_sealed: bool
) -> None:
    signature_path(path).write_bytes(seal(PACK, data, [key]) if is_sealed else data)
    with pytest.raises(TrustError):
        Pack.open(path, trusted=trusted)


@small
@given(chances, st.integers(1, 6))
def test_of_a_mutated_signed_pack_what_was_signed_is_read_and_nothing_else(
    path: Path, trusted: TrustedKeys, artifacts: tuple[Artifact, ...], chance: random.Random, edits: int
) -> None:
    sound = path.read_bytes()
    path.write_bytes(mutated(sound, chance, edits))
    try:
        with suppress(PackError, TrustError):
            pack = Pack.open(path, trusted=trusted)
            for artifact in artifacts:
                with suppress(PackError):
                    assert pack.get(artifact.name) == artifact
    finally:
        path.write_bytes(sound)
