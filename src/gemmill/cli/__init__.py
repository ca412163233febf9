"""The command ``gemmill``: a file for each group of commands."""

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
    # Importing a module of commands adds them to the application.
    from gemmill.cli.app import app
    from gemmill.cli.commands import (  # noqa: F401
        compiling,
        demo,
        doctor,
        draw_command,
        layout_command,
        locking,
        manifests,
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
    """End as after Ctrl-C, with nothing left behind, whatever else is sent meanwhile."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def _lost() -> str:
    """Send what stdout still holds; where that fails, drop it, and say so."""
    try:
        if sys.stdout:
            sys.stdout.flush()
    except (OSError, ValueError) as error:
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # or the interpreter would try again, and show a traceback
        return f"error: stdout: {error}"
    return ""


def main() -> None:
    """Run the command line; what comes before a command, or behind it, shows no traceback either."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # not where it is ignored, as by nohup
            signal.signal(number, _end)
    if isinstance(sys.stdout, io.TextIOWrapper):
        if isinstance(sys.stdout.buffer, io.RawIOBase):  # PYTHONUNBUFFERED: what is written in part, it would lose
            sys.stdout = open(1, "w", encoding=sys.stdout.encoding, closefd=False)  # noqa: SIM115
        sys.stdout.reconfigure(errors="replace")  # what its encoding lacks
    status: str | int | None = 0
    try:
        application()(prog_name="gemmill")
    except KeyboardInterrupt:  # before there is a command
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
