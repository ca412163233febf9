"""NVRTC and headers: each piece, where it came from, and what is wrong with it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from gemmill.library.errors import GemmillError
from gemmill.runtime.compile import locate, wheels
from gemmill.runtime.compile.toolchain import HEADERS, combined, faults
from gemmill.runtime.health.finding import Finding
from gemmill.runtime.health.packages import version


def toolchain() -> Iterator[Finding]:
    """Every piece; one line where a machine has none, which runs packs."""
    search: dict[str, Callable[[], locate.Piece]] = {
        "nvrtc": locate.nvrtc,
        **{piece: partial(locate.headers, piece) for piece in HEADERS},
    }
    pieces: dict[str, locate.Piece] = {}
    missing: dict[str, str] = {}
    for name, find in search.items():
        try:
            pieces[name] = find()
        except GemmillError as error:
            missing[name] = str(error)
    if missing and not any(version(wheel) for piece in search for wheel in locate.WHEELS[piece]):
        yield Finding("toolchain", "missing", "cannot compile kernels; packs need none", next(iter(missing.values())))
        return
    wrong = {name: [says] for name, says in missing.items()}
    if not missing:
        nvrtc, headers = pieces["nvrtc"], {name: piece for name, piece in pieces.items() if name != "nvrtc"}
        for fault in faults(combined(nvrtc, headers)):
            wrong.setdefault(fault.piece, []).append(fault.says)
    for fault in wheels.damaged():
        wrong.setdefault(fault.piece, []).append(fault.says)
    for name in search:
        piece = pieces.get(name)
        detail = f"{piece.version}, found via {piece.via}: {piece.place}" if piece else "not found, or does not work"
        yield Finding(name, "wrong" if name in wrong else "ok", detail, "; ".join(wrong.get(name, ())))
