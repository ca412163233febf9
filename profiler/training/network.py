"""Fit the network of the model (``runtime/select/cost/network.py``) by gradient descent.

The loss is the sum of two terms: the expected loss of a choice among the kernels of a problem, and the squared error of
the logarithm of measured over modeled time. Inputs are whitened, so that small differences of large logarithms (such as
the fraction of a tile inside the problem) have the same scale as others. The written weights include the whitening.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from gemmill.profiler.training.rows import Rows
from gemmill.runtime.select.model_file import INPUTS

WIDTHS = (64, 64)
"""Widths of the hidden layers."""
EPOCHS = 20
"""Number of passes over all problems."""
BATCH = 32
"""Problems per step."""
RATE = 3e-3
"""Initial learning rate; it falls to 0 as a cosine (Adam: Kingma and Ba, ICLR 2015)."""
DECAY = 0.6
"""Weight decay of a step, relative to the learning rate (Loshchilov and Hutter, ICLR 2019)."""
TUNED_EPOCHS, TUNED_RATE = 6, 2e-3
"""Epochs and learning rate for a network that was fitted to the problems of all GPUs before."""
TEMPERATURE = 0.015
"""Temperature of the softmax over predicted log times: a kernel slower by this fraction has the weight 1/e."""
MOST_LOST = 0.5
"""Upper bound of the loss of a choice, as a fraction of the best time."""
LEAST_VARIANCE = 0.06
"""Minimum variance for whitening. Directions with less variance, in which few kernels differ (such as a swizzle of
16), would otherwise be amplified."""
SEED = 1

Layers = list[tuple[Any, Any]]
"""Weights and biases of each layer."""


def fit(rows: Sequence[Rows], gpu: str) -> Layers:
    """Fit a network that predicts the logarithm of measured over analytic time on a GPU.

    It is fitted to all problems and, if some are of other GPUs, then to those of this GPU. Each problem must occur once
    per GPU (:func:`~gemmill.profiler.training.rows.merged`).
    """
    layers, this_gpu = _descend(rows, None, EPOCHS, RATE), [r for r in rows if r.gpu == gpu]
    return layers if len(this_gpu) == len(rows) else _descend(this_gpu, layers, TUNED_EPOCHS, TUNED_RATE)


def _descend(rows: Sequence[Rows], start: Layers | None, epochs: int, rate: float) -> Layers:
    """Fit layers to problems, starting from given or random layers."""
    inputs = np.concatenate([r.features for r in rows])
    mean, whitener = _whitening(inputs)
    white = ((inputs - mean) @ whitener).astype(np.float32)
    analytic = np.concatenate([r.analytic for r in rows]).astype(np.float32)
    measured = np.concatenate([r.measured for r in rows]).astype(np.float32)
    weights = np.concatenate([r.weights for r in rows]).astype(np.float32)
    sizes = np.array([len(r.kernels) for r in rows])
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    best = np.repeat([min(r.best, float(r.measured.min())) for r in rows], sizes)
    losses = np.minimum(np.exp(measured - best) - 1, MOST_LOST).astype(np.float32)
    chance = np.random.default_rng(SEED)
    if start is None:
        layers = _initial(chance, (white.shape[1], *WIDTHS, 1))
        layers[-1][1][:] = np.average(measured - analytic, weights=weights)
    else:
        (raw, bias), *rest = start
        first = (np.linalg.inv(whitener) @ raw).astype(np.float32), (bias + mean @ raw).astype(np.float32)
        layers = [first, *((w.copy(), b.copy()) for w, b in rest)]
    batch = min(BATCH, len(rows))
    step = _adam(layers, epochs * (len(rows) // batch), rate)
    for _ in range(epochs):
        order = chance.permutation(len(rows))
        for i in range(0, len(rows) - batch + 1, batch):
            indices = order[i : i + batch]
            counts = sizes[indices]
            begins = np.concatenate([[0], np.cumsum(counts)[:-1]])
            index = np.repeat(starts[indices] - begins, counts) + np.arange(counts.sum())
            values = _forward(layers, white[index])
            predicted = values[-1][:, 0]
            slope = 2 * weights[index] * (predicted - (measured - analytic)[index])
            slope += _choices(predicted + analytic[index], losses[index], begins, counts)
            step(_gradients(layers, values, slope / batch))
    (first_weights, bias), *others = layers
    raw = whitener @ first_weights
    return [(raw, bias - mean @ raw), *others]


def predict(layers: Layers, inputs: Any) -> Any:
    """Predicted logarithms of measured over modeled time, (kernels), from inputs (kernels, inputs)."""
    return _forward(layers, inputs)[-1][:, 0]


def content(layers: Layers) -> dict[str, Any]:
    """The network in the format of the model file."""
    written = [
        {"weights": np.asarray(weights, np.float32).tolist(), "biases": np.asarray(bias, np.float32).tolist()}
        for weights, bias in layers
    ]
    return {"inputs": list(INPUTS), "layers": _rounded(written)}


def _rounded(value: Any) -> Any:
    """Numbers rounded to six digits, which does not change the predictions noticeably."""
    if isinstance(value, dict):
        return {name: _rounded(item) for name, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else float(f"{value:.6g}")


def _whitening(inputs: Any) -> tuple[Any, Any]:
    """The mean of inputs, and the matrix that decorrelates and scales their differences from it."""
    mean = inputs.mean(axis=0)
    variances, directions = np.linalg.eigh(np.cov((inputs - mean).T))
    return mean, directions / np.sqrt(np.maximum(variances, LEAST_VARIANCE))


def _initial(chance: np.random.Generator, widths: Sequence[int]) -> Layers:
    """Layers with random weights (He et al., ICCV 2015); those of the last layer are smaller."""
    layers = []
    for i, (width, following) in enumerate(pairwise(widths)):
        scale = math.sqrt(2 / width) * (0.1 if i == len(widths) - 2 else 1)
        weights = chance.standard_normal((width, following)) * scale
        layers.append((weights.astype(np.float32), np.zeros(following, np.float32)))
    return layers


def _forward(layers: Layers, inputs: Any) -> list[Any]:
    """The outputs of each layer, preceded by the inputs."""
    values = [inputs]
    for i, (weights, bias) in enumerate(layers):
        inputs = inputs @ weights + bias
        values.append(inputs := np.maximum(inputs, 0) if i < len(layers) - 1 else inputs)
    return values


def _gradients(layers: Layers, values: Sequence[Any], slope: Any) -> list[Any]:
    """Gradients of all weights and biases, from the derivative of the loss by the output for each kernel."""
    gradients: list[Any] = []
    slope = slope[:, np.newaxis]
    for i in reversed(range(len(layers))):
        gradients = [values[i].T @ slope, slope.sum(axis=0), *gradients]
        if i:
            slope = (slope @ layers[i][0].T) * (values[i] > 0)
    return gradients


def _choices(predicted: Any, losses: Any, first: Any, counts: Any) -> Any:
    """Derivatives, by the predicted time of each kernel, of the expected loss of a choice among the kernels of each
    problem. The probability of a choice is a softmax over the predicted times."""
    chances = np.exp((np.repeat(np.minimum.reduceat(predicted, first), counts) - predicted) / TEMPERATURE)
    chances /= np.repeat(np.add.reduceat(chances, first), counts)
    expected = np.repeat(np.add.reduceat(chances * losses, first), counts)
    return chances * (expected - losses) / TEMPERATURE


def _adam(layers: Layers, steps: int, rate: float) -> Callable[[list[Any]], None]:
    """The optimizer step (Adam with weight decay) for weights and biases."""
    moved = [x for layer in layers for x in layer]
    mean, square = [np.zeros_like(x) for x in moved], [np.zeros_like(x) for x in moved]
    count = 0

    def step(gradients: list[Any]) -> None:
        nonlocal count
        count += 1
        slower = rate * 0.5 * (1 + math.cos(math.pi * count / max(steps, 1))) * min(1, count / 50)
        for x, m, v, gradient in zip(moved, mean, square, gradients, strict=True):
            m += 0.1 * (gradient - m)
            v += 0.001 * (gradient * gradient - v)
            if x.ndim == 2:  # weights, not biases
                x *= 1 - slower * DECAY
            x -= slower * (m / (1 - 0.9**count)) / (np.sqrt(v / (1 - 0.999**count)) + 1e-8)

    return step
