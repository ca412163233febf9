"""The model of a GPU, one file: what `gemmill train` made of measurements. Those that ship are in ``runtime/models``; a
program may name a folder of its own (``Registry(model=)``, ``GEMMILL_MODEL``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, replace
from functools import cache
from itertools import repeat
from operator import attrgetter
from pathlib import Path
from typing import Any

from gemmill.library.arch import Gpu
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import RecordError
from gemmill.library.files import read_regular
from gemmill.library.input.strict_json import parse
from gemmill.library.problem import GemmProblem
from gemmill.runtime.select.cost.energy import COEFFICIENTS, Energy
from gemmill.runtime.select.cost.network import DYNAMIC, Network, network_of
from gemmill.runtime.select.cost.table import STATIC

FOLDER = Path(__file__).parents[1] / "models"
"""Where those are that ship."""
VERSION = 4
"""Of the files."""
INPUTS = (*DYNAMIC, *STATIC)
"""Names of the network's inputs."""
FORMATS = tuple(field.name for field in fields(GemmProblem) if field.name not in ("m", "n", "k", "expected_rows"))
"""What the problems of a table of measurements have in common, in the order of its key. It does not tell how many rows
of a masked group are expected."""
formats_of = attrgetter(*FORMATS)
"""The key of a problem's table."""
_MAX_BYTES = 64 << 20
"""Most bytes of a file; those that ship have less than one."""
_AGAIN = "train it again: gemmill train RECORDS... --gpu NAME -o DIR"


@dataclass(frozen=True, slots=True, eq=False)
class GpuModel:
    """What was learnt from measurements of a GPU."""

    network: Network
    """Corrects the analytic model."""
    energies: Mapping[str, Energy]
    """Coefficients of the energy term by the type of A and B; empty where nothing was measured under sustained load."""
    kernels: Sequence[SlicedKernel]
    """The kernels that :attr:`tables` refer to."""
    tables: Mapping[tuple[Any, ...], Mapping[str, Sequence[float]]]
    """Measured times by formats, then by a problem's extents: a kernel's index and its microseconds in turn, the
    fastest first."""
    types: frozenset[tuple[str, str, str]]
    """Types of A, B and D that there are tables of."""

    def times(self, problem: GemmProblem) -> list[tuple[float, SlicedKernel]]:
        """Microseconds of the kernels measured on a problem, and these, the fastest first; none for most."""
        table = self.tables.get(formats_of(problem))
        if table is None or (row := table.get(problem.extents)) is None:
            return []
        return [(us, self.kernels[int(kernel)]) for kernel, us in zip(row[::2], row[1::2], strict=True)]

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> GpuModel:
        """The model of a file's content."""
        measured = content["measured"]
        tables = measured["tables"]
        return cls(
            network_of(content["network"], INPUTS),
            {dtype: {name: float(own[name]) for name in COEFFICIENTS} for dtype, own in content["energy"].items()},
            [*map(SlicedKernel.recorded, measured["kernels"], measured.get("slices", repeat(1)))],
            {tuple(table["formats"].values()): table["problems"] for table in tables},
            frozenset(tuple(table["formats"][f"{x}_dtype"] for x in "abd") for table in tables),
        )


def path_of(gpu: str, folder: Path | None = None) -> Path:
    """The file of a GPU, by the name of its row in library/arch.py."""
    return (folder or FOLDER) / f"{gpu.lower().replace(' ', '-').replace('/', '-')}.json"


@cache
def model_of(gpu: str, folder: Path | None = None) -> GpuModel | None:
    """The model of a GPU, by the name of its row in library/arch.py, in a folder of models, by default of those that
    ship; None where nobody has measured it.

    Raises:
        RecordError: the file cannot be read, is damaged, of another GPU or of another version.
    """
    content = content_of(gpu, folder)
    with sound(path_of(gpu, folder)):
        return GpuModel.of(content) if content else None


def content_of(gpu: str, folder: Path | None = None) -> dict[str, Any] | None:
    """What the file of a GPU holds; None where there is none.

    Raises:
        RecordError: as for :func:`model_of`.
    """
    path = path_of(gpu, folder)
    try:
        with sound(path):
            content: dict[str, Any] = parse(read_regular(path, _MAX_BYTES))
            found = content["version"], content["gpu"]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from None
    if found != (VERSION, gpu):
        raise RecordError(f"{path}: version {found[0]!r:.20} for {found[1]!s:.80}, not {VERSION} for {gpu}; {_AGAIN}")
    return content


@contextmanager
def sound(path: Path) -> Iterator[None]:
    """While the content of a model's file is read: RecordError where it is not what it should be."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RecordError(f"{path}: is damaged, or no model of a GPU ({error!r:.200}); {_AGAIN}") from None


def with_model(gpu: Gpu, folder: Path) -> Gpu:
    """A GPU whose model is in a folder, not among those that ship.

    Raises:
        RecordError: the folder has no model of it.
    """
    if not (path := path_of(gpu.name, folder)).is_file():
        others = sorted(path.stem for path in folder.glob("*.json"))
        has = f"it has models of: {', '.join(others)}" if others else "the folder has no model"
        raise RecordError(f"model {folder}: {path.name} is missing; {has}; {_AGAIN}")
    return replace(gpu, model=folder)


def origin(gpu: Gpu) -> str:
    """In words, where the model of a GPU is and what it was trained on."""
    if (content := content_of(gpu.name, gpu.model)) is None:
        return f"none was trained for {gpu.name}: the analytic model alone decides"
    with sound(path_of(gpu.name, gpu.model)):
        runs = len(content["fitted to"])
    return f"{gpu.model or 'ships'}: of {gpu.name}, trained on {runs} sweeps"
