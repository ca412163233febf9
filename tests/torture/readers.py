"""Every reader of files that somebody else may have written, with real files to change: bits flipped, parts left out,
doubled or made large, values of documents replaced by ones that hypothesis grows, checksums made right again."""

from __future__ import annotations

import copy
import hashlib
import json
import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis import strategies as st
from tests.profiler.measure.test_peak_rates import PEAK_RATES
from tests.runtime.storage.test_hostile import PACK, changed, entry, mutated, parts, values
from tests.torture.place import Digests

from gemmill.library.config.names import parse_name
from gemmill.library.epilogues.parse import parse as parse_epilogue
from gemmill.library.errors import CompileError, ConfigError, ExpressionError, ManifestError, PackError, RecordError
from gemmill.library.manifest.expression import parse as parse_filter
from gemmill.library.manifest.load import load_manifest, shipped_manifest, shipped_manifests
from gemmill.library.records import read_records
from gemmill.profiler.measure.peak_rates import read_peak_rates
from gemmill.profiler.sweep.shape_suites import load_shapes, shipped_suites
from gemmill.runtime.select.model_file import model_of, path_of
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.cubin import Cubin
from gemmill.runtime.storage.pack import Pack
from gemmill.runtime.storage.verification import verify

GPU = "NVIDIA H200"
EXAMPLES = 200
"""Inputs of a unit, read in one process."""
FAULTY = Path("build/torture/faulty").absolute()
"""Where inputs are kept that showed something wrong."""
SECONDS = 20
"""An input that takes longer to read is a fault."""


@dataclass(frozen=True, slots=True)
class Reader:
    """Something that reads.

    Attributes:
        name: what the file is called.
        samples: real contents.
        read: reads the file; AssertionError where it takes for sound what is not.
        refuses: what it may raise.
        document: whether the samples are JSON or YAML, whose values can be replaced.
        signed: makes a content of which a part is replaced pass its checksum.
    """

    name: str
    samples: Callable[[], list[bytes]]
    read: Callable[[Path], object]
    refuses: type[Exception] | tuple[type[Exception], ...]
    document: bool = False
    signed: Callable[[bytes, random.Random, Any], bytes] | None = None


def readers(template: Path, digests: Digests) -> tuple[Reader, ...]:
    """All readers, with the files of a furnished place."""
    work = template / "work"

    def of(*names: str) -> Callable[[], list[bytes]]:
        return lambda: [(work / name).read_bytes() for name in names]

    def is_ours(artifact: Artifact) -> None:
        assert hashlib.sha256(artifact.cubin).hexdigest() == digests[artifact.name], f"other code than {artifact.name}"

    def entry_of(path: Path) -> None:
        verify(found := Artifact.from_bytes(path.read_bytes()))
        is_ours(found)

    def pack_of(path: Path) -> None:
        pack = Pack.open(path, path.parent / "store")
        faults = pack.verify()
        assert {*pack.names()} - {*faults} <= {*digests}, "kernels that nobody compiled"

    def cubin_of(path: Path) -> None:
        cubin = Cubin(path.read_bytes())
        for ask in (cubin.registers, cubin.threads, cubin.params_bytes, cubin.static_shared_bytes, cubin.code):
            ask(symbol)

    def model_file() -> Reader:
        path = path_of(GPU)
        uncached = model_of.__wrapped__
        return Reader(
            path.name, lambda: [path.read_bytes()], lambda path: uncached(GPU, path.parent), RecordError, document=True
        )

    def another_header(data: bytes, chance: random.Random, new: Any) -> bytes:
        head, body = parts(data)
        return entry(json.dumps(changed(json.loads(head), chance, new)).encode(), body)

    def another_index(data: bytes, chance: random.Random, new: Any) -> bytes:
        magic, size, _ = PACK.unpack_from(data)
        index = json.dumps(changed(json.loads(data[PACK.size : PACK.size + size]), chance, new)).encode()
        return PACK.pack(magic, len(index), hashlib.sha256(index).digest()) + index + data[PACK.size + size :]

    pack = Pack.open(work / "k.pack", work / "no-store")
    artifacts = [pack.get(name) for name in pack.names()]
    symbol = artifacts[0].launch.entry

    return (
        Reader(
            "m.yaml",
            lambda: [
                *of("two.yaml", "wrong.yaml")(),
                *(shipped_manifest(name).read_bytes() for name in shipped_manifests()),
            ],
            lambda path: load_manifest(path, legal=False),
            ManifestError,
            document=True,
        ),
        Reader(
            "s.yaml",
            lambda: [path.read_bytes() for path in shipped_suites().values()],
            load_shapes,
            RecordError,
            document=True,
        ),
        Reader("r.jsonl", of("r.jsonl"), lambda path: [*read_records(path)], RecordError),
        Reader(
            "one.jsonl",
            lambda: [of("r.jsonl")()[0].splitlines(keepends=True)[0]],
            lambda path: [*read_records(path)],
            RecordError,
            document=True,
        ),
        Reader("r.jsonl.xz", of("s.jsonl.xz"), lambda path: [*read_records(path)], RecordError),
        Reader("r.parquet", of("r.parquet"), lambda path: [*read_records(path)], RecordError),
        Reader("k.pack", of("k.pack"), pack_of, PackError, signed=another_index),
        Reader(
            "k.gemmill",
            lambda: [artifact.to_bytes() for artifact in artifacts],
            entry_of,
            ValueError,
            signed=another_header,
        ),
        Reader("k.cubin", lambda: [artifacts[0].cubin], cubin_of, CompileError),
        Reader(
            "peak-rates.json",
            lambda: [PEAK_RATES.model_dump_json().encode()],
            read_peak_rates,
            RecordError,
            document=True,
        ),
        model_file(),
        Reader(
            "name.txt",
            lambda: (Path(__file__).parents[1] / "replay" / "kernels.txt").read_bytes().splitlines(),
            lambda path: parse_name(path.read_text(errors="replace")),
            ConfigError,
        ),
        Reader(
            "epilogue.txt",
            lambda: [
                b"d = silu(alpha * acc + bias[n]) * aux",
                b"d = c * beta + acc; aux = gelu(acc)",
                b"d = clamp(acc * row[m], -448, 448)",
            ],
            lambda path: parse_epilogue(path.read_text(errors="replace")),
            ExpressionError,
        ),
        Reader(
            "filter.txt",
            lambda: [b"tile.m * tile.n <= 128 * 256 and schedule == 'pingpong' or cluster.m in (1, 2)"],
            lambda path: parse_filter(path.read_text(errors="replace")),
            ExpressionError,
        ),
    )


def faults_of(reader: Reader, folder: Path, number: int, examples: int = EXAMPLES) -> list[str]:
    """Have a reader read inputs drawn from a number; what was wrong, each with the file that shows it."""
    samples = reader.samples()
    values_of = [_value(sample) for sample in samples] if reader.document else []
    path = folder / reader.name
    faults: list[str] = []

    @seed(number)
    @settings(
        max_examples=examples,
        deadline=None,
        database=None,
        phases=[Phase.generate],
        suppress_health_check=[*HealthCheck],
    )
    @given(st.randoms(use_true_random=False), values, st.integers(0, 3), st.integers(1, 6))
    def read_one(chance: random.Random, new: Any, way: int, edits: int) -> None:
        place = chance.randrange(len(samples))
        if way == 0 and values_of and isinstance(values_of[place], dict | list):
            data = _document(changed(copy.deepcopy(values_of[place]), chance, new))
        elif way == 1 and reader.signed:
            data = reader.signed(samples[place], chance, new)
        else:
            data = mutated(samples[place], chance, edits)
        path.write_bytes(data)
        started = time.monotonic()
        try:
            reader.read(path)
        except reader.refuses as refusal:
            if len(str(refusal)) > 10_000:
                faults.append(_kept(path, f"an error of {len(str(refusal)):,} characters"))
        except Exception as error:  # noqa: BLE001 (whatever it is, it is told)
            faults.append(_kept(path, repr(error)[:300]))
        if time.monotonic() - started > SECONDS:
            faults.append(_kept(path, f"took {time.monotonic() - started:.0f} s"))

    read_one()
    return faults


def _value(sample: bytes) -> Any:
    return yaml.load(sample, yaml.CSafeLoader)  # JSON is YAML


def _document(value: Any) -> bytes:
    try:
        return json.dumps(value).encode()
    except (TypeError, ValueError):  # dates, keys that are no text
        return yaml.dump(value).encode()


def _kept(path: Path, fault: str) -> str:
    """A fault, with a copy of the file that shows it."""
    FAULTY.mkdir(parents=True, exist_ok=True)
    data = path.read_bytes()
    kept = FAULTY / f"{hashlib.sha256(data).hexdigest()[:12]}-{path.name}"
    kept.write_bytes(data)
    return f"{kept}: {fault}"
