"""lock and warm on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cases.manifests import ONE
from tests.cli.test_cli import gemmill, ok

TEXT = "512x512x512 bf16 tn"


@pytest.mark.slow
def test_a_lock_is_made_again_the_same_and_warmed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (manifest := tmp_path / "one.yaml").write_text(ONE)
    lock, pack, store = tmp_path / "kernels.lock", tmp_path / "one.pack", tmp_path / "store"
    said = ok("lock", "--problem", TEXT, "--problem", TEXT, "--manifest", manifest, "--gpu", "H200", "-o", lock)
    assert said.endswith("kernels.lock: 1 kernels for 1 problems on NVIDIA H200\n")
    before = lock.read_bytes()
    (shapes := tmp_path / "shapes.yaml").write_text("name: mine\nshapes:\n  - {m: 512, n: 512, k: 512}\n")
    report = json.loads(ok("lock", shapes, "--manifest", manifest, "--gpu", "H200", "-o", lock, "--json"))
    assert [*report["problems"]] == [TEXT]
    assert report["arithmetic"] == {TEXT: "k16"}
    assert lock.read_bytes() == before
    required = ok("lock", shapes, "--manifest", manifest, "--gpu", "H200", "--bits", "invariant", "-o", lock, "--json")
    assert json.loads(required)["arithmetic"] == {TEXT: "k16"}
    assert gemmill("lock", shapes, "--manifest", manifest, "--bits", "k32", "-o", lock).exit_code == 1
    assert lock.read_bytes() == before
    ok("pack", manifest, "-o", pack)
    (packed,) = json.loads(ok("pack", "inspect", pack, "--json"))["kernels"]
    assert packed["arithmetic"] == "k16"
    assert "1 locked kernels: 1 from packs" in ok("warm", lock, "--pack", pack, "--store", store)
    (row,) = json.loads(ok("warm", lock, "--store", store, "--json"))["items"]
    assert row["source"] == "store"
    assert row["key"] in ok("store", "list", "--store", store, "--json")

    (tmp_path / "file").touch()
    with monkeypatch.context() as context:
        context.setenv("GEMMILL_STORE", str(tmp_path / "file"))
        lost = gemmill("warm", lock, "--pack", pack)
    assert (lost.exit_code, "the store did not keep all kernels" in lost.stderr) == (1, True)

    content = json.loads(before)
    for kernel in content["kernels"].values():
        kernel["key"], kernel["provenance"]["nvrtc_version"] = "0" * 64, "11.8.89"
    lock.write_text(json.dumps(content))
    wrong = gemmill("warm", lock, "--store", store)
    assert (wrong.exit_code, "locked 11.8.89" in wrong.stderr) == (1, True)


def test_what_cannot_be_locked_is_said(tmp_path: Path) -> None:
    nothing = gemmill("lock", "-o", tmp_path / "kernels.lock")
    assert (nothing.exit_code, "no problem is given" in nothing.output) == (2, True)
    (manifest := tmp_path / "one.yaml").write_text(ONE)
    none = gemmill("lock", "--problem", "64x64x64 f64", "--manifest", manifest, "-o", tmp_path / "kernels.lock")
    assert none.exit_code == 1
    assert not (tmp_path / "kernels.lock").exists()
    malformed = gemmill("warm", manifest)
    assert (malformed.exit_code, f"{manifest} is a manifest; it must be a lock file" in malformed.stderr) == (1, True)
