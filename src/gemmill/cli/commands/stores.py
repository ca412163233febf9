"""store: look into the cache of compiled kernels, check it, shrink it; to share it, service/remotes.py."""

from __future__ import annotations

import os
from dataclasses import asdict
from datetime import datetime
from pathlib import Path

import typer

from gemmill.cli import output
from gemmill.cli.app import Application, app
from gemmill.cli.options import Json, StorePath
from gemmill.cli.output import Status
from gemmill.library.errors import StoreError
from gemmill.runtime.storage.store import Store

store_app = Application(
    """Look into the store of compiled kernels, check it, shrink it, share it.

    \b
    Examples:
      gemmill store list
      gemmill store verify --store /path/to/store
      gemmill store pull bf16 --remote https://kernels.example
    """,
)
app.add_typer(store_app, name="store")


def open_store(path: Path | None) -> Store:
    """A store whose folders can be read, if there are any: to the runtime all others are empty, since they must never
    cost it a kernel."""
    store = Store(path)
    for folder in (store.path, *filter(os.path.isdir, store.path.glob("??"))):
        try:
            os.listdir(f"{folder}/.")  # which takes the right to search the folder, too
        except FileNotFoundError:  # made when first written to, or just evicted
            continue
        except OSError as error:
            raise StoreError(
                f"the store cannot be read: {folder}: {error.strerror or error}; check the folder and its permissions, "
                "or name another with --store or GEMMILL_STORE"
            ) from error
    return store


def check_kept(store: Store) -> None:
    """StoreError where a store did not keep what it was given, which programs do without and a command that fills it
    does not."""
    if store.problem is not None:
        raise StoreError(
            f"the store does not keep everything: {store.problem}; make room or give rights, or name another with "
            "--store or GEMMILL_STORE"
        )


@store_app.command()
def path(store: StorePath = None) -> None:
    """Print where the store is.

    \b
    Examples:
      gemmill store path
    """
    typer.echo(Store(store).path)


@store_app.command(name="list")
def list_(store: StorePath = None, as_json: Json = False) -> None:
    """List the kernels in the store, the one used least recently first. Damaged entries are named as such.

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
    if as_json:
        output.print_json("store.list", rows)
    else:
        cells = [(row["name"], f"{row['bytes']:,}", row["used"], str(row["key"])[:12]) for row in rows]
        output.print_table(("kernel", ">bytes", "last used", "key"), cells)


@store_app.command()
def stats(store: StorePath = None, as_json: Json = False) -> None:
    """Print the number of entries, their size and the size cap.

    \b
    Examples:
      gemmill store stats
    """
    found = open_store(store).stats()
    if as_json:
        output.print_json("store.stats", {**asdict(found), "path": str(found.path)})
    else:
        typer.echo(f"{found.path}: {found.entries} kernels, {found.bytes:,} of at most {found.max_bytes:,} bytes")


@store_app.command()
def verify(store: StorePath = None, as_json: Json = False) -> None:
    """Read every entry and check it; exits with 1 if any is damaged. Damaged entries are never used, only replaced.

    \b
    Examples:
      gemmill store verify
    """
    opened = open_store(store)
    faults = opened.verify()
    if as_json:
        output.print_json("store.verify", {"faults": {str(file): fault for file, fault in faults.items()}})
    else:
        for file, fault in faults.items():
            output.complain(f"{file}: {fault}")
        typer.echo(f"{opened.stats().entries} kernels, {len(faults)} damaged")
    if faults:
        raise typer.Exit(Status.WRONG)


@store_app.command()
def clear(store: StorePath = None) -> None:
    """Remove every kernel from the store, what autotuning found, and the names of kernels that ship.

    Nothing else in the folder is removed, and nothing at all where it holds other files and no mark of gemmill's
    (CACHEDIR.TAG).

    \b
    Examples:
      gemmill store clear --store /path/to/store
    """
    opened = open_store(store)
    typer.echo(f"{opened.clear()} kernels removed")
    if left := opened.stats().entries:
        raise StoreError(f"{opened.path}: {left} kernels could not be removed; check the permissions of the folder")


@store_app.command()
def prune(store: StorePath = None) -> None:
    """Remove what killed writers left and, above the size cap, the kernels used least recently.

    \b
    Examples:
      gemmill store prune
    """
    typer.echo(f"{open_store(store).prune()} kernels removed")
