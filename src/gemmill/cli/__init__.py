"""The command ``gemmill``: a file for each group of commands."""

from __future__ import annotations

import io
import signal
import sys
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
        manifests,
        packs,
        problems,
        records,
        reports,
        stores,
        training,
    )

    return app


def _end(number: int, _: object) -> NoReturn:
    """End as after Ctrl-C, with nothing left behind, whatever else is sent meanwhile."""
    signal.signal(number, signal.SIG_IGN)
    sys.exit(128 + number)


def main() -> None:
    """Run the command line; what comes before a command, or behind it, shows no traceback either."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) == signal.SIG_DFL:  # not where it is ignored, as by nohup
            signal.signal(number, _end)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what its encoding lacks
    try:
        application()(prog_name="gemmill")
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        sys.exit(f"error: {error}")
