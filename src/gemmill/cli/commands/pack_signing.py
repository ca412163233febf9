"""key, pack sign, pack index: keys, signatures of packs, and signed lists of the packs that are valid now."""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import timedelta
from pathlib import Path
from typing import Annotated

import typer

from gemmill.cli import output
from gemmill.cli.app import Application, app
from gemmill.cli.commands.packs import PackFile, pack_app
from gemmill.cli.options import Sign, in_directory, input_argument, output_file, refuse_overwriting
from gemmill.library.files import publish
from gemmill.runtime.storage.pack import Pack
from gemmill.runtime.storage.trust.signatures import PublicKey, SigningKey, TrustedKeys
from gemmill.runtime.storage.trust.signed_packs import PackIndex, sign_pack, signature_path

key_app = Application(
    """Make and show keys that sign packs and kernels.

    A private key signs. Machines that list its public key in GEMMILL_TRUSTED_KEYS accept what it signed.

    \b
    Examples:
      gemmill key new release.pem
      gemmill key show release.pem
    """,
)
app.add_typer(key_app, name="key")


def _new_file(path: Path) -> Path:
    if os.path.lexists(path):
        raise typer.BadParameter(f"{str(path)!r} exists already, and private keys are not replaced; use another name")
    in_directory(path)
    return path


@key_app.command()
def new(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", callback=_new_file, help="Private key to write. An existing file is not replaced."
        ),
    ],
) -> None:
    """Make a private key, and print its public key.

    The key is an Ed25519 key in a file that only you can read. Add the public key to GEMMILL_TRUSTED_KEYS on every
    machine that should accept what this key signs.

    \b
    Examples:
      gemmill key new release.pem
    """
    key = SigningKey.new()
    key.save(file)
    _print_key(key.public)


@key_app.command()
def show(
    file: Annotated[Path, input_argument("Private key, from gemmill key new.")],
) -> None:
    """Print the public key and the id of a private key.

    Signatures and revocations refer to a key by its id.

    \b
    Examples:
      gemmill key show release.pem
      gemmill key show release.pem >> trusted.keys
    """
    _print_key(SigningKey.load(file).public)


def _print_key(key: PublicKey) -> None:
    output.print_result("key", {"id": key.id, "public": str(key)}, f"{key} {key.id}")


_MOST_DAYS = 3650


@pack_app.command(name="sign")
def sign_(file: PackFile, sign: Sign) -> None:
    """Sign a pack: write its signature to FILE.sig.

    An existing signature is replaced. Pass --sign twice to sign with two keys, for example to replace an old key: a
    machine that trusts either of them accepts the pack.

    \b
    Examples:
      gemmill pack sign quick.pack --sign release.pem
      gemmill pack sign quick.pack --sign old.pem --sign new.pem
    """
    keys = [SigningKey.load(path) for path in sign]
    to = signature_path(file)
    refuse_overwriting([to], [file, *sign])
    facts = sign_pack(file, keys)
    ids = [key.public.id for key in keys]
    report = {**asdict(facts), "signature": str(to), "keys": ids}
    output.print_result("pack.sign", report, f"{to}: signed by {', '.join(ids)}")


@pack_app.command()
def index(
    files: Annotated[list[Path], input_argument("Signed packs to list.")],
    to: Annotated[Path, output_file("Index to write.")],
    sign: Sign,
    days: Annotated[
        int,
        typer.Option("--days", min=1, max=_MOST_DAYS, metavar="N", help="Days until the index expires and is refused."),
    ] = 30,
    name: Annotated[
        str, typer.Option(metavar="NAME", help="Name of the index. Only versions of one name are compared.")
    ] = "default",
    revoke: Annotated[list[str], typer.Option(metavar="ID", help="Id of a key to revoke. Repeatable.")] = [],  # noqa: B006 (typer copies it)
) -> None:
    """Write a signed index of the packs that are valid now.

    `gemmill pack verify --index` checks that an index lists a pack. The version of an index is its time in seconds. A
    machine that has accepted an index refuses older ones, and refuses an expired index: write a new one before that.

    \b
    Examples:
      gemmill pack index quick.pack large.pack --sign release.pem -o packs.index
      gemmill pack index quick.pack --sign new.pem --revoke 0123456789abcdef --days 7 -o packs.index
    """
    keys = [SigningKey.load(path) for path in sign]
    refuse_overwriting([to], [*files, *sign])
    trusted = TrustedKeys.of_settings()
    packs = [Pack.open(file, trusted=trusted) for file in files]
    made = PackIndex.of(packs, timedelta(days=days), name=name, revoked=revoke)
    publish(to, [made.seal(keys)])
    text = f"{to}: {len(made.packs)} packs, version {made.version}, expires at {made.expires}"
    output.print_result("pack.index", asdict(made), text)
