"""Models of GPUs that the service has trained and published, by number, the newest in force."""

from __future__ import annotations

from pathlib import Path

from gemmill.runtime.select.models import REQUIRED, path_of


class Models:
    """The models of a state's folder."""

    def __init__(self, state: Path) -> None:
        self._path = state / "models"

    def folder(self, gpu: str) -> Path | None:
        """The folder of the model in force of a GPU, by the name of its row; None where none was published."""
        found = [
            path
            for path in self._of(gpu).glob("[0-9]*")
            if path.name.isdecimal() and all(path_of(gpu, what, path).is_file() for what in REQUIRED)
        ]
        return max(found, key=lambda path: int(path.name), default=None)

    def place(self, gpu: str) -> tuple[Path, int]:
        """Where the next model of a GPU goes, and its number."""
        current = self.folder(gpu)
        number = 1 if current is None else int(current.name) + 1
        return self._of(gpu) / str(number), number

    def _of(self, gpu: str) -> Path:
        return self._path / path_of(gpu, "trees").name.partition(".")[0]
