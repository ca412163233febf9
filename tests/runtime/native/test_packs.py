"""libgemmill reads packs as Python does: the same kernels, and errors for what is broken or not trusted."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from tests.runtime.native.cases import CHOSEN, LAUNCHED, Case, table

from gemmill.library.errors import PackError
from gemmill.runtime.storage.pack import Pack
from gemmill.runtime.storage.trust.signatures import SigningKey, TrustedKeys
from gemmill.runtime.storage.trust.signed_packs import sign_pack, signature_path

pytestmark = pytest.mark.slow

PACK, TRUST = "3", "4"
"""Statuses of gemmill.h."""


def read(programs: Path, path: Path, *keys: str, **environment: str) -> list[str]:
    """Return the lines that the library's reader prints."""
    done = subprocess.run(
        [programs / "read_pack", path, *keys], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout.splitlines()


def read_in_python(path: Path) -> None:
    for name in (pack := Pack.open(path)).names():
        pack.get(name)


def copy(pack: Path, to: Path) -> Path:
    path = to / "copy.pack"
    path.write_bytes(pack.read_bytes())
    return path


def test_the_kernels_are_those_that_python_reads(programs: Path, small_pack: Path) -> None:
    assert read(programs, small_pack) == Pack.open(small_pack).names()


@pytest.mark.parametrize("place", ["index", "kernel"])
def test_a_flipped_bit_is_an_error_as_in_python(programs: Path, small_pack: Path, tmp_path: Path, place: str) -> None:
    data = bytearray(small_pack.read_bytes())
    data[{"index": 60, "kernel": len(data) - 9}[place]] ^= 4
    (path := tmp_path / "broken.pack").write_bytes(data)
    with pytest.raises(PackError) as error:
        read_in_python(path)
    assert read(programs, path) == [f"{PACK} {error.value}"]


@pytest.mark.parametrize("size", [300, -1])
def test_a_truncated_pack_is_an_error_as_in_python(programs: Path, small_pack: Path, tmp_path: Path, size: int) -> None:
    (path := tmp_path / "short.pack").write_bytes(small_pack.read_bytes()[:size])
    with pytest.raises(PackError) as error:
        read_in_python(path)
    assert read(programs, path) == [f"{PACK} {error.value}"]


@pytest.mark.parametrize("content", [b"", b"gempack\1", b"x" * 100, b"gempack\1" + b"\xff" * 40])
def test_what_is_no_pack_is_refused(programs: Path, tmp_path: Path, content: bytes) -> None:
    (path := tmp_path / "no.pack").write_bytes(content)
    (line,) = read(programs, path)
    assert line.startswith(f"{PACK} {path}: ")
    with pytest.raises(PackError):
        Pack.open(path)


def test_a_missing_pack_is_an_error_as_in_python(programs: Path, tmp_path: Path) -> None:
    with pytest.raises(PackError) as error:
        Pack.open(tmp_path / "no.pack")
    assert read(programs, tmp_path / "no.pack") == [f"{PACK} {error.value}"]


def test_only_a_trusted_signature_opens_a_pack(
    programs: Path, small_pack: Path, tmp_path: Path, key: SigningKey, trusted: TrustedKeys
) -> None:
    path, mine = copy(small_pack, tmp_path), str(key.public)
    (line,) = read(programs, path, mine)
    assert line.startswith(f"{TRUST} {path}: it is unsigned")
    sign_pack(path, [key])
    names = Pack.open(path, trusted=trusted).names()
    assert read(programs, path, mine) == read(programs, path, GEMMILL_TRUSTED_KEYS=mine) == names
    (line,) = read(programs, path, str(SigningKey.new().public))
    assert line.startswith(TRUST)
    assert "not trusted" in line
    (line,) = read(programs, path, f"{mine}, revoked {key.public.id}")
    assert "revoked" in line
    (line,) = read(programs, path, GEMMILL_TRUSTED_KEYS="")
    assert line.startswith(f"{TRUST} GEMMILL_TRUSTED_KEYS: '' has no key")
    seal = signature_path(path)
    seal.write_bytes(seal.read_bytes().replace(b"gemmill.pack/1", b"gemmill.pack/2"))
    assert "signed as" in read(programs, path, mine)[0]
    sign_pack(path, [key])
    path.write_bytes(path.read_bytes() + b"\0")
    assert "differs" in read(programs, path, mine)[0]


def test_keys_in_files_are_read_unless_anybody_may_add_some(
    programs: Path, small_pack: Path, tmp_path: Path, key: SigningKey
) -> None:
    path, keys = copy(small_pack, tmp_path), tmp_path / "keys"
    sign_pack(path, [key])
    keys.write_text(f"# ours\n{key.public} first\n")
    assert read(programs, path, str(keys)) == Pack.open(path).names()
    keys.write_bytes(f"{key.public}\n# lost\rrevoked {key.public.id}\n".encode())
    assert "revoked" in read(programs, path, str(keys))[0]
    keys.chmod(0o666)
    assert "anybody may add keys" in read(programs, path, str(keys))[0]


@pytest.mark.heavy
def test_broken_packs_give_errors_and_no_faults(sanitized: Path, small_pack: Path, tmp_path: Path) -> None:
    of_pack = [case for case in LAUNCHED if case.kernel in Pack.open(small_pack)]
    (products := tmp_path / "products.json").write_text(of_each_kernel([*of_pack, *CHOSEN]))
    command: list[Path | str] = [sanitized / "fuzz_packs", small_pack, products, tmp_path / "broken.pack", "500", "7"]
    environment = os.environ | {"LD_LIBRARY_PATH": str(sanitized / "driver")}
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    for outcome in ("opened with status 3", "read with status 3", "launched with status 3", "launched with status 0"):
        assert outcome in done.stdout


def of_each_kernel(cases: Sequence[Case]) -> str:
    """The first two products on each kernel, as JSON."""
    first = [[case for case in cases if case.kernel == name][:2] for name in dict.fromkeys(x.kernel for x in cases)]
    return table([case for pair in first for case in pair])
