"""doctor: what is installed, what clashes, what to install."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import typer

from gemmill.cli import output
from gemmill.cli.app import app
from gemmill.cli.options import StorePath
from gemmill.cli.output import Status
from gemmill.runtime.health.examination import Finding, examination


@app.command()
def doctor(store: StorePath = None) -> None:
    """Say what is installed, where it came from, what is wrong with it, and what to install.

    Compiles one small kernel of each family into a scratch store and, where there is a GPU, runs it there: some ten
    seconds. Exits with 1 when something is wrong. What is merely missing (a GPU, a toolchain, PyTorch) is listed with
    what it would be needed for.

    \b
    Examples:
      gemmill doctor
      gemmill doctor --json
    """
    findings = [*examination(store)]
    output.print_result("doctor", [*map(asdict, findings)], lambda: _print(findings))
    if any(finding.state == "wrong" for finding in findings):
        raise typer.Exit(Status.WRONG)


def _print(findings: Sequence[Finding]) -> None:
    output.print_table(("", "state", "detail"), [(f.what, f.state, f.detail) for f in findings])
    for finding in findings:
        if finding.advice:
            typer.echo(f"{finding.what}: {finding.advice}")
