"""Signatures of packs, and the index of packs: which packs of a registry are current.

The signature of a pack is a small file next to it. It covers the digest of the pack's index, which has the digest of
each kernel. So opening a signed pack reads no more than opening an unsigned one, and no unsigned kernel of it is ever
read.

A signature alone does not prove that there is nothing newer. An index of packs has a growing version, a time of issue
and a time of expiry. Before using an index, a client records in the store the newest one that it has accepted, and it
refuses older ones (The Update Framework, https://theupdateframework.io, calls these attacks rollback and freeze). So
neither an old pack nor a revoked key comes back.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, Final

from gemmill.library.errors import PackError, TrustError
from gemmill.library.files import publish, read_given
from gemmill.library.input.strict_json import RowError, parse, read_row
from gemmill.library.version import __version__
from gemmill.runtime.storage.artifact import canonical
from gemmill.runtime.storage.pack import Pack
from gemmill.runtime.storage.store import Store
from gemmill.runtime.storage.trust.signatures import MAX_SEALED_BYTES, SigningKey, TrustedKeys, is_id, open_sealed, seal

PACK: Final = "gemmill.pack/1"
"""Type of the envelope."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackFacts:
    """The signed description of a pack."""

    name: str
    """Original name of its file, for information, since a pack may be renamed."""
    digest: str
    """:attr:`Pack.digest`."""
    bytes: int
    """Size of its file in bytes."""
    gemmill: str
    """Version of the gemmill that signed it, for information."""

    @classmethod
    def of(cls, pack: Pack) -> PackFacts:
        """Return the description of an opened pack."""
        return cls(name=pack.path.name, digest=pack.digest, bytes=pack.bytes, gemmill=__version__)

    def check(self, pack: Pack) -> None:
        """Raise an error for another pack.

        Raises:
            TrustError: its content differs; ``reason`` is ``tampered``.
        """
        if (pack.digest, pack.bytes) != (self.digest, self.bytes):
            raise TrustError(
                f"{pack.path}: its {pack.bytes:,} bytes with digest {pack.digest[:12]} differ from the {self.bytes:,} "
                f"bytes with digest {self.digest[:12]} that were signed as {self.name}",
                "tampered",
            )


def signature_path(path: Path) -> Path:
    """Return the path of a pack's signature."""
    return path.with_name(f"{path.name}.sig")


def sign_pack(path: Path, keys: Sequence[SigningKey]) -> PackFacts:
    """Sign a pack: write ``PATH.sig``, replacing an earlier signature.

    Raises:
        PackError: it cannot be read, or the signature cannot be written.
    """
    facts = PackFacts.of(Pack.open(path))
    to = signature_path(path)
    try:
        publish(to, [seal(PACK, canonical(asdict(facts)), keys)])
    except OSError as error:
        raise PackError(f"{to}: cannot be written: {error.strerror or error}") from error
    return facts


def check_signature(pack: Pack, trusted: TrustedKeys | None) -> None:
    """Check that a trusted key signed a pack; with None, only that its signature is of this pack.

    Raises:
        TrustError: it is unsigned, or signed by other keys; names the file and what to do.
    """
    place = signature_path(pack.path)
    try:
        data = read_given(place, MAX_SEALED_BYTES)
    except FileNotFoundError:
        raise TrustError(
            f"{pack.path}: it is unsigned (there is no {place.name} next to it), but GEMMILL_TRUSTED_KEYS requires a "
            f"signature: sign it with `gemmill pack sign`",
            "unsigned",
        ) from None
    except OSError as error:
        raise TrustError(f"{place}: {error.strerror or error}") from error
    try:
        facts = read_row("it", parse(open_sealed(data, PACK, trusted)), PackFacts)
    except TrustError as error:
        raise TrustError(f"{place}: {error}", error.reason) from None
    except ValueError as error:
        raise TrustError(f"{place}: {error}") from None
    facts.check(pack)


INDEX: Final = "gemmill.index/1"
"""Type of its envelope."""
_AHEAD = timedelta(days=1)
"""An index issued further in the future than this is refused: one of the two clocks is wrong."""
_TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class NewestIndex:
    """The newest accepted index."""

    version: int = 0
    issued: str = ""
    """Time of issue, as in :class:`PackIndex`; empty where none was accepted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackIndex:
    """The packs of a registry at one time."""

    name: str
    """Name of the registry; versions of one name are compared."""
    version: int
    """Grows with each issue."""
    issued: str
    """Time of issue in UTC: ``2026-11-27T15:00:00Z``."""
    expires: str
    """Time in UTC from which on it is refused."""
    packs: tuple[PackFacts, ...]
    revoked: tuple[str, ...] = ()
    """Ids of keys whose signatures no longer count, for this index and its packs."""

    @classmethod
    def of(
        cls,
        packs: Iterable[Pack],
        lifetime: timedelta,
        *,
        name: str = "default",
        version: int | None = None,
        revoked: Iterable[str] = (),
        now: datetime | None = None,
    ) -> PackIndex:
        """Return the index of opened packs.

        Args:
            packs: the packs in it.
            lifetime: how long it is valid.
            name: name of the registry.
            version: more than that of the previous one; by default the seconds since the epoch, which always grow.
            revoked: ids of keys that no longer count.
            now: the time; by default this machine's.

        Raises:
            TrustError: two packs have the same name, or a revoked id is invalid.
        """
        issued = (now or datetime.now(UTC)).astimezone(UTC)
        listed = sorted(map(PackFacts.of, packs), key=lambda facts: facts.name)
        index = cls(
            name=name,
            version=int(issued.timestamp()) if version is None else version,
            issued=issued.strftime(_TIME),
            expires=(issued + lifetime).strftime(_TIME),
            packs=tuple(listed),
            revoked=tuple(sorted({*revoked})),
        )
        try:
            return _read(parse(index._payload()))
        except ValueError as error:
            raise TrustError(f"the index would be invalid: {error}") from None

    def seal(self, keys: Sequence[SigningKey]) -> bytes:
        """Return the signed index, in the form that :meth:`open` takes."""
        return seal(INDEX, self._payload(), keys)

    @classmethod
    def open(
        cls, data: bytes, trusted: TrustedKeys | None, seen: NewestIndex = NewestIndex(), now: datetime | None = None
    ) -> PackIndex:
        """Return a signed index that is currently valid.

        Args:
            data: the signed index.
            trusted: the keys whose signatures count; None also accepts an unsigned index.
            seen: the newest accepted index of the same name.
            now: the time; by default this machine's. If ``seen`` was issued later, that time counts instead, so that a
                clock that went back does not make an expired index valid again.

        Raises:
            TrustError: it is unsigned or signed by other keys, including keys that it revokes itself; ``malformed``;
                ``expired``, or issued more than a day in the future; ``replayed``, older than the one seen.
        """
        payload = open_sealed(data, INDEX, trusted)
        try:
            index = _read(parse(payload))
        except ValueError as error:
            raise TrustError(f"not an index of packs of this version of gemmill: {error}") from None
        if trusted is not None and index.revoked:
            open_sealed(data, INDEX, index.trusted(trusted))
        what = f"version {index.version} of the index of packs {index.name!r}"
        if index.version < seen.version:
            raise TrustError(f"{what} is older than version {seen.version}, which was accepted before", "replayed")
        clock = (now or datetime.now(UTC)).astimezone(UTC)
        issued, expires = _time(index.issued), _time(index.expires)
        if issued > clock + _AHEAD:
            raise TrustError(
                f"{what} was issued at {index.issued}, but this machine's clock is at {clock.strftime(_TIME)}: set the "
                "clock that is wrong",
                "expired",
            )
        if max(clock, _time(seen.issued) if seen.issued else clock) >= expires:
            raise TrustError(
                f"{what} expired at {index.expires}; this machine's clock is at {clock.strftime(_TIME)}. Fetch a newer "
                "one, or set the clock",
                "expired",
            )
        return index

    @classmethod
    def accept(cls, data: bytes, trusted: TrustedKeys, store: Store, now: datetime | None = None) -> PackIndex:
        """Return a signed index like :meth:`open`, no older than any that this store has recorded, and record it.

        Clearing the store or changing the trusted keys drops the record. Where the store cannot be written, nothing is
        recorded, after a warning.

        Raises:
            TrustError: as for :meth:`open`.
        """
        name = cls.open(data, trusted, now=now).name
        # The record depends on the keys: what a stolen key signed, such as version 2^62, is dropped together with that
        # key.
        counting = sorted({key.id for key in trusted.keys} - trusted.revoked)
        key = hashlib.sha256(canonical([name, counting])).hexdigest()
        with store.hold_lock(key):
            seen = _newest_seen(store, key)
            index = cls.open(data, trusted, seen, now)
            newest = NewestIndex(index.version, max(index.issued, seen.issued))
            if newest != seen:
                store.put_note("indexes", key, canonical(asdict(newest)))
            return index

    def trusted(self, trusted: TrustedKeys) -> TrustedKeys:
        """Return trusted keys without those that this index revokes."""
        return trusted.revoking(frozenset(self.revoked))

    def check(self, pack: Pack, trusted: TrustedKeys) -> None:
        """Check that this index lists a pack.

        Args:
            pack: an opened pack, with any file name; it must be signed as well.
            trusted: the keys whose signatures count, except those that this index revokes.

        Raises:
            TrustError: it is not listed, has other content, or is signed by other keys.
        """
        if not any(facts.digest == pack.digest for facts in self.packs):
            for facts in self.packs:
                if facts.name == pack.path.name:
                    facts.check(pack)
            raise TrustError(
                f"{pack.path}: version {self.version} of the index of packs {self.name!r} does not list this pack; it "
                f"lists {', '.join(facts.name for facts in self.packs) or 'none'}",
                "tampered",
            )
        check_signature(pack, self.trusted(trusted))

    def _payload(self) -> bytes:
        return canonical(asdict(self))


def _read(content: Any) -> PackIndex:
    """Return the index of a payload; ValueError where it is invalid."""
    index = read_row("it", content, PackIndex)
    if len({facts.name for facts in index.packs}) != len(index.packs):
        raise RowError("two packs have the same name")
    if wrong := [key for key in index.revoked if not is_id(key)]:
        raise RowError(
            f"revoked has {wrong[0]!r:.40}; expected the id of a key, 16 hex digits as `gemmill key show` prints"
        )
    if _time(index.issued) >= _time(index.expires):
        raise RowError(f"it expires at {index.expires}, which must be later than its issue at {index.issued}")
    return index


def _time(text: str) -> datetime:
    """Parse a time; ValueError where it does not have the form of :data:`_TIME`."""
    time = datetime.strptime(text, _TIME).replace(tzinfo=UTC)
    if time.strftime(_TIME) != text:
        raise ValueError(f"{text!r:.40} is not a time such as 2026-11-27T15:00:00Z")
    return time


def _newest_seen(store: Store, key: str) -> NewestIndex:
    """Return the recorded index of a name; an empty one where the note is missing or damaged."""
    try:
        newest = read_row("it", parse(store.get_note("indexes", key)), NewestIndex)
        if newest.issued:
            _time(newest.issued)
    except (OSError, ValueError):
        return NewestIndex()
    return newest
