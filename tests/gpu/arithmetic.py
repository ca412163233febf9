"""Launches of one arithmetic on the same operands, which must give the same bits whatever their kernels and layouts.

    python -m tests.gpu.arithmetic --types bf16 e4m3 --kernels 300 --problems 8 --out arithmetic.jsonl

Operands are hard: sums that cancel, wide ranges, subnormals, NaN with payloads, infinities, overflows, signed zeros.
Each kernel takes them in its own majors, in aligned or unaligned memory, also transposed, in batches and groups. Writes
a line for each problem and kind of data: the kernels and the digest of D of each arithmetic, so that another GPU can be
compared, and each kernel whose D differs. Prints counts; exits with 1 if a D differs or a launch fails.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import json
import random
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from tests.gpu.harness import guarded, least_aligns, torch
from tests.gpu.weights import make_weights

import gemmill
from gemmill.library.arithmetic import arithmetic_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.decompositions.decomposition import decomposition_of
from gemmill.library.dtypes import DTYPES
from gemmill.library.e2m1 import MX_BLOCK
from gemmill.library.epilogues.parse import LINEAR
from gemmill.library.errors import GemmillError
from gemmill.library.problem import GemmProblem, upconverts_a
from gemmill.profiler.measure.operands import random_scales, scale_shape, torch_dtype
from gemmill.runtime.registry import Registry

SLICES = (1, 2, 3, 4, 8, 9, 16)
"""Slices of K of the kernels whose launch sets them: of 9 and more, several threads of the second kernel add."""
DATA = ("normal", "wide", "cancel", "one sign", "subnormal", "special", "overflow", "zeros")
INTEGER_DATA = ("normal", "overflow")
"""Kinds of data; the sums of integers are exact."""
RANGES: Mapping[str, tuple[int, int, int]] = MappingProxyType(
    {
        "bf16": (-126, 127, 7),
        "f16": (-14, 15, 10),
        "tf32": (-126, 127, 10),
        "f32": (-126, 127, 23),
        "f64": (-1022, 1023, 52),
        "e4m3": (-6, 8, 3),
        "e5m2": (-14, 15, 2),
    }
)
"""Exponents of the least normal and of the largest number, and bits of the fraction."""
SPECIAL: Mapping[str, tuple[int, ...]] = MappingProxyType(
    {
        "bf16": (0x7F81, 0xFFC1, 0x7FFF, 0x7F80, 0xFF80),
        "f16": (0x7C01, 0xFE01, 0x7FFF, 0x7C00, 0xFC00),
        "f32": (0x7F802001, 0xFFC12345, 0x7FFFFFFF, 0x7F800000, 0xFF800000),
        "f64": (0x7FF0000000000001, 0xFFF8000000000001, 0x7FF0000000000000, 0xFFF0000000000000),
        "e4m3": (0x7F, 0xFF),
        "e5m2": (0x7D, 0x7E, 0xFF, 0x7C, 0xFC),
    }
)
"""Bits of NaN with payloads, signalling ones among them, and of infinities."""
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_FLIPPED = {"n": "m", "m": "n", "any": "any"}


class Formats(NamedTuple):
    """What the operands of launches must have in common for their D to be compared."""

    a: str
    b: str
    a_scale: str
    b_scale: str
    accumulator: str
    c: str | None
    d: str

    @classmethod
    def of(cls, config: GemmConfig) -> Formats:
        c = config.c.dtype if config.c else None
        inputs = config.a.dtype, config.b.dtype, config.a.scale, config.b.scale
        return cls(*inputs, config.accumulator, c, config.d.dtype)


@dataclass(frozen=True)
class Member:
    """A kernel, with the slices of K of its launch where that sets them."""

    config: GemmConfig
    slices: int | None = None

    @property
    def arithmetic(self) -> str:
        return str(arithmetic_of(self.config, self.slices or 1))

    def __str__(self) -> str:
        return kernel_name(self.config) + (f" in {self.slices} slices" if self.slices else "")


def slices_of(config: GemmConfig) -> Sequence[int | None]:
    """The slices of K with which a kernel is launched; None alone where the launch does not set them."""
    decomposition = decomposition_of(config)
    return [x for x in SLICES if x in decomposition.slices] if decomposition.has_slices else [None]


def members(configs: Iterable[GemmConfig]) -> list[Member]:
    """The launches of kernels whose order of sums depends on K alone. Groups of narrow weights are left out:
    test_weight_groups.py compares them with one matrix."""
    own = (config for config in configs if config.scheduler.batching not in ("ngrouped", "nmasked"))
    launches = (Member(config, slices) for config in own for slices in slices_of(config))
    return [member for member in launches if arithmetic_of(member.config, member.slices or 1).is_fixed]


# Data


def bits(tensor: Any) -> Any:
    """The bits of a tensor's elements, as integers."""
    return tensor.view(_WORDS[tensor.element_size()])


def values(dtype: str, data: str, shape: tuple[int, int], draw: np.random.Generator) -> Any:
    """Numbers of one kind of data for an operand. The same numbers come from any GPU and host."""
    if DTYPES[dtype].is_integer:
        least, most = (-128, 128) if dtype == "s8" else (0, 256)
        drawn = draw.integers(least, most, shape)
        return drawn if data == "normal" else np.where(drawn < (least + most) // 2, least, most - 1)
    if data == "exact":  # every order of the sums gives the same bits; some sums are zero
        whole = draw.integers(-2, 3, shape).astype(np.float64)
        whole[::7] = 0
        return whole
    least, most, digits = RANGES[dtype]
    x = draw.standard_normal(shape)
    if data == "wide":
        x = np.ldexp(x, draw.integers(-min(30, most // 2), min(30, most // 2) + 1, shape))
    elif data == "one sign":
        x = abs(x)
    elif data == "subnormal":  # every other row is below the least normal number; products of the others may be
        x = np.ldexp(x, least // 2 - 4)
        x[::2] = np.ldexp(draw.integers(1 - 2**digits, 2**digits, x[::2].shape), least - digits)
    elif data == "overflow":
        x = np.ldexp(x, most // 2 - 1 if most > 100 else most - 3)
    elif data == "zeros":
        x = draw.choice((0.0, -0.0, 1.0, -1.0), shape, p=(0.45, 0.45, 0.05, 0.05))
    return x


def tensor_of(dtype: str, x: Any, device: Any) -> Any:
    """Numbers as a tensor, the largest finite number instead of larger ones."""
    target = torch_dtype(dtype)
    tensor = torch.from_numpy(np.ascontiguousarray(x))
    limits = torch.finfo(target) if target.is_floating_point else torch.iinfo(target)
    tensor = tensor.clamp(limits.min, limits.max)
    return tensor.to(target).to(device)


def strew(tensor: Any, dtype: str, share: float, draw: np.random.Generator) -> None:
    """Put NaN with payloads and infinities at random places."""
    patterns = SPECIAL["f32" if dtype == "tf32" else dtype]
    size = tensor.element_size() * 8
    signed = [x - (1 << size) if size > 8 and x >> (size - 1) else x for x in patterns]
    places = torch.from_numpy(draw.random(tuple(tensor.shape)) < share).to(tensor.device)
    chosen = torch.from_numpy(draw.choice(np.array(signed, np.int64), tuple(tensor.shape)))
    words = bits(tensor)
    words.copy_(torch.where(places, chosen.to(words.dtype).to(tensor.device), words))


@dataclass
class Case:
    """A problem and its operands: the same numbers for every kernel."""

    formats: Formats
    extents: tuple[int, int, int]
    data: str
    seed: int
    device: Any = "cuda"
    alpha: float = 1.0
    beta: float = 0.0
    a: Any = None
    b: Any = None
    c: Any = None
    scales: dict[str, Any] = field(default_factory=dict)
    arguments: dict[str, Any] = field(default_factory=dict)
    """Operands of an expression, by name."""
    _placed: dict[Any, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        (m, n, k), f, draw = self.extents, self.formats, np.random.default_rng(self.seed)
        b = values(f.b, self.data, (n, k), draw).T
        a = values(f.a, self.data, (m, k), draw) if not self.is_mixed else None
        if self.data == "cancel" and a is not None:  # pairs of products cancel, far from each other
            half = k // 2
            order = draw.permutation(half)
            a[:, half : 2 * half], b[half : 2 * half] = a[:, order], -b[order]
        self.a = None if a is None else tensor_of(f.a, a, self.device)
        self.b = tensor_of(f.b, b, self.device)
        if self.data == "special":
            for tensor, dtype in ((self.a, f.a), (self.b, f.b)):
                if tensor is not None:
                    strew(tensor, dtype, 0.2 / k, draw)
        whole = f.d == "s32"
        self.alpha = float(draw.choice((1, -3) if whole else (1.0, -0.3, 2.0**-6)))
        if f.c is not None:
            self.beta = float(draw.choice((1, 2) if whole else (1.0, -0.7)))
            self.c = tensor_of(f.c, _addends(f.c, (m, n), draw), self.device)
        if self.is_blocked:
            problem = GemmProblem(m, n, k, a=f.a, a_scale=f.a_scale, b_scale=f.b_scale, d=f.d)
            generator = torch.Generator().manual_seed(self.seed)
            for name in "ab":
                self.scales[f"{name}_scale"] = random_scales(scale_shape(problem, name), generator, "cpu").to(
                    self.device
                )

    @property
    def is_mixed(self) -> bool:
        return upconverts_a(self.formats.a, self.formats.b)

    @property
    def is_blocked(self) -> bool:
        return self.formats.a_scale != "none" and not self.is_mixed

    def placed(self, name: str, major: str, align: int) -> Any:
        """An operand in memory of a major and an alignment, or memory for ``d``; around it is poison."""
        if (key := (name, major, align)) not in self._placed:
            dtype = getattr(self.formats, name)
            logical = self.empty() if name == "d" else getattr(self, name)
            contiguous = major in ("any", "mn" if name == "b" else "k" if name == "a" else "n")
            step = 3 if major == "any" else 1
            place = guarded(
                *(logical.shape[0], logical.shape[1], dtype),
                columns_contiguous=contiguous,
                offset=1,
                align=align,
                step=step,
                device=self.device,
            )
            bits(place.tensor).copy_(bits(logical))
            self._placed[key] = place.tensor
        return self._placed[key]

    def empty(self) -> Any:
        m, n, _ = self.extents
        return torch.zeros((m, n), dtype=torch_dtype(self.formats.d), device=self.device)

    def weights(self, config: GemmConfig) -> Any:
        """Narrow weights for a mixed-input kernel; the same ones for all."""
        if "weights" not in self._placed:
            m, _, k = self.extents
            self._placed["weights"] = make_weights(config, m, k, exact=False, seed=self.seed)
        return self._placed["weights"]


def _addends(dtype: str, shape: tuple[int, int], draw: np.random.Generator) -> Any:
    """Numbers of C, signed zeros among them."""
    x = draw.standard_normal(shape) * 8
    x[::5] = draw.choice((0.0, -0.0), x[::5].shape)
    return np.rint(x) if DTYPES[dtype].is_integer else x


# Launches


def launch(member: Member, case: Case, draw: random.Random, registry: Registry) -> Any:
    """D of one launch, (M, N) with any strides."""
    config, f = member.config, case.formats
    options: dict[str, Any] = {
        "accumulator": config.accumulator,
        "tf32": f.a == "tf32",
        "fast_accumulation": config.promote == 0,
        "registry": registry,
        "kernel": config,
        **case.scales,
        **case.arguments,
    }
    if config.epilogue != LINEAR:
        options["epilogue"] = config.epilogue
    if config.epilogue == LINEAR or "alpha" in config.epilogue:
        options["alpha"] = case.alpha
    if f.c is not None:
        options["beta"] = case.beta
    run = _BATCHED.get(config.scheduler.batching, _strided)
    return run(member, case, draw, options)


def _aligned(config: GemmConfig, name: str, draw: random.Random) -> int:
    """An alignment that a kernel takes an operand with: the best, its own, or the least."""
    return draw.choice((16, getattr(config, name).align, least_aligns(config)[name]))


def _strided(member: Member, case: Case, draw: random.Random, options: dict[str, Any]) -> Any:
    """One matrix, of which some kernels run the transpose."""
    config, f = member.config, case.formats
    can_swap = f.a == f.b and f.a_scale == f.b_scale == "none" and config.epilogue == LINEAR
    swaps = can_swap and draw.random() < 0.5
    left, right = ("b", "a") if swaps else ("a", "b")
    d = case.placed("d", _FLIPPED[config.d.major] if swaps else config.d.major, _aligned(config, "d", draw))
    bits(d).fill_(0x5A)
    if config.c:
        major = _FLIPPED[config.c.major] if swaps else config.c.major
        options["c"] = case.placed("c", major, _aligned(config, "c", draw))
    b = case.placed("b", getattr(config, right).major, _aligned(config, right, draw))
    if case.is_mixed:
        weights = case.weights(config)
        a, options = weights.packed.tensor, options | weights.arguments("a")
    else:
        a = case.placed("a", getattr(config, left).major, _aligned(config, left, draw))
    gemmill.matmul(a, b, out=d, slices=member.slices, **options)
    return d


def _copies(tensor: Any, count: int, contiguous: bool) -> Any:
    """Copies of a matrix in one batch, contiguous along columns or along rows, each row at a multiple of 16 bytes."""
    rows, columns = tensor.shape if contiguous else tensor.shape[::-1]
    unit = 16 // tensor.element_size()
    words = torch.zeros((count, rows, -(-columns // unit) * unit), dtype=bits(tensor).dtype, device=tensor.device)
    view = words[:, :, :columns] if contiguous else words[:, :, :columns].mT
    view.copy_(bits(tensor))
    return view.view(tensor.dtype)


def _sizes(total: int, count: int, draw: random.Random) -> list[int]:
    """Sizes of groups, of which some may be empty."""
    ends = [0, *sorted(draw.randint(0, total) for _ in range(count - 1)), total]
    return [end - begin for begin, end in itertools.pairwise(ends)]


def _grouped(member: Member, case: Case, draw: random.Random, options: dict[str, Any]) -> Any:
    """The rows of A in groups, all of which have the same B; in another order where the kernel gathers them."""
    sizes = _sizes(case.extents[0], 4, draw)
    a, d = _copies(case.a, 1, True)[0], _copies(case.empty(), 1, True)[0]
    b = _copies(case.b, 4, member.config.b.major == "mn")
    if "b_scale" in options:
        options["b_scale"] = options["b_scale"].repeat(4, 1, 1)
    offsets = torch.tensor([*itertools.accumulate(sizes)], dtype=torch.int32, device=case.device)
    if member.config.scheduler.rows == "gathered":
        order = draw.sample(range(len(a)), len(a))
        places = torch.tensor(order, device=case.device)
        bits(a)[places] = bits(a).clone()
        options["rows"] = places
        if (scale := options.get("a_scale")) is not None:
            options["a_scale"] = torch.empty_like(scale)
            options["a_scale"][places] = scale
    gemmill.grouped_matmul(a, b, offsets, out=d, **options)
    return d


def _in_slots(tensor: Any, sizes: Sequence[int], capacity: int) -> Any:
    """The rows of a matrix at the beginning of slots of a capacity, (slots, capacity, columns)."""
    unit = 16 // tensor.element_size()
    columns = tensor.shape[1]
    shape = len(sizes), capacity, -(-columns // unit) * unit
    words = torch.zeros(shape, dtype=bits(tensor).dtype, device=tensor.device)[:, :, :columns]
    for slot, rows in zip(words, bits(tensor).split(list(sizes)), strict=True):
        slot[: len(rows)] = rows
    return words.view(tensor.dtype)


def _masked(member: Member, case: Case, draw: random.Random, options: dict[str, Any]) -> Any:
    """The rows of A in slots, all of which have the same B."""
    sizes = _sizes(case.extents[0], 3, draw)
    capacity = max(sizes) + draw.randint(1, 40)
    a, d = (_in_slots(tensor, sizes, capacity) for tensor in (case.a, case.empty()))
    b = _copies(case.b, 3, member.config.b.major == "mn")
    if "a_scale" in options:
        options["a_scale"] = _in_slots(options["a_scale"], sizes, capacity)
        options["b_scale"] = options["b_scale"].repeat(3, 1, 1)
    counts = torch.tensor(sizes, dtype=torch.int32, device=case.device)
    gemmill.grouped_matmul(a, b, counts=counts, out=d, **options)
    return torch.cat([bits(slot)[:size] for slot, size in zip(d, sizes, strict=True)]).view(d.dtype)


def _along_k(member: Member, case: Case, draw: random.Random, options: dict[str, Any]) -> Any:
    """K of the problem between two other groups along K; its columns of A in another order where the kernel gathers
    them."""
    k = case.extents[2]
    before, after = draw.randint(0, k), draw.randint(0, k)
    order = torch.arange(-before, k + after, device=case.device) % k
    a = _copies(bits(case.a)[:, order].view(case.a.dtype), 1, False)[0]
    b = _copies(bits(case.b)[order].view(case.b.dtype), 1, True)[0]
    d = _copies(case.empty(), 3, member.config.d.major == "n")
    if member.config.c is not None:
        options["c"] = _copies(case.c, 3, member.config.c.major == "n")
    if member.config.scheduler.rows == "gathered":
        places = torch.tensor(draw.sample(range(a.shape[1]), a.shape[1]), device=case.device)
        bits(a)[:, places] = bits(a).clone()
        options["rows"] = places
    offsets = torch.tensor([before, before + k, before + k + after], dtype=torch.int32, device=case.device)
    gemmill.grouped_matmul(a, b, offsets, out=d, **options)
    return d[1]


def _array(member: Member, case: Case, draw: random.Random, options: dict[str, Any]) -> Any:
    """One of two matrices that lie anywhere."""
    a, b, d = (
        _copies(case.a, 2, True),
        _copies(case.b, 2, member.config.b.major == "mn"),
        _copies(case.empty(), 2, True),
    )
    matrices = [a, b, d]
    if case.c is not None:
        matrices.append(_copies(case.c, 2, True))
        options["c"] = matrices[-1][0]
    rows = [[matrix[i].data_ptr() for i in (1, 0)] for matrix in matrices]
    addresses = torch.tensor(rows, dtype=torch.int64, device=case.device)
    gemmill.array_matmul(a[0], b[0], d[0], addresses, **options)
    return d[draw.randint(0, 1)]


_BATCHED: Mapping[str, Callable[[Member, Case, random.Random, dict[str, Any]], Any]] = MappingProxyType(
    {"grouped": _grouped, "masked": _masked, "kgrouped": _along_k, "array": _array}
)


# The survey


@dataclass
class Row:
    """What the launches on one case gave."""

    formats: Formats
    extents: tuple[int, int, int]
    data: str
    launches: int = 0
    digests: dict[str, str] = field(default_factory=dict)
    """By arithmetic: SHA-256 of D, in its beginning."""
    members: Counter[str] = field(default_factory=Counter)
    """By arithmetic: launches."""
    differing: list[dict[str, Any]] = field(default_factory=list)
    """Launches whose D has other bits than the first one's of the same arithmetic."""
    failed: list[str] = field(default_factory=list)

    def add(self, name: str, member: Member, d: Any, first: dict[str, tuple[str, Any]]) -> None:
        """Compare a D with the first one that must have the same bits, that of ``name`` in ``first``."""
        words = bits(d)
        self.launches += 1
        self.members[name] += 1
        if name not in first:
            words = words.contiguous().clone()
            first[name] = str(member), words
            self.digests[name] = hashlib.sha256(words.cpu().numpy().tobytes()).hexdigest()[:16]
        elif not torch.equal(words, first[name][1]):
            self.differing.append(_difference(member, d, *first[name]))


def _difference(member: Member, d: Any, other: str, wanted: Any) -> dict[str, Any]:
    """The first element in which a D differs, and how many do."""
    words = bits(d)
    places = (words != wanted).nonzero()
    row, column = places[0].tolist()
    both_nan = d.isnan() & wanted.view(d.dtype).isnan() if d.dtype.is_floating_point else torch.zeros_like(words)
    return {
        "kernel": str(member),
        "other": other,
        "arithmetic": member.arithmetic,
        "elements": len(places),
        "of": words.numel(),
        "only_nan": bool(both_nan[tuple(places.T)].all()),
        "place": [row, column],
        "bits": [hex(int(x[row, column]) & (1 << 8 * words.element_size()) - 1) for x in (words, wanted)],
        "values": [float(x.view(d.dtype)[row, column]) for x in (words, wanted)],
        "strides": list(d.stride()),
    }


def extents(count: int, draw: random.Random, least_k: int = 1) -> list[tuple[int, int, int]]:
    """Extents of every size up to several tiles, whose K ends anywhere in a tile; the last one is deep. Matrices of one
    row or column, which have any major, are left out."""
    found = []
    for index in range(count):
        is_deep = index == count - 1
        m, n = (int(2 ** draw.uniform(1, 6 if is_deep else 10)) for _ in range(2))
        k = max(least_k, int(2 ** (draw.uniform(12, 13.5) if is_deep else draw.uniform(3, 11))))
        aligned = draw.random() < 0.5
        found.append((m, n, -(-k // 16) * 16) if aligned else (m, n, k))
    return found


def survey(
    launches: Sequence[Member], problems: Sequence[tuple[int, int, int]], seed: int, registry: Registry, times: int = 1
) -> Iterator[Row]:
    """Launch all members on all problems with every kind of data, each ``times`` times in other layouts."""
    draw = random.Random(seed)
    by_formats: dict[Formats, list[Member]] = defaultdict(list)
    for member in launches:
        by_formats[Formats.of(member.config)].append(member)
    for formats, own in by_formats.items():
        integers = DTYPES[formats.a].is_integer and DTYPES[formats.b].is_integer
        for at, ((m, n, k), data) in enumerate(itertools.product(problems, INTEGER_DATA if integers else DATA)):
            shape = (m, n, -(-k // MX_BLOCK) * MX_BLOCK if formats.a == "e2m1" else k)
            case, row = Case(formats, shape, data, seed + at), Row(formats, shape, data)
            first: dict[str, tuple[str, Any]] = {}
            for member in own:
                for _ in range(times):
                    try:
                        row.add(member.arithmetic, member, launch(member, case, draw, registry), first)
                    except GemmillError as error:
                        row.failed.append(f"{member}: {type(error).__name__}: {error}"[:400])
            yield row


# Kernels


def types_of(config: GemmConfig) -> str:
    """The set of kernels that a kernel belongs to: its type of operands, or what is special about it."""
    if upconverts_a(config.a.dtype, config.b.dtype):
        return "narrow"
    if config.a.scale != "none":
        return "scaled"
    return config.a.dtype if config.a.dtype == config.b.dtype else "several"


LEAST_K: Mapping[str, int] = MappingProxyType({"narrow": 129})
"""Least K from which the number of groups says how long they are."""
TYPES = ("bf16", "f16", "tf32", "e4m3", "e5m2", "scaled", "narrow", "several", "s8", "u8", "f32", "f64")


def kernels(types: str, registry: Registry) -> list[GemmConfig]:
    """The shipped linear kernels for this GPU of one set whose order of sums depends on K alone, by name."""
    configs = registry.selector.configs
    linear = (configs[name] for name in sorted(configs) if configs[name].epilogue == LINEAR)
    return [config for config in linear if types_of(config) == types and arithmetic_of(config).is_fixed]


def sample(configs: Sequence[GemmConfig], count: int, draw: random.Random) -> list[GemmConfig]:
    """At most ``count`` kernels: two of each kind, those of the most common formats first, then any others."""
    kinds: dict[Any, list[GemmConfig]] = defaultdict(list)
    for config in draw.sample(configs, len(configs)):
        arithmetic = Member(config, slices_of(config)[0]).arithmetic
        scheduler = config.scheduler
        kinds[Formats.of(config), arithmetic, config.family, scheduler.decomposition, scheduler.batching].append(config)
    common = Counter(map(Formats.of, configs))
    ordered = sorted(kinds, key=lambda kind: (common[kind[0]], len(kinds[kind])), reverse=True)
    pairs = (config for kind in ordered for config in kinds[kind][:2])
    others = (config for kind in ordered for config in kinds[kind][2:])
    return [*itertools.islice(itertools.chain(pairs, others), count)]


def main() -> None:
    """Run the survey."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--types", nargs="+", choices=TYPES, default=["bf16", "f16", "tf32", "e4m3", "e5m2"], metavar="TYPE"
    )
    parser.add_argument("--kernels", type=int, default=300, help="most kernels of each type; 0: all (%(default)s)")
    parser.add_argument("--problems", type=int, default=6, help="problems, each with every kind of data (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="random seed (%(default)s)")
    parser.add_argument("--out", type=Path, default=Path("arithmetic.jsonl"), help="records (%(default)s)")
    arguments = parser.parse_args()
    registry, wrong = Registry(), 0
    with arguments.out.open("w") as out:
        for types in arguments.types:
            draw = random.Random(f"{types} {arguments.seed}")
            found = kernels(types, registry)
            chosen = sample(found, arguments.kernels or len(found), draw)
            registry.warm(chosen)
            rows = []
            for row in survey(
                members(chosen), extents(arguments.problems, draw, LEAST_K.get(types, 1)), arguments.seed, registry
            ):
                rows.append(row)
                out.write(json.dumps(vars(row) | {"formats": row.formats._asdict()}) + "\n")
            wrong += report(types, len(chosen), len(found), rows)
    sys.exit(bool(wrong))


def report(types: str, chosen: int, available: int, rows: Sequence[Row]) -> int:
    """Print the figures of one set of kernels; returns how many launches differ or failed."""
    differing = [entry for row in rows for entry in row.differing]
    failed = [text for row in rows for text in row.failed]
    launches = sum(row.launches for row in rows)
    classes: Counter[str] = sum((row.members for row in rows), Counter())
    print(f"{types}: {chosen} of {available} kernels, {len(rows)} cases, {launches} launches,", end=" ")
    print(
        f"{len(differing)} differ ({sum(entry['only_nan'] for entry in differing)} in NaN alone), {len(failed)} failed"
    )
    print("  launches:", ", ".join(f"{name} {count}" for name, count in classes.most_common()))
    shown: Counter[tuple[str, str, bool]] = Counter()
    for row in rows:
        for entry in row.differing:
            key = entry["arithmetic"], row.data, entry["only_nan"]
            shown[key] += 1
            if shown[key] <= 2:
                print(f"  {row.data}, {row.formats}, {row.extents}, alpha and beta as drawn: {json.dumps(entry)}")
    print(*(f"  {text}" for text in sorted(set(failed))[:8]), sep="\n", flush=True)
    return len(differing) + len(failed)


if __name__ == "__main__":
    main()
