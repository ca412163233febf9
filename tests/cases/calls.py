"""Calls of ``matmul`` and ``plan`` that must be refused, each by the name of what is wrong."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from gemmill.library.errors import GemmillError, OperandError, UnsupportedProblemError

Changes = Callable[[Any, Any, Any], dict[str, Any]]
"""Keyword arguments from torch and from A and B, 64 by 64 bf16 matrices of small integers, row-major on one GPU."""


@dataclass(frozen=True)
class BadCall:
    """A call that is like a sound one but for what it changes."""

    id: str
    reason: str
    """What is wrong with it."""
    changes: Changes
    error: type[GemmillError]
    says: str
    """What its message must have, a regular expression."""
    gpus: int = 1
    """GPUs that it takes."""


BAD_CALLS = (
    BadCall(
        "cpu-tensor",
        "an operand in host memory",
        lambda torch, a, b: {"a": a.cpu()},
        OperandError,
        "^a is on cpu; it must be in GPU memory",
    ),
    BadCall(
        "cpu-out",
        "D in host memory",
        lambda torch, a, b: {"out": torch.empty(64, 64, dtype=a.dtype)},
        OperandError,
        "^out is on cpu",
    ),
    BadCall("list", "no tensor at all", lambda torch, a, b: {"b": [[1.0]]}, OperandError, r"^b is a builtins\.list"),
    BadCall(
        "dtype",
        "a dtype that gemmill has not",
        lambda torch, a, b: {"a": a.bool()},
        OperandError,
        r"^a has dtype torch\.bool; supported dtypes are",
    ),
    BadCall(
        "integer-dtype",
        "integers of a width that gemmill has not",
        lambda torch, a, b: {"b": b.short()},
        OperandError,
        r"^b has dtype torch\.int16",
    ),
    BadCall(
        "types-that-do-not-pair",
        "dtypes that no kernel multiplies",
        lambda torch, a, b: {"a": a.double()},
        UnsupportedProblemError,
        "no kernel supports",
    ),
    BadCall(
        "k",
        "columns of A that are not rows of B",
        lambda torch, a, b: {"b": b.repeat(2, 1)[:72]},
        OperandError,
        "a has K = 64 columns, b has K = 72 rows",
    ),
    BadCall(
        "out-shape",
        "D of another shape than the product",
        lambda torch, a, b: {"out": torch.empty(64, 72, dtype=a.dtype, device="cuda")},
        OperandError,
        r"out has shape \(64, 72\)",
    ),
    BadCall(
        "out-dtype-differs",
        "D of another dtype than the one asked for",
        lambda torch, a, b: {"out": torch.empty(64, 64, device="cuda"), "out_dtype": "bf16"},
        OperandError,
        "must be equal",
    ),
    BadCall(
        "out-dtype",
        "a dtype of D that gemmill has not",
        lambda torch, a, b: {"out_dtype": "int16"},
        OperandError,
        "out_dtype is 'int16'",
    ),
    BadCall(
        "c-shape",
        "C that does not broadcast to D",
        lambda torch, a, b: {"c": a[:32]},
        OperandError,
        r"c has shape \(32, 64\), which does not broadcast",
    ),
    BadCall("beta", "beta without C", lambda torch, a, b: {"beta": 1.0}, OperandError, "there is no c"),
    BadCall(
        "overlapping-out",
        "D whose elements overlap in memory",
        lambda torch, a, b: {"out": a[:1].expand(64, 64)},
        OperandError,
        "overlap",
    ),
    BadCall(
        "sparse",
        "a tensor without strides",
        lambda torch, a, b: {"a": a.float().to_sparse_csr()},
        OperandError,
        "layout",
    ),
    BadCall(
        "accumulator",
        "an accumulator that gemmill has not",
        lambda torch, a, b: {"accumulator": "f65"},
        OperandError,
        "accumulator is 'f65'",
    ),
    BadCall(
        "alpha",
        "a scalar that no float32 holds",
        lambda torch, a, b: {"alpha": 1e39},
        OperandError,
        r"alpha is 1e\+39; it must fit in a float32",
    ),
    BadCall(
        "f16-accumulator",
        "an accumulator that no kernel has for these dtypes",
        lambda torch, a, b: {"accumulator": "f16"},
        UnsupportedProblemError,
        "accumulator",
    ),
    BadCall(
        "stream",
        "a stream that is none",
        lambda torch, a, b: {"stream": "default"},
        OperandError,
        "stream is 'default'",
    ),
    BadCall(
        "kernel",
        "a kernel that does not serve the problem",
        lambda torch, a, b: {
            "kernel": "sm90a_bf16mn16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear"
        },
        UnsupportedProblemError,
        r"needs A's major mn \(the problem has k\)",
    ),
    BadCall(
        "batches",
        "batch extents that do not broadcast",
        lambda torch, a, b: {"a": a.expand(2, 64, 64).clone(), "b": b.expand(3, 64, 64).clone()},
        OperandError,
        r"batch extents \[2, 3\] do not broadcast",
    ),
    BadCall(
        "other-gpu",
        "operands on two GPUs",
        lambda torch, a, b: {"b": b.to("cuda:1")},
        OperandError,
        "b is on GPU 1 and a is on GPU 0",
        gpus=2,
    ),
)
