"""The campaign: faults, kills, hostile files and races, for as long as asked.

    python -m tests.torture --minutes 20
    python -m tests.torture --minutes 60 --only races
    python -m tests.torture --try faults 1234          # one try again, with all that it said
    python -m tests.torture --publish                  # counts so far, into docs/robustness.md

A campaign goes on where the last one with its seed stopped; what was counted is kept in build/torture/counts.jsonl, and
once it is published in tests/torture/counts.jsonl.
Exits with 1 if anything was wrong.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import FIRST_COMPLETED, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.torture import plan
from tests.torture.place import furnish

CAMPAIGNS = {
    "faults": (0.45, "calls that failed, in whole commands"),
    "kills": (0.15, "commands that were killed or terminated at a call that writes"),
    "readers": (0.25, "files changed and read"),
    "races": (0.15, "processes that raced, 64 at a time"),
}
"""The campaigns, each with its part of the time, and what is counted."""
FOLDER = Path("build/torture").absolute()
COUNTS = FOLDER / "counts.jsonl"
"""Of campaigns since the last that were published."""
PUBLISHED = Path("tests/torture/counts.jsonl")
PAGE = Path("docs/robustness.md")
MARKS = ("<!-- counts -->\n", "<!-- end of counts -->\n")


@dataclass(frozen=True, slots=True)
class Workers:
    """Workers of one campaign."""

    campaign: str
    seed: int
    jobs: int
    template: Path
    digests: dict[str, str]

    def run(self, seconds: float, start: int) -> Iterator[tuple[int, dict[str, Any]]]:
        """Tries from a number on, and what became of each, until time is up."""
        until = time.monotonic() + seconds
        workers = [self._start() for _ in range(1 if self.campaign == "races" else self.jobs)]
        number = start
        with ThreadPoolExecutor(len(workers)) as pool:
            at_work = {}
            for worker in workers:
                at_work[pool.submit(_ask, worker, number)] = worker, number
                number += 1
            while at_work:
                done, _ = wait(at_work, return_when=FIRST_COMPLETED)
                for future in done:
                    worker, asked = at_work.pop(future)
                    answer = future.result()
                    if answer is None:
                        answer = {"tries": 0, "what": f"{self.campaign} {asked}", "faults": ["the worker died"]}
                        worker = self._start()
                    yield asked, answer
                    if time.monotonic() < until:
                        at_work[pool.submit(_ask, worker, number)] = worker, number
                        number += 1
                    elif worker.stdin:
                        worker.stdin.close()
        for worker in workers:
            worker.wait()

    def _start(self) -> subprocess.Popen[str]:
        arguments = [self.campaign, str(self.seed), str(self.template), json.dumps(self.digests)]
        return subprocess.Popen(
            [sys.executable, "-m", "tests.torture.worker", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env=os.environ | {"LD_PRELOAD": str(FOLDER / "faults.so"), "PYTHONPATH": os.pathsep.join(sys.path)},
        )


def _ask(worker: subprocess.Popen[str], number: int) -> dict[str, Any] | None:
    assert worker.stdin
    assert worker.stdout
    try:
        worker.stdin.write(f"{number}\n")
        worker.stdin.flush()
    except BrokenPipeError:
        return None
    line = worker.stdout.readline()
    return json.loads(line) if line else None


def counted() -> list[dict[str, Any]]:
    """What was counted in campaigns so far, published or not."""
    lines = [line for path in (PUBLISHED, COUNTS) if path.exists() for line in path.read_text().splitlines()]
    return [json.loads(line) for line in lines]


def campaign(name: str, seed: int, seconds: float, jobs: int, template: Path, digests: dict[str, str]) -> int:
    """Run a campaign from where it stopped; how many tries were wrong."""
    start = max((row["next"] for row in counted() if (row["campaign"], row["seed"]) == (name, seed)), default=0)
    began, tries, wrong, last = time.monotonic(), 0, 0, start
    print(f"{name}: seed {seed}, from try {start} on, {seconds / 60:.0f} min", flush=True)
    kinds: Counter[str] = Counter()
    try:
        for number, answer in Workers(name, seed, jobs, template, digests).run(seconds, start):
            tries += answer["tries"]
            last = max(last, number + 1)
            if faults := answer["faults"]:
                wrong += 1
                kinds[str(answer["what"]).partition(" | ")[0]] += 1
                print(f"{name} {number}: {answer['what']}", *(f"  {fault}" for fault in faults), sep="\n", flush=True)
    finally:
        row = {"campaign": name, "seed": seed, "next": last, "tries": tries, "wrong": wrong}
        with COUNTS.open("a") as file:
            file.write(json.dumps(row | {"seconds": round(time.monotonic() - began), "jobs": jobs}) + "\n")
    print(f"{name}: {tries:,} in {time.monotonic() - began:.0f} s, {wrong} wrong {dict(kinds) or ''}", flush=True)
    return wrong


def table() -> str:
    """Counts as Markdown."""
    sums: dict[str, Counter[str]] = defaultdict(Counter)
    for row in counted():
        sums[str(row["campaign"])].update({key: row[key] for key in ("tries", "wrong", "seconds")})
    lines = ["| campaign | tried | hours | wrong |", "|---|---|---|---|"]
    for name, (_, what) in CAMPAIGNS.items():
        found = sums[name]
        lines.append(f"| {what} | {found['tries']:,} | {found['seconds'] / 3600:.1f} | {found['wrong']} |")
    return "\n".join(lines) + "\n"


def main() -> int:
    """Do what the command line says; the exit code."""
    parser = argparse.ArgumentParser(prog="python -m tests.torture", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=20, help="how long, all campaigns together (20)")
    parser.add_argument("--seed", type=int, default=1, help="of the draws (1)")
    parser.add_argument("--only", choices=CAMPAIGNS, help="only this campaign")
    parser.add_argument("--jobs", type=int, default=os.cpu_count(), help="workers; default: one a core")
    parser.add_argument("--try", nargs=2, dest="again", metavar=("CAMPAIGN", "NUMBER"), help="make one try again")
    parser.add_argument("--publish", action="store_true", help="write the counts so far into the docs")
    options = parser.parse_args()
    if options.publish:
        with PUBLISHED.open("a") as file:
            file.write(COUNTS.read_text())
        COUNTS.unlink()
        before, _, rest = PAGE.read_text().partition(MARKS[0])
        PAGE.write_text(before + MARKS[0] + table() + MARKS[1] + rest.partition(MARKS[1])[2])
        return 0

    for number in (signal.SIGINT, signal.SIGTERM):  # what was counted so far is kept, also of one in the background
        signal.signal(number, signal.default_int_handler)
    plan.build(FOLDER)
    with tempfile.TemporaryDirectory(prefix="gemmill-torture-") as folder:
        template = Path(folder) / "template"
        digests = dict(furnish(template))
        if options.again:
            name, number = options.again
            [(_, answer)] = Workers(name, options.seed, 1, template, digests).run(0, int(number))
            print(json.dumps(answer, indent=2))
            return 1 if answer["faults"] else 0
        chosen = [options.only] if options.only else [*CAMPAIGNS]
        whole = sum(CAMPAIGNS[name][0] for name in chosen)
        seconds = {name: 60 * options.minutes * CAMPAIGNS[name][0] / whole for name in chosen}
        wrong = sum(campaign(name, options.seed, seconds[name], options.jobs, template, digests) for name in chosen)
    print(table(), end="")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
