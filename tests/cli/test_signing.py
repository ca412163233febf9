"""Keys and signatures on the command line: made, shown, rotated, and what is not signed refused with exit code 1."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cases.manifests import ONE
from tests.cli.test_cli import gemmill, ok


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    (path := tmp_path / "one.yaml").write_text(ONE)
    return path


def made(path: Path) -> tuple[str, str]:
    """The public key and the id of a new private one."""
    public, key_id = ok("key", "new", path).split()
    return public, key_id


def test_a_key_is_made_once_and_shown(tmp_path: Path) -> None:
    public, key_id = made(path := tmp_path / "release.pem")
    assert ok("key", "show", path).split() == [public, key_id]
    assert json.loads(ok("key", "show", path, "--json")) == {
        "schema": "gemmill.key/1",
        "id": key_id,
        "public": public,
    }
    again = gemmill("key", "new", path)
    assert (again.exit_code, "exists already" in again.stderr) == (2, True)
    assert ok("key", "show", path).split() == [public, key_id]


def test_packs_are_signed_listed_and_refused(tmp_path: Path, manifest: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (old, old_id), (new, _) = made(tmp_path / "old.pem"), made(tmp_path / "new.pem")
    pack, index = tmp_path / "one.pack", tmp_path / "packs.index"
    ok("pack", manifest, "-o", pack, "--sign", tmp_path / "old.pem")
    (trusted := tmp_path / "trusted.keys").write_text(f"{old}\n{new}\n")
    monkeypatch.setenv("GEMMILL_TRUSTED_KEYS", str(trusted))
    ok("pack", "index", pack, "--sign", tmp_path / "new.pem", "-o", index)
    assert "1 kernels, 0 damaged" in ok("pack", "verify", pack, "--index", index, "--store", tmp_path / "store")
    assert "1 kernels" in ok("pack", "inspect", pack)

    ok("pack", "index", pack, "--sign", tmp_path / "new.pem", "--revoke", old_id, "-o", index)
    refused = gemmill("pack", "verify", pack, "--index", index, "--store", tmp_path / "store")
    assert (refused.exit_code, f"signed by the key {old_id}, which is revoked" in refused.stderr) == (1, True)
    ok("pack", "sign", pack, "--sign", tmp_path / "old.pem", "--sign", tmp_path / "new.pem")
    ok("pack", "verify", pack, "--index", index, "--store", tmp_path / "store")

    (tmp_path / "one.pack.sig").unlink()
    for arguments in (
        ("pack", "verify", pack),
        ("pack", "inspect", pack),
        ("select", "--mnkl", "64,64,64", "--pack", pack),
    ):
        unsigned = gemmill(*arguments)
        assert (unsigned.exit_code, "one.pack: it is unsigned" in unsigned.stderr) == (1, True), arguments
    error = json.loads(gemmill("pack", "verify", pack, "--json").stdout)["error"]
    assert error["code"] == "trust"


def test_what_cannot_be_signed_or_compared_is_said_before_anything_is_compiled(tmp_path: Path, manifest: Path) -> None:
    wrong = gemmill("pack", manifest, "-o", tmp_path / "one.pack", "--sign", manifest)
    assert wrong.exit_code == 1
    assert "is a manifest; it must be a private key" in wrong.stderr
    assert not (tmp_path / "one.pack").exists()
    made(key := tmp_path / "one.pack.sig")
    both = gemmill("pack", manifest, "-o", tmp_path / "one.pack", "--sign", key)
    assert (both.exit_code, "is also an input or another output" in both.output) == (2, True)
    ok("pack", manifest, "-o", tmp_path / "one.pack")
    ok("pack", "index", tmp_path / "one.pack", "--sign", key, "-o", tmp_path / "index")
    needs = gemmill("pack", "verify", tmp_path / "one.pack", "--index", tmp_path / "index")
    assert (needs.exit_code, "--index needs trusted keys; set GEMMILL_TRUSTED_KEYS" in needs.output) == (2, True)
