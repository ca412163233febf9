"""The body of a sandboxed process that compiles a source from a client (:mod:`gemmill.service.compiling.sent_sources`).

It finds NVRTC and the headers, gives up its privileges, and only then passes the source to NVRTC. It imports few
modules, since a process with several threads, which NumPy starts, cannot be sandboxed.
"""

from __future__ import annotations

import json
import os

from gemmill.emitters import include_path
from gemmill.emitters.edited_page import edited
from gemmill.library.config.names import parse_name
from gemmill.library.errors import GemmillError
from gemmill.runtime.compile import pch
from gemmill.runtime.compile.compiler import Compiler
from gemmill.runtime.workers import Parent
from gemmill.service.compiling.confinement import confine

MEMORY_BYTES = 2 << 30
"""Limit of the address space; a compilation with NVRTC 12.9 uses about 290 MB."""
LOG_CHARACTERS = 16 << 10
"""Maximum length of the NVRTC log that is sent to the client."""


def serve(parent: Parent) -> None:
    """The body of the process: receives one job as JSON, and sends a line of JSON with the error, then the kernel."""
    job = json.loads(parent.receive())
    error, data = "", b""
    try:
        data = _compiled(**job, parent=parent.pid)
    except GemmillError as failure:
        error = str(failure)
    except MemoryError:
        error = f"the compilation needs more than {MEMORY_BYTES >> 20:,} MiB"
    except Exception as failure:  # noqa: BLE001 (the server reports every error to the client)
        error = f"{type(failure).__name__}: {failure}"
    parent.send(json.dumps({"error": error[:LOG_CHARACTERS]}).encode() + b"\n" + data)


def _compiled(kernel: tuple[str, str] | None, seconds: int, parent: int) -> bytes:
    from importlib import metadata  # noqa: F401 (used by a compilation that fails, which cannot import it any more)

    pch.give_up()  # precompiled headers are files, which the sandbox cannot write
    compiler, page = Compiler(), None
    if kernel is not None:
        config = parse_name(kernel[0])
        page = edited(config, kernel[1]), config
        compiler.key(*page)  # reads and caches the headers
    nvrtc = compiler.toolchain.pieces["nvrtc"].place.parent
    confine((include_path(), *compiler.toolchain.include_dirs, nvrtc), MEMORY_BYTES, seconds)
    if page is None or os.getppid() != parent:  # the parent has exited before the death signal was set
        return b""
    return compiler.compile(*page).to_bytes()
