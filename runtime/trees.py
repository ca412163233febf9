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
    feature: npt.NDArray[np.intp]
    """Of each inner node of each tree, breadth first: the feature that is compared."""
    threshold: Floats
    """With what; above it the way is right. Infinite where a tree has no such node: both ways are the same."""
    value: Floats
    """Of each leaf, left to right."""

    def __call__(self, rows: Floats) -> Floats:
        """Sums of the leaves that columns of features reach: (features, columns) to (columns,)."""
        trees, leaves = self.value.shape
        columns, first = np.arange(rows.shape[1]), np.arange(trees)[:, np.newaxis] * (leaves - 1)
        flat, feature, threshold = rows.ravel(), (self.feature * rows.shape[1]).ravel(), self.threshold.ravel()
        # The roots at once, as they are asked in order.
        at = first + 1 + (rows.take(self.feature[:, 0], axis=0) > self.threshold[:, :1])
        for _ in range(leaves.bit_length() - 2):
            # No index is outside; "clip" spares the test.
            asked = feature.take(at, mode="clip")
            asked += columns
            above = flat.take(asked, mode="clip") > threshold.take(at, mode="clip")
            at *= 2  # the children of node i of a tree are 2 i + 1 and 2 i + 2
            at += 1 - first
            at += above
        # Leaves follow a tree's inner nodes, and there is one more of them.
        at += np.arange(trees)[:, np.newaxis] - (leaves - 1)
        sums: Floats = self.value.ravel().take(at, mode="clip").sum(axis=0)
        return sums

    @classmethod
    def of(cls, content: dict[str, Any]) -> Trees:
        """The trees of a file's content."""
        rows = {name: row for row, name in enumerate(content["features"])}
        trees = content["trees"]
        return cls(
            tuple(rows),
            np.array([[rows[name] for name, _ in tree["splits"]] for tree in trees], np.intp),
            np.array([[np.inf if at is None else at for _, at in tree["splits"]] for tree in trees], np.float64),
            np.array([tree["values"] for tree in trees], np.float64),
        )


@cache
def fitted(gpu: str) -> Trees | None:
    """The trees for a GPU, by the name of its row in library/arch.py; None where nobody has measured it.

    Raises:
        RecordError: the file is of another version.
    """
    content = content_of(gpu, "trees", VERSION)
    return Trees.of(content) if content else None
