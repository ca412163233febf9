"""key: make and show the keys that packs and kernels are signed with."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gemmill.cli import output
from gemmill.cli.app import Application, app
from gemmill.cli.options import Json
from gemmill.runtime.storage.trust.signatures import PublicKey, SigningKey

key_app = Application(
    """Make and show keys: a private one signs, and who trusts its public one takes what it signed.

    \b
    Examples:
      gemmill key new release.pem
      gemmill key show release.pem
    """,
)
app.add_typer(key_app, name="key")


@key_app.command()
def new(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The private key to write; never replaced.")],
    as_json: Json = False,
) -> None:
    """Make a private key of Ed25519, in a file that nobody else may read, and print its public key.

    The public key goes into GEMMILL_TRUSTED_KEYS of those who shall take what this key signs.

    \b
    Examples:
      gemmill key new release.pem
    """
    key = SigningKey.new()
    key.save(file)
    _tell(key.public, as_json)


@key_app.command()
def show(
    file: Annotated[Path, typer.Argument(metavar="FILE", exists=True, dir_okay=False, help="A private key.")],
    as_json: Json = False,
) -> None:
    """Print the public key of a private one, and behind it its id, which signatures and revocations name it by.

    \b
    Examples:
      gemmill key show release.pem
      gemmill key show release.pem >> trusted.keys
    """
    _tell(SigningKey.load(file).public, as_json)


def _tell(key: PublicKey, as_json: bool) -> None:
    if as_json:
        output.print_json("key", {"id": key.id, "public": str(key)})
    else:
        typer.echo(f"{key} {key.id}")
