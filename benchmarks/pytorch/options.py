"""Options that programs which measure models share."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from pathlib import Path

import gemmill.torch


def parser_of(description: str | None, *, seconds: float, rounds: int) -> ArgumentParser:
    """A parser with the options of these programs.

    Args:
        description: what the program does.
        seconds: default time limit of the run.
        rounds: default number of turns of each side.
    """
    parser = ArgumentParser(description=description, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=rounds, help="turns of each side (%(default)s)")
    parser.add_argument("--seconds", type=float, default=seconds, help="time limit of the run (%(default)s)")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--tiny", action="store_true", help="two layers of width 64, few tokens")
    parser.add_argument("--commit", help="commit to record in the results")
    parser.add_argument("--out", type=Path, help="file to append lines to")
    return parser


def parsed(parser: ArgumentParser) -> Namespace:
    """The arguments of the command line; on a CPU, gemmill's operators then run there."""
    arguments = parser.parse_args()
    if arguments.device == "cpu":
        gemmill.torch.run_on_cpu()
    return arguments
