"""pack push, pack pull: packs in OCI registries."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from gemmill.cli import output
from gemmill.cli.commands.packs import PackFile, pack_app
from gemmill.cli.options import StorePath, output_file
from gemmill.cli.output import usage
from gemmill.library.errors import PackError
from gemmill.library.files import publish
from gemmill.runtime.storage.oci.artifacts import open_artifact
from gemmill.runtime.storage.oci.artifacts import push as push_pack
from gemmill.runtime.storage.oci.reference import Reference
from gemmill.runtime.storage.trust.signatures import TrustedKeys
from gemmill.runtime.storage.trust.signed_packs import signature_path

_CHUNK = 1 << 20
"""Bytes that are copied at a time."""


def _reference(text: str) -> Reference:
    with usage(PackError):
        return Reference.of(text)


Place = Annotated[
    Reference,
    typer.Argument(
        metavar="REFERENCE", parser=_reference, help="oci://HOST/NAME:TAG or oci://HOST/NAME@sha256:DIGEST."
    ),
]


@pack_app.command()
def push(file: PackFile, reference: Place) -> None:
    """Upload a pack to an OCI registry.

    gemmill checks every kernel first. The signature FILE.sig, if it exists, becomes a layer of the artifact. Equal
    packs give equal digests, whatever their file names. The registry receives only what it does not have.

    Credentials come from GEMMILL_OCI_TOKEN if it names the registry, else from `docker login`.

    \b
    Examples:
      gemmill pack push served.pack oci://registry.example/kernels/served:1.0
      gemmill pack push served.pack oci://localhost:5000/served:latest --json
    """
    pushed = push_pack(file, reference, TrustedKeys.of_settings())
    text = f"{pushed.reference}\n{pushed.uploaded:,} bytes uploaded, {'signed' if pushed.signed else 'unsigned'}"
    output.print_result("pack.push", pushed._asdict(), text)


@pack_app.command()
def pull(
    reference: Place,
    to: Annotated[Path | None, output_file("Pack to write, beside the one in the store.")] = None,
    store: StorePath = None,
) -> None:
    """Download a pack from an OCI registry into the store.

    A process with `gemmill.Registry(packs=["oci://..."])`, or with GEMMILL_PACKS=oci://..., then opens it from the
    store. With -o, gemmill also writes the pack to FILE, and its signature to FILE.sig.

    If GEMMILL_TRUSTED_KEYS is set, one of its keys must have signed the pack.

    \b
    Examples:
      gemmill pack pull oci://registry.example/kernels/served:1.0
      gemmill pack pull oci://registry.example/kernels/served:1.0 -o served.pack
    """
    pack = open_artifact(reference, store, TrustedKeys.of_settings())
    if to is not None:
        for source, target in ((signature_path(pack.path), signature_path(to)), (pack.path, to)):
            if source.exists():
                with source.open("rb") as content:
                    publish(target, iter(partial(content.read, _CHUNK), b""))
    file = to or pack.path
    report = {
        "reference": str(reference.at(pack.path.stem)),
        "file": str(file),
        "bytes": pack.bytes,
        "kernels": len(pack.names()),
        "signed": signature_path(pack.path).exists(),
    }
    text = f"{report['reference']}\n{file}: {len(pack.names())} kernels, {pack.bytes:,} bytes"
    output.print_result("pack.pull", report, text)
