"""doctor: check the installation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import typer

from gemmill.cli import output
from gemmill.cli.app import app
from gemmill.cli.options import StorePath
from gemmill.cli.output import Status
from gemmill.library.extras import one_command, without_commands
from gemmill.runtime.health.examination import Finding, examination


@app.command()
def doctor(store: StorePath = None) -> None:
    """Check the installation, and print what to fix or install.

    doctor compiles one small kernel of each family into a temporary store, and runs it if there is a GPU. This takes
    about ten seconds. Exits with 1 if something is wrong. A missing GPU, toolchain or PyTorch is not an error: doctor
    lists which features need it.

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
    output.print_table(("component", "state", "detail"), [(f.what, f.state, f.detail) for f in findings])
    command = one_command(finding.advice for finding in findings)
    for finding in findings:
        if finding.advice:
            typer.echo(f"{finding.what}: {without_commands(finding.advice) if command else finding.advice}")
    if command:
        typer.echo(f"To install all of this: {command}")
