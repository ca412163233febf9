"""Keys: private ones are kept and never replaced, public ones read as documented, what is none is refused."""

from __future__ import annotations

import base64
import os
import stat
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from gemmill.library.errors import TrustError
from gemmill.runtime.storage.trust.signatures import PublicKey, SigningKey, TrustedKeys

OLD, NEW = SigningKey.new(), SigningKey.new()


def test_a_key_is_kept_for_its_owner_alone(tmp_path: Path) -> None:
    umask = os.umask(0)
    try:
        OLD.save(path := tmp_path / "key.pem")
    finally:
        os.umask(umask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    again = SigningKey.load(path)
    assert again.public == OLD.public
    assert again.public.verifies(OLD.sign(b"kernel"), b"kernel")
    assert not again.public.verifies(OLD.sign(b"kernel"), b"kernels")
    assert not again.public.verifies(b"short", b"kernel")
    assert path.read_text().splitlines()[1] not in repr(again)


def test_a_private_key_is_never_replaced(tmp_path: Path) -> None:
    OLD.save(path := tmp_path / "key.pem")
    with pytest.raises(TrustError, match="exists already, and private keys are not replaced"):
        NEW.save(path)
    assert SigningKey.load(path).public == OLD.public
    with pytest.raises(TrustError, match="cannot be written: No such file"):
        OLD.save(tmp_path / "none" / "key.pem")


def test_what_is_no_private_key_is_refused(tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ec import SECP256R1, generate_private_key

    pem, pkcs8 = serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8
    other = generate_private_key(SECP256R1()).private_bytes(pem, pkcs8, serialization.NoEncryption())
    locked = OLD._key.private_bytes(pem, pkcs8, serialization.BestAvailableEncryption(b"word"))
    (path := tmp_path / "key.pem").touch(0o600)
    for content, says in (
        (b"", "is an empty file; it must be a private key, from `gemmill key new`"),
        (str(OLD.public).encode(), "is a public key; it must be a private key"),
        (other, "not an Ed25519 private key in PEM without a password"),
        (locked, "not an Ed25519 private key in PEM without a password"),
    ):
        path.write_bytes(content)
        with pytest.raises(TrustError, match=says):
            SigningKey.load(path)
    with pytest.raises(TrustError, match=r"No such file.*gemmill key new FILE"):
        SigningKey.load(tmp_path / "none")
    OLD.save(mine := tmp_path / "mine.pem")
    mine.chmod(0o644)
    with pytest.raises(TrustError, match=r"others may read this private key \(mode 644\); run chmod 600"):
        SigningKey.load(mine)


def test_a_public_key_is_a_line_of_text() -> None:
    text = str(OLD.public)
    assert text.startswith("ed25519:")
    assert PublicKey.read(text) == OLD.public
    assert PublicKey(bytes(range(32))).id == "630dcd2966c43366"
    for wrong in ("", "ed25519:", text[:-1], f"{text} ", text.replace("ed25519", "rsa"), f"{text}A"):
        with pytest.raises(TrustError, match="is not a public key"):
            PublicKey.read(wrong)


@pytest.mark.parametrize("sign", [0x00, 0x80])
@pytest.mark.parametrize("raw", ["00" * 32, "01" + "00" * 31, "ec" + "ff" * 30 + "7f"])
def test_a_key_under_which_anybody_can_sign_is_refused(raw: str, sign: int) -> None:
    """As one of zeros is, which somebody may leave in a template."""
    key = bytes.fromhex(raw)
    key = key[:31] + bytes([key[31] | sign])
    with pytest.raises(TrustError, match="for which anybody can make signatures"):
        PublicKey.read(f"ed25519:{base64.b64encode(key).decode()}")


def test_trusted_keys_come_from_files_and_text(tmp_path: Path) -> None:
    (path := tmp_path / "trusted").write_text(f"# ours\n\n{OLD.public} of 2025\n  {NEW.public}  # of 2026\n")
    both = TrustedKeys.read(str(path))
    assert both.keys == (OLD.public, NEW.public)
    assert TrustedKeys.read(f"{OLD.public}, {path}") == both
    assert both.key(NEW.public.id) == NEW.public
    path.write_text(f"revoked {OLD.public.id}  # lost\n")
    less = TrustedKeys.read(f"{path},{OLD.public},{NEW.public}")
    with pytest.raises(TrustError, match=f"the key {OLD.public.id}, which is revoked") as refused:
        less.key(OLD.public.id)
    assert refused.value.reason == "revoked"
    assert less.key(NEW.public.id) == NEW.public
    with pytest.raises(TrustError, match=f"which is not trusted; trusted keys are {OLD.public.id}") as refused:
        TrustedKeys((OLD.public,)).key(NEW.public.id)
    assert refused.value.reason == "unknown_key"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "has no key"),
        ("revoked 0123456789abcdef", "has no key"),
        ("keys.txt", "neither a key .* nor an absolute path"),
        ("/nowhere/keys.txt", "No such file"),
        ("/dev/null", "is a device"),
        ("OLD,ed25519:AAAA", "'ed25519:AAAA' is not a public key"),
        ("OLD,revoked OLD", "expected the id of a key, 16 hex digits"),
    ],
)
def test_trusted_keys_that_mean_nothing_are_refused(text: str, says: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GEMMILL_TRUSTED_KEYS", text.replace("OLD", str(OLD.public)))
    with pytest.raises(TrustError, match=f"GEMMILL_TRUSTED_KEYS: .*{says}"):
        TrustedKeys.of_settings()


def test_a_file_of_keys_names_its_wrong_line_and_who_may_write_to_it(tmp_path: Path) -> None:
    (path := tmp_path / "trusted").write_text(f"{OLD.public}\nssh-ed25519 AAAA me\n")
    with pytest.raises(TrustError, match=f"{path}:2: 'ssh-ed25519' is not a public key"):
        TrustedKeys.read(str(path))
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(TrustError, match="not a UTF-8 text"):
        TrustedKeys.read(str(path))
    path.write_text(str(OLD.public))
    path.chmod(0o666)
    with pytest.raises(TrustError, match=r"anybody may add keys to it \(mode 666\)"):
        TrustedKeys.read(str(path))


def test_without_the_setting_nothing_is_trusted_or_refused() -> None:
    assert TrustedKeys.of_settings() is None


@given(st.text() | st.binary().map(lambda raw: "ed25519:" + base64.b64encode(raw).decode()))
@example("ed25519:\ud800")
@example("revoked \ud800")
@example("/\0")
def test_no_text_makes_the_readers_of_keys_fail_otherwise(text: str) -> None:
    for read in (PublicKey.read, TrustedKeys.read):
        try:
            read(text)
        except TrustError:
            continue
        assert text.strip(" ,").startswith("ed25519:")
