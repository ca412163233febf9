"""Signatures of packs, and the index of packs: which packs of a registry count now.

A small file beside a pack has its signature: of the digest of the pack's index, which has that of each kernel. So
opening a signed pack reads no more than opening any other, and no kernel of it is read that was not signed.

A signature alone does not say that there is nothing newer. An index of packs has a version that grows, the time it was
issued and the time it expires; who takes one remembers, in the store and before using it, the newest that was taken,
and takes no older one (The Update Framework, https://theupdateframework.io, calls these rollback and freeze). So
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
"""What the envelope says it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackFacts:
    """What is signed of a pack."""

    name: str
    """What its file was called; for people, as a pack may be renamed."""
    digest: str
    """:attr:`Pack.digest`."""
    bytes: int
    """Bytes of its file."""
    gemmill: str
    """Version of gemmill that said so; for people."""

    @classmethod
    def of(cls, pack: Pack) -> PackFacts:
        """What there is to say of an opened pack."""
        return cls(name=pack.path.name, digest=pack.digest, bytes=pack.bytes, gemmill=__version__)

    def check(self, pack: Pack) -> None:
        """Refuse another pack.

        Raises:
            TrustError: its content is another; ``reason`` is ``tampered``.
        """
        if (pack.digest, pack.bytes) != (self.digest, self.bytes):
            raise TrustError(
                f"{pack.path}: its {pack.bytes:,} bytes of digest {pack.digest[:12]} are not the {self.bytes:,} of "
                f"{self.digest[:12]} that were signed as {self.name}",
                "tampered",
            )


def signature_path(path: Path) -> Path:
    """Where the signature of a pack is."""
    return path.with_name(f"{path.name}.sig")


def sign_pack(path: Path, keys: Sequence[SigningKey]) -> PackFacts:
    """Sign a pack: write ``PATH.sig``, in place of what was signed before.

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


def check_signature(pack: Pack, trusted: TrustedKeys) -> None:
    """Refuse a pack that no trusted key signed.

    Raises:
        TrustError: it is unsigned, or signed otherwise; names the file and the way out.
    """
    place = signature_path(pack.path)
    try:
        data = read_given(place, MAX_SEALED_BYTES)
    except FileNotFoundError:
        raise TrustError(
            f"{pack.path}: it is unsigned (there is no {place.name} beside it), and GEMMILL_TRUSTED_KEYS asks for a "
            f"signature; who made it signs it with `gemmill pack sign`",
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
"""What its envelope says it is."""
_AHEAD = timedelta(days=1)
"""An index that is issued further ahead of this clock is refused: one of the two clocks is wrong."""
_TIME = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True)
class NewestIndex:
    """The newest index that was taken."""

    version: int = 0
    issued: str = ""
    """When it was issued, as :class:`PackIndex` has it; empty where none was taken."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackIndex:
    """The packs of a registry at a time."""

    name: str
    """Which registry's: versions of one name are compared."""
    version: int
    """Grows with each that is issued."""
    issued: str
    """When it was made, in UTC: ``2026-11-27T15:00:00Z``."""
    expires: str
    """From when on it is refused, in UTC."""
    packs: tuple[PackFacts, ...]
    revoked: tuple[str, ...] = ()
    """Ids of keys whose signatures do not count any more, for this index and its packs."""

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
        """The index of opened packs.

        Args:
            packs: what it lists.
            lifetime: how long it counts.
            name: which registry's it is.
            version: more than that of the one before; by default the seconds since the epoch, which grow by themselves.
            revoked: ids of keys that do not count any more.
            now: the time; by default this machine's.

        Raises:
            TrustError: two packs have one name, or a revoked id is none.
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
            raise TrustError(f"no index can say this: {error}") from None

    def seal(self, keys: Sequence[SigningKey]) -> bytes:
        """The signed index, as :meth:`open` takes it."""
        return seal(INDEX, self._payload(), keys)

    @classmethod
    def open(
        cls, data: bytes, trusted: TrustedKeys | None, seen: NewestIndex = NewestIndex(), now: datetime | None = None
    ) -> PackIndex:
        """A signed index that counts now.

        Args:
            data: what was fetched or read.
            trusted: whose signatures count; None takes an unsigned one, too.
            seen: the newest one of its name that was taken.
            now: the time; by default this machine's. Where ``seen`` was issued later, that time counts: a clock that
                went back makes no expired index count again.

        Raises:
            TrustError: it is unsigned or signed otherwise, also by a key that it revokes itself; ``malformed``;
                ``expired``, or issued more than a day ahead of the clock; ``replayed``, older than the one seen.
        """
        payload = open_sealed(data, INDEX, trusted)
        try:
            index = _read(parse(payload))
        except ValueError as error:
            raise TrustError(f"no index of packs that this version of gemmill reads: {error}") from None
        if trusted is not None and index.revoked:
            open_sealed(data, INDEX, index.trusted(trusted))
        what = f"version {index.version} of the index of packs {index.name!r}"
        if index.version < seen.version:
            raise TrustError(f"{what} is older than version {seen.version}, which was seen already", "replayed")
        clock = (now or datetime.now(UTC)).astimezone(UTC)
        issued, expires = _time(index.issued), _time(index.expires)
        if issued > clock + _AHEAD:
            raise TrustError(
                f"{what} was issued at {index.issued}, and this machine's clock is at {clock.strftime(_TIME)}: one of "
                "both clocks is wrong; set it",
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
        """A signed index, as :meth:`open` takes it, no older than any that this store knows of; it is remembered there
        before it is returned.

        Clearing the store forgets what was seen, and so do other trusted keys. Where it cannot be written, nothing is
        remembered, after a warning.

        Raises:
            TrustError: as for :meth:`open`.
        """
        name = cls.open(data, trusted, now=now).name
        # With the keys: what a stolen one signed, as of the version 2^62, is forgotten with that key.
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
        """Trusted keys, less those that this index revokes."""
        return trusted.revoking(frozenset(self.revoked))

    def check(self, pack: Pack, trusted: TrustedKeys) -> None:
        """Refuse a pack that this index does not list, or lists otherwise.

        Args:
            pack: an opened pack, whatever its file is called; it must be signed as well.
            trusted: whose signatures count, less what this index revokes.

        Raises:
            TrustError: it is not listed, has another content, or is signed otherwise.
        """
        if not any(facts.digest == pack.digest for facts in self.packs):
            for facts in self.packs:
                if facts.name == pack.path.name:
                    facts.check(pack)
            raise TrustError(
                f"{pack.path}: version {self.version} of the index of packs {self.name!r} lists no such pack; it lists "
                f"{', '.join(facts.name for facts in self.packs) or 'none'}",
                "tampered",
            )
        check_signature(pack, self.trusted(trusted))

    def _payload(self) -> bytes:
        return canonical(asdict(self))


def _read(content: Any) -> PackIndex:
    """The index of a payload; ValueError where it is none."""
    index = read_row("it", content, PackIndex)
    if len({facts.name for facts in index.packs}) != len(index.packs):
        raise RowError("two packs have one name")
    if wrong := [key for key in index.revoked if not is_id(key)]:
        raise RowError(f"revoked has {wrong[0]!r:.40}; the id of a key has 16 hex digits, as `gemmill key show` prints")
    if _time(index.issued) >= _time(index.expires):
        raise RowError(f"it is issued at {index.issued}, and expires at {index.expires}, no later")
    return index


def _time(text: str) -> datetime:
    """A time; ValueError where it is not written as :data:`_TIME` has it."""
    time = datetime.strptime(text, _TIME).replace(tzinfo=UTC)
    if time.strftime(_TIME) != text:
        raise ValueError(f"{text!r:.40} is no time such as 2026-11-27T15:00:00Z")
    return time


def _newest_seen(store: Store, key: str) -> NewestIndex:
    """What was seen of a name; nothing where the note is missing or damaged."""
    try:
        newest = read_row("it", parse(store.get_note("indexes", key)), NewestIndex)
        if newest.issued:
            _time(newest.issued)
    except (OSError, ValueError):
        return NewestIndex()
    return newest
