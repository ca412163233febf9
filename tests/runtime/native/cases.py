"""The table of products that Python and libgemmill launch alike, on kernels of one pack."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any

from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.runtime.operands.tensors import TensorView

PINGPONG = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x32x64_1x1_pingpong_s4_m1_k1_linear"
CLUSTER = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x32x64_2x1_cooperative_s4_m8_k1_linear"
WITH_C = "sm90a_bf16k16_bf16mn16_f32_bf16n16_bf16n16_128x64x64_1x1_cooperative_s4_m8_k1_linear"
SPLIT = "sm90a_f16k16_f16k16_f32_none_f16n2_64x64x64_1x1_pingpong_s8_m8_splitk_linear"
STREAM = "sm90a_bf16k16_bf16k16_f32_f32n16_f32n16_128x64x64_2x1_cooperative_s4_m8_k1stream_linear"
PROMOTED = "sm90a_e4m3k16_e4m3k16_f32p4_none_bf16n16_64x64x128_1x1_pingpong_s9_m8_k1_linear"
INTEGER = "sm90a_s8k16_s8k16_s32_s32n16_s32n16_64x64x128_1x1_pingpong_s4_m8_k1_linear"
TF32 = "sm90a_tf32k16_tf32k16_f32_none_f32m16_64x64x32_1x1_pingpong_s4_m1_k1_linear"
DOUBLE = "sm90_f64k8_f64k8_f64_f64m8_f64m8_32x32x32_1x1_multistage_s4_m1_k1_linear"
ANY = "sm90_f32any4_f32any4_f32_f32any4_f32any4_32x32x8_1x1_simt_s2_m1_k1_linear"
GEMV = "sm90a_bf16k16_bf16k16_f32_none_bf16any2_8x16x1024_1x1_gemv_s4_m1_k1_linear"
KERNELS = (PINGPONG, CLUSTER, WITH_C, SPLIT, STREAM, PROMOTED, INTEGER, TF32, DOUBLE, ANY, GEMV)

TF32_FLAG, FAST_FLAG = 1, 2
"""Flags of gemmill.h."""
_FIRST, _APART = 0x7E00_0000_0000, 1 << 36
"""Address of A, and bytes from one operand to the next."""


@dataclass(frozen=True)
class Tensor:
    """The layout of an operand; strides None for contiguous rows."""

    dtype: DTypeName
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None
    shift: int = 0
    """Bytes from the usual address."""

    @property
    def steps(self) -> tuple[int, ...]:
        return self.strides or tuple(prod(self.shape[i + 1 :]) for i in range(len(self.shape)))

    @property
    def mT(self) -> Tensor:
        """Its last two extents exchanged, in the same memory."""

        def swapped(values: tuple[int, ...]) -> tuple[int, ...]:
            return (*values[:-2], values[-1], values[-2])

        return replace(self, shape=swapped(self.shape), strides=swapped(self.steps))


@dataclass(frozen=True)
class Case:
    """A product, launched at several addresses."""

    id: str
    kernel: str
    a: Tensor
    b: Tensor
    d: Tensor
    c: Tensor | None = None
    alpha: float = 1.0
    beta: float = 0.0
    slices: int = 0
    flags: int = 0
    stream: int = 0
    in_place: bool = False
    """Whether C is D."""
    shares: str = ""
    """The operand in whose memory D begins, ``d_shift`` bytes behind it."""
    d_shift: int = 0

    @property
    def launches(self) -> list[list[int]]:
        """Addresses of A, B, C and D: twice the same, then D elsewhere, then all."""
        named = {name: x for name in "abcd" if (x := getattr(self, name)) is not None}
        first = {name: _FIRST + i * _APART + named[name].shift for i, name in enumerate("abcd") if name in named}
        if self.in_place:
            first["c"] = first["d"]
        if self.shares:
            first["d"] = first[self.shares] + self.d_shift
        start = [first.get(name, 0) for name in "abcd"]
        moved = [*start[:3], start[3] + (1 << 30)] if not (self.in_place or self.shares) else start
        return [start, start, moved, [x and x + (1 << 31) for x in start]]

    def row(self) -> dict[str, Any]:
        """The case as JSON."""
        fields = ("id", "kernel", "alpha", "beta", "slices", "flags", "stream", "launches")
        tensors = {name: self._tensor(name, at) for name, at in zip("abcd", self.launches[0], strict=True)}
        return {name: getattr(self, name) for name in fields} | tensors

    def _tensor(self, name: str, address: int) -> dict[str, Any] | None:
        x: Tensor | None = getattr(self, name)
        if x is None:
            return None
        code, bits = DTYPES[x.dtype].dlpack
        return {"shape": x.shape, "strides": x.steps, "code": code, "bits": bits, "address": address}

    def views(self, addresses: Sequence[int]) -> dict[str, TensorView | None]:
        """The tensors at some addresses, as Python's calls take them."""
        tensors = {"a": self.a, "b": self.b, "c": self.c, "out": self.d}
        return {
            name: None if x is None else TensorView(at, x.shape, x.steps, x.dtype, 0)
            for (name, x), at in zip(tensors.items(), addresses, strict=True)
        }


def _bf16(*shape: int, shift: int = 0) -> Tensor:
    return Tensor("bf16", shape, shift=shift)


def _weights(n: int, k: int, dtype: DTypeName = "bf16") -> Tensor:
    """B (K, N) whose K is contiguous."""
    return Tensor(dtype, (n, k)).mT


def _plain(name: str, m: int, n: int, k: int, kernel: str = PINGPONG, **others: Any) -> Case:
    return Case(name, kernel, _bf16(m, k), _weights(n, k), _bf16(m, n), **others)


def _f32(*shape: int) -> Tensor:
    return Tensor("f32", shape)


def _f64(m: int, n: int, k: int, **others: Any) -> Case:
    a, b = Tensor("f64", (m, k)), _weights(n, k, "f64")
    return Case(f"f64-{m}x{n}x{k}", DOUBLE, a, b, Tensor("f64", (n, m)).mT, c=Tensor("f64", (n, m)).mT, **others)


def _split(name: str, m: int, n: int, k: int, slices: int, **others: Any) -> Case:
    a, b = Tensor("f16", (m, k)), _weights(n, k, "f16")
    return Case(name, SPLIT, a, b, Tensor("f16", (m, n)), slices=slices, **others)


def _stream(name: str, m: int, n: int, k: int, **others: Any) -> Case:
    return Case(name, STREAM, _bf16(m, k), _weights(n, k), _f32(m, n), c=_f32(m, n), **others)


LAUNCHED = (
    _plain("one tile", 64, 32, 64),
    _plain("many waves", 4096, 4096, 512),
    _plain("tails", 100, 72, 200),
    _plain("fewer rows than a box", 5, 32, 64),
    _plain("one row", 1, 4096, 4096),
    _plain("k is 0", 128, 64, 0),
    _plain("alpha is 0", 128, 64, 256, alpha=0.0),
    Case("alpha is 0, with an unaligned a", PINGPONG, _bf16(128, 256, shift=2), _weights(64, 256), _bf16(128, 64),
         alpha=0.0),
    _plain("alpha", 128, 64, 256, alpha=-0.5),
    _plain("another stream", 128, 64, 256, stream=0x77),
    _plain("clusters", 1000, 600, 512, CLUSTER),
    _plain("few rows fetch one line", 64, 8192, 512, CLUSTER),
    _plain("rows that start within sectors", 128, 128, 72, CLUSTER),
    Case("padded rows", CLUSTER, Tensor("bf16", (256, 512), (1024, 1)), _weights(128, 512), _bf16(256, 128)),
    Case("a batch", PINGPONG, _bf16(6, 96, 128), Tensor("bf16", (6, 64, 128)).mT, _bf16(6, 96, 64)),
    Case("a batch that shares b", PINGPONG, _bf16(6, 96, 128), _weights(64, 128), _bf16(6, 96, 64)),
    Case("a batch that shares a", PINGPONG, _bf16(96, 128), Tensor("bf16", (6, 64, 128)).mT, _bf16(6, 96, 64)),
    Case("a batch of one", PINGPONG, _bf16(1, 96, 128), Tensor("bf16", (1, 64, 128)).mT, _bf16(1, 96, 64)),
    Case(
        "a batch that does not stack",
        PINGPONG,
        Tensor("bf16", (6, 96, 128), (1 << 20, 128, 1)),
        _weights(64, 128),
        _bf16(6, 96, 64),
    ),
    Case(
        "an unaligned d",
        SPLIT,
        Tensor("f16", (96, 128)),
        _weights(62, 128, "f16"),
        Tensor("f16", (96, 62)),
        slices=3,
    ),
    Case("transposed", PINGPONG, _bf16(72, 128), _weights(100, 128), _bf16(100, 72).mT),
    Case("c", WITH_C, _bf16(256, 128), _bf16(128, 192), _bf16(256, 192), c=_bf16(256, 192), beta=0.5),
    Case("c in place", WITH_C, _bf16(256, 128), _bf16(128, 192), _bf16(256, 192), c=_bf16(256, 192), beta=1.0,
         in_place=True),
    Case("a batch that shares c", WITH_C, _bf16(3, 256, 128), _bf16(3, 128, 192), _bf16(3, 256, 192),
         c=_bf16(256, 192), beta=-1.0),
    _split("split-K in one slice", 64, 64, 4096, 1),
    _split("split-K", 64, 128, 8192, 8),
    _split("split-K in many slices", 100, 200, 8192, 48, stream=0x99),
    _split("split-K of one tile a slice", 3000, 3000, 128, 2),
    _stream("stream-K", 128, 64, 65536, beta=1.0),
    _stream("stream-K with a wave and a half", 4096, 3200, 512, alpha=2.0),
    _stream("stream-K with k of 0", 256, 64, 0, beta=1.0),
    Case("fp8", PROMOTED, Tensor("e4m3", (256, 512)), _weights(384, 512, "e4m3"), _bf16(256, 384)),
    Case(
        "integers", INTEGER, Tensor("s8", (256, 512)), _weights(384, 512, "s8"), Tensor("s32", (256, 384)),
        c=Tensor("s32", (256, 384)), alpha=-3.0, beta=2.0,
    ),
    Case("tf32", TF32, _f32(256, 512), _weights(384, 512, "f32"), _f32(384, 256).mT, flags=TF32_FLAG),
    Case("tf32, transposed", TF32, _f32(256, 512), _weights(384, 512, "f32"), _f32(256, 384), flags=TF32_FLAG),
    _f64(96, 64, 80, alpha=1e300, beta=-0.25),
    _f64(33, 31, 29, beta=1.0),
    Case("any strides", ANY, Tensor("f32", (70, 90), (1, 70)), Tensor("f32", (90, 50), (100, 2)),
         Tensor("f32", (70, 50), (-60, 1)), c=Tensor("f32", (50,)), beta=1.0),
    Case("any strides of a batch", ANY, Tensor("f32", (4, 70, 90), (-7000, 91, 1)), _f32(4, 90, 50), _f32(4, 70, 50),
         c=Tensor("f32", (4, 1, 50)), beta=1.0),
    Case("vectors", GEMV, _bf16(4, 4096), _weights(2048, 4096), _bf16(4, 2048)),
    Case("vectors, transposed", GEMV, _bf16(2048, 4096), _weights(4, 4096), _bf16(2048, 4)),
    Case("d between columns of a", PINGPONG, Tensor("bf16", (64, 64), (256, 1)), _weights(32, 64),
         Tensor("bf16", (64, 32), (256, 1)), shares="a", d_shift=128),
    Case("d between columns of a, in rows of 400 bytes", PINGPONG, Tensor("bf16", (64, 64), (200, 1)),
         _weights(32, 64), Tensor("bf16", (64, 32), (200, 1)), shares="a", d_shift=128),
    Case("d behind reversed rows of a", ANY, Tensor("f32", (64, 64), (256, -1)), _f32(64, 32),
         Tensor("f32", (64, 32), (256, 1)), c=_f32(32), beta=1.0, shares="a", d_shift=4),
    Case("no rows", PINGPONG, _bf16(0, 64), _weights(32, 64), _bf16(0, 32)),
)  # fmt: skip
"""Products that both launch."""

REFUSED = (
    Case("k differs", PINGPONG, _bf16(64, 64), _weights(32, 128), _bf16(64, 32)),
    Case("another shape of d", PINGPONG, _bf16(64, 64), _weights(32, 64), _bf16(32, 64)),
    Case("batches differ", PINGPONG, _bf16(2, 64, 64), Tensor("bf16", (3, 32, 64)).mT, _bf16(3, 64, 32)),
    Case("c does not broadcast", WITH_C, _bf16(64, 64), _bf16(64, 64), _bf16(64, 64), c=_bf16(3, 64), beta=1.0),
    Case("another dtype", PINGPONG, Tensor("f16", (64, 64)), _weights(32, 64, "f16"), _bf16(64, 32)),
    Case("another major", PINGPONG, _bf16(64, 64).mT, _weights(32, 64), _bf16(64, 32)),
    Case("no c", WITH_C, _bf16(64, 64), _bf16(64, 64), _bf16(64, 64)),
    Case("c for a kernel without", PINGPONG, _bf16(64, 64), _weights(32, 64), _bf16(64, 32), c=_bf16(64, 32)),
    Case("precise sums of fp8", PINGPONG, Tensor("e4m3", (64, 64)), _weights(32, 64, "e4m3"), _bf16(64, 32)),
    Case("fast sums of fp8", PROMOTED, Tensor("e4m3", (64, 64)), _weights(32, 64, "e4m3"), _bf16(64, 32),
         flags=FAST_FLAG),
    Case("no tf32", TF32, _f32(64, 64), _weights(64, 64, "f32"), _f32(64, 64)),
    Case("an alignment of c", DOUBLE, Tensor("f64", (64, 64)), Tensor("f64", (64, 64)), Tensor("f64", (64, 64)),
         c=Tensor("f64", (64, 64), shift=4)),
    _plain("slices of a kernel without", 64, 32, 64, slices=2),
    _split("too many slices", 64, 64, 4096, 257),
    _plain("beta without c", 64, 32, 64, beta=1.0),
    _plain("alpha beyond f32", 64, 32, 64, alpha=1e39),
    Case("a fraction for integers", INTEGER, Tensor("s8", (64, 64)), _weights(64, 64, "s8"), Tensor("s32", (64, 64)),
         alpha=0.5),
    Case("an overlapping d", PINGPONG, _bf16(64, 64), _weights(32, 64), Tensor("bf16", (64, 32), (16, 1))),
    _plain("d in a", 64, 32, 64, shares="a", d_shift=1024),
    Case("d in reversed rows of a", ANY, Tensor("f32", (64, 64), (256, -1)), _f32(64, 32),
         Tensor("f32", (64, 32), (256, 1)), c=_f32(32), beta=1.0, shares="a", d_shift=-128),
)  # fmt: skip
"""Products that both refuse."""

UNALIGNED = (
    Case("rows of 20 bytes", PINGPONG, _bf16(64, 10), _weights(32, 10), _bf16(64, 32)),
    Case("an unaligned c", WITH_C, _bf16(64, 64), _bf16(64, 64), _bf16(64, 64), c=_bf16(64, 64, shift=2), beta=1.0),
)
"""Products that Python launches after it has copied operands into aligned memory; libgemmill refuses them."""


_BF16 = "bf16 k none bf16 k none f32 0 none none bf16 {} general stored strided linear"
CHOICES: dict[str, Any] = {
    "gpu": "NVIDIA H200",
    "objective": "sustained",
    "bits": "any",
    "formats": [
        {"word": _BF16.format("n"), "multiples": [1, 1, 1]},
        {"word": _BF16.format("m"), "multiples": [1, 1, 8]},
    ],
    "kernels": [
        {"name": PINGPONG, "slices": 1, "swap_ab": False, "aligns": [2, 2, 0, 2]},
        {"name": CLUSTER, "slices": 1, "swap_ab": False, "aligns": [2, 2, 0, 2]},
        {"name": PINGPONG, "slices": 1, "swap_ab": True, "aligns": [16, 16, 0, 16]},
    ],
    "layers": [
        {"formats": formats, "extent": "m", "m": 0, "n": n, "k": 512, "batch": 1, "aligns": [16] * 4, "largest": 4096,
         "first": [1, 65, 1000], "kernel": kernels, "us": [5.0, 6.0, 9.0]}
        for formats, n, kernels in ((0, 600, [0, 1, 0]), (0, 4096, [1, 1, 0]), (1, 600, [2, 2, 2]))
    ],
}  # fmt: skip
"""A choice table over three kernels."""
CHOSEN = (
    _plain("a layer", 16, 600, 512, ""),
    _plain("the end of a range", 64, 600, 512, ""),
    _plain("the next range", 65, 600, 512, ""),
    _plain("beyond the largest", 9000, 600, 512, ""),
    _plain("the nearest layer", 16, 3000, 512, ""),
    _plain("another k", 1000, 600, 64, ""),
    Case("the transpose", "", _bf16(72, 512), _weights(600, 512), _bf16(600, 72).mT),
)
"""Products whose kernel the table picks."""
UNCHOSEN = (
    Case("formats without a layer", "", _bf16(16, 512), _bf16(512, 600), _bf16(16, 600)),
    Case("no multiple", "", _bf16(72, 516), _weights(600, 516), _bf16(600, 72).mT),
)
"""Products that the table has no kernel for."""


def table(cases: Sequence[Case]) -> str:
    """The cases as JSON, for programs."""
    return json.dumps([case.row() for case in cases])
