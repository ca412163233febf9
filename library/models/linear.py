"""One linear layer of a model, and the fusion of layers that read the same input."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Literal, TypeVar

from gemmill.library.errors import ProblemError

VOCABULARY_UNIT = 64
"""Engines pad the vocabulary to a multiple of this before they split it (vLLM's VocabParallelEmbedding)."""
Formats = TypeVar("Formats")


@dataclass(frozen=True, slots=True)
class Linear:
    """A linear layer Y = X W^T with a weight W (n x k), or the same layer of each expert."""

    name: str
    """Full name of the module, such as ``model.layers.0.self_attn.q_proj``."""
    n: int
    """Output features."""
    k: int
    """Input features."""
    fuses: str = ""
    """The name that this layer and its neighbours of this name have as one; empty for a layer that stays alone."""
    split: Literal["", "n", "k"] = ""
    """The extent that tensor parallelism divides; empty if each GPU has the whole weight."""
    units: int = 1
    """Parts of that extent that cannot be divided further: heads, or features of an MLP."""
    repeats: bool = False
    """Whether GPUs share a unit if there are fewer units than GPUs, as for heads of keys and values."""
    rows: int | None = None
    """Rows of X; None: the number of tokens."""
    experts: int = 0
    """Experts, each with a weight; 0 for a layer without."""
    top_k: int = 1
    """Experts of each token."""
    plain: bool = False
    """Whether quantisation leaves it out: routers, heads and patch embeddings."""

    def on(self, tp: int, ep: int) -> Linear:
        """The part of the layer on one of ``tp`` GPUs. With ``ep`` above 1, a GPU has whole experts instead.

        Raises:
            ProblemError: the layer cannot be divided.
        """
        if self.experts and ep > 1:
            if self.experts % ep:
                raise ProblemError(f"{self.name} has {self.experts} experts, which {ep} GPUs cannot share equally")
            return replace(self, experts=self.experts // ep)
        if not self.split or tp == 1:
            return self
        if self.units % tp and not (self.repeats and tp % self.units == 0):
            raise ProblemError(f"{self.name} has {self.units} parts along {self.split}, which {tp} GPUs cannot share")
        divided = -(-getattr(self, self.split) // self.units) * max(1, self.units // tp)
        return replace(self, n=divided) if self.split == "n" else replace(self, k=divided)


def fused(linears: Iterable[tuple[Linear, Formats]], only: Collection[str] | None) -> Iterator[tuple[Linear, Formats]]:
    """Layers with those that fuse as one. Each layer comes with its formats; only equal formats fuse.

    Args:
        linears: the layers in the order of the model.
        only: fuse only layers of these names; None: all.
    """

    def key(item: tuple[Linear, Formats]) -> object:
        linear, formats = item
        if not linear.fuses or (only is not None and linear.fuses not in only):
            return linear.name
        return _parent(linear.name), linear.fuses, linear.k, linear.rows, repr(formats)

    for _, group in groupby(linears, key):
        first, *others = group
        linear, formats = first
        if others:
            n = linear.n + sum(other.n for other, _ in others)
            linear = replace(linear, name=f"{_parent(linear.name)}.{linear.fuses}", n=n)
        yield linear, formats


def _parent(name: str) -> str:
    return name.rpartition(".")[0]
