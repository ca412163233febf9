"""What measurements add to the analytic model: trees on its figures, fitted to the logarithm of measured over modelled
time (gradient boosting: Friedman, Annals of Statistics 2001). ``benchmarks/fit.py`` fits them and writes the files."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from gemmill.runtime.shipped import content_of

if TYPE_CHECKING:
    import numpy.typing as npt

    Floats = npt.NDArray[np.float64]

VERSION = 2
"""Of the files."""


class Trees(NamedTuple):
    """A sum of complete binary trees of equal depth."""

    features: tuple[str, ...]
    """What the trees ask for, by name, in the order of the rows of their input."""
    levels: tuple[tuple[npt.NDArray[np.intp], Floats], ...]
    """Of the inner nodes of each level, (trees, nodes): the feature that is compared, and with what. Above it the way
    is right. Infinite where a tree has no such node: both ways are the same."""
    value: Floats
    """Of the leaves, (trees, leaves), left to right."""

    def __call__(self, rows: Floats) -> Floats:
        """Sums of the leaves that columns of features reach: (features, columns) to (columns,)."""
        features, columns = rows.shape
        flat, column = rows.T.ravel(), np.arange(0, columns * features, features)
        (feature, threshold), *others = self.levels
        # Nodes of a level are counted through all trees, so that the children of node i are 2 i and 2 i + 1. The roots
        # at once, as they are asked in order.
        at = (rows.take(feature[:, 0], axis=0) > threshold).astype(np.intp)
        at += np.arange(0, 2 * len(at), 2)[:, np.newaxis]
        for feature, threshold in others:
            # No index is outside; "clip" spares the test.
            asked = feature.ravel().take(at, mode="clip")
            asked += column
            above = flat.take(asked, mode="clip") > threshold.ravel().take(at, mode="clip")
            at += at
            at += above
        sums: Floats = self.value.ravel().take(at, mode="clip").sum(axis=0)
        return sums

    @classmethod
    def of(cls, content: dict[str, Any]) -> Trees:
        """The trees of a file's content, which has nodes breadth first."""
        rows = {name: row for row, name in enumerate(content["features"])}
        trees = content["trees"]
        feature = np.array([[rows[name] for name, _ in tree["splits"]] for tree in trees], np.intp)
        threshold = np.array([[np.inf if at is None else at for _, at in tree["splits"]] for tree in trees], np.float64)
        value = np.array([tree["values"] for tree in trees], np.float64)
        levels = [slice(2**level - 1, 2 ** (level + 1) - 1) for level in range(value.shape[1].bit_length() - 1)]
        own = ((feature[:, level], threshold[:, level]) for level in levels)
        return cls(tuple(rows), tuple((np.ascontiguousarray(f), np.ascontiguousarray(t)) for f, t in own), value)


@cache
def fitted(gpu: str) -> Trees | None:
    """The trees for a GPU, by the name of its row in library/arch.py; None where nobody has measured it.

    Raises:
        RecordError: the file is of another version.
    """
    content = content_of(gpu, "trees", VERSION)
    return Trees.of(content) if content else None
