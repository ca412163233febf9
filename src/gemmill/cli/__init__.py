"""The command ``gemmill``: a file for each group of commands."""

from __future__ import annotations


def main() -> None:
    """Run the command line."""
    # Importing a module of commands adds them to the application.
    from gemmill.cli import compiling, demo, doctor, manifests, packs, problems, stores  # noqa: F401
    from gemmill.cli.app import app

    app()
