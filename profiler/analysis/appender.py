"""Append records to a file as JSON Lines, synced after each append, so that a killed sweep loses nothing."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import TracebackType

from gemmill.library.errors import RecordError
from gemmill.library.files import ending
from gemmill.library.records import Measurement


class Appender:
    """A records file, open for appending. The file and its folder are created if missing.

    Raises:
        RecordError: the file cannot be written, or has a format that cannot be appended to (.xz, .parquet).
    """

    def __init__(self, path: Path) -> None:
        if ending(path) in (".xz", ".parquet"):
            raise RecordError(
                f"{path}: cannot append to a {path.suffix} file; use JSON Lines, such as "
                f"{path.name.partition('.')[0]}.jsonl"
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, 1, size - 1) != b"\n":
                # A killed writer left an incomplete line. End it, so that readers skip only this line.
                os.write(self._file, b"\n")
        except OSError as error:
            raise RecordError(f"{path}: cannot write the file: {error.strerror or error}") from error
        self._path = path

    def append(self, *measurements: Measurement) -> None:
        """Append records and wait until they are on disk.

        Raises:
            RecordError: the records cannot be written, for example because the disk is full.
        """
        lines = b"".join(measurement.model_dump_json().encode() + b"\n" for measurement in measurements)
        try:
            written = os.write(self._file, lines)  # one call, so that records of two sweeps do not interleave
            os.fsync(self._file)
        except OSError as error:
            raise RecordError(f"{self._path}: cannot write the file: {error.strerror or error}") from error
        if written != len(lines):
            raise RecordError(f"{self._path}: wrote only {written} of {len(lines)} bytes; free some disk space")

    def close(self) -> None:
        """Close the file."""
        os.close(self._file)

    def __enter__(self) -> Appender:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def source_commit() -> str:
    """The commit of gemmill's sources, with ``-dirty`` if they were changed. Empty if no repository tracks them, even
    if they are installed inside a repository."""
    source = Path(__file__).resolve()
    git = ["git", "-C", str(source.parent)]
    described = ["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        for command in (["ls-files", "--error-unmatch", source.name], described):
            process = subprocess.run([*git, *command], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    return process.stdout.strip()
