"""A file of one kind in place of another is called what it is, in one line, by every command that reads files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases.manifests import ONE
from tests.cli.test_cli import SMALL, gemmill, ok
from tests.library.test_records import MEASURED

from gemmill.emitters.emit import emit
from gemmill.library.config.names import parse_name
from gemmill.library.file_kinds import KINDS, wrong_kind
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.lockfile import Lock
from gemmill.runtime.storage.pack import write_pack
from gemmill.runtime.storage.trust.signatures import SigningKey

READERS: Mapping[str, str] = {
    "report {} --csv x.csv": "records",
    "records pack {} -o x.parquet": "records",
    "train {} -o x": "records",
    "select --mnkl 64,64,64 --records {}": "records",
    "select --mnkl 64,64,64 --pack {}": "pack",
    "pack inspect {}": "pack",
    "pack verify {}": "pack",
    "warm {}": "lock",
    "key show {}": "private key",
    "list {}": "manifest",
    "explain {}": "manifest",
    "pack {} -o x": "manifest",
    "shapes {}": "suite",
    "select --shapes {}": "suite",
    "report r.jsonl --csv x.csv --peak-rates {}": "peak rates",
}
"""What each command reads."""
GENERAL = {"text": "a text file", "json": "a JSON file", "binary": "a binary file"}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """A file of each kind, as gemmill writes it."""
    folder = tmp_path_factory.mktemp("kinds")
    paths = {kind: folder / f"a.{kind.replace(' ', '-')}" for kind in (*KINDS, *GENERAL)}
    write_pack(paths["pack"], [Registry(manifests=()).get(SMALL)])
    Lock(gpu="NVIDIA H200", problems={}, kernels={}).write(paths["lock"])
    (key := SigningKey.new()).save(paths["private key"])
    paths["public key"].write_text(f"{key.public}\n")
    paths["records"].write_text(f"{MEASURED.model_dump_json()}\n")
    paths["manifest"].write_text(ONE)
    paths["suite"].write_text("shapes: [[64, 64, 64]]\n")
    paths["source"].write_text(emit(parse_name(SMALL)).text)
    paths["output"].write_text(ok("explain", SMALL, "--json"))
    ok("pack", "sign", paths["pack"], "--sign", paths["private key"])
    Path(f"{paths['pack']}.sig").rename(paths["signature"])
    paths["text"].write_text("some text\n")
    paths["json"].write_text('{"some": "JSON"}\n')
    paths["binary"].write_bytes(bytes(range(256)))
    return {kind: path for kind, path in paths.items() if path.exists()}


@pytest.mark.slow
@pytest.mark.parametrize(("line", "expected"), READERS.items(), ids=READERS)
def test_a_wrong_file_is_called_what_it_is(
    line: str, expected: str, files: Mapping[str, Path], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("r.jsonl").write_text(files["records"].read_text())
    people_write_it = expected in ("manifest", "suite")
    assert len(files) >= 11
    for kind, path in files.items():
        if kind == expected or (kind in GENERAL and people_write_it):
            continue
        result = gemmill(*line.format(path).split())
        assert result.exit_code == 1, (kind, result.output)
        name = GENERAL.get(kind) or KINDS[kind].name
        (says,) = result.stderr.splitlines()
        assert says.endswith(f" is {name}; it must be {KINDS[expected]}")
        assert str(path) in says
        assert sorted(x.name for x in tmp_path.iterdir()) == ["r.jsonl"]


@given(content=st.binary(max_size=200) | st.sampled_from([b"{", b"[1", b"{}\n{", b"[[" * 9000, b"kernel: 1"]))
def test_any_content_has_a_kind(content: bytes, tmp_path_factory: pytest.TempPathFactory) -> None:
    (path := tmp_path_factory.getbasetemp() / "content").write_bytes(content)
    for expected in KINDS:
        says = wrong_kind(path, expected)
        assert says is None or says.endswith(str(KINDS[expected]))


def test_other_places_have_no_kind(tmp_path: Path) -> None:
    assert wrong_kind(tmp_path, "pack") is None
    assert wrong_kind(tmp_path / "none", "pack") is None
