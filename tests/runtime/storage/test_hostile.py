"""Entries and packs from elsewhere, drawn and mutated: each is what was compiled, or an error of ours."""

from __future__ import annotations

import hashlib
import json
import random
import struct
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import zstandard
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from gemmill.library.errors import CompileError, PackError
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.cubin import Cubin
from gemmill.runtime.storage.pack import Pack, pack_parts, write_pack
from gemmill.runtime.storage.verification import verify

ENTRY = struct.Struct("<8sQQ32s")
PACK = struct.Struct("<8sQ32s")
chances = st.randoms(use_true_random=False)
small = settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
leaves = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 70), 1 << 70)
    | st.floats()
    | st.text(max_size=8)
    | st.sampled_from(["\x1b[31m", "sm90a", "bf16", 1 << 31, 1 << 62, -1, 0])
)
values = st.recursive(leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner))


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """The ways to everything within a value of JSON."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, child in children:
        yield (*at, key)
        yield from places(child, (*at, key))


def changed(value: Any, chance: random.Random, new: Any) -> Any:
    """A value of JSON with something else, or nothing, in one place."""
    *outer, last = chance.choice([*places(value)])
    holder = value
    for key in outer:
        holder = holder[key]
    if chance.random() < 0.1:
        del holder[last]
    elif isinstance(holder, dict) and chance.random() < 0.1:
        holder[str(new)[:9]] = new
    else:
        holder[last] = new
    return value


def mutated(data: bytes, chance: random.Random, edits: int) -> bytes:
    """Bytes of which some are flipped, left out, doubled or made large."""
    found = bytearray(data)
    for _ in range(edits):
        start = chance.randrange(len(found))
        match chance.randrange(4):
            case 0:
                found[start] ^= 1 << chance.randrange(8)
            case 1:
                del found[start : start + chance.choice([1, 8, 1000])]
            case 2:
                found[start:start] = found[start : start + chance.choice([1, 8, 1000])]
            case 3:
                found[start : start + 8] = chance.choice([b"\xff" * 8, b"\0" * 8, struct.pack("<Q", 1 << 62)])
        if not found:
            return b""
    return bytes(found)


def entry(head: bytes, body: bytes) -> bytes:
    """An entry whose checksum is right."""
    return ENTRY.pack(b"gemmill\x01", len(head), len(body), hashlib.sha256(head + body).digest()) + head + body


def parts(data: bytes) -> tuple[bytes, bytes]:
    """Header and compressed cubin of an entry."""
    _, size, _, _ = ENTRY.unpack_from(data)
    return data[ENTRY.size : ENTRY.size + size], data[ENTRY.size + size :]


def verified(data: bytes) -> Artifact | None:
    """What bytes hold, if it may run."""
    with suppress(ValueError):
        verify(found := Artifact.from_bytes(data))
        return found
    return None


@given(chances, st.integers(1, 6))
def test_mutated_bytes_are_no_entry(artifact: Artifact, chance: random.Random, edits: int) -> None:
    data = artifact.to_bytes()
    assert verified(mutated(data, chance, edits)) in (None, artifact)


@given(chances, values)
def test_an_entry_with_another_header_runs_only_as_its_config_says(
    artifact: Artifact, chance: random.Random, new: Any
) -> None:
    head, body = parts(artifact.to_bytes())
    other = json.dumps(changed(json.loads(head), chance, new)).encode()
    if (found := verified(entry(other, body))) is not None:
        assert replace(found, provenance=artifact.provenance) == artifact, "of provenance nothing but its form is known"


@given(chances, st.integers(1, 6))
def test_an_entry_with_a_damaged_frame_is_an_error(artifact: Artifact, chance: random.Random, edits: int) -> None:
    head, body = parts(artifact.to_bytes())
    with suppress(ValueError):
        Artifact.from_bytes(entry(head, mutated(body[:64], chance, edits) + body[64:]))


@given(chances, st.integers(1, 4), st.sampled_from([64, 4096, None]))
def test_a_damaged_cubin_is_an_error_or_exports_what_it_must(
    artifact: Artifact, chance: random.Random, edits: int, head: int | None
) -> None:
    """Damage within instructions is for signatures to tell; none makes a reader of ours fail otherwise."""
    cubin = mutated(artifact.cubin[:head], chance, edits) + (artifact.cubin[head:] if head else b"")
    with suppress(ValueError):
        verify(replace(artifact, cubin=cubin))
    with suppress(CompileError):
        parsed = Cubin(cubin)
        for ask in (parsed.registers, parsed.threads, parsed.params_bytes, parsed.static_shared_bytes, parsed.code):
            with suppress(CompileError):
                ask(artifact.launch.entry)


def test_a_frame_that_claims_gigabytes_takes_none(artifact: Artifact) -> None:
    head, body = parts(artifact.to_bytes())
    header = json.loads(head)
    for claim in (64 << 30, 1 << 62, (1 << 63) + 1):
        frame = b"\x28\xb5\x2f\xfd\xe0" + struct.pack("<Q", claim) + b"\x01\x00\x00"
        for said in (header["cubin_bytes"], claim):
            data = entry(json.dumps({**header, "cubin_bytes": said}).encode(), frame)
            with pytest.raises(ValueError, match="at most 33,554,432"):
                Artifact.from_bytes(data)
    stream = zstandard.ZstdCompressor().compressobj()  # which states no size
    streamed = stream.compress(artifact.cubin) + stream.flush()
    with pytest.raises(ValueError, match="at most 33,554,432"):
        Artifact.from_bytes(entry(head, streamed))
    with pytest.raises(ValueError, match="not readable by this version of gemmill"):
        Artifact.from_bytes(entry(head, body + b"more"))


@pytest.mark.parametrize(
    "head",
    [b"[" * 100_000 + b"]" * 100_000, b'{"config":' + b"9" * 10_000 + b"}", b"{}", b"NaN", b"\xff", b" " * (2 << 20)],
)
def test_a_header_that_no_reader_can_take_is_refused(head: bytes, artifact: Artifact) -> None:
    with pytest.raises(ValueError, match=r"not readable by this version of gemmill|its header has 2,097,152 bytes"):
        Artifact.from_bytes(entry(head, parts(artifact.to_bytes())[1]))


@pytest.fixture
def opened(tmp_path: Path) -> Callable[[bytes], set[str]]:
    """What opens bytes as a pack, and says which kernels run."""

    def names(data: bytes) -> set[str]:
        (path := tmp_path / "hostile.pack").write_bytes(data)
        with suppress(PackError):
            pack = Pack.open(path, tmp_path / "store")
            faults = pack.verify()
            return {*pack.names()} - {*faults}
        return set()

    return names


@small
@given(chances, st.integers(1, 6))
def test_of_a_mutated_pack_sound_kernels_run_alone(
    opened: Callable[[bytes], set[str]], artifacts: tuple[Artifact, ...], chance: random.Random, edits: int
) -> None:
    assert opened(mutated(b"".join(pack_parts(artifacts)), chance, edits)) <= {a.name for a in artifacts}


@small
@given(chances, values)
def test_of_a_pack_with_another_index_sound_kernels_run_alone(
    opened: Callable[[bytes], set[str]],
    artifacts: tuple[Artifact, ...],
    tmp_path: Path,
    chance: random.Random,
    new: Any,
) -> None:
    write_pack(tmp_path / "sound.pack", artifacts)
    data = (tmp_path / "sound.pack").read_bytes()
    magic, size, _ = PACK.unpack_from(data)
    index = json.dumps(changed(json.loads(data[PACK.size : PACK.size + size]), chance, new)).encode()
    prefix = PACK.pack(magic, len(index), hashlib.sha256(index).digest())
    assert opened(prefix + index + data[PACK.size + size :]) <= {artifact.name for artifact in artifacts}
