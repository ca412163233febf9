"""The command line ``gemmill``; ``commands`` has one module per group of commands."""

from __future__ import annotations

import io
import os
import signal
import sys
from contextlib import suppress
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    import typer


def application() -> typer.Typer:
    """The application with all its commands."""
    # Importing a module registers its commands.
    from gemmill.cli.app import app
    from gemmill.cli.commands import (  # noqa: F401
        bench,
        compiling,
        demo,
        doctor,
        draw_command,
        layout_command,
        locking,
        manifests,
        model_command,
        oracle_command,
        pack_registry,
        pack_signing,
        packs,
        problems,
        record_packing,
        reports,
        selecting,
        serve,
        sources,
        stores,
        training,
    )

    return app


def _end(number: int, _: object) -> NoReturn:
    """Exit as after Ctrl-C, so that cleanup runs; ignore further signals of this kind."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def _lost() -> str:
    """Flush stdout; if that fails, discard its buffer and return an error message."""
    try:
        if sys.stdout:
            sys.stdout.flush()
    except (OSError, ValueError) as error:
        with suppress(OSError):
            os.dup2(
                os.open(os.devnull, os.O_WRONLY), 1
            )  # otherwise the interpreter flushes again at exit and prints a traceback
        return f"error: stdout: {error}"
    return ""


def main() -> None:
    """Run the command line. Errors before and after the command are reported without a traceback too."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # keep SIG_IGN, which nohup sets
            signal.signal(number, _end)
    if isinstance(sys.stdout, io.TextIOWrapper):
        if isinstance(sys.stdout.buffer, io.RawIOBase):  # PYTHONUNBUFFERED: a partial write would lose text
            sys.stdout = open(1, "w", encoding=sys.stdout.encoding, closefd=False)  # noqa: SIM115
        sys.stdout.reconfigure(errors="replace")  # characters that its encoding lacks
    status: str | int | None = 0
    try:
        application()(prog_name="gemmill")
    except KeyboardInterrupt:  # before a command starts
        status = 130
        if "--json" in sys.argv:
            from gemmill.cli import output

            with output.answer_as_json():
                output.print_error("interrupted", "interrupted")
    except OSError as error:
        from gemmill.library.files import os_error_text

        status = f"error: {os_error_text(error)}"
    except SystemExit as end:
        status = end.code
    lost = _lost()
    sys.exit(status or lost or 0)
