"""store: list, check and shrink the cache of compiled kernels, and exchange kernels with a remote."""

from __future__ import annotations

import os
import sys
from dataclasses import asdict
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from gemmill.cli import completion, output
from gemmill.cli.app import Application, app
from gemmill.cli.options import KernelFilter, OnGpu, Sign, StorePath, argument, is_manifest, kernel
from gemmill.cli.output import UsageError
from gemmill.library.errors import RemoteError, StoreError
from gemmill.runtime.host_gpu import detect
from gemmill.runtime.kernel_provider import KernelProvider
from gemmill.runtime.storage.remote.client import Remote
from gemmill.runtime.storage.remote.misses import Miss
from gemmill.runtime.storage.store import Store
from gemmill.runtime.storage.trust.signatures import SigningKey

store_app = Application(
    """List, check, shrink and share compiled kernels.

    The store is a directory with the compiled kernels of this user. `gemmill store path` prints where it is.

    \b
    Examples:
      gemmill store list
      gemmill store verify --store /path/to/store
      gemmill store pull bf16 --remote https://kernels.example
    """,
)
app.add_typer(store_app, name="store")


def open_store(path: Path | None) -> Store:
    """A store, after a check that its folders can be read. The runtime treats an unreadable folder as empty instead,
    so that it can still compile.

    Raises:
        StoreError: a folder cannot be read.
    """
    store = Store(path)
    for folder in (store.path, *filter(os.path.isdir, store.path.glob("??"))):
        try:
            os.listdir(f"{folder}/.")  # the dot also needs the right to search the folder
        except FileNotFoundError:  # not written to yet, or just evicted
            continue
        except OSError as error:
            raise StoreError(
                f"cannot read the store: {folder}: {error.strerror or error}; check the permissions of the directory, "
                "or pass another with --store or GEMMILL_STORE"
            ) from error
    return store


def check_kept(store: Store) -> None:
    """Raise a StoreError if a store did not keep a kernel. Programs run without it, but a command that fills a store
    must fail."""
    if store.problem is not None:
        raise StoreError(
            f"the store did not keep all kernels: {store.problem}; free disk space or change permissions, or pass "
            "another directory with --store or GEMMILL_STORE"
        )


@store_app.command(has_json=False)
def path(store: StorePath = None) -> None:
    """Print the directory of the store.

    \b
    Examples:
      gemmill store path
    """
    typer.echo(Store(store).path)


@store_app.command(name="list")
def list_(store: StorePath = None) -> None:
    """List the kernels in the store.

    The least recently used kernel comes first. Damaged entries are marked.

    \b
    Examples:
      gemmill store list --json
    """
    opened = open_store(store)
    rows = []
    for entry in opened.list():
        try:
            name = opened.load(entry).name
        except OSError as error:
            name = f"cannot be read: {error.strerror or error}"
        except ValueError as error:
            name = f"damaged: {error}"
        used = datetime.fromtimestamp(entry.used).astimezone().isoformat(timespec="seconds")
        rows.append({"name": name, "key": entry.key, "bytes": entry.bytes, "used": used})
    cells = [(row["name"], f"{row['bytes']:,}", row["used"], str(row["key"])[:12]) for row in rows]
    output.print_result("store.list", rows, lambda: output.print_table(("kernel", ">bytes", "last used", "key"), cells))


@store_app.command()
def stats(store: StorePath = None) -> None:
    """Print counts, bytes and the limit.

    \b
    Examples:
      gemmill store stats
    """
    size = open_store(store).stats()
    of_limit = f"{size.bytes:,} of at most {size.max_bytes:,} bytes"
    text = f"{size.path}: {size.entries} kernels and {size.packs} packs, {of_limit}"
    output.print_result("store.stats", {**asdict(size), "path": str(size.path)}, text)


@store_app.command()
def verify(store: StorePath = None) -> None:
    """Read and check every kernel in the store.

    Exits with 1 if a kernel is damaged. gemmill never uses a damaged kernel; it replaces it.

    \b
    Examples:
      gemmill store verify
    """
    opened = open_store(store)
    faults = opened.verify()
    output.print_faults(
        "store.verify",
        {"faults": {str(file): fault for file, fault in faults.items()}},
        [f"{file}: {fault}" for file, fault in faults.items()],
        f"{opened.stats().entries} kernels, {len(faults)} damaged",
    )


@store_app.command(has_json=False)
def clear(
    store: StorePath = None,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Remove without a question.")] = False,
) -> None:
    """Remove all kernels and cached results from the store.

    clear removes the kernels, the results of autotuning, and the cached names of shipped kernels. It keeps other files
    in the directory. It removes nothing from a directory that has other files but no CACHEDIR.TAG of gemmill. It first
    prints the directory and asks.

    \b
    Examples:
      gemmill store clear
      gemmill store clear --store /path/to/store --yes
    """
    opened = open_store(store)
    if not yes:
        what = f"{opened.stats().entries} kernels and the cached results in {opened.path}"
        if sys.stdin is None or not sys.stdin.isatty():
            raise UsageError(f"clear asks before it removes {what}, but stdin is no terminal; pass --yes")
        typer.confirm(f"Remove {what}?", abort=True, err=True)
    typer.echo(f"{opened.clear()} kernels removed")
    if left := opened.stats().entries:
        raise StoreError(f"{opened.path}: cannot remove {left} kernels; check the permissions of the directory")


@store_app.command(has_json=False)
def prune(store: StorePath = None) -> None:
    """Remove incomplete files, old kernels and old packs.

    prune removes files of interrupted writers. If the store exceeds its size limit (GEMMILL_STORE_BYTES), it also
    removes the least recently used kernels and packs from registries.

    \b
    Examples:
      gemmill store prune
    """
    typer.echo(f"{open_store(store).prune()} kernels and packs removed")


Url = Annotated[str | None, typer.Option("--remote", metavar="URL", help="URL of the remote. Default: GEMMILL_REMOTE.")]
_MOST_SHOWN = 3
"""Failed kernels that a message lists; --json has all."""


def _remote(url: str | None) -> Remote:
    if (remote := Remote.of_settings(url)) is None:
        raise UsageError("no remote is given; pass --remote URL or set GEMMILL_REMOTE")
    return remote


@store_app.command()
def push(
    remote: Url = None,
    sign: Sign = [],  # noqa: B006 (typer copies it)
    store: StorePath = None,
) -> None:
    """Upload the kernels of the store to a remote.

    A kernel is signed with the key of --sign, or of GEMMILL_REMOTE_SIGN. A server accepts keys of its option --trust;
    clients of a plain bucket must trust the key themselves. push does not upload edited and damaged kernels, and prints
    their number. Exits with 1 if the remote refuses a kernel.

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
    shown = ", ".join(f"{count} {name}" for name, count in counts.items() if count)
    text = f"{to.url}: {shown or 'nothing'} of {len(entries)} kernels"
    output.print_result("store.push", {"remote": to.url, **counts, "refused": refused}, text)
    _complain(refused, len(entries), f"{to.url} refused")


@store_app.command()
def pull(
    source: Annotated[
        str,
        argument("MANIFEST", "Manifest file, name of a shipped manifest, or kernel name.", completion.buildable),
    ],
    kernels: KernelFilter,
    remote: Url = None,
    gpu: OnGpu = None,
    store: StorePath = None,
) -> None:
    """Fetch kernels from a remote into the store.

    pull compiles nothing on this machine. Exits with 1 if the remote does not deliver a kernel, or the store does not
    keep it.

    \b
    Examples:
      gemmill store pull bf16 --preset quick --remote https://kernels.example
      gemmill store pull sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear
    """
    remote_store, local = _remote(remote), open_store(store)
    configs = kernels.configs(source) if is_manifest(source) else [kernel(source)]
    before = remote_store.counters().get("hits", 0)
    kernels_by_name = KernelProvider(local, remote_store, gpu or detect()).fetch(configs)
    missing = {name: miss.says for name, miss in kernels_by_name.items() if isinstance(miss, Miss)}
    fetched = remote_store.counters().get("hits", 0) - before
    present = len(kernels_by_name) - len(missing) - fetched
    output.print_result(
        "store.pull",
        {"remote": remote_store.url, "fetched": fetched, "there": present, "missing": missing},
        f"{remote_store.url}: {len(kernels_by_name)} kernels, {fetched} fetched, {present} already in the store",
    )
    check_kept(local)
    _complain(missing, len(kernels_by_name), f"{remote_store.url} did not deliver")


def _complain(faults: dict[str, str], count: int, what: str) -> None:
    """Raise a RemoteError if there are faults."""
    if faults:
        named = "".join(f"\n{name}: {says}" for name, says in list(faults.items())[:_MOST_SHOWN])
        more = f"\nand {len(faults) - _MOST_SHOWN} more" if len(faults) > _MOST_SHOWN else ""
        raise RemoteError(f"{what} {len(faults)} of {count} kernels:{named}{more}")
