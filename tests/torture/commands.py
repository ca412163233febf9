"""The commands that are tried, each with what it reads and writes in a place (place.py)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.torture.place import KERNELS


def gemmill() -> None:
    """The command line, as ``sys.argv`` has it."""
    from gemmill.cli import main

    main()


@dataclass(frozen=True, slots=True)
class Command:
    """A command line and what it does."""

    line: str
    outputs: tuple[str, ...] = ()
    """Files that it writes, in the folder where it runs."""
    steady: bool = True
    """Whether it says the same each time."""
    run: Callable[[], None] = gemmill
    """What runs it."""

    @property
    def argv(self) -> list[str]:
        return self.line.split()


COMMANDS = (
    Command(f"emit {KERNELS[0]} -o k.cu", ("k.cu",)),
    Command("validate two.yaml more.yaml wrong.yaml bf16 --json"),
    Command("list more.yaml --json"),
    Command("list bf16 --preset quick"),
    Command(f"explain {KERNELS[1]} --json"),
    Command("select --mnkl 256,256,256 --a-dtype f32 --manifest two.yaml --json"),
    Command("select --mnkl 4096,4096,4096 --records r.jsonl --manifest bf16 --json"),
    Command("select --mnkl 256,256,256 --a-dtype f32 --pack k.pack --json"),
    Command(
        "report r.jsonl s.jsonl.xz -o page.html --csv table.csv --junit tests.xml",
        ("page.html", "table.csv", "tests.xml"),
    ),
    Command("records pack r.jsonl s.jsonl.xz -o all.parquet", ("all.parquet",)),
    Command("report r.parquet --csv table.csv", ("table.csv",)),
    Command("pack make two.yaml -o new.pack", ("new.pack",), steady=False),
    Command("pack make two.yaml --shapes shapes.yaml -o k.pack", ("k.pack",), steady=False),
    Command("pack inspect k.pack --json"),
    Command("pack verify k.pack --json"),
    Command("store list --json"),
    Command("store stats --json"),
    Command("store verify --json"),
    Command("store prune"),
    Command("store clear --yes"),
    Command("build two.yaml", steady=False),
    Command("build more.yaml --store ../cold --jobs 1", steady=False),
    Command("build two.yaml --store ../cold --jobs 2", steady=False),
)
COLD = tuple(command for command in COMMANDS if "cold" in command.line)
"""Those that compile: a second or more each."""


def by_line(line: str) -> Command:
    """The command of a line."""
    return next(command for command in COMMANDS if command.line == line)
