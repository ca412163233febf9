"""What the GPU tests share: kernels by what is special about them, operands in guarded memory, references, bounds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import pytest

from gemmill.library.config.field_table import TABLE
from gemmill.library.config.fields import ConfigView, Value, config_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.scales import scale_dtype
from gemmill.library.decompositions.workspace_layout import WorkspaceSize
from gemmill.library.dtypes import DTYPES, SPLIT
from gemmill.library.families.families import new_plan
from gemmill.library.legality import aligns
from gemmill.library.problem import GemmProblem
from gemmill.profiler.measure.operands import (
    OperandSet,
    fill_random,
    natural_alpha,
    plan_options,
    poison,
    random_scales,
    scale_shape,
    torch_dtype,
)
from gemmill.profiler.measure.verify import reference, saturated
from gemmill.runtime.api.matmul import plan
from gemmill.runtime.driver import bindings
from gemmill.runtime.launch.workspace import workspace as workspace_of
from gemmill.runtime.registry import Registry

torch: Any = pytest.importorskip("torch")

WORKSPACE_BYTES = 256 << 20
"""Bytes of partial sums that are poisoned: more than any test's."""
GUARD_BYTES = 4096
"""Memory before and after every operand that nothing may touch."""

_DEFAULTS: Mapping[str, Value] = {
    row.name: row.absent if row.absent is not None else row.example if row.default is None else row.default
    for row in TABLE.values()
    if not row.field.auto
}
"""A plain kernel: the defaults of the table of fields, its examples where there is no default, no C."""

_NATURAL: Mapping[str, tuple[str, str]] = {
    "tf32": ("f32", "f32"),
    "f32": ("f32", "f32"),
    "f64": ("f64", "f64"),
    "e4m3": ("f32", "bf16"),
    "e5m2": ("f32", "bf16"),
    "s8": ("s32", "s32"),
    "u8": ("s32", "s32"),
    **dict.fromkeys(SPLIT, ("f32", "f32")),
}
"""Accumulator and type of D by the type of A; 16-bit types accumulate in f32 and give themselves."""


def kernel(
    tile: str = "128x128x64", schedule: str = "cooperative", cluster: str = "1x1", *, ab: str = "bf16", **fields: Value
) -> GemmConfig:
    """A config by what differs from a plain kernel. Fields have ``__`` for the dot; stages are automatic."""
    accumulator, d = _NATURAL.get(ab, ("f32", ab))
    chosen = dict(_DEFAULTS) | {"schedule": schedule, "a.dtype": ab, "b.dtype": ab}
    chosen |= {"accumulator": accumulator, "d.dtype": d}
    chosen |= dict(zip(("tile.m", "tile.n", "tile.k"), map(int, tile.split("x")), strict=True))
    chosen |= dict(zip(("cluster.m", "cluster.n"), map(int, cluster.split("x")), strict=True))
    chosen |= {name.replace("__", "."): value for name, value in fields.items()}
    if chosen["c.dtype"] != "none":
        chosen |= {"c.align": fields.get("c__align", 16), "c.major": fields.get("c__major", "n")}
    chosen.setdefault("stages", max(1, new_plan(ConfigView(chosen)).auto_stages))  # 1 is illegal: not even two fit
    return config_of(chosen)


def direct(tile: str, schedule: str, majors: str, aligns: int = 16, *, ab: str, **fields: Value) -> GemmConfig:
    """A config of a family without TMA; ``majors`` are those of A, B, D and C, ``aligns`` theirs where it can be so."""
    accumulator, d = _NATURAL.get(ab, ("f32", ab))
    chosen = {"a__dtype": ab, "b__dtype": ab, "d__dtype": d, "arch": "sm90"} | fields
    for operand, major in zip("abdc", majors.split(), strict=False):
        size = DTYPES[str(chosen[f"{operand}__dtype"])].bytes
        chosen |= {f"{operand}__major": major, f"{operand}__align": size if major == "any" else max(aligns, size)}
    return kernel(tile, schedule, ab=ab, **{"accumulator": accumulator, **chosen})  # type: ignore[arg-type]


@dataclass(frozen=True)
class Guarded:
    """A tensor inside a larger buffer. Everything in the buffer that is not the tensor is poison and must stay so."""

    buffer: Any
    """All of the memory, as bytes."""
    tensor: Any
    """(M, K) and so on, or with a batch extent in front."""

    def intact(self) -> bool:
        """Whether every byte around the tensor is as it was."""
        tensor = self.tensor
        copies = self.buffer.clone(), torch.empty_like(self.buffer)
        poison(copies[1].view(tensor.dtype))
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
    align: int = 16,
    step: int = 1,
    device: Any = "cuda",
) -> Guarded:
    """A poisoned matrix, its strides padded to multiples of ``align`` bytes and by ``pad`` times that more.

    ``offset`` moves its first element by that many times ``align`` bytes; ``step`` is what its neighbours lie apart.
    """
    unit = max(1, align // DTYPES[dtype].bytes)
    inner, outer = (columns, rows) if columns_contiguous else (rows, columns)
    stride = (-(-inner * step // unit) + pad) * unit
    batch_stride = stride * outer + pad * unit
    first = GUARD_BYTES // DTYPES[dtype].bytes + offset * unit
    elements = first + batch_stride * (batch or 1) + GUARD_BYTES // DTYPES[dtype].bytes
    buffer = torch.empty(elements * DTYPES[dtype].bytes, dtype=torch.uint8, device=device)
    strides = (stride, step) if columns_contiguous else (step, stride)
    typed = buffer.view(torch_dtype(dtype))
    poison(typed)
    if batch is None:
        return Guarded(buffer, typed.as_strided((rows, columns), strides, first))
    return Guarded(buffer, typed.as_strided((batch, rows, columns), (batch_stride, *strides), first))


INTEGERS: Mapping[str, int] = {"integers": 2, "units": 1}
"""Largest magnitude of the integers that a kind of data consists of."""


def fill(tensor: Any, data: str, seed: int, dtype: str) -> None:
    """``random``: as the profiler draws them. ``integers``: -2 to 2; ``units``: -1 to 1; without a sign: from 0."""
    generator = torch.Generator(device=tensor.device).manual_seed(seed)
    if data == "random":
        fill_random(tensor, dtype, generator)
    else:
        least = -INTEGERS[data] if tensor.dtype.is_signed else 0
        tensor.copy_(torch.randint(least, INTEGERS[data] + 1, tensor.shape, generator=generator, device=tensor.device))


@dataclass(frozen=True)
class Case:
    """Operands of one GEMM for one kernel."""

    problem: GemmProblem
    a: Guarded
    b: Guarded
    c: Guarded | None
    d: Guarded
    scales: Mapping[str, Any]
    """``a_scale`` and ``b_scale``, of operands that have block scales."""
    alpha: float
    beta: float
    exact: bool
    """Whether every sum is exact, so that D has one right value."""

    def operands(self) -> OperandSet:
        """The tensors."""
        return OperandSet(self.a.tensor, self.b.tensor, self.c.tensor if self.c else None, self.d.tensor, **self.scales)

    def check(self) -> None:
        """D holds the right values, and no byte around it has changed."""
        d, wanted = self.d.tensor, reference(self.problem, self.operands(), self.alpha, self.beta)
        if self.exact:
            values = wanted.expected.reshape(d.shape)
            # Sums are exact in f32, and double rounding is what an epilogue does.
            values = values.round() if not d.dtype.is_floating_point else values.to(_epilogue_dtype(self.problem))
            wrong = ~(d == saturated(values, self.problem.d_dtype).to(d.dtype))  # so that a NaN is wrong
            where = f"first at {wrong.nonzero()[:1].tolist()}" if wrong.any() else ""
            assert not wrong.any(), f"{int(wrong.sum())} of {wrong.numel()} elements are wrong, {where}"
        else:
            found = wanted.compare(d)
            assert found.passed, found.says
        assert self.d.intact(), "memory around D was written"


def _epilogue_dtype(problem: GemmProblem) -> Any:
    return torch.float64 if problem.accumulator == "f64" else torch.float32


def exact_data(problem: GemmProblem) -> str:
    """Data whose sums are exact in the accumulator and in the epilogue, the most random there are."""
    fp8 = DTYPES[problem.a_dtype].bits == DTYPES[problem.b_dtype].bits == 8
    if problem.accumulator == "s32":
        most = 255**2 if "u8" in (problem.a_dtype, problem.b_dtype) else 128**2
        return "random" if problem.d_dtype == "s32" or problem.k * most <= 1 << 24 else "integers"
    limit = 1 << (11 if problem.accumulator == "f16" else 13 if fp8 and not problem.promote else 24)
    for data, most in INTEGERS.items():
        if problem.k * most**2 <= limit:
            return data
    raise ValueError(f"no sums of K = {problem.k} products are exact in {problem.accumulator}: pass data='random'")


def least_aligns(config: GemmConfig) -> dict[str, int]:
    """The least alignment in bytes of each operand that a kernel takes."""
    return {x: align for x, align in zip("abcd", aligns.least_aligns(config), strict=True) if align}


def make_case(
    config: GemmConfig,
    m: int,
    n: int,
    k: int,
    *,
    batch: int | None = None,
    batched: str = "abcd",
    data: str | None = None,
    alpha: float | None = None,
    beta: float | None = None,
    pad: int = 1,
    offset: int = 0,
    aligns: Mapping[str, int] = MappingProxyType({}),
    seed: int = 0,
    device: Any = "cuda",
) -> Case:
    """Operands for a kernel: guarded, padded, D poisoned. ``batched`` says which have a batch extent.

    Without ``data``, such that every sum is exact (:func:`exact_data`). ``aligns``: bytes by operand, where not as the
    config says.
    """
    problem = GemmProblem(
        m=m,
        n=n,
        k=k,
        batch=1 if batch is None else batch,
        a_dtype=config.a.dtype,
        a_major=config.a.major,
        b_dtype=config.b.dtype,
        b_major=config.b.major,
        accumulator=config.accumulator,
        d_dtype=config.d.dtype,
        d_major=config.d.major,
        c_dtype=config.c.dtype if config.c else None,
        c_major=config.c.major if config.c else None,
        a_scale=config.a.scale,
        b_scale=config.b.scale,
        promote=config.promote,
        symmetry=config.scheduler.symmetry,
    )
    exact = data is None or config.d.dtype == "s32"
    data = data or exact_data(problem)

    def operand(name: str, rows: int, columns: int, columns_contiguous: bool) -> Guarded:
        operand = getattr(config, name)
        return guarded(
            rows,
            columns,
            operand.dtype,
            columns_contiguous=columns_contiguous,
            batch=batch if name in batched else None,
            pad=pad,
            offset=offset,
            align=aligns.get(name, operand.align),
            step=3 if operand.major == "any" else 1,
            device=device,
        )

    a = operand("a", m, k, config.a.major != "mn")
    b = operand("b", k, n, config.b.major != "k")
    c = operand("c", m, n, config.c.major != "m") if config.c else None
    d = operand("d", m, n, config.d.major != "m")
    fill(a.tensor, data, seed * 3, config.a.dtype)
    fill(b.tensor, data, seed * 3 + 1, config.b.dtype)
    if c is not None and config.c is not None:
        fill(c.tensor, "integers" if exact else data, seed * 3 + 2, config.c.dtype)
    if problem.symmetry != "general":
        b.tensor.copy_(a.tensor.mT)
        if c is not None:
            c.tensor.add_(c.tensor.mT.clone())
    generator = torch.Generator(device=device).manual_seed(seed)
    scales = {}
    for name, scale in (("a", config.a.scale), ("b", config.b.scale)):
        if scale != "none":
            drawn = random_scales(scale_shape(problem, name), generator, device)
            if exact:  # powers of two, which round nothing
                drawn = drawn.log2().round().exp2()
            scales[f"{name}_scale"] = in_words(drawn.to(torch_dtype(scale_dtype(scale) or "f32")))
    return Case(
        problem,
        a,
        b,
        c,
        d,
        scales,
        natural_alpha(problem) if alpha is None else alpha,
        float(c is not None) if beta is None else beta,
        exact,
    )


def in_words(scales: Any) -> Any:
    """Scales in memory of whole words of 4 bytes, as kernels read them and any allocator gives them; memcheck, which
    counts the bytes that were asked for, would complain."""
    size = scales.element_size()
    memory = torch.zeros(-(-scales.numel() * size // 4) * 4 // size, dtype=scales.dtype, device=scales.device)
    return memory[: scales.numel()].view(scales.shape).copy_(scales)


def poison_workspace(device: Any) -> None:
    """Fill the workspace of the current stream with NaN, or integers of bytes 0xFF: none is left in a right D."""
    stream = torch.cuda.current_stream(device).cuda_stream
    workspace = workspace_of(torch.device(device).index or 0, stream, WorkspaceSize(WORKSPACE_BYTES, 0))
    with workspace.lock:
        workspace.reserve(WorkspaceSize(WORKSPACE_BYTES, 0), "a test")
        (status,) = bindings().cuMemsetD8Async(workspace.buffer, 0xFF, WORKSPACE_BYTES, stream)
    assert status == 0


def run(config: GemmConfig, case: Case, registry: Registry, **options: Any) -> None:
    """Launch one kernel on a case and wait for it. A, B, C and the memory around them must stay as they are."""
    poison_workspace(case.d.tensor.device)
    inputs = {name: operand for name in ("a", "b", "c") if (operand := getattr(case, name)) is not None}
    before = {name: operand.buffer.clone() for name, operand in inputs.items()}
    with plan(
        case.a.tensor,
        case.b.tensor,
        out=case.d.tensor,
        c=case.c.tensor if case.c else None,
        alpha=case.alpha,
        beta=case.beta if case.c else None,
        registry=registry,
        kernel=config,
        **plan_options(case.problem, case.operands()),
        **options,
    ) as launch:
        launch()
        torch.cuda.synchronize(case.d.tensor.device)
    for name, operand in inputs.items():
        assert torch.equal(operand.buffer, before[name]), f"{name.upper()} or the memory around it was written"


def check(config: GemmConfig, m: int, n: int, k: int, registry: Registry, **options: Any) -> None:
    """Make a case, run one kernel on it, in as many slices of K as it says, and check the outcome."""
    slices = options.pop("slices", None)
    case = make_case(config, m, n, k, **options)
    run(config, case, registry, slices=slices)
    case.check()


def check_a_thousand_runs(config: GemmConfig, m: int, n: int, k: int, registry: Registry) -> None:
    """Check a plan's outcome on random data, and that a thousand more launches repeat it bit for bit."""
    case = make_case(config, m, n, k, data="random")
    out, symmetric = case.d.tensor, config.scheduler.symmetry == "symmetric"
    launch = plan(case.a.tensor, case.b.tensor, out=out, registry=registry, kernel=config, symmetric=symmetric)
    launch()
    first = out.clone()
    case.check()
    differing = torch.zeros((), dtype=torch.int64, device="cuda")
    for _ in range(1000):
        out.fill_(float("nan"))
        launch()
        differing += ~torch.eq(out, first).all()
    assert int(differing) == 0


def product(m: int = 512, n: int = 768, k: int = 256, device: Any = "cuda") -> tuple[Any, Any, Any]:
    """A, K-major B, and the exact product in bf16."""
    a = torch.randint(-2, 3, (m, k), device=device).bfloat16()
    b = torch.randint(-2, 3, (n, k), device=device).bfloat16().T
    return a, b, (a.float() @ b.float()).bfloat16()
