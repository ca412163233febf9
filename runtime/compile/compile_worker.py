"""The body of a worker process that compiles kernels for :mod:`gemmill.runtime.compile.pool`."""

from __future__ import annotations

import json
import time
import warnings
from pathlib import Path

from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.errors import GemmillError
from gemmill.library.files import os_error_text
from gemmill.runtime.compile import pch, temporary
from gemmill.runtime.compile.compiler import Compiler
from gemmill.runtime.compile.kernel_keys import KernelKeys
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.store import Store
from gemmill.runtime.workers import Parent

_LAST_SECONDS = 10
"""A parent that has closed its socket ends within this time, or kills this process."""


def serve(parent: Parent) -> None:
    """Receive kernel names from the parent and answer with artifacts, until the parent ends."""
    warnings.simplefilter("ignore")  # the parent warns once for all workers
    try:
        settings = json.loads(parent.receive())
        parent.end_with(lambda: _clean(settings["directory"]))
        if not settings["has_header"]:
            pch.give_up()
        store = None if settings["store"] is None else Store(Path(settings["store"]), settings["max_bytes"])
        compiler = Compiler(store=store)
        while True:
            parent.send(answer(compiler, parse_name(parent.receive().decode()), store))
    except EOFError:  # the parent is gone, or about to kill this process
        time.sleep(_LAST_SECONDS)


def _clean(directory: str | None) -> None:
    if directory is not None:
        temporary.remove(Path(directory))


def answer(compiler: Compiler, config: GemmConfig, store: Store | None) -> bytes:
    """Compile one kernel; return a line of JSON, followed by the artifact's file format, if there is one."""
    compiler.stats = None
    error, machine_error, data = "", "", b""
    try:
        data = _compiled(compiler, config, store).to_bytes()
    except GemmillError as failure:
        error = str(failure)
    except OSError as failure:
        error = machine_error = f"{kernel_name(config)}: {os_error_text(failure)}"
    except MemoryError as failure:
        error = machine_error = f"{kernel_name(config)}: {str(failure) or 'out of memory'}"
    facts = {
        "error": error,
        "lost": machine_error,  # failures of this machine, where another may succeed
        "pch": compiler.stats.pch if compiler.stats else "",
        "problem": (store.problem if store else None) or "",
    }
    return json.dumps(facts).encode() + b"\n" + data


def _compiled(compiler: Compiler, config: GemmConfig, store: Store | None) -> Artifact:
    """Return one kernel, from the store if it is there."""
    from gemmill.emitters.emit import emit

    if store is None:
        return compiler.compile(emit(config), config)
    keys, name = KernelKeys(store, compiler), kernel_name(config)
    if (artifact := keys.find(name)) is None:
        key = compiler.key(source := emit(config), config)
        artifact, _ = store.get_or_make(key, lambda: compiler.compile(source, config))
        keys.add(compiler, name, key)
    return artifact
