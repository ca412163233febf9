"""Signatures of packs: a small file beside each.

What is signed is the digest of a pack's index, which has that of each kernel: so opening a signed pack reads no more
than opening any other, and no kernel of it is read that was not signed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Final

from gemmill.library.errors import PackError, TrustError
from gemmill.library.files import publish, read_given
from gemmill.library.input.rows import made
from gemmill.library.input.strict_json import parse
from gemmill.library.version import __version__
from gemmill.runtime.storage.artifact import canonical
from gemmill.runtime.storage.pack import Pack
from gemmill.runtime.storage.trust.envelope import MAX_SEALED_BYTES, open_sealed, seal
from gemmill.runtime.storage.trust.keys import SigningKey, TrustedKeys

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
        facts = made("it", parse(open_sealed(data, PACK, trusted)), PackFacts)
    except TrustError as error:
        raise TrustError(f"{place}: {error}", error.reason) from None
    except ValueError as error:
        raise TrustError(f"{place}: {error}") from None
    facts.check(pack)
