"""Measurements that clients send, kept by who sent them."""

from __future__ import annotations

import hashlib
from pathlib import Path

from gemmill.library.errors import RecordError
from gemmill.library.files import make_private, publish, told
from gemmill.library.records import read_records
from gemmill.service.refusal import Refusal

STATE_BYTES = 4 << 30
"""Most bytes of all records."""


class Records:
    """The records of a state's folder: a file for each body that was sent, so that none counts twice."""

    def __init__(self, state: Path) -> None:
        self._path = state / "records"

    def files(self) -> list[Path]:
        """All of them."""
        return sorted(self._path.glob("*/*.jsonl"))

    def take(self, source: str, data: bytes) -> tuple[int, bool]:
        """Keep JSON Lines of measurements; how many they are, and whether they are new.

        Raises:
            Refusal: a line is no measurement, or there is no room.
        """
        path = self._path / source / f"{hashlib.sha256(data).hexdigest()}.jsonl"
        if path.exists():
            return sum(1 for _ in read_records(path)), False
        if sum(file.stat().st_size for file in self.files()) + len(data) > STATE_BYTES:
            raise Refusal(
                507, "full", f"the records have more than {STATE_BYTES:,} bytes", "the operator may pack them"
            )
        unread = path.with_suffix(".unread")
        try:
            make_private(path.parent)
            publish(unread, [data])
            try:
                count = sum(1 for _ in read_records(unread))
                lines = sum(1 for line in data.splitlines() if line.strip())
                if count != lines:
                    raise Refusal(422, "record", f"{lines - count} of {lines} lines are cut short or no JSON")
                unread.replace(path)
            except RecordError as error:
                raise Refusal(422, "record", str(error).replace(f"{unread}:", "line ")) from None
            finally:
                unread.unlink(missing_ok=True)
        except OSError as error:
            raise Refusal(507, "full", told(error), retry_after=60) from None
        return count, True
