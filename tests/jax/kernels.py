"""Names of the kernels that cases, programs and their gradients take, told without running any: ``python -m
tests.jax.kernels`` with ids of cases, under ``JAX_PLATFORMS=cpu``. For tests on a GPU, which compile them all at once.
"""

from __future__ import annotations

import re
import sys
from functools import partial
from typing import Any

import jax
from tests.jax.cases import CASES

import gemmill.jax

_BF16 = "sm90a_bf16k16_bf16mn16_f32_none_bf16n16"
SHARED_K = {
    "split-K": (f"{_BF16}_128x128x64_1x1_cooperative_s5_m8_splitk_linear", (64, 64, 16384)),
    "stream-K": (f"{_BF16}_128x192x64_2x1_cooperative_s4_m8_k1stream_linear", (768, 3072, 4096)),
}
"""Kernels, and M, N and K of products for which they take a workspace."""


def chain(x: Any, w: Any, bias: Any) -> Any:
    """Three products, of (M, 64), (64, 64) and (64,)."""
    h = gemmill.jax.matmul(x, w, epilogue="d = relu(acc + bias[n])", bias=bias)
    return gemmill.jax.matmul(gemmill.jax.matmul(h, w.T, b_major="k"), w)


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, "bfloat16")


def names(function: Any, some: dict[str, Any]) -> set[str]:
    """The kernels of a function, and of its gradients by all that it is given."""

    def loss(some: dict[str, Any]) -> Any:
        made = function(**some)
        return sum(x.astype("float32").sum() for x in (made if isinstance(made, tuple) else (made,)))

    texts = [str(jax.make_jaxpr(f)(some)) for f in ((jax.grad(loss), lambda x: function(**x)) if some else ())]
    return set(re.findall(r'"kernel","(\w+)"', "".join(texts)))


def main(ids: list[str]) -> None:
    """Print those of cases and programs."""
    found = set(
        re.findall(r'"kernel","(\w+)"', "".join(str(jax.make_jaxpr(CASES[x].call)(**CASES[x].arrays)) for x in ids))
    )
    for case in (CASES[x] for x in ids):
        some = {name: case.arrays[name] for name in case.differentiable}
        fixed = {name: x for name, x in case.arrays.items() if name not in some}
        found |= names(partial(case.call, **fixed), some)
    for rows in (32, 64):
        found |= names(chain, {"x": array(rows, 64), "w": array(64, 64), "bias": array(64)})
    found |= {kernel for kernel, _ in SHARED_K.values()}
    print(*sorted(found), sep="\n")


if __name__ == "__main__":
    main(sys.argv[1:])
