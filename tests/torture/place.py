"""The folder in which a command is tried: what it finds there, and what must hold of it afterwards.

work/       where the command runs: manifests, records, shapes, packs, and somebody's notes
store/      a store of two kernels, in which somebody has put a file and a link
tmp/        TMPDIR, with somebody's files
foreign/    nobody has any business here
"""

from __future__ import annotations

import hashlib
import lzma
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.library.test_records import MEASURED

from gemmill.library.config.names import parse_name
from gemmill.library.parquet import read_parquet, write_parquet
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.folder import ENTRIES, NOTES
from gemmill.runtime.storage.pack import Pack, write_pack
from gemmill.runtime.storage.store import Store

KERNELS = tuple(f"sm90_f32k16_f32{b}16_f32_none_f32n16_128x128x8_1x1_simt_s2_m8_k1_linear" for b in ("k", "mn"))
"""They compile soon."""
MANIFEST = """name: two
sets:
  - arch: sm90
    a: {dtype: f32, major: k}
    b: {dtype: f32, major: [k, mn]}
    accumulator: f32
    d: {dtype: f32, major: n}
    tile: 128x128x8
    schedule: simt
    stages: 2
    scheduler: {raster: m, swizzle_size: 8}
"""
SHAPES = "shapes:\n  - {m: [256, 512], n: 256, k: 256}\n"
Digests = Mapping[str, str]
"""SHA-256 of each kernel's machine code, by name."""


def furnish(place: Path) -> Digests:
    """Make the folder that all tries start from; what its kernels are."""
    for where in ("work", "tmp/gemmill-notes", "foreign"):
        (place / where).mkdir(parents=True)
    for name in ("work/notes.txt", "tmp/notes.txt", "tmp/gemmill-notes/kept", "foreign/precious"):
        (place / name).write_text("somebody's\n")

    store = Store(place / "store")
    registry = Registry(manifests=(), store=store)
    artifacts = [registry.get(parse_name(name)) for name in KERNELS]
    folder = store.list()[0].path.parent
    (folder / "notes.txt").write_text("somebody's\n")
    (folder / f"{'0' * 64}.gemmill").symlink_to(place / "foreign" / "precious")

    work = place / "work"
    (work / "two.yaml").write_text(MANIFEST)
    (work / "more.yaml").write_text("extends: two.yaml\nname: more\nwhere: b.major == 'k'\n")
    (work / "wrong.yaml").write_text(MANIFEST.replace("128x128x8", "[128x128x8, 100x128x8]").replace("simt", "smit"))
    (work / "shapes.yaml").write_text(SHAPES)
    records = [MEASURED.model_copy(update={"us": float(us)}) for us in range(100, 140)]
    lines = "".join(f"{record.model_dump_json()}\n" for record in records).encode()
    (work / "r.jsonl").write_bytes(lines)
    (work / "s.jsonl.xz").write_bytes(lzma.compress(lines))
    write_parquet(work / "r.parquet", records)
    write_pack(work / "k.pack", artifacts)
    return {artifact.name: hashlib.sha256(artifact.cubin).hexdigest() for artifact in artifacts}


def renew(template: Path, place: Path) -> None:
    """Have a place look as the template does."""
    shutil.rmtree(place, ignore_errors=True)
    shutil.copytree(template, place, symlinks=True)


@dataclass(frozen=True, slots=True)
class Seen:
    """A file as it was: anything else about it is a change."""

    mode: int
    changed_ns: int
    content: str

    @classmethod
    def of(cls, path: Path) -> Seen:
        status = path.lstat()
        if path.is_symlink():
            return cls(status.st_mode, status.st_mtime_ns, os.readlink(path))
        if path.is_dir():
            return cls(status.st_mode, 0, "")
        return cls(status.st_mode, status.st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())


class Place:
    """A place as it was before a command, and what it may do there.

    Args:
        path: the folder.
        outputs: names of the files in ``work`` that the command writes.
    """

    def __init__(self, path: Path, outputs: tuple[str, ...]) -> None:
        self.path, self.outputs = path, outputs
        self.before = {found: Seen.of(found) for found in _files(path) if not self._is_ours(found)}

    def faults(self, digests: Digests, *, leftovers: str) -> list[str]:
        """What is wrong now; ``leftovers`` where what is written beside its place may be left, if not removed by whom
        it was written: "all", in a "store", or nowhere."""
        faults = [
            f"{path.relative_to(self.path)} was changed"
            for path, seen in self.before.items()
            if not os.path.lexists(path) or Seen.of(path) != seen
        ]
        faults += [
            f"{path.relative_to(self.path)} was left"
            for path in _files(self.path)
            if path not in self.before and not self._is_ours(path) and not _is_temporary(path, leftovers)
        ]
        for folder in (self.path / "store", self.path / "cold"):
            store = Store(folder)
            for entry in store.list():
                artifact = store.get(entry.key)
                if artifact and hashlib.sha256(artifact.cubin).hexdigest() != digests[artifact.name]:
                    faults.append(f"{folder.name}: {entry.key} holds other code than {artifact.name}")
        return faults

    def _is_ours(self, path: Path) -> bool:
        """Whether a file has a name that gemmill gives in a store, or is an output."""
        top, *rest = path.relative_to(self.path).parts
        if top == "work":
            return rest[0] in self.outputs
        if _OF_PYTHON.fullmatch(f"{top}/{'/'.join(rest)}"):
            return True
        if top in ("store", "cold") and path.is_dir() and not path.is_symlink():
            return True
        inside = "/".join(rest)
        return top in ("store", "cold") and any(pattern.fullmatch(inside) for pattern in _OF_STORES)


_OF_STORES = (ENTRIES, NOTES, re.compile(r"locks/[0-9a-f]{3}\.lock|CACHEDIR\.TAG"))


_TEMPORARY = {
    "store": re.compile(r"\.tmp-[0-9a-f]{16}"),
    "all": re.compile(r"\.gemmill-[0-9a-f]{16}|\.tmp-[0-9a-f]{16}|gemmill-(pch|pool)-\w{8}"),
}
_OF_PYTHON = re.compile(r"tmp/[a-z0-9_]{8}")
"""With what Python's tempfile tries whether it may write to TMPDIR; it looks for no error when it removes that."""


def _is_temporary(path: Path, where: str) -> bool:
    """Whether a file, or a folder that it is in, has a name that says that it may be removed."""
    return where in _TEMPORARY and any(_TEMPORARY[where].fullmatch(part) for part in path.parts)


def _files(folder: Path) -> Iterator[Path]:
    """Files below a folder, and folders that hold nothing."""
    for root, folders, names in os.walk(folder):
        yield from (Path(root, name) for name in names)
        yield from (path for name in folders if not any((path := Path(root, name)).iterdir()))


def _same_bytes(path: Path) -> object:
    return path.read_bytes()


def _of_pack(path: Path) -> object:
    pack = Pack.open(path, path.parent / "no-store")
    return pack.names(), pack.verify()


READ: Mapping[str, Callable[[Path], object]] = {
    ".pack": _of_pack,
    ".parquet": lambda path: [*read_parquet(path)],
}
"""What an output says, by suffix; others are compared byte for byte."""


def said(path: Path) -> object:
    """What an output says, to be compared; None where there is none."""
    if not path.exists():
        return None
    return READ.get(path.suffix, _same_bytes)(path)
