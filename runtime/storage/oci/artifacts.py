"""Packs as artifacts of registries: pushed, and pulled into the store, where they are files named by their digest.

A pulled pack is ``packs/DIGEST.pack`` of the store, with its signature beside it. It appears as a whole, after its
digest was checked, and its signature before it. It counts to the size limit of the store, which evicts the least
recently used packs too. A reference by digest needs no network while it is there. A tag is looked up once in a process;
where the registry cannot be reached, the pack that the store last had for this tag is used, with a warning.
"""

from __future__ import annotations

import hashlib
import io
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import cache, partial
from pathlib import Path
from typing import BinaryIO, NamedTuple

from gemmill.library.errors import PackError, RemoteError, RemoteWarning, TrustError
from gemmill.library.files import is_sha256, open_regular, os_error_text, read_given
from gemmill.library.input.strict_json import parse
from gemmill.runtime.storage.artifact import canonical
from gemmill.runtime.storage.oci.manifest import (
    ARTIFACT,
    CONFIG,
    EMPTY_CONFIG,
    SIGNATURE,
    Descriptor,
    PackManifest,
)
from gemmill.runtime.storage.oci.reference import Reference
from gemmill.runtime.storage.oci.repository import Repository, with_retries
from gemmill.runtime.storage.pack import Pack
from gemmill.runtime.storage.remote.misses import Miss
from gemmill.runtime.storage.store import Store
from gemmill.runtime.storage.trust.kernel_manifest import cuda_of
from gemmill.runtime.storage.trust.signatures import MAX_SEALED_BYTES, TrustedKeys, open_sealed
from gemmill.runtime.storage.trust.signed_packs import PACK, check_signature, signature_path

_CHUNK = 1 << 20
_OF_CONTENT = ("damaged", "too large")
"""Reasons that concern what a registry sent, not the registry."""
_OUT_OF_REACH = ("unreachable", "timeout", "closed", "busy", "server error")
"""Reasons for which the last pack of a tag is used instead."""


class Pushed(NamedTuple):
    """The result of :func:`push`."""

    reference: str
    """The artifact by digest."""
    digest: str
    """SHA-256 of its manifest, in hex."""
    bytes: int
    """Bytes of the pack."""
    uploaded: int
    """Bytes of the blobs that the registry did not have."""
    signed: bool


def push(path: Path, reference: Reference, trusted: TrustedKeys | None) -> Pushed:
    """Upload a pack, and its signature if there is one, and tag it.

    Raises:
        PackError: the file is not a sound pack, or the reference has no tag.
        TrustError: the signature beside it is of another pack, or not of a trusted key.
        RemoteError: the registry cannot be reached, or refuses it.
    """
    if reference.tag is None or reference.digest is not None:
        raise PackError(f"{reference} is no place for a new artifact: name a tag, and no digest")
    pack = Pack.open(path, trusted=trusted)
    annotations = _annotations(pack)
    signature = _signature(pack)
    with _errors(reference):
        described = Descriptor(ARTIFACT, _sha256(path), pack.bytes)
        blobs: list[tuple[Descriptor, Callable[[], BinaryIO]]] = [
            (described, partial(open_regular, path)),
            (CONFIG, partial(io.BytesIO, EMPTY_CONFIG)),
        ]
        sealed = None
        if signature is not None:
            sealed = Descriptor.of(SIGNATURE, signature)
            blobs.append((sealed, partial(io.BytesIO, signature)))
        repository = Repository(reference, push=True)
        uploaded = sum(blob.bytes for blob, opened in blobs if repository.put_blob(blob, opened))
        manifest = PackManifest(described, sealed, annotations).to_bytes()
        repository.put_manifest(reference.tag, manifest)
    digest = hashlib.sha256(manifest).hexdigest()
    return Pushed(str(reference.at(digest)), digest, pack.bytes, uploaded, signature is not None)


def open_artifact(reference: Reference, place: Path | None, trusted: TrustedKeys | None) -> Pack:
    """Open a pack of a registry, from the store if it is there.

    Args:
        reference: the artifact.
        place: folder of the store; by default the user's.
        trusted: keys, one of which must have signed it; None checks no signature.

    Raises:
        PackError: it is not a pack, damaged, or cannot be written to the store.
        TrustError: it is unsigned, or signed by other keys.
        RemoteError: the registry cannot be reached, or does not have it.
    """
    store = Store(place)
    with _errors(reference):
        found = _found(reference, store.path)
        path = store.path / "packs" / f"{found}.pack"
        try:
            pack = _opened(path, store, trusted)
        except (OSError, PackError):  # not there, or damaged
            with store.hold_lock(found):
                try:
                    pack = _opened(path, store, trusted)
                except (OSError, PackError):
                    _pull(reference.at(found), path, store, trusted)
                    pack = _opened(path, store, trusted)
        if reference.digest is None and _last(reference, store) != found:
            store.put_note("packs", _note(reference), canonical({"digest": found}))
    return pack


def _opened(path: Path, store: Store, trusted: TrustedKeys | None) -> Pack:
    """Open a pack of the store, and record the use; OSError where it is not there, or another user may have written
    it."""
    with open_regular(path, private=True) as file, suppress(OSError):
        os.utime(file.fileno())
    try:
        return Pack.open(path, store.path, trusted)
    except TrustError:
        path.stat()  # OSError if another process has evicted it, and then its signature
        raise


def _pull(reference: Reference, path: Path, store: Store, trusted: TrustedKeys | None) -> None:
    """Download a pack into the store: first its signature, since the pack makes the entry complete."""
    assert reference.digest is not None
    repository = Repository(reference)
    manifest = PackManifest.from_bytes(repository.manifest(reference.digest))
    if manifest.pack.bytes > store.max_bytes:
        limit = f"more than the store's limit of {store.max_bytes:,}; raise GEMMILL_STORE_BYTES"
        raise PackError(f"the pack has {manifest.pack.bytes:,} bytes, {limit}")
    if (signature := manifest.signature) is not None:
        sealed = with_retries(lambda: b"".join(repository.blob(signature)))
        open_sealed(sealed, PACK, trusted)
        store.publish("packs", signature_path(path).name, [sealed])
    elif trusted is not None:
        raise TrustError(
            "it is unsigned, but GEMMILL_TRUSTED_KEYS requires a signature: sign it with `gemmill pack sign` before "
            "`gemmill pack push`",
            "unsigned",
        )
    with_retries(lambda: store.publish("packs", path.name, repository.blob(manifest.pack)))
    try:
        Pack.open(path, store.path)
    except PackError:
        path.unlink(missing_ok=True)
        raise
    store.make_room_for(reference.digest)


@cache
def _found(reference: Reference, place: Path) -> str:
    """Return the digest of an artifact; for a tag, the one that it has at the first call."""
    if reference.digest is not None:
        return reference.digest
    assert reference.tag is not None
    try:
        return Repository(reference).digest_of(reference.tag)
    except Miss as miss:
        if miss.reason not in _OUT_OF_REACH or (last := _last(reference, Store(place))) is None:
            raise
        says = f"{reference} was not looked up: {miss.says}. gemmill uses the pack that it had before, sha256:{last}"
        try:
            warnings.warn(says, RemoteWarning, stacklevel=5)
        except RemoteWarning:  # under -W error, the pack is still used
            logging.getLogger(__name__).warning("%s", says)
        return last


def _note(reference: Reference) -> str:
    return hashlib.sha256(str(reference).encode()).hexdigest()


def _last(reference: Reference, store: Store) -> str | None:
    """Return the digest that a tag had when this store last had its pack."""
    with suppress(AttributeError, OSError, ValueError):
        digest = parse(store.get_note("packs", _note(reference))).get("digest")
        return digest if isinstance(digest, str) and is_sha256(digest) else None
    return None


def _annotations(pack: Pack) -> Mapping[str, str]:
    """Return the annotations of a pack's manifest, after checking every kernel."""
    facts = {(kernel.config.arch, cuda_of(kernel.provenance)) for kernel in map(pack.get, pack.names())}
    return {
        "vnd.gemmill.arch": ",".join(sorted({arch for arch, _ in facts})),
        "vnd.gemmill.cuda": ".".join(map(str, max(cuda for _, cuda in facts))),
        "vnd.gemmill.kernels": str(len(pack.names())),
        "vnd.gemmill.version": pack.gemmill,
    }


def _signature(pack: Pack) -> bytes | None:
    """Return the signature beside a pack, after checking that it is of this pack; None where there is none."""
    try:
        sealed = read_given(signature_path(pack.path), MAX_SEALED_BYTES)
    except FileNotFoundError:
        return None
    check_signature(pack, None)
    return sealed


def _sha256(path: Path) -> str:
    """Return the digest of a file."""
    digest = hashlib.sha256()
    with open_regular(path) as file:
        while chunk := file.read(_CHUNK):
            digest.update(chunk)
    return digest.hexdigest()


@contextmanager
def _errors(reference: Reference) -> Iterator[None]:
    """Name the artifact in errors."""
    try:
        yield
    except Miss as miss:
        kind = PackError if miss.reason in _OF_CONTENT else RemoteError
        raise kind(f"{reference}: {miss.says}") from None
    except TrustError as error:
        raise TrustError(f"{reference}: {error}", error.reason) from None
    except PackError as error:
        raise PackError(f"{reference}: {error}") from None
    except OSError as error:
        raise PackError(f"{reference}: {os_error_text(error)}") from error
