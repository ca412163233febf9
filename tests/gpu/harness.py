"""What the GPU tests share: kernels of every family member, operands in guarded memory, references, error bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from gemmill.library.config import GemmConfig
from gemmill.library.dtypes import DTYPES
from gemmill.library.fields import Value, config_of
from gemmill.library.resources import auto_stages
from gemmill.runtime.api import plan
from gemmill.runtime.registry import Registry

torch: Any = pytest.importorskip("torch")

TORCH = {"bf16": "bfloat16", "f16": "float16", "f32": "float32"}
GUARD_BYTES = 4096
"""Memory before and after every operand that nothing may touch."""

_DEFAULTS: Mapping[str, Value] = {
    "arch": "sm90a",
    "a.dtype": "bf16",
    "a.major": "k",
    "a.align": 16,
    "a.scale": "none",
    "b.dtype": "bf16",
    "b.major": "k",
    "b.align": 16,
    "b.scale": "none",
    "accumulator": "f32",
    "promote": 0,
    "c.dtype": "none",
    "c.major": "none",
    "c.align": 0,
    "d.dtype": "bf16",
    "d.major": "n",
    "d.align": 16,
    "tile.m": 128,
    "tile.n": 128,
    "tile.k": 64,
    "cluster.m": 1,
    "cluster.n": 1,
    "schedule": "cooperative",
    "scheduler.raster": "m",
    "scheduler.swizzle": 1,
    "scheduler.splits": 1,
    "scheduler.decomposition": "tiles",
    "scheduler.batching": "strided",
    "epilogue": "linear",
}


def kernel(
    tile: str = "128x128x64", schedule: str = "cooperative", cluster: str = "1x1", *, ab: str = "bf16", **fields: Value
) -> GemmConfig:
    """A config by what differs from a plain kernel. Fields have ``__`` for the dot; stages are automatic."""
    chosen = dict(_DEFAULTS) | {"schedule": schedule, "a.dtype": ab, "b.dtype": ab, "d.dtype": ab}
    chosen |= dict(zip(("tile.m", "tile.n", "tile.k"), map(int, tile.split("x")), strict=True))
    chosen |= dict(zip(("cluster.m", "cluster.n"), map(int, cluster.split("x")), strict=True))
    chosen |= {name.replace("__", "."): value for name, value in fields.items()}
    if chosen["c.dtype"] != "none":
        chosen |= {"c.align": 16, "c.major": fields.get("c__major", "n")}
    chosen.setdefault("stages", auto_stages(chosen))
    return config_of(chosen)


BASE: tuple[GemmConfig, ...] = (
    kernel(),
    kernel(schedule="pingpong"),
    kernel("128x256x64", cluster="2x1"),
    kernel("64x128x64", schedule="pingpong"),
)
"""One plain kernel of each schedule and tile M of a warpgroup: for tests where the kernel hardly matters."""

FAMILY: tuple[GemmConfig, ...] = (
    *BASE,
    # Tiles: every M, N at its ends and where subtiles are narrow, every depth of a stage.
    kernel("192x128x64"),
    kernel("256x128x64"),
    kernel("128x16x64"),
    kernel("128x48x64"),
    kernel("128x80x64"),
    kernel("128x208x64"),
    kernel("256x96x64"),
    kernel("128x128x32"),
    kernel("128x128x128"),
    kernel("64x16x64", "pingpong"),
    kernel("64x256x64", "pingpong"),
    kernel("64x144x32", "pingpong"),
    kernel("128x176x64", "pingpong"),
    kernel("64x64x128", "pingpong"),
    # Clusters, with multicast of A, of B and of both.
    kernel(cluster="2x1"),
    kernel(cluster="1x2"),
    kernel("128x256x64", cluster="2x2"),
    kernel("192x160x64", cluster="1x2"),
    kernel("256x128x64", cluster="2x1"),
    kernel("128x128x64", "pingpong", "2x1"),
    kernel("128x128x64", "pingpong", "1x2"),
    kernel("64x128x64", "pingpong", "2x2"),
    # Two stages, the least.
    kernel(stages=2),
    kernel(schedule="pingpong", stages=2),
    # Order of tiles.
    kernel("128x128x64", cluster="2x1", scheduler__raster="n", scheduler__swizzle=4),
    kernel("128x128x64", "pingpong", "1x2", scheduler__raster="m", scheduler__swizzle=8),
    kernel("64x64x64", "pingpong", scheduler__raster="n", scheduler__swizzle=2),
    # Majors of A and B, with and without multicast.
    kernel(a__major="mn"),
    kernel(b__major="mn"),
    kernel(a__major="mn", b__major="mn"),
    kernel("128x256x64", cluster="2x1", a__major="mn", b__major="mn"),
    kernel("128x192x64", "pingpong", "1x2", a__major="mn", b__major="mn"),
    kernel("192x96x64", a__major="mn", b__major="mn"),
    kernel("64x80x64", "pingpong", a__major="mn", b__major="mn"),
    kernel("64x128x32", "pingpong", a__major="mn"),
    # D and C: types and majors.
    kernel(d__major="m"),
    kernel(d__dtype="f32"),
    kernel(d__dtype="f32", d__major="m"),
    kernel("64x80x64", "pingpong", d__dtype="f32", d__major="m"),
    kernel(d__dtype="f16"),
    kernel(c__dtype="bf16"),
    kernel("128x128x64", "pingpong", c__dtype="bf16"),
    kernel("256x128x64", cluster="2x1", c__dtype="f32"),
    kernel(c__dtype="f32", d__dtype="f32"),
    kernel(c__dtype="bf16", c__major="m"),
    kernel("64x96x64", "pingpong", c__dtype="f32", c__major="m", d__dtype="f32", d__major="m"),
    kernel("128x48x64", c__dtype="f32", c__major="m"),
    # f16, with f32 and f16 accumulators.
    kernel(ab="f16"),
    kernel(ab="f16", a__major="mn", b__major="mn"),
    kernel("128x256x64", "cooperative", "2x1", ab="f16", accumulator="f16"),
    kernel("256x256x64", "cooperative", ab="f16", accumulator="f16"),
    kernel("128x128x64", "pingpong", ab="f16", accumulator="f16", c__dtype="f16"),
    kernel("64x64x64", "pingpong", "1x2", ab="f16", accumulator="f16", d__dtype="f32", a__major="mn"),
)
"""Every family member at least once."""


@dataclass(frozen=True)
class Guarded:
    """A tensor inside a larger buffer. Everything in the buffer that is not the tensor is NaN and must stay so."""

    buffer: Any
    """All of the memory, as bytes."""
    tensor: Any
    """(M, K) and so on, or with a batch extent in front."""

    def intact(self) -> bool:
        """Whether every byte around the tensor is as it was."""
        tensor = self.tensor
        copies = self.buffer.clone(), torch.full_like(self.buffer, 255)
        for copy in copies:
            copy.view(tensor.dtype).as_strided(tensor.shape, tensor.stride(), tensor.storage_offset()).fill_(0)
        return bool(torch.equal(*copies))


def guarded(
    rows: int,
    columns: int,
    dtype: str,
    *,
    columns_contiguous: bool = True,
    batch: int | None = None,
    pad: int = 1,
    offset: int = 0,
    device: Any = "cuda",
) -> Guarded:
    """An uninitialised matrix of NaNs, its strides padded to multiples of 16 bytes and by ``pad`` times 16 bytes more.

    ``offset`` moves its first element by that many times 16 bytes.
    """
    unit = 16 // DTYPES[dtype].bytes
    inner, outer = (columns, rows) if columns_contiguous else (rows, columns)
    stride = (-(-inner // unit) + pad) * unit
    batch_stride = stride * outer + pad * unit
    first = GUARD_BYTES // DTYPES[dtype].bytes + offset * unit
    elements = first + batch_stride * (batch or 1) + GUARD_BYTES // DTYPES[dtype].bytes
    buffer = torch.full((elements * DTYPES[dtype].bytes,), 255, dtype=torch.uint8, device=device)
    strides = (stride, 1) if columns_contiguous else (1, stride)
    typed = buffer.view(getattr(torch, TORCH[dtype]))
    if batch is None:
        return Guarded(buffer, typed.as_strided((rows, columns), strides, first))
    return Guarded(buffer, typed.as_strided((batch, rows, columns), (batch_stride, *strides), first))


def fill(tensor: Any, data: str, seed: int) -> None:
    """``normal``: standard normal. ``integers``: -2 to 2; ``units``: -1 to 1: their sums of products are exact."""
    generator = torch.Generator(device=tensor.device).manual_seed(seed)
    if data == "normal":
        values = torch.randn(tensor.shape, generator=generator, device=tensor.device)
    else:
        most = {"integers": 2, "units": 1}[data]
        values = torch.randint(-most, most + 1, tensor.shape, generator=generator, device=tensor.device)
    tensor.copy_(values)


@dataclass(frozen=True)
class Case:
    """Operands of one GEMM for one kernel."""

    a: Guarded
    b: Guarded
    c: Guarded | None
    d: Guarded
    alpha: float
    beta: float
    exact: bool
    """Whether every sum is exact, so that D has one right value."""

    def expected(self) -> Any:
        """D in float64."""
        product = self.alpha * (self.a.tensor.double() @ self.b.tensor.double())
        return product if self.c is None or self.beta == 0 else product + self.beta * self.c.tensor.double()

    def check(self, accumulator: str) -> None:
        """D holds the right values, and no byte around it has changed."""
        d = self.d.tensor
        if self.exact:
            wanted = self.expected().float().to(d.dtype)
            wrong = ~(d == wanted)  # so that a NaN is wrong
            where = f"first at {wrong.nonzero()[:1].tolist()}" if wrong.any() else ""
            assert not wrong.any(), f"{int(wrong.sum())} of {wrong.numel()} elements are wrong, {where}"
        else:
            error = (d.double() - self.expected()).abs()
            bound = self.bound(accumulator)
            wrong = ~(error <= bound)
            assert not wrong.any(), f"{int(wrong.sum())} elements beyond their bound, by {float((error / bound).max())}"
        assert self.d.intact(), "memory around D was written"

    def bound(self, accumulator: str) -> Any:
        """The most by which each element of D may differ from float64.

        Products of 16-bit operands are exact. A tensor core aligns up to 16 products and the running sum to the largest
        of them and truncates, which loses at most an ulp of the partial sum for each of the 17 terms, and partial
        sums stay below sum|a||b|. Then the f32 arithmetic of the epilogue (three roundings), then half an ulp of D.
        """
        k = self.a.tensor.shape[-1]
        epsilon = DTYPES[accumulator].epsilon
        magnitude = abs(self.alpha) * (self.a.tensor.double().abs() @ self.b.tensor.double().abs())
        lost = (k + -(-k // 16) + 1) * epsilon * magnitude
        if self.c is not None and self.beta != 0:
            magnitude = magnitude + abs(self.beta) * self.c.tensor.double().abs()
        lost = lost + 3 * DTYPES["f32"].epsilon * magnitude
        info = torch.finfo(self.d.tensor.dtype)
        half_ulp = info.eps / 2 * (self.expected().abs() + lost) + info.smallest_normal * info.eps / 2
        return lost + half_ulp


def make_case(
    config: GemmConfig,
    m: int,
    n: int,
    k: int,
    *,
    batch: int | None = None,
    batched: str = "abcd",
    data: str | None = None,
    alpha: float = 1.0,
    beta: float | None = None,
    pad: int = 1,
    offset: int = 0,
    seed: int = 0,
    device: Any = "cuda",
) -> Case:
    """Operands for a kernel: guarded, padded, D poisoned with NaN. ``batched`` says which have a batch extent.

    Without ``data``, integers small enough that every sum is exact in the accumulator.
    """
    if data is None:
        data = "units" if config.accumulator == "f16" else "integers"
    exact = data != "normal"
    assert not exact or k * {"units": 1, "integers": 4}[data] <= (2048 if config.accumulator == "f16" else 1 << 24)

    def operand(name: str, rows: int, columns: int, dtype: str, columns_contiguous: bool) -> Guarded:
        return guarded(
            rows,
            columns,
            dtype,
            columns_contiguous=columns_contiguous,
            batch=batch if name in batched else None,
            pad=pad,
            offset=offset,
            device=device,
        )

    a = operand("a", m, k, config.a.dtype, config.a.major == "k")
    b = operand("b", k, n, config.b.dtype, config.b.major == "mn")
    c = operand("c", m, n, config.c.dtype, config.c.major == "n") if config.c else None
    d = operand("d", m, n, config.d.dtype, config.d.major == "n")
    for index, filled in enumerate((a, b, c)):
        if filled is not None:
            fill(filled.tensor, data, seed * 3 + index)
    return Case(a, b, c, d, alpha, beta if beta is not None else float(c is not None), exact)


def run(config: GemmConfig, case: Case, registry: Registry) -> None:
    """Launch one kernel on a case and wait for it. A, B, C and the memory around them must stay as they are."""
    inputs = {name: operand for name in ("a", "b", "c") if (operand := getattr(case, name)) is not None}
    before = {name: operand.buffer.clone() for name, operand in inputs.items()}
    with plan(
        case.a.tensor,
        case.b.tensor,
        out=case.d.tensor,
        c=case.c.tensor if case.c else None,
        alpha=case.alpha,
        beta=case.beta if case.c else None,
        accumulator=config.accumulator,
        registry=registry,
        kernel=config,
    ) as launch:
        launch()
        torch.cuda.synchronize(case.d.tensor.device)
    for name, operand in inputs.items():
        assert torch.equal(operand.buffer, before[name]), f"{name.upper()} or the memory around it was written"


def check(config: GemmConfig, m: int, n: int, k: int, registry: Registry, **options: Any) -> None:
    """Make a case, run one kernel on it and check the outcome."""
    case = make_case(config, m, n, k, **options)
    run(config, case, registry)
    case.check(config.accumulator)
