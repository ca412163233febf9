"""One try: a command in a fresh place, with something that goes wrong, and what is wrong with what it did."""

from __future__ import annotations

import re
import signal
from dataclasses import dataclass, field
from pathlib import Path

from tests.torture import plan, process
from tests.torture.commands import Command
from tests.torture.place import Digests, Place, renew, said
from tests.torture.plan import Fault

import gemmill

_SAYS = re.compile("damaged|cannot be read")
"""What a listing may say of one thing in it."""
SECONDS = 60
"""A command that takes longer hangs."""
ENDED = (130, 143, 129)
"""Exit codes of commands that were told to end, which need no words and close nothing."""
STATUSES = (0, 1, 2, 3, *ENDED)
"""Exit codes that the help documents."""
NEVER = ("Traceback (most recent", "bug in gemmill", "Exception ignored", "leaked", "MemoryError", "[Errno")
"""Words that nobody should see."""
DATA = Path(gemmill.__file__).parent
"""What gemmill reads of its own."""


@dataclass(frozen=True, slots=True)
class Done:
    """What a command did."""

    status: int
    """Its exit code, or minus the signal that ended it."""
    out: str
    complaints: str
    outputs: dict[str, object]
    counts: dict[str, int]
    """Calls of each kind."""
    fired: bool
    """Whether what should go wrong did."""
    faults: list[str] = field(default_factory=list)
    """What is wrong with it."""


class Bench:
    """Where commands are tried: a template of the place and, of each command, what it does when nothing goes wrong.

    Args:
        folder: a scratch folder of this process alone.
        template: the furnished place.
        digests: of the template's kernels.
    """

    def __init__(self, folder: Path, template: Path, digests: Digests) -> None:
        self.folder, self.template, self.digests = folder, template, digests
        self._well: dict[str, Done] = {}

    def well(self, command: Command) -> Done:
        """What a command does when nothing goes wrong."""
        if command.line not in self._well:
            done = self._run(command, None)
            if faults := self._faults_of(command, done, None, done):
                raise AssertionError(f"{command.line}: {'; '.join(faults)}\n{done.complaints}")
            self._well[command.line] = done
        return self._well[command.line]

    def attempt(self, command: Command, fault: Fault) -> Done:
        """Run a command in which something goes wrong; of one that was killed, run it once more, which must do."""
        well = self.well(command)
        done = self._run(command, fault)
        faults = self._faults_of(command, done, fault, well)
        if done.status == -signal.SIGKILL:
            again = self._run(command, None, fresh=False)
            faults += [f"after a kill: {found}" for found in self._faults_of(command, again, None, well, resumed=True)]
        return Done(done.status, done.out, done.complaints, done.outputs, done.counts, done.fired, faults)

    def _run(self, command: Command, fault: Fault | None, *, fresh: bool = True) -> Done:
        place = self.folder / "place"
        if fresh:
            renew(self.template, place)
        seen = Place(place, command.outputs)
        todo = self.folder / "plan"
        plan.write(todo, place, DATA, fault)
        status = process.wait(process.start(command, place, todo, self.folder / "talk"), SECONDS)
        fired, counts = plan.read(todo)
        out, complaints = process.said(self.folder / "talk")
        # What was killed, or meets the same error again when it cleans up, leaves what others will remove; and so do
        # workers in a store when they or their parent are told to end.
        leftovers = "all" if status == -signal.SIGKILL or not fresh or (fault and fault.sticky) else ""
        if not leftovers and fault and fault.how in ("kill", "half-kill", "term"):
            leftovers = "store"
        faults = seen.faults(self.digests, leftovers=leftovers)
        outputs: dict[str, object] = {}
        for name in command.outputs:
            try:
                outputs[name] = said(place / "work" / name)
            except Exception as error:  # noqa: BLE001 (whatever it is, it is told)
                faults.append(f"{name} is damaged: {error}")
        return Done(status, out, complaints, outputs, counts, fired, faults)

    def _faults_of(
        self, command: Command, done: Done, fault: Fault | None, well: Done, *, resumed: bool = False
    ) -> list[str]:
        faults = [*done.faults]
        if done.status == -signal.SIGKILL and (fault is None or not fault.kills):
            faults.append(f"took more than {SECONDS} s")
        elif done.status < 0 and done.status != -signal.SIGKILL:
            faults.append(f"ended by {signal.Signals(-done.status).name}")
        elif done.status >= 0 and done.status not in STATUSES:
            faults.append(f"exit code {done.status}")
        ended = done.status in (-signal.SIGKILL, *ENDED)
        faults += [
            f"says {words!r}" for words in NEVER if words in done.complaints and not (ended and words == "leaked")
        ]
        silent = not done.complaints.strip() and not _SAYS.search(done.out)
        if done.status != well.status and silent and not ended:
            faults.append(f"exit code {done.status} without a word")
        if done.status == 0 and well.status == 0:
            if command.steady and done.out != well.out and silent and not resumed:
                faults.append("other words than without the fault, and no warning")
            if done.outputs != well.outputs:
                faults.append("exit code 0, and outputs that are not what they should be")
        else:
            old = {name: self._before(name) for name in command.outputs}
            for name, holds in done.outputs.items():
                if holds not in (old[name], well.outputs[name]):
                    faults.append(f"{name} is neither as before nor as it should be")
        return faults

    def _before(self, name: str) -> object:
        return said(self.template / "work" / name)
