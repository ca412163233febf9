"""The network that corrects the analytic model: two hidden layers over figures of a kernel and a problem, fitted to the
logarithm of measured over modelled time by `gemmill train`.

Its inputs are logarithms and flags. Those that a kernel has whatever the problem
(:data:`~gemmill.runtime.select.cost.table.STATIC`) are multiplied by their weights once a table, so that a choice takes
three small matrix products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gemmill.runtime.select.cost.arrays import Floats

DYNAMIC = "M", "N", "tiles M", "tiles N", "waves", "active", "steps", "loads", "SM", "DRAM", "us", "K", "batch"
"""Figures of a kernel on a problem, in the order of the analytic model's ``figures``; the network takes their
logarithms. M and N are those that the kernel sees, tiles whole clusters along them."""

Network = Sequence[Any]
"""Weights of :data:`DYNAMIC` and of :data:`~gemmill.runtime.select.cost.table.STATIC`, biases of
the first hidden layer, weights and biases of the second, weights and bias of what comes out: float32."""


def network_of(content: Mapping[str, Any], inputs: Sequence[str]) -> Network:
    """The network of a model's file; ``inputs`` are the names that it must have.

    Raises:
        ValueError: it has other inputs, or its layers do not fit together.
    """
    if tuple(content["inputs"]) != tuple(inputs):
        raise ValueError("the network has other inputs than this version of gemmill computes")
    (first, bias), (second, second_bias), (last, last_bias) = (
        (np.array(layer["weights"], np.float32), np.array(layer["biases"], np.float32)) for layer in content["layers"]
    )
    if first.shape != (len(inputs), bias.size) or second.shape != (bias.size, second_bias.size):
        raise ValueError("the layers of the network do not fit together")
    if last.shape != (second_bias.size, 1) or last_bias.shape != (1,):
        raise ValueError("the last layer of the network does not fit")
    at = len(DYNAMIC)
    return first[:at], first[at:], bias, second, second_bias, last[:, 0], last_bias[0]


def of_kernels(network: Network, inputs: Floats) -> Any:
    """What kernels add to the first hidden layer, with its bias: (kernels, static inputs) to (kernels, width)."""
    return inputs.astype(np.float32) @ network[1] + network[2]


def corrections(network: Network, of_kernels: Any, figures: Floats) -> Floats:
    """Logarithms of measured over modelled time to expect: of figures (:data:`DYNAMIC`, kernels) to (kernels)."""
    dynamic, _, _, second, second_bias, last, last_bias = network
    hidden = np.log(figures.astype(np.float32)).T @ dynamic
    hidden += of_kernels
    np.maximum(hidden, 0.0, out=hidden)
    hidden = hidden @ second
    hidden += second_bias
    np.maximum(hidden, 0.0, out=hidden)
    return np.asarray(hidden @ last + last_bias, np.float64)


def corrections_of_rows(network: Network, inputs: Floats) -> Floats:
    """The same of rows with all inputs."""
    dynamic, static, bias, second, second_bias, last, last_bias = network
    hidden = np.maximum(inputs.astype(np.float32) @ np.concatenate([dynamic, static]) + bias, 0.0)
    return np.asarray(np.maximum(hidden @ second + second_bias, 0.0) @ last + last_bias, np.float64)
