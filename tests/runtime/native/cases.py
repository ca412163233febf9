"""The table of products that Python and libgemmill launch alike, on kernels of one pack."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
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
CLAMPED = INTEGER.replace("s32n16_s32n16", "none_s32n16").replace("linear", "xdEmaxPaccKloDs32Q")
TF32 = "sm90a_tf32k16_tf32k16_f32_none_f32m16_64x64x32_1x1_pingpong_s4_m1_k1_linear"
DOUBLE = "sm90_f64k8_f64k8_f64_f64m8_f64m8_32x32x32_1x1_multistage_s4_m1_k1_linear"
ANY = "sm90_f32any4_f32any4_f32_f32any4_f32any4_32x32x8_1x1_simt_s2_m1_k1_linear"
GEMV = "sm90a_bf16k16_bf16k16_f32_none_bf16any2_8x16x1024_1x1_gemv_s4_m1_k1_linear"
GROUPED = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x64x64_1x1_pingpong_s4_m8grouped_k1_linear"
GROUPED_C = "sm90a_bf16k16_bf16k16_f32_bf16n16_bf16n16_64x64x64_1x1_pingpong_s4_m8grouped_k1_linear"
BLOCKS = "sm90a_e4m3k16s1x128_e4m3k16s128x128_f32p4_none_bf16n16_64x64x128_1x1_pingpong_s8_{}_k1_linear"
BLOCKED, BLOCKED_GROUPS, BLOCKED_MASKS = (BLOCKS.format(x) for x in ("m8", "m8grouped", "m8masked"))
E2M1 = "sm90a_e2m1k16s1x32e8_bf16k16_f32_none_bf16m16_64x16x128_1x1_pingpong_s6_{}_k1_linear"
MX, MX_GROUPS, MX_MASKS = (E2M1.format(x) for x in ("m8", "m8ngrouped", "m8nmasked"))
ACTIVATION = PINGPONG.replace("linear", "xdEsiluPalphaTaccAbiasDbf16BnJQTs")
RESIDUAL = PINGPONG.replace("none", "bf16n16").replace("linear", "xhEaccTtBbatchJZdEhAreluPcQ")
OF_ROWS = "sm90a_e4m3k16_e4m3k16_f32_none_bf16n16_64x64x128_1x1_pingpong_s9_m8_k1_xdEaccTaUscaleBmJTbUscaleBnJ"
GROUPED_BIAS = GROUPED.replace("linear", "xdEaccAbiasDbf16BnJ")
KERNELS = (
    *(PINGPONG, CLUSTER, WITH_C, SPLIT, STREAM, PROMOTED, INTEGER, CLAMPED, TF32, DOUBLE, ANY, GEMV),
    *(GROUPED, GROUPED_C, BLOCKED, BLOCKED_GROUPS, BLOCKED_MASKS, MX, MX_GROUPS, MX_MASKS),
    *(ACTIVATION, RESIDUAL, OF_ROWS, GROUPED_BIAS),
)

TF32_FLAG, FAST_FLAG = 1, 2
"""Flags of gemmill.h."""
_FIRST, _APART = 0x7E00_0000_0000, 1 << 36
"""Address of A, and bytes from one operand to the next."""
OPERANDS = ("a", "b", "c", "d", "a_scale", "b_scale", "offsets", "counts")
"""In the order of addresses; arguments of the epilogue follow."""


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
    a_scale: Tensor | None = None
    b_scale: Tensor | None = None
    offsets: Tensor | None = None
    counts: Tensor | None = None
    expected_rows: int = 0
    epilogue: str = ""
    arguments: Mapping[str, Tensor | float] = field(default_factory=dict)
    """Operands of the epilogue."""
    in_place: bool = False
    """Whether C is D."""
    shares: str = ""
    """The operand in whose memory D begins, ``d_shift`` bytes behind it."""
    d_shift: int = 0

    @property
    def operands(self) -> list[tuple[str, Tensor | float | None]]:
        """Tensors, numbers or nothing by name, in the order of addresses."""
        return [*((name, getattr(self, name)) for name in OPERANDS), *self.arguments.items()]

    @property
    def launches(self) -> list[list[int]]:
        """Addresses of the tensors, 0 for others: twice the same, D elsewhere, all, D elsewhere again."""
        tensors = [(i, name, x) for i, (name, x) in enumerate(self.operands) if isinstance(x, Tensor)]
        places = {name: i for i, name, _ in tensors}
        start = [0] * len(self.operands)
        for i, _, x in tensors:
            start[i] = _FIRST + i * _APART + x.shift
        d = places["d"]
        if self.in_place:
            start[places["c"]] = start[d]
        if self.shares:
            start[d] = start[places[self.shares]] + self.d_shift
        moved = [x + (1 << 30) * (i == d and not (self.in_place or self.shares)) for i, x in enumerate(start)]
        return [start, start, moved, [x and x + (1 << 31) for x in start], moved]

    def row(self) -> dict[str, Any]:
        """The case as JSON."""
        fields = ("id", "kernel", "alpha", "beta", "slices", "flags", "stream", "expected_rows", "epilogue", "launches")
        rows = [_row(x, at) for (_, x), at in zip(self.operands, self.launches[0], strict=True)]
        arguments = [
            {"name": name, "value": x if isinstance(x, float) else 0.0, "tensor": row}
            for (name, x), row in zip(self.arguments.items(), rows[len(OPERANDS) :], strict=True)
        ]
        tensors = dict(zip(OPERANDS, rows[: len(OPERANDS)], strict=True))
        return {name: getattr(self, name) for name in fields} | tensors | {"arguments": arguments}

    def views(self, addresses: Sequence[int]) -> dict[str, Any]:
        """The tensors at some addresses, and numbers, as Python's calls take them."""
        return {
            {"d": "out"}.get(name, name): TensorView(at, x.shape, x.steps, x.dtype, 0) if isinstance(x, Tensor) else x
            for (name, x), at in zip(self.operands, addresses, strict=True)
            if x is not None
        }


def _row(x: Tensor | float | None, address: int) -> dict[str, Any] | None:
    if not isinstance(x, Tensor):
        return None
    code, bits = DTYPES[x.dtype].dlpack
    return {"shape": x.shape, "strides": x.steps, "code": code, "bits": bits, "address": address}


def _bf16(*shape: int, shift: int = 0) -> Tensor:
    return Tensor("bf16", shape, shift=shift)


def _weights(n: int, k: int, dtype: DTypeName = "bf16") -> Tensor:
    """B (K, N) whose K is contiguous."""
    return Tensor(dtype, (n, k)).mT


def _plain(name: str, m: int, n: int, k: int, kernel: str = PINGPONG, **others: Any) -> Case:
    product: dict[str, Any] = {"a": _bf16(m, k), "b": _weights(n, k), "d": _bf16(m, n)}
    return Case(name, kernel, **(product | others))


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


def _clamped(name: str, least: float) -> Case:
    return Case(name, CLAMPED, Tensor("s8", (64, 64)), _weights(64, 64, "s8"), _s32(64, 64),
                epilogue="d = max(acc, lo.s32)", arguments={"lo": least})  # fmt: skip


def _s32(*shape: int) -> Tensor:
    return Tensor("s32", shape)


def _grouped(name: str, kernel: str, m: int, n: int, k: int, groups: int, **others: Any) -> Case:
    """Groups of rows of A, each by its matrix of B, whose K is contiguous."""
    b = Tensor("bf16", (groups, n, k)).mT
    product: dict[str, Any] = {"a": _bf16(m, k), "b": b, "d": _bf16(m, n), "offsets": _s32(groups)}
    return Case(name, kernel, **(product | others))


def _blocked(name: str, m: int, n: int, k: int, **others: Any) -> Case:
    """fp8 with scales of blocks; those of A are contiguous along M."""
    blocks = -(-k // 128)
    scales = {"a_scale": Tensor("f32", (blocks, m)).mT, "b_scale": _f32(blocks, -(-n // 128))}
    return Case(name, BLOCKED, Tensor("e4m3", (m, k)), _weights(n, k, "e4m3"), _bf16(m, n), **(scales | others))


def _blocked_groups(name: str, kernel: str, a: tuple[int, ...], n: int, groups: int, **others: Any) -> Case:
    *outer, m, k = a
    b, blocks = Tensor("e4m3", (groups, n, k)).mT, -(-k // 128)
    scales = {"a_scale": Tensor("f32", (*outer, blocks, m)).mT, "b_scale": _f32(groups, blocks, -(-n // 128))}
    return Case(name, kernel, Tensor("e4m3", a), b, _bf16(*outer, m, n), **(scales | others))


def _mx(name: str, kernel: str, a: tuple[int, ...], n: int, *batch: int, **others: Any) -> Case:
    """e2m1 weights with a scale for each 32 elements along K."""
    *outer, m, k = a
    b, scale = Tensor("e2m1", (*batch, n, k)).mT, Tensor("ue8m0", (*batch, k // 32, n))
    product: dict[str, Any] = {"a": _bf16(*a), "b": b, "d": _bf16(*outer, m, n), "b_scale": scale}
    return Case(name, kernel, **(product | others))


def _activation(name: str, m: int, n: int, k: int, **others: Any) -> Case:
    text, arguments = "d = silu(alpha * acc + bias[n]) * s", {"bias": _bf16(n), "s": 0.25}
    return _plain(name, m, n, k, ACTIVATION, **({"epilogue": text, "arguments": arguments} | others))


def _of_rows(name: str, m: int, n: int, k: int, **others: Any) -> Case:
    text, arguments = "d = acc * a_scale[m] * b_scale[n]", {"a_scale": _f32(m), "b_scale": _f32(n)}
    a, b, d = Tensor("e4m3", (m, k)), _weights(n, k, "e4m3"), _bf16(m, n)
    product: dict[str, Any] = {"a": a, "b": b, "d": d, "epilogue": text, "arguments": arguments}
    return Case(name, OF_ROWS, flags=FAST_FLAG, **(product | others))


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
    _grouped("groups", GROUPED, 4096, 1536, 512, 128),
    _grouped("groups of few rows", GROUPED, 8, 1536, 512, 128),
    _grouped("one group", GROUPED, 100, 72, 200, 1),
    _grouped("no groups", GROUPED, 64, 64, 64, 0),
    _grouped("groups with c", GROUPED_C, 300, 128, 64, 5, c=_bf16(300, 128), beta=1.0),
    _grouped("groups with alpha of 0", GROUPED, 300, 128, 64, 5, alpha=0.0),
    _grouped("groups with every second offset", GROUPED, 300, 128, 64, 5, offsets=Tensor("s32", (5,), (2,))),
    _grouped("groups with biases", GROUPED_BIAS, 300, 128, 64, 5, epilogue="d = acc + bias.bf16[n]",
             arguments={"bias": _bf16(5, 128)}),
    _grouped("groups that share a bias", GROUPED_BIAS, 300, 128, 64, 5, epilogue="d = acc + bias[n]",
             arguments={"bias": _bf16(128)}),
    _blocked("blocks", 256, 512, 1024),
    _blocked("blocks that end early", 5, 72, 208, a_scale=_f32(5, 2)),
    _blocked("blocks of one", 64, 64, 128, alpha=0.5),
    Case("a batch of blocks that shares b", BLOCKED, Tensor("e4m3", (4, 64, 256)), _weights(128, 256, "e4m3"),
         _bf16(4, 64, 128), a_scale=_f32(4, 64, 2), b_scale=_f32(2, 1)),
    Case("a batch of blocks", BLOCKED, Tensor("e4m3", (4, 64, 256)), Tensor("e4m3", (4, 128, 256)).mT,
         _bf16(4, 64, 128), a_scale=_f32(4, 64, 2), b_scale=_f32(4, 2, 1)),
    _blocked_groups("groups of blocks", BLOCKED_GROUPS, (700, 512), 384, 6, offsets=_s32(6)),
    _blocked_groups("masked groups", BLOCKED_MASKS, (6, 128, 512), 384, 6, counts=_s32(6)),
    _blocked_groups("masked groups with an expected size", BLOCKED_MASKS, (6, 128, 512), 384, 6, counts=_s32(6),
                    expected_rows=20),
    _mx("e2m1", MX, (48, 256), 128),
    _mx("a batch that shares e2m1", MX, (3, 48, 256), 128),
    _mx("a batch of e2m1", MX, (3, 48, 256), 128, 3),
    _mx("groups of e2m1", MX_GROUPS, (64, 2880), 5760, 128, offsets=_s32(128)),
    _mx("masked groups of e2m1", MX_MASKS, (4, 32, 256), 128, 4, counts=_s32(4)),
    _activation("an activation", 100, 72, 200, alpha=0.5),
    _clamped("a scalar of integers", -7.0),
    _activation("a scalar in memory", 64, 32, 64, arguments={"bias": _bf16(32), "s": _f32(1)}),
    _activation("a bias of a batch that shares b", 64, 32, 64, a=_bf16(6, 64, 64), d=_bf16(6, 64, 32)),
    Case("a value for each matrix", RESIDUAL, _bf16(6, 96, 128), _weights(64, 128), _bf16(6, 96, 64),
         c=_bf16(6, 96, 64), epilogue="h = acc * t[batch]; d = h + relu(c)", arguments={"t": _f32(6)}),
    _of_rows("scales of rows and columns", 100, 128, 512),
    _of_rows("scales of rows of a batch that shares b", 64, 128, 512, a=Tensor("e4m3", (3, 64, 512)),
             d=_bf16(3, 64, 128), arguments={"a_scale": _f32(3, 64), "b_scale": _f32(128)}),
    _of_rows("scales of rows that a batch shares", 64, 128, 512, a=Tensor("e4m3", (3, 64, 512)),
             d=_bf16(3, 64, 128)),
)  # fmt: skip
"""Products that both launch."""

REFUSED = (
    _grouped("offsets and counts", GROUPED, 64, 64, 64, 4, counts=_s32(4)),
    _grouped("offsets of f32", GROUPED, 64, 64, 64, 4, offsets=_f32(4)),
    _grouped("fewer offsets than groups", GROUPED, 64, 64, 64, 4, offsets=_s32(3)),
    _grouped("groups for a kernel without", PINGPONG, 64, 64, 64, 4),
    _grouped("a kernel for groups transposed", GROUPED, 64, 64, 64, 4, d=_bf16(64, 64).mT),
    _grouped("expected rows without counts", GROUPED, 64, 64, 64, 4, expected_rows=8),
    _blocked("no scales of blocks", 64, 64, 128, a_scale=None, b_scale=None),
    _blocked("scales of a alone", 64, 256, 256, b_scale=None),
    _blocked("scales of another shape", 64, 64, 128, b_scale=_f32(2, 1)),
    _blocked("scales of bf16", 64, 256, 256, a_scale=_bf16(64, 2), b_scale=_bf16(2, 2)),
    _mx("e2m1 without scales", MX, (48, 256), 128, b_scale=None),
    _mx("scales of e2m1 in f32", MX, (48, 256), 128, b_scale=_f32(8, 128)),
    _mx("scales of e2m1 along k", MX, (48, 256), 128, b_scale=Tensor("ue8m0", (128, 8)).mT),
    _activation("another epilogue", 64, 32, 64, epilogue="d = relu(alpha * acc + bias[n]) * s"),
    _activation("names that begin as those of pairs", 64, 32, 64, epilogue="d = relu(acc + upper[n]) * gates",
                arguments={"upper": _bf16(32), "gates": 0.5}),
    _activation("an operand with two indices", 64, 32, 64, epilogue="d = silu(alpha * acc + bias[n]) * bias[m]",
                arguments={"bias": _bf16(32)}),
    _activation("a bias of another size", 64, 32, 64, arguments={"bias": _bf16(64), "s": 1.0}),
    _activation("a missing bias", 64, 32, 64, arguments={"s": 1.0}),
    _activation("an argument too many", 64, 32, 64, arguments={"bias": _bf16(32), "s": 1.0, "t": 1.0}),
    _activation("a number for a vector", 64, 32, 64, arguments={"bias": 1.0, "s": 1.0}),
    _activation("a vector for a number", 64, 32, 64, arguments={"bias": _bf16(32), "s": _f32(2)}),
    _activation("a number beyond f32", 64, 32, 64, arguments={"bias": _bf16(32), "s": 1e39}),
    _activation("another type of bias", 64, 32, 64, arguments={"bias": _f32(32), "s": 1.0}),
    _activation("c that the epilogue does not read", 64, 32, 64, c=_bf16(64, 32)),
    _activation("beta that the epilogue does not read", 64, 32, 64, beta=0.5),
    _of_rows("alpha that the epilogue does not read", 64, 128, 512, alpha=0.5),
    _activation("d in the bias", 64, 32, 64, shares="bias", d_shift=16),
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
    _clamped("a fraction of an epilogue for integers", 2.5),
    _clamped("a number beyond s32", 3e9),
    _grouped("offsets too far apart", GROUPED, 64, 64, 64, 4, offsets=Tensor("s32", (4,), (1 << 31,))),
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

_PAIRS = "d = silu(gate8) * up8"
ONLY_IN_PYTHON = {
    "gate and up": _plain("pairs", 64, 32, 64, epilogue=_PAIRS),
    "r[m, n]": _plain("a matrix", 64, 32, 64, epilogue="d = acc + r[m, n]", arguments={"r": _bf16(64, 32)}),
    "writes s": _plain("an output", 64, 32, 64, epilogue="s[m] = max(acc); d = acc", arguments={"s": _f32(64)}),
    "groups along K": Case("along K", GROUPED, _bf16(64, 64), _bf16(64, 32), _bf16(4, 64, 32), offsets=_s32(4)),
    "upconverts only e2m1": Case("s8 weights", PINGPONG, _bf16(64, 64), _weights(32, 64, "s8"), _bf16(64, 32)),
    "must be 1 or even": _mx("an odd stride", MX, (48, 256), 128, b=Tensor("e2m1", (128, 256), (257, 1)).mT),
    "alpha is 0": _activation("alpha is 0", 64, 32, 64, alpha=0.0),
}
"""Products that Python launches and libgemmill refuses, by words of its message."""

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
