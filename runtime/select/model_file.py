"""The model of a GPU: one file that `gemmill train` makes from measurements. The shipped models are in
``runtime/models``; a program may use its own folder (``Registry(model=)``, ``GEMMILL_MODEL``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields
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
"""Folder of the shipped models."""
VERSION = 5
"""Version of the file format."""
INPUTS = (*DYNAMIC, *STATIC)
"""Names of the network's inputs."""
FORMATS = tuple(field.name for field in fields(GemmProblem) if field.name not in ("m", "n", "k", "expected_rows"))
"""Properties that all problems in a table of measurements share, in the order of its key. The expected rows of masked
groups are not part of it."""
formats_of = attrgetter(*FORMATS)
"""Returns the key of a problem's table."""
_DEFAULTS = {"rows": "stored", "symmetry": "general"}
"""Formats that files from before them lack."""
_MAX_BYTES = 64 << 20
"""Largest size of a file; the shipped ones have less than 1 MB."""
_AGAIN = "train a new one: gemmill train RECORDS... --gpu NAME -o DIR"


@dataclass(frozen=True, slots=True, eq=False)
class GpuModel:
    """The model that `gemmill train` fitted to measurements of a GPU."""

    network: Network
    """Corrects the analytic model."""
    energies: Mapping[str, Energy]
    """Coefficients of the energy term by the type of A and B; empty without measurements under sustained load."""
    kernels: Sequence[SlicedKernel]
    """The kernels that :attr:`tables` refer to."""
    tables: Mapping[tuple[Any, ...], Mapping[str, Sequence[float]]]
    """Measured times by formats, then by the extents of a problem: alternating kernel indices and microseconds, the
    fastest first."""
    types: frozenset[tuple[str, str, str]]
    """Types of A, B and D for which there are tables."""

    def times(self, problem: GemmProblem) -> list[tuple[float, SlicedKernel]]:
        """Return the measured microseconds and kernels of a problem, the fastest first; empty for most problems."""
        table = self.tables.get(formats_of(problem))
        if table is None or (row := table.get(problem.extents)) is None:
            return []
        return [(us, self.kernels[int(kernel)]) for kernel, us in zip(row[::2], row[1::2], strict=True)]

    @classmethod
    def of(cls, content: Mapping[str, Any]) -> GpuModel:
        """Return the model from the content of a file."""
        measured = content["measured"]
        tables = measured["tables"]
        return cls(
            network_of(content["network"], INPUTS),
            {dtype: {name: float(row[name]) for name in COEFFICIENTS} for dtype, row in content["energy"].items()},
            [*map(SlicedKernel.recorded, measured["kernels"], measured.get("slices", repeat(1)))],
            {tuple((_DEFAULTS | table["formats"])[name] for name in FORMATS): table["problems"] for table in tables},
            frozenset(tuple(table["formats"][f"{x}_dtype"] for x in "abd") for table in tables),
        )


def path_of(gpu: str, folder: Path | None = None) -> Path:
    """Return the file of a GPU, by the name of its row in library/arch.py."""
    return (folder or FOLDER) / f"{gpu.lower().replace(' ', '-').replace('/', '-')}.json"


@cache
def model_of(gpu: str, folder: Path | None = None) -> GpuModel | None:
    """Return the model of a GPU, by the name of its row in library/arch.py, from a folder of models or from the shipped
    ones; None where there is none.

    Raises:
        RecordError: the file cannot be read, is damaged, or is for another GPU or version.
    """
    content = content_of(gpu, folder)
    with sound(path_of(gpu, folder)):
        return GpuModel.of(content) if content else None


def content_of(gpu: str, folder: Path | None = None) -> dict[str, Any] | None:
    """Return the content of a GPU's file; None where there is none.

    Raises:
        RecordError: as for :func:`model_of`.
    """
    path = path_of(gpu, folder)
    try:
        with sound(path):
            content: dict[str, Any] = parse(read_regular(path, _MAX_BYTES))
            stamp = content["version"], content["gpu"]
    except FileNotFoundError:
        return None
    except OSError as error:
        raise RecordError(f"{path}: cannot be read: {error.strerror or error}") from None
    if stamp != (VERSION, gpu):
        raise RecordError(
            f"{path}: has version {stamp[0]!r:.20} for {stamp[1]!s:.80}; expected version {VERSION} for {gpu}; {_AGAIN}"
        )
    return content


@contextmanager
def sound(path: Path) -> Iterator[None]:
    """Turn errors while reading the content of a model file into RecordError."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise RecordError(f"{path}: is damaged, or not a model of a GPU ({error!r:.200}); {_AGAIN}") from None


def with_model(gpu: Gpu, folder: Path) -> Gpu:
    """Return a GPU with its model from a folder instead of the shipped one.

    Raises:
        RecordError: the folder has no model of it.
    """
    if not (path := path_of(gpu.name, folder)).is_file():
        models = sorted(path.stem for path in folder.glob("*.json"))
        available = f"the folder has models of {', '.join(models)}" if models else "the folder has no model"
        raise RecordError(f"model {folder}: {path.name} is missing; {available}; {_AGAIN}")
    return gpu._replace(model=folder)


def origin(gpu: Gpu) -> str:
    """Return, in words, where the model of a GPU comes from and what it was trained on."""
    if (content := content_of(gpu.name, gpu.model)) is None:
        return f"none for {gpu.name}: gemmill selects by the analytic model alone"
    with sound(path_of(gpu.name, gpu.model)):
        runs = len(content["fitted to"])
    return f"{gpu.model or 'shipped'}: for {gpu.name}, trained on {runs} sweeps"
