"""doctor: what is installed, what clashes, what to install."""

from __future__ import annotations

from dataclasses import asdict

import typer

from gemmill.cli import output
from gemmill.cli.app import app
from gemmill.cli.options import Json, StorePath
from gemmill.cli.output import Status
from gemmill.runtime.health.examination import examination


@app.command()
def doctor(store: StorePath = None, as_json: Json = False) -> None:
    """Say what is installed, where it came from, what is wrong with it, and what to install.

    Compiles one small kernel of each family into a scratch store and, where there is a GPU, runs it there: some ten
    seconds. Exits with 1 when something is wrong. What is merely missing (a GPU, a toolchain, PyTorch) is listed with
    what it would be needed for.

    \b
    Examples:
      gemmill doctor
      gemmill doctor --json
    """
    found = list(examination(store))
    if as_json:
        output.print_json("doctor", [asdict(finding) for finding in found])
    else:
        output.print_table(("", "state", "detail"), [(f.what, f.state, f.detail) for f in found])
        for finding in found:
            if finding.advice:
                typer.echo(f"{finding.what}: {finding.advice}")
    if any(finding.state == "wrong" for finding in found):
        raise typer.Exit(Status.WRONG)
