"""A worker of the campaign: reads numbers of tries, a line each, and answers with what became of them, as JSON.

The injector is preloaded into it. Every try is a process forked from it.
"""

from __future__ import annotations

import json
import logging
import os
import random
import resource
import sys
import tempfile
import warnings
from collections import Counter
from pathlib import Path
from typing import Any

from tests.torture import races, readers
from tests.torture.attempt import Bench
from tests.torture.commands import COLD, COMMANDS, Command
from tests.torture.place import Digests
from tests.torture.plan import ERRORS, WRITES, Fault

_SITES = 40
"""Most places of one kind in one command: compilers map files a thousand times."""
_WEIGHT = 4
"""Tries of a command that compiles nothing to one that does."""
_SLOW = ("nvidia-h200.json",)
_MEMORY = 2 << 30
"""What a reader's process may take more than it has."""


class Worker:
    """What tries of one campaign share.

    Args:
        seed: of the draws; with a number it decides a try.
        template: the furnished place.
        digests: of its kernels.
        folder: a scratch folder.
    """

    def __init__(self, seed: int, template: Path, digests: Digests, folder: Path) -> None:
        self.seed, self.template, self.digests, self.folder = seed, template, digests, folder
        self.bench = Bench(folder, template, digests)
        self._schedules: dict[str, list[tuple[Command, int]]] = {}
        self._faults: dict[tuple[str, str], list[Fault]] = {}

    def attempt(self, campaign: str, number: int) -> dict[str, Any]:
        """Make a try: how many inputs or faults it was, and what was wrong with them."""
        if campaign in ("faults", "kills"):
            return self._command(campaign, number)
        draw = self.seed * 1_000_003 + number
        if campaign == "races":
            found = races.faults_of(self.template, self.digests, self.folder, draw)
            return {"tries": races.PROCESSES, "what": f"round {draw}", "faults": found}
        return self._reader(draw)

    def _command(self, campaign: str, number: int) -> dict[str, Any]:
        command, nth = self._scheduled(campaign, number)
        faults = self._faults_for(campaign, command)
        fault = faults[nth % len(faults)]
        done = self.bench.attempt(command, fault)
        detail = [*done.faults, f"it said: {done.complaints[-800:]}"] if done.faults else []
        return {"tries": int(done.fired), "what": f"{command.line} | {fault}", "faults": detail}

    def _scheduled(self, campaign: str, number: int) -> tuple[Command, int]:
        """The command of a try, and how often it was tried before."""
        schedule = self._schedules.setdefault(campaign, [])
        counts = Counter(command.line for command, _ in schedule)
        weights = [1 if command in COLD else _WEIGHT for command in COMMANDS]
        while len(schedule) <= number:
            [command] = random.Random(f"{self.seed} {campaign} {len(schedule)}").choices(COMMANDS, weights)
            schedule.append((command, counts[command.line]))
            counts[command.line] += 1
        return schedule[number]

    def _faults_for(self, campaign: str, command: Command) -> list[Fault]:
        """All that can go wrong in a command, shuffled."""
        key = campaign, command.line
        if key not in self._faults:
            chance = random.Random(f"{self.seed} {key}")
            found = []
            for kind, count in self.bench.well(command).counts.items():
                numbers = range(1, count + 1)
                chosen = sorted(chance.sample(numbers, _SITES)) if count > _SITES else numbers
                hows = ERRORS[kind] if campaign == "faults" else _ends(kind)
                found += [Fault(kind, at, how) for at in chosen for how in hows]
                if campaign == "faults":
                    found += [Fault(kind, at, how, sticky=True) for at in chosen for how in hows]
            chance.shuffle(found)
            self._faults[key] = found
        return self._faults[key]

    def _reader(self, draw: int) -> dict[str, Any]:
        chance = random.Random(draw)
        table = readers.readers(self.template, self.digests)
        reader = chance.choices(table, [0.05 if reader.name in _SLOW else 1 for reader in table])[0]
        found = _apart(lambda: readers.faults_of(reader, self.folder, draw))
        return {"tries": readers.EXAMPLES, "what": f"{reader.name} {draw}", "faults": found}


def _ends(kind: str) -> tuple[str, ...]:
    if kind not in WRITES:
        return ()
    return ("kill", "term", "half-kill") if kind == "write" else ("kill", "term")


def _apart(read: Any) -> list[str]:
    """Run it in a process of its own, with little memory."""
    ours, theirs = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            logging.disable(logging.CRITICAL)
            warnings.simplefilter("ignore")
            taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (taken + _MEMORY,) * 2)
            held = len(os.listdir("/proc/self/fd"))
            found = read()
            if (more := len(os.listdir("/proc/self/fd")) - held) > 2:
                found.append(f"{more} descriptors were left open")
            os.write(theirs, json.dumps(found[:20]).encode()[:60_000])
            os._exit(0)
        except BaseException as error:  # noqa: BLE001 (whatever it is, it is told)
            os.write(theirs, json.dumps([f"the reader's process: {error!r}"[:2000]]).encode())
            os._exit(1)
    os.close(theirs)
    with os.fdopen(ours, "rb") as pipe:
        answer = pipe.read()
    _, raw = os.waitpid(child, 0)
    if not answer:
        return [f"the reader's process ended with {os.waitstatus_to_exitcode(raw)}"]
    return json.loads(answer)  # type: ignore[no-any-return]


def work(campaign: str, seed: int, template: Path, digests: Digests) -> None:
    """Answer the numbers on stdin."""
    import gemmill.cli

    gemmill.cli.application()
    # Removed by who started this worker: what this process does at its end, its forks would do at theirs.
    folder = Path(tempfile.mkdtemp(dir=template.parent))
    worker = Worker(seed, template, digests, folder)
    for line in sys.stdin:
        print(json.dumps(worker.attempt(campaign, int(line))), flush=True)


if __name__ == "__main__":
    work(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]), json.loads(sys.argv[4]))
