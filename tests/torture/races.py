"""Rounds of processes that race for the same stores and outputs, each with its own umask and clock; one is stopped
amid its work, and goes on or is killed when the others have ended."""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from pathlib import Path

from tests.torture import plan, process
from tests.torture.attempt import DATA, NEVER, STATUSES
from tests.torture.commands import COMMANDS, Command
from tests.torture.place import Digests, Place, renew, said

from gemmill.runtime.storage.store import Store

PROCESSES = 64
SECONDS = 240
"""A round that takes longer hangs: locks that the stopped process holds cost the others 15 s at most, one by one."""
OUTPUTS = ("new.pack", "all.parquet", "k.cu")
RACING = tuple(
    command
    for command in COMMANDS
    if command.line.startswith(("store", "build", "pack verify", "records", "emit")) or "new.pack" in command.line
)
_UMASKS = (0o022, 0o022, 0o077, 0o000, 0o277)
_AHEAD = (0, 0, 3600, -86400 * 400, 86400 * 365 * 20, 2**32)


def faults_of(template: Path, digests: Digests, folder: Path, number: int, processes: int = PROCESSES) -> list[str]:
    """Run the round of a number; what was wrong."""
    chance = random.Random(number)
    place = folder / "place"
    renew(template, place)
    seen = Place(place, OUTPUTS)
    racers: dict[int, tuple[Command, Path]] = {}
    for i in range(processes):
        command = chance.choice(RACING)
        todo, talk = folder / f"{i}.plan", folder / f"{i}.talk"
        plan.write(todo, place, DATA, ahead_s=chance.choice(_AHEAD))
        racers[process.start(command, place, todo, talk, chance.choice(_UMASKS))] = command, talk
    victim, is_killed = chance.choice([*racers]), chance.random() < 0.5
    time.sleep(chance.random() * 3)
    with suppress(ProcessLookupError):
        os.killpg(victim, signal.SIGSTOP)

    faults = []
    until = time.monotonic() + SECONDS
    for racer, (command, talk) in racers.items():
        if racer != victim:
            faults += _faults_of(command, process.wait(racer, until - time.monotonic()), talk)
    with suppress(ProcessLookupError):
        os.killpg(victim, signal.SIGKILL if is_killed else signal.SIGCONT)
    status = process.wait(victim, SECONDS)
    if not is_killed:
        faults += _faults_of(*(racers[victim][0], status, racers[victim][1]))

    faults += seen.faults(digests, leftovers="all" if is_killed else "store")
    for name in ("store", "cold"):
        faults += [f"{path}: {fault}" for path, fault in Store(place / name).verify().items()]
    for name in OUTPUTS:
        try:
            said(place / "work" / name)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is told)
            faults.append(f"{name} is damaged: {error}")
    return faults


def _faults_of(command: Command, status: int, talk: Path) -> list[str]:
    _, complaints = process.said(talk)
    found = [f"{command.line}: says {words!r}: {complaints[-500:]}" for words in NEVER if words in complaints]
    if status not in STATUSES:
        found.append(f"{command.line}: ended with {status}: {complaints[-300:]}")
    elif status != 0:
        found.append(f"{command.line}: failed: {complaints[-300:]}")
    return found
