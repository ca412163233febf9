"""The residual model fitted: gradient-boosted trees of the logarithm of measured over modelled time.

The model is ``runtime/select/cost/residual.py``'s. Needs CatBoost: gemmill's extra ``fit``.
"""

from __future__ import annotations

import json
import math
import tempfile
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from gemmill.library.errors import RecordError
from gemmill.library.extras import install
from gemmill.profiler.training.rows import Rows
from gemmill.runtime.select.cost.model import FEATURES
from gemmill.runtime.select.cost.residual import ResidualModel

KIN = 1 / 16
"""What a problem of another GPU weighs."""
DEPTH = 6
"""Levels of a tree."""
ROUNDING = 0.002
"""Most that numbers as they are written may change a logarithm of time."""
SETTINGS: dict[str, Any] = {
    "loss_function": "RMSE",
    "iterations": 400,
    "depth": DEPTH,
    "learning_rate": 0.2,
    "l2_leaf_reg": 1,
    "border_count": 254,
    "random_seed": 1,
    "allow_writing_files": False,
    "verbose": False,
}
"""Of CatBoost. The seed is the one of three beside whose trees laws of long runs choose best, held out by K, on both
GPUs: what they are judged by are too few problems to be without luck."""


def fit(rows: Sequence[Rows], gpu: str) -> Any:
    """A CatBoost model of measured over analytic time, logarithms, for a GPU."""
    try:
        import catboost
    except ImportError as error:
        raise RecordError(f"a model is fitted by CatBoost ({error}): {install('fit')}") from None

    # A problem that many runs have weighs more than one that a single run has, but not as many times as much.
    runs = Counter((r.gpu, r.problem) for r in rows)
    shares = [(1 if r.gpu == gpu else KIN) / math.sqrt(runs[r.gpu, r.problem]) for r in rows]
    return catboost.CatBoostRegressor(**SETTINGS).fit(
        np.concatenate([r.features for r in rows]),
        np.concatenate([r.measured - r.analytic for r in rows]),
        sample_weight=np.concatenate([r.weights * share for r, share in zip(rows, shares, strict=True)]) * 1e3,
    )


def as_trees(model: Any) -> list[dict[str, Any]]:
    """The trees as the file has them: CatBoost's, whose last split decides the highest bit of a leaf's number."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "model.json"
        model.save_model(path, format="json")
        found = json.loads(path.read_text())
    scale, (bias,) = found["scale_and_bias"]
    result = []
    for tree in found["oblivious_trees"]:
        splits = [[FEATURES[x["float_feature_index"]], x["border"]] for x in reversed(tree["splits"] or ())]
        values = [round(bias / len(found["oblivious_trees"]) + scale * value, 5) for value in tree["leaf_values"]]
        splits = [[FEATURES[0], None]] * (DEPTH - len(splits)) + splits  # to the left, whatever is asked
        result.append({"splits": splits, "values": values + [0.0] * (2**DEPTH - len(values))})
    return result


def content(booster: Any, rows: Sequence[Rows]) -> dict[str, Any]:
    """Features and trees as the file has them.

    Raises:
        RecordError: they are too far from what was fitted once they are rounded.
    """
    found = {"features": list(FEATURES), "trees": as_trees(booster)}
    asked = np.concatenate([r.features for r in rows]).astype(np.float64)
    apart = np.abs(ResidualModel.of(found)(asked.T) - booster.predict(asked)).max()
    if apart > ROUNDING:
        raise RecordError(f"the trees as they would be written are up to {apart:.2g} from what was fitted: round less")
    return found
