"""gemmill pack push and pull: what they print, write and refuse."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cases.manifests import ONE
from tests.cases.registries import needs_registry, registry
from tests.cli.test_cli import gemmill, ok

from gemmill.runtime.health.examination import packs

pytestmark = [pytest.mark.slow, needs_registry]


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with registry(tmp_path_factory.mktemp("registry")) as found:
        yield found


def test_a_pack_is_pushed_pulled_and_used(host: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (manifest := tmp_path / "one.yaml").write_text(ONE)
    public, _ = ok("key", "new", tmp_path / "key.pem").split()
    ok("pack", manifest, "-o", pack := tmp_path / "one.pack", "--sign", tmp_path / "key.pem")
    monkeypatch.setenv("GEMMILL_TRUSTED_KEYS", public)
    tag = f"oci://{host}/kernels/one:1"
    pushed = json.loads(ok("pack", "push", pack, tag, "--json"))
    assert (pushed["schema"], pushed["bytes"], pushed["signed"]) == ("gemmill.pack.push/1", pack.stat().st_size, True)
    assert ok("pack", "push", pack, tag) == f"{pushed['reference']}\n0 bytes uploaded, signed\n"

    store, copy = tmp_path / "store", tmp_path / "copy.pack"
    pulled = json.loads(ok("pack", "pull", tag, "--store", store, "-o", copy, "--json"))
    names = {
        "reference": pushed["reference"],
        "file": str(copy),
        "bytes": pushed["bytes"],
        "kernels": 1,
        "signed": True,
    }
    assert pulled == {"schema": "gemmill.pack.pull/1", **names}
    assert copy.read_bytes() == pack.read_bytes()
    assert "1 kernels, 0 damaged" in ok("pack", "verify", copy)
    assert f"{store}/packs/{pushed['digest']}.pack: 1 kernels" in ok("pack", "pull", tag, "--store", store)
    assert "0 kernels" in ok("store", "clear", "--store", store, "--yes")
    assert not [*store.glob("packs/*")]

    kernel = ok("pack", "inspect", pack, "--json")
    problem = ("--problem", "64x64x64 bf16 tn")
    assert ok("select", *problem, "--pack", tag) == ok("select", *problem, "--pack", pack)
    monkeypatch.setenv("GEMMILL_PACKS", tag)
    assert json.loads(kernel)["kernels"][0]["name"] in ok("select", *problem)
    (found,) = packs(store)
    assert (found.state, found.detail.startswith(f"{tag}: 1 kernels")) == ("ok", True)
    monkeypatch.setenv("GEMMILL_PACKS", f"{tag}2,{tmp_path}/none.pack")
    assert [(found.state, found.detail) for found in packs(store)] == [
        ("wrong", f"{tag}2"),
        ("wrong", f"{tmp_path}/none.pack"),
    ]


def test_errors_name_the_reference(host: str, tmp_path: Path) -> None:
    absent = gemmill("pack", "pull", f"oci://{host}/kernels/absent:1", "--json")
    error = json.loads(absent.stdout)["error"]
    assert (absent.exit_code, error["code"]) == (1, "remote")
    assert (
        f"oci://{host}/kernels/absent:1: HEAD http://{host}/v2/kernels/absent/manifests/1 answers 404"
        in error["message"]
    )
    wrong = gemmill("pack", "pull", "registry.example/one:1")
    assert (wrong.exit_code, "is not a reference to a pack in a registry" in wrong.output) == (2, True)
