"""The residual model, what measurements add to the analytic one: gradient-boosted trees on its figures, fitted to the
logarithm of measured over modelled time (oblivious trees: Prokhorenkova et al., CatBoost, NeurIPS 2018).
`gemmill train` fits it and writes the files."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gemmill.runtime.select.models import content_of, path_of, sound

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

VERSION = 3
"""Of the files."""
_AT_A_TIME = 220
"""Comparisons, or trees: of 64 kernels their figures, or leaves, take 56 or 113 kB."""

COLUMNS = 64
"""Of as many, which are asked for as a rule, each figure meets a threshold of its own: one for the row takes longer."""


class ResidualModel(NamedTuple):
    """A sum of trees of equal depth, in each of which all nodes of a level ask the same."""

    features: tuple[str, ...]
    """What the trees ask for, by name, in the order of the rows of their input."""
    feature: npt.NDArray[np.intp]
    """(comparisons,): the feature that is compared. Trees share comparisons, each of which is made once."""
    threshold: npt.NDArray[np.float32]
    """(comparisons, :data:`COLUMNS`), columns alike: with what. Above it the way is right; infinite where all go
    left."""
    comparison: npt.NDArray[np.intp]
    """(levels, trees): which of them all nodes of a level ask."""
    value: Floats
    """Of the leaves, (trees, leaves), left to right."""
    first: npt.NDArray[np.unsignedinteger[Any]]
    """(trees, :data:`COLUMNS`), columns alike: of all leaves, the first of a tree."""

    def __call__(self, rows: Floats) -> Floats:
        """Sums of the leaves that columns of features reach: (features, columns) to (columns,)."""
        # As few bytes as can be: what is moved sets the pace, and what is allocated and freed by the hundred kilobytes
        # malloc takes from the system each time, page fault by page fault.
        rows = rows.astype(np.float32)
        count = rows.shape[1]
        width = slice(None if count == COLUMNS else 1)
        is_above = np.empty((self.feature.size, count), np.bool_)
        for part in _parts(self.feature.size):
            figures = rows.take(self.feature[part], axis=0)
            np.greater(figures, self.threshold[part, width], out=is_above[part])
        above = is_above.view(np.uint8)
        root, *levels = self.comparison
        leaf = above.take(root, axis=0)
        for level in levels:
            leaf += leaf
            leaf += above.take(level, axis=0)
        del is_above, above
        sums: Floats = np.zeros(count)
        for part in _parts(leaf.shape[0]):
            values = self.value.take(leaf[part] + self.first[part, width], mode="clip")  # none is outside: no test
            values[0] += sums
            sums = values.sum(axis=0)
        return sums

    @classmethod
    def of(cls, content: dict[str, Any]) -> ResidualModel:
        """The model of a file's content, which has levels from the root on."""
        rows = {name: row for row, name in enumerate(content["features"])}
        splits = [
            [(rows[name], np.inf if at is None else at) for name, at in tree["splits"]] for tree in content["trees"]
        ]
        index = {split: i for i, split in enumerate(dict.fromkeys(split for own in splits for split in own))}
        feature = np.array([row for row, _ in index], np.intp)
        threshold = np.array([[at] * COLUMNS for _, at in index], np.float32)
        comparison = np.array([[index[split] for split in own] for own in splits], np.intp)
        value = np.array([tree["values"] for tree in content["trees"]], np.float64)
        first = (np.arange(len(value)) * value.shape[1]).astype(np.min_scalar_type(value.size))
        wide = first[:, np.newaxis].repeat(COLUMNS, axis=1)
        return cls(tuple(rows), feature, threshold, comparison.T.copy(), value, wide)


def _parts(count: int) -> Iterator[slice]:
    """A few hundred rows at a time."""
    return (slice(start, start + _AT_A_TIME) for start in range(0, count, _AT_A_TIME))


@cache
def fitted(gpu: str, folder: Path | None = None) -> ResidualModel | None:
    """The residual model of a GPU, by the name of its row in library/arch.py, in a folder of models, by default
    of those that ship; None where nobody has measured it.

    Raises:
        RecordError: the file is damaged or of another version.
    """
    content = content_of(gpu, folder, "trees", VERSION)
    with sound(path_of(gpu, "trees", folder)):
        return ResidualModel.of(content) if content else None
