"""The network that corrects the analytic model.

It has two hidden layers over properties of a kernel and a problem. `gemmill train` fits it to the logarithm of measured
over predicted time. Its inputs are logarithms and flags. Inputs that do not depend on the problem
(:data:`~gemmill.runtime.select.cost.table.STATIC`) are multiplied by their weights once per table, so a choice takes
three small matrix products.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from gemmill.runtime.select.cost.arrays import Floats

DYNAMIC = (
    *("M", "N", "tiles M", "tiles N", "waves", "active", "steps", "loads", "SM", "DRAM", "us", "K", "batch"),
    *("row A", "row B"),
)
"""Properties of a kernel on a problem, in the order of the analytic model's ``figures``; the network takes their
logarithms. M, N, A and B are the kernel's; tiles count whole clusters; rows are the clocks in which TMA loads a row."""

Network = Sequence[Any]
"""float32 arrays: weights of :data:`DYNAMIC` and of :data:`~gemmill.runtime.select.cost.table.STATIC`, biases of the
first hidden layer, weights and biases of the second, weights and bias of the output."""


def network_of(content: Mapping[str, Any], inputs: Sequence[str]) -> Network:
    """Return the network in a model file; ``inputs`` are the names that its inputs must have.

    Raises:
        ValueError: it has other inputs, or its layers do not fit together.
    """
    if tuple(content["inputs"]) != tuple(inputs):
        raise ValueError("the inputs of the network differ from those of this version of gemmill")
    (first, bias), (second, second_bias), (last, last_bias) = (
        (np.array(layer["weights"], np.float32), np.array(layer["biases"], np.float32)) for layer in content["layers"]
    )
    if first.shape != (len(inputs), bias.size) or second.shape != (bias.size, second_bias.size):
        raise ValueError("the layers of the network do not fit together")
    if last.shape != (second_bias.size, 1) or last_bias.shape != (1,):
        raise ValueError("the last layer of the network has a wrong shape")
    at = len(DYNAMIC)
    return first[:at], first[at:], bias, second, second_bias, last[:, 0], last_bias[0]


def of_kernels(network: Network, inputs: Floats) -> Any:
    """Return what kernels add to the first hidden layer, with its bias: (kernels, static inputs) to (kernels,
    width)."""
    return inputs.astype(np.float32) @ network[1] + network[2]


def corrections(network: Network, of_kernels: Any, figures: Floats) -> Floats:
    """Return the expected logarithms of measured over predicted time: (:data:`DYNAMIC`, kernels) to (kernels)."""
    dynamic, _, _, second, second_bias, last, last_bias = network
    hidden = np.log(figures.astype(np.float32)).T @ dynamic
    hidden += of_kernels
    np.maximum(hidden, 0.0, out=hidden)
    hidden = hidden @ second
    hidden += second_bias
    np.maximum(hidden, 0.0, out=hidden)
    return np.asarray(hidden @ last + last_bias, np.float64)


def corrections_of_rows(network: Network, inputs: Floats) -> Floats:
    """Return the same for rows with all inputs."""
    dynamic, static, bias, second, second_bias, last, last_bias = network
    hidden = np.maximum(inputs.astype(np.float32) @ np.concatenate([dynamic, static]) + bias, 0.0)
    return np.asarray(np.maximum(hidden @ second + second_bias, 0.0) @ last + last_bias, np.float64)
