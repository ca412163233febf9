"""store push, store pull: between the store and a remote."""

from __future__ import annotations

from typing import Annotated

import typer

from gemmill.cli import completion, output
from gemmill.cli.commands.stores import check_kept, open_store, store_app
from gemmill.cli.options import Json, KernelFilter, OnGpu, Sign, StorePath, is_manifest, kernel
from gemmill.library.errors import RemoteError
from gemmill.runtime.gpus import detect
from gemmill.runtime.obtain import Obtainer
from gemmill.runtime.storage.remote.client import Remote
from gemmill.runtime.storage.remote.misses import Miss
from gemmill.runtime.storage.trust.signatures import SigningKey

Url = Annotated[
    str | None, typer.Option("--remote", metavar="URL", help="The remote; default: that of GEMMILL_REMOTE.")
]
_TOLD = 3
"""Kernels of which it is told why they did not get through; --json has all."""


def _remote(url: str | None) -> Remote:
    if (remote := Remote.of_settings(url)) is None:
        raise typer.BadParameter("no remote is named: --remote URL, or GEMMILL_REMOTE, says where it is")
    return remote


@store_app.command()
def push(
    remote: Url = None,
    sign: Sign = [],  # noqa: B006 (typer copies it)
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Upload the kernels of the store to a remote.

    Whose signatures a server takes, its --trust says; clients of a plain bucket trust the key of --sign itself. By
    default that of GEMMILL_REMOTE_SIGN signs. Edited and damaged kernels stay, and are counted. Exits with 1 if any is
    not taken.

    \b
    Examples:
      gemmill store push --remote https://kernels.example
      gemmill store push --remote https://bucket.example/kernels --sign release.pem
    """
    to, keys, opened = _remote(remote), [SigningKey.load(path) for path in sign] or None, open_store(store)
    counts, refused = {"stored": 0, "there": 0, "edited": 0, "damaged": 0}, dict[str, str]()
    entries = opened.list()
    with output.progress(uploading=len(entries)) as step:
        for entry in entries:
            try:
                artifact = opened.load(entry)
            except (OSError, ValueError):
                counts["damaged"] += 1
                continue
            if artifact.is_edited:
                counts["edited"] += 1
            elif isinstance(done := to.put(artifact, keys), Miss):
                refused[artifact.name] = done.says
            else:
                counts[done] += 1
            step("uploading")
    if as_json:
        output.print_json("store.push", {"remote": to.url, **counts, "refused": refused})
    else:
        told = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
        typer.echo(f"{to.url}: {told or 'nothing'} of {len(entries)} kernels")
    _complain(refused, len(entries), f"{to.url} did not take")


@store_app.command()
def pull(
    source: Annotated[
        str,
        typer.Argument(
            metavar="MANIFEST",
            help="A manifest file, the name of one that ships, or a kernel name.",
            autocompletion=completion.buildable,
        ),
    ],
    kernels: KernelFilter,
    remote: Url = None,
    gpu: OnGpu = None,
    store: StorePath = None,
    as_json: Json = False,
) -> None:
    """Fetch kernels from a remote into the store; nothing is compiled here.

    Exits with 1 if any is not served, or not kept.

    \b
    Examples:
      gemmill store pull bf16 --preset quick --remote https://kernels.example
      gemmill store pull sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear
    """
    of, kept = _remote(remote), open_store(store)
    configs = kernels.configs(source) if is_manifest(source) else [kernel(source)]
    before = of.counters().get("hits", 0)
    found = Obtainer(kept, of, gpu or detect()).fetch(configs)
    missing = {name: miss.says for name, miss in found.items() if isinstance(miss, Miss)}
    fetched = of.counters().get("hits", 0) - before
    there = len(found) - len(missing) - fetched
    if as_json:
        output.print_json("store.pull", {"remote": of.url, "fetched": fetched, "there": there, "missing": missing})
    else:
        typer.echo(f"{of.url}: of {len(found)} kernels {fetched} fetched, {there} were in the store")
    check_kept(kept)
    _complain(missing, len(found), f"{of.url} does not serve")


def _complain(faults: dict[str, str], count: int, what: str) -> None:
    """RemoteError where there are faults."""
    if faults:
        told = "".join(f"\n{name}: {says}" for name, says in list(faults.items())[:_TOLD])
        more = f"\nand {len(faults) - _TOLD} more" if len(faults) > _TOLD else ""
        raise RemoteError(f"{what} {len(faults)} of {count} kernels:{told}{more}")
