"""The command ``gemmill``: a file for each group of commands."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import typer


def commands() -> typer.Typer:
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


def main() -> None:
    """Run the command line; what comes before a command, or behind it, shows no traceback either."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # what its encoding lacks
    try:
        commands()(prog_name="gemmill")
    except KeyboardInterrupt:
        sys.exit(130)
    except OSError as error:
        sys.exit(f"error: {error}")
