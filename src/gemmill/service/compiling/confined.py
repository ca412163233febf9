"""The body of a process that compiles a source which somebody sent (:mod:`gemmill.service.compiling.sent_sources`).

It finds NVRTC and headers, gives up its rights, and only then has NVRTC read the source. It imports little: what begins
threads, as NumPy does, cannot be confined.
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
"""Address space that it may take: seven times what was measured, 290 MB with NVRTC 12.9."""
LOG_CHARACTERS = 16 << 10
"""Most of what NVRTC says that is passed on."""


def serve(parent: Parent) -> None:
    """The body of the process: takes one job, as JSON, and answers with a line of JSON that has the error, and the
    kernel."""
    job = json.loads(parent.receive())
    error, data = "", b""
    try:
        data = _compiled(**job, parent=parent.pid)
    except GemmillError as failure:
        error = str(failure)
    except MemoryError:
        error = f"more than {MEMORY_BYTES >> 20:,} MiB are needed"
    except Exception as failure:  # noqa: BLE001 (whatever it is, the server learns of it)
        error = f"{type(failure).__name__}: {failure}"
    parent.send(json.dumps({"error": error[:LOG_CHARACTERS]}).encode() + b"\n" + data)


def _compiled(kernel: tuple[str, str] | None, seconds: int, parent: int) -> bytes:
    from importlib import metadata  # noqa: F401 (a compilation that fails wants it, and finds nothing then)

    pch.give_up()  # a precompiled header is a file
    compiler, page = Compiler(), None
    if kernel is not None:
        config = parse_name(kernel[0])
        page = edited(config, kernel[1]), config
        compiler.key(*page)  # reads headers, and remembers what they say
    nvrtc = compiler.toolchain.pieces["nvrtc"].place.parent
    confine((include_path(), *compiler.toolchain.include_dirs, nvrtc), MEMORY_BYTES, seconds)
    if page is None or os.getppid() != parent:  # who has ended before this process was to end with it
        return b""
    return compiler.compile(*page).to_bytes()
