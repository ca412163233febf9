"""The audit log: a line of JSON on stderr for each request, each refused token and each compilation.

The lines contain the names of tokens, and never the tokens. All other lines of the log begin with the time instead of a
brace.
"""

from __future__ import annotations

import json
import sys
from contextlib import suppress
from datetime import UTC, datetime
from typing import Literal


def note(event: Literal["request", "refused_token", "compilation"], who: str | None, **fields: object) -> None:
    """Write a line, without ``logging``, which would double the time.

    Args:
        event: what has happened.
        who: the name of the token; None without a valid one.
        fields: values that JSON can represent, by name.
    """
    time = datetime.now(UTC).isoformat(timespec="milliseconds")
    line = json.dumps({"time": time, "event": event, "who": who, **fields})
    if sys.stderr is not None:  # None: it was closed at the start
        with suppress(OSError):  # the log also drops lines that cannot be written
            sys.stderr.write(f"{line}\n")
