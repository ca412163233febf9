"""Records on disk: JSON Lines, appended whole and synced at once, so that a killed sweep keeps what it had."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from types import TracebackType

from gemmill.library.errors import RecordError
from gemmill.library.records import Measurement


class Appender:
    """A records file, open for more. The file and its folder are made if they are not there.

    Raises:
        RecordError: it cannot be written, or is compressed or packed.
    """

    def __init__(self, path: Path) -> None:
        if path.suffix in (".xz", ".parquet"):
            raise RecordError(
                f"{path}: nothing can be appended to a {path.suffix} file; name one of JSON Lines, such as "
                f"{path.name.partition('.')[0]}.jsonl"
            )
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o666)
            size = os.fstat(self._file).st_size
            if size and os.pread(self._file, 1, size - 1) != b"\n":
                # A killed writer left half a line. End it, so that readers skip it alone.
                os.write(self._file, b"\n")
        except OSError as error:
            raise RecordError(f"{path}: cannot be written: {error.strerror or error}") from error
        self._path = path

    def append(self, *measurements: Measurement) -> None:
        """Write records and wait until they are on disk.

        Raises:
            RecordError: they cannot be written, because the disk is full for instance.
        """
        lines = b"".join(measurement.model_dump_json().encode() + b"\n" for measurement in measurements)
        try:
            written = os.write(self._file, lines)  # one call: records of two sweeps never mix
            os.fsync(self._file)
        except OSError as error:
            raise RecordError(f"{self._path}: cannot be written: {error.strerror or error}") from error
        if written != len(lines):
            raise RecordError(f"{self._path}: only {written} of {len(lines)} bytes of records fit; free some space")

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
    """Commit that gemmill's sources are at, with ``-dirty`` if they were changed since; empty where no repository holds
    them, though one may lie around the environment that they are installed in."""
    source = Path(__file__).resolve()
    git = ["git", "-C", str(source.parent)]
    described = ["describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"]
    try:
        for command in (["ls-files", "--error-unmatch", source.name], described):
            found = subprocess.run([*git, *command], capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return ""
    return found.stdout.strip()
