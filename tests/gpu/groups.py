"""Grouped GEMMs for tests: kernels of every kind of groups, operands in guarded memory, checks of every element."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from tests.gpu.harness import Guarded, guarded, kernel, torch

import gemmill
from gemmill.library.config.model import GemmConfig
from gemmill.profiler.measure.verify import saturated
from gemmill.runtime.operands.call_keywords import IEEE, PRECISIONS
from gemmill.runtime.registry import Registry


def stacked(tile: str, schedule: str = "cooperative", cluster: str = "1x1", **fields: Any) -> GemmConfig:
    """A kernel for groups of rows at offsets."""
    return kernel(tile, schedule, cluster, scheduler__batching="grouped", **fields)


def slots(tile: str, schedule: str = "cooperative", cluster: str = "1x1", **fields: Any) -> GemmConfig:
    """A kernel for groups of rows in slots."""
    return kernel(tile, schedule, cluster, scheduler__batching="masked", **fields)


def along_k(tile: str, schedule: str = "cooperative", **fields: Any) -> GemmConfig:
    """A kernel for groups along K."""
    majors = {"a__major": "mn", "b__major": "mn"}
    return kernel(tile, schedule, scheduler__batching="kgrouped", **majors, **fields)


GROUPED = (
    stacked("128x128x64"),
    stacked("128x128x64", "pingpong"),
    stacked("64x128x64", "pingpong"),
    stacked("128x256x64", cluster="1x2", scheduler__swizzle_size=8),
    stacked("256x128x64", cluster="2x1", b__major="mn"),
    stacked("192x128x64", cluster="1x2", scheduler__raster="n", scheduler__swizzle_size=4),
    stacked("64x80x64", "pingpong", cluster="2x2", b__major="mn"),
    stacked("128x128x64", c__dtype="bf16"),
    stacked("64x96x64", "pingpong", c__dtype="f32", d__dtype="f32"),
    stacked("128x208x64", d__dtype="f32"),
    stacked("128x112x64", "pingpong", ab="f16", d__dtype="f16"),
    stacked("64x184x64", "pingpong", cluster="2x1"),
    stacked("256x192x64", cluster="1x2"),
    stacked("128x256x64", cluster="2x1", c__dtype="bf16"),
    stacked("128x256x64", cluster="2x1", stages=3, scheduler__raster="n", scheduler__swizzle_size=8),
    stacked("64x64x64", "pingpong", cluster="2x1", scheduler__raster="n", scheduler__swizzle_size=2),
    stacked("64x64x64", "pingpong", cluster="2x1", scheduler__swizzle_size=4),
    stacked("128x192x32", cluster="2x1", ab="f16x3", b__major="mn", promote=2),
    stacked("64x128x32", "pingpong", ab="bf16x6", promote=2),
    stacked("64x64x32", "pingpong", ab="f16x3", promote=2),
)
MASKED = (
    slots("64x128x64", "pingpong"),
    slots("128x128x64"),
    slots("128x256x64", cluster="1x2", b__major="mn"),
    slots("192x96x64", cluster="1x2", a__major="mn", c__dtype="f32", c__major="m", d__dtype="f32"),
    slots("64x16x64", "pingpong", cluster="2x1", c__dtype="bf16"),
    slots("256x192x64", cluster="1x2"),
    slots("128x256x64", cluster="2x1"),
    slots("128x192x64", "pingpong"),
    slots("64x32x64", "pingpong", cluster="2x1", scheduler__raster="n"),
)
KGROUPED = (
    along_k("128x128x64"),
    along_k("128x256x64"),
    along_k("256x128x64", d__dtype="f32", scheduler__swizzle_size=8),
    along_k("192x96x32", d__dtype="f32", d__major="m"),
    along_k("128x192x64", c__dtype="f32", d__dtype="f32"),
    along_k("128x128x64", "pingpong"),
    along_k("64x192x64", "pingpong", c__dtype="f32", d__dtype="f32", scheduler__swizzle_size=4),
    along_k("128x256x64", cluster="2x1", d__dtype="f32", c__dtype="f32", scheduler__raster="n"),
    along_k("256x128x64", cluster="1x2"),
    # Transposed in shared memory.
    along_k("128x128x128", ab="e4m3", d__dtype="f32"),
    along_k("128x256x128", cluster="2x1", ab="e4m3", d__dtype="f32"),
    along_k("128x64x32", "pingpong", ab="tf32", d__dtype="f32"),
    along_k("128x128x128", ab="f16", d__major="m", c__dtype="f16", c__major="m"),
    along_k("128x256x64", scheduler__rows="gathered"),
    along_k("128x256x64", cluster="2x1", scheduler__rows="gathered"),
    along_k("64x128x64", "pingpong", scheduler__rows="gathered", d__major="m", d__dtype="f32", c__dtype="f32"),
)

SCALED: dict[str, Any] = {"ab": "e4m3", "d__dtype": "bf16", "promote": 4, "a__scale": "1x128", "b__scale": "128x128"}
FP8 = (
    stacked("128x128x128", **SCALED),
    stacked("64x96x128", "pingpong", **SCALED),
    slots("64x128x128", "pingpong", **SCALED),
    slots("128x128x128", cluster="1x2", **SCALED),
    stacked("128x256x128", cluster="2x1", **SCALED),
    slots("128x256x128", cluster="2x1", **SCALED),
    stacked("128x192x128", cluster="2x1", scheduler__raster="n", **SCALED),
    slots("256x128x128", cluster="1x2", **SCALED),
    slots("128x96x128", "pingpong", **SCALED),
)
ARRAY = (
    kernel("128x128x64", scheduler__batching="array"),
    kernel("64x128x64", "pingpong", scheduler__batching="array", b__major="mn", c__dtype="bf16"),
    kernel("128x256x64", scheduler__batching="array", a__major="mn", b__major="mn"),
    kernel("128x96x64", "pingpong", scheduler__batching="array", d__dtype="f32", d__major="m", c__dtype="f32"),
)


@dataclass(frozen=True)
class Case:
    """Operands of a grouped GEMM, and the groups that the kernel should make of its array."""

    config: GemmConfig
    a: Guarded
    b: Guarded
    c: Guarded | None
    d: Guarded
    groups: Any
    """Offsets or counts, on the GPU."""
    ranges: tuple[tuple[int, int], ...]
    """First row (or K) of each group, and the first beyond it."""
    exact: bool
    index: Any = None
    """The row of A for each row of D, or the column for each row of B, on the GPU, where rows are gathered."""

    @property
    def beta(self) -> float:
        """A whole number where D takes no other."""
        return 2.0 if self.config.d.dtype == "s32" else 0.5

    @property
    def kind(self) -> str:
        return "counts" if self.config.scheduler.batching == "masked" else "offsets"

    def parts(self) -> Iterator[tuple[Any, Any, Any, Any]]:
        """A, B, C and D of each group."""
        a, b, d = self.a.tensor, self.b.tensor, self.d.tensor
        c = self.c.tensor if self.c else None
        for i, (begin, end) in enumerate(self.ranges):
            rows = slice(begin, end)
            match self.config.scheduler.batching:
                case "grouped":
                    of_a = rows if self.index is None else self.index[rows].long()
                    yield a[of_a], b[i], None if c is None else c[rows], d[rows]
                case "masked":
                    yield a[i, rows], b[i], None if c is None else c[i, rows], d[i, rows]
                case _:
                    of_a = rows if self.index is None else self.index[rows].long()
                    yield a[:, of_a], b[rows], None if c is None else c[i], d[i]

    def run(self, registry: Registry) -> None:
        """Launch, wait, and check D and all the memory around what a kernel may write."""
        inputs = [x for x in (self.a, self.b, self.c) if x is not None]
        before = [x.buffer.clone() for x in (*inputs, self.d)]
        gemmill.grouped_matmul(
            self.a.tensor,
            self.b.tensor,
            out=self.d.tensor,
            c=self.c.tensor if self.c else None,
            beta=self.beta if self.c else None,
            precision=self.config.a.dtype if self.config.a.dtype in PRECISIONS else IEEE,
            accumulator=self.config.accumulator,
            fast_accumulation=self.config.promote == 0,
            registry=registry,
            kernel=self.config,
            rows=self.index,
            **{self.kind: self.groups},
        )
        torch.cuda.synchronize()
        for operand, old in zip(inputs, before, strict=False):
            assert torch.equal(operand.buffer, old), "an input or the memory around it was written"
        self.check()
        written = self.d.buffer.clone(), before[-1]
        for _, _, _, d in self.parts():
            for buffer in written:
                buffer.view(d.dtype).as_strided(d.shape, d.stride(), d.storage_offset()).fill_(0)
        assert torch.equal(*written), "memory around the groups of D was written"

    def check(self) -> None:
        """Every element of every group is right."""
        for i, (a, b, c, d) in enumerate(self.parts()):
            if d.numel() == 0:
                continue
            wanted = a.double() @ b.double()
            magnitude = None if self.exact else a.double().abs() @ b.double().abs()
            if c is not None:
                wanted += self.beta * c.double()
            if self.exact:
                values = wanted.float() if d.dtype.is_floating_point else wanted.round()
                wrong = ~(d == saturated(values, self.config.d.dtype).to(d.dtype))
            else:
                # Each of the K products and partial sums loses at most an ulp of f32; D is rounded once.
                info = torch.finfo(d.dtype)
                bound = (a.shape[1] * 17 / 16 + 4) * 2.0**-23 * magnitude + info.eps / 2 * wanted.abs() + info.tiny
                wrong = ~((d.double() - wanted).abs() <= bound * 1.01)
            assert not wrong.any(), (
                f"group {i} {tuple(self.ranges[i])}: {int(wrong.sum())} of {wrong.numel()} elements are wrong, "
                f"first at {wrong.nonzero()[0].tolist()}"
            )


def ranges_of(kind: str, values: Sequence[int], extent: int) -> tuple[tuple[int, int], ...]:
    """What a kernel makes of an array: clamped, and never less than empty."""
    ends = [min(max(value, 0), extent) for value in values]
    begins = [0] * len(ends) if kind == "masked" else [0, *ends[:-1]]
    return tuple((min(begin, end), end) for begin, end in zip(begins, ends, strict=True))


def fill(tensor: Any, exact: bool) -> None:
    # Weights of 256 experts take gigabytes: no wider than they are. PyTorch draws no fp8.
    dtype = tensor.dtype if tensor.is_floating_point() and tensor.itemsize > 1 else torch.float16
    drawn = torch.empty(tensor.shape, dtype=dtype, device=tensor.device)
    if exact:
        drawn.random_(-2 if tensor.dtype.is_signed else 0, 3)
    else:
        drawn.normal_()
    tensor.copy_(drawn)


def make_case(
    config: GemmConfig,
    values: Sequence[int],
    extent: int,
    m: int,
    n: int,
    k: int,
    *,
    exact: bool = True,
    pad: int = 1,
    d_align: int = 16,
) -> Case:
    """Operands for the groups that an array describes; ``extent`` is that of all rows, of a slot, or of all of K."""
    batching, groups = config.scheduler.batching, len(values)
    rows, depth = (m, extent) if batching == "kgrouped" else (extent, k)
    batch = {"grouped": (None, groups, None), "masked": (groups,) * 3, "kgrouped": (None, None, groups)}[batching]

    def operand(
        rows: int, columns: int, dtype: str, columns_contiguous: bool, batch: int | None, align: int = 16
    ) -> Guarded:
        return guarded(rows, columns, dtype, columns_contiguous=columns_contiguous, batch=batch, pad=pad, align=align)

    a = operand(rows, depth, config.a.dtype, config.a.major == "k", batch[0])
    b = operand(depth, n, config.b.dtype, config.b.major == "mn", batch[1])
    c = operand(rows, n, config.c.dtype, config.c.major == "n", batch[2]) if config.c else None
    d = operand(rows, n, config.d.dtype, config.d.major == "n", batch[2], d_align)
    for tensor in (a.tensor, b.tensor, *([c.tensor] if c else [])):
        fill(tensor, exact)
    array = torch.tensor(values, dtype=torch.int32, device="cuda")
    index = None
    if config.scheduler.rows == "gathered":
        index = torch.randint(0, max(extent, 1), (extent,), dtype=torch.int32, device="cuda")
    return Case(config, a, b, c, d, array, ranges_of(batching, values, extent), exact, index)


def ends(*sizes: int) -> list[int]:
    return list(itertools.accumulate(sizes))


def check_array(config: GemmConfig, count: int, m: int, n: int, k: int, registry: Registry) -> None:
    """Run an array of matrices that lie in another order than the table has them."""
    operands: dict[str, list[Guarded]] = {"a": [], "b": [], "out": [], "c": []}
    for i in range(count):
        operands["a"].insert(i // 2, guarded(m, k, config.a.dtype, columns_contiguous=config.a.major == "k"))
        operands["b"].append(guarded(k, n, config.b.dtype, columns_contiguous=config.b.major == "mn"))
        operands["out"].insert(0, guarded(m, n, config.d.dtype, columns_contiguous=config.d.major == "n"))
        if config.c:
            operands["c"].insert(i // 3, guarded(m, n, config.c.dtype, columns_contiguous=config.c.major == "n"))
    for name in "abc":
        for operand in operands[name]:
            fill(operand.tensor, True)
    rows = [[operand.tensor.data_ptr() for operand in column] for column in operands.values() if column]
    addresses = torch.tensor(rows, dtype=torch.int64, device="cuda")
    a, b, d = (operands[name][0].tensor for name in ("a", "b", "out"))
    c = operands["c"][0].tensor if config.c else None
    before = {name: [x.buffer.clone() for x in operands[name]] for name in "abc"}
    gemmill.array_matmul(
        a,
        b,
        d,
        addresses,
        c=c,
        tf32=config.a.dtype == "tf32",
        accumulator=config.accumulator,
        fast_accumulation=config.promote == 0,
        registry=registry,
        kernel=config,
    )
    torch.cuda.synchronize()
    for i in range(count):
        left, right, out = (operands[name][i] for name in ("a", "b", "out"))
        wanted = left.tensor.float() @ right.tensor.float()
        if config.c:
            wanted += operands["c"][i].tensor
        expected = saturated(wanted, config.d.dtype).to(out.tensor.dtype)
        assert torch.equal(out.tensor, expected), f"matrix {i}"
        assert out.intact(), "memory around D was written"
    for name, buffers in before.items():
        assert all(torch.equal(x.buffer, old) for x, old in zip(operands[name], buffers, strict=True))


def check_groups(config: GemmConfig, registry: Registry) -> None:
    """Run groups that end within tiles, empty ones, and more tiles than the GPU holds."""
    m, n, k = config.tile.m, config.tile.n, config.tile.k
    if config.scheduler.batching == "array":
        check_array(config, 5, m - 1, n + 8, 2 * k + 1, registry)
        check_array(config, 40, 2 * m, 2 * n, k, registry)
    elif config.scheduler.batching == "masked":
        make_case(config, [0, m + 1, 1, m, 2 * m - 1], 2 * m, 0, n + 8, 2 * k + 1).run(registry)
        make_case(config, [m - 1] * 40, m, 0, 4 * n, k).run(registry)
    else:
        sizes = [k + 1, 0, 1, 2 * k - 1, 3 * k] if config.scheduler.batching == "kgrouped" else [m + 1, 0, 1, m, 63]
        make_case(config, ends(*sizes), sum(sizes) + 3, 2 * m - 8, n + 8, 2 * k + 1).run(registry)
        make_case(config, ends(*[k] * 35), 35 * k, 2 * m, 2 * n, k).run(registry)
