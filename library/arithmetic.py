"""The arithmetic of a launch: the order in which the products of one element of D are summed, and in which precision.

Launches of the same arithmetic give the same bits for the same operands, types and epilogue, whatever their tile,
cluster, schedule, majors and alignments. The tensor core adds the products of one step to the sum at once, aligned to
the largest of them and truncated (arXiv 2511.10909, 2512.07004), so the products of a step have no order.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from types import MappingProxyType

from gemmill.library.config.edited import is_edited
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import is_former, parse_name
from gemmill.library.decompositions.decomposition import decomposition_of, reduction_groups
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.dtypes import DTYPES, FP8, DTypeName
from gemmill.library.errors import ConfigError
from gemmill.library.families.families import plan_of
from gemmill.library.families.gemv import GemvPlan
from gemmill.library.families.kernel_plan import KernelPlan
from gemmill.library.families.mma import MmaPlan
from gemmill.library.families.simt import SimtPlan
from gemmill.library.families.wgmma.wgmma_plan import WgmmaPlan

STEPS: Mapping[str, str] = MappingProxyType(
    {
        "k4": "the tensor core adds 4 products at a time to an f64 sum",
        "k8": "the tensor core adds 8 products at a time to an f32 sum",
        "k16": "the tensor core adds 16 products at a time to an f32 sum",
        "k32": "the tensor core adds 32 products at a time to a sum of which it keeps about 13 bits of fraction",
        "k16f16": "the tensor core adds 16 products at a time to an f16 sum",
        "k32f16": "the tensor core adds 32 products at a time to an f16 sum",
        "k16x2": "of 32 products, the tensor core adds the first two of every four to an f32 sum, then the others",
        "fma": "one fused multiply-add for each product",
        "exact": "sums of integers, which are exact in every order",
    }
)
"""What one step of each kind of sum does."""
UNITED_SLICES = 8
"""Most slices whose units are the same for several tile K. More are balanced in K tiles, or some would have no K."""
_MEASURED = ("sm90", "sm90a")
"""Targets whose steps were compared. Tensor cores of others may add a step's products in several parts."""
_PORTABLE = ("fma", "exact")
"""Steps that are the same on every target."""
_NAME = re.compile(
    r"(?P<step>k\d+(?:x2|f16)?|fma|exact)(?:p(?P<promote>\d{1,4}))?(?:w(?P<warps>\d{1,4}))?(?:v(?P<vector>\w+?))?"
    r"(?:/(?P<slices>\d{1,4}|S)(?P<tree>t?)|(?P<stream>/stream))?(?:@(?P<unit>\d{1,4}))?(?:\.(?P<target>sm\w+))?"
)


@dataclass(frozen=True, slots=True)
class Arithmetic:
    """The order of the sums of one launch. ``str`` gives its name, such as ``k16`` or ``k16/8``."""

    step: str
    """One of :data:`STEPS`."""
    promote: int = 0
    """Steps after which sums move to f32 registers (two-level accumulation); 0: never."""
    warps: int = 1
    """Shares of each :attr:`unit` of K that different warps sum, and that are added at the end of K."""
    vector: str = ""
    """How the threads of a gemv kernel share K: the elements of a run, and the runs of a thread."""
    slices: int = 1
    """Slices of K, whose f32 sums are added; the first ones are one :attr:`slice_unit` longer where they cannot be
    equal. 0, in names ``S``: the launch sets their number."""
    tree: bool = False
    """Whether the sums of slices are added as a binary tree instead of one after another, in the groups of
    :func:`~gemmill.library.decompositions.decomposition.reduction_groups`."""
    stream: bool = False
    """Whether the slices depend on M, N and the GPU (stream-K)."""
    unit: int = 0
    """Elements along K that warps share, or in which slices are balanced; 0 where warps share nothing and slices are
    balanced in units of 2,048 bits."""
    target: str = ""
    """The target, where the bits of a step are not known to be those of sm_90."""

    def __str__(self) -> str:
        parts = [self.step]
        parts += [f"p{self.promote}"] if self.promote else []
        parts += [f"w{self.warps}"] if self.warps > 1 or self.vector else []
        parts += [f"v{self.vector}"] if self.vector else []
        parts += ["/stream"] if self.stream else []
        parts += [f"/{self.slices or 'S'}{'t' * self.tree}"] if self.slices != 1 else []
        parts += [f"@{self.unit}"] if self.unit else []
        parts += [f".{self.target}"] if self.target else []
        return "".join(parts)

    @property
    def is_fixed(self) -> bool:
        """Whether the order of a sum depends on K alone."""
        return not self.stream and self.slices > 0

    @property
    def products(self) -> int:
        """Products of one step; 0 for kinds of sums that have no such steps."""
        step = re.match(r"k(\d+)(x2)?", self.step)
        return int(step[1]) * (2 if step[2] else 1) if step else 0

    @property
    def slice_unit(self) -> int:
        """Elements along K in which slices are balanced; 0 for sums without steps of several products."""
        return self.unit or 8 * self.products

    def in_words(self) -> str:
        """The order of the sums in one sentence without a full stop."""
        words = STEPS[self.step]
        if self.promote:
            words += f"; every {self.promote} steps it moves to f32 registers"
        if self.warps > 1 or self.vector:
            words += f"; {self.warps} warps share each {self.unit} of K"
        if self.stream:
            words += "; CTAs share K as M, N and the GPU determine (stream-K)"
        elif self.slices != 1:
            order = "as a binary tree" if self.tree else "one after another"
            if (groups := reduction_groups(self.slices)) > 1 and not self.tree:
                order += f", in {groups} groups, whose sums are added likewise"
            units = f" of whole {self.slice_unit}s" if self.slices else ""
            words += f"; K is in {self.slices or 'S'} slices{units}, whose f32 sums are added {order}"
        return words + (f" (on {self.target})" if self.target else "")


def parse_arithmetic(name: str) -> Arithmetic:
    """Return the arithmetic of a name, as ``str`` of :class:`Arithmetic` returns it.

    Raises:
        ConfigError: the text is not such a name.
    """
    match = _NAME.fullmatch(name)
    if match and match["step"] in STEPS:
        found = Arithmetic(
            step=match["step"],
            promote=int(match["promote"] or 0),
            warps=int(match["warps"] or 1),
            vector=match["vector"] or "",
            slices=0 if match["slices"] == "S" else int(match["slices"] or 1),
            tree=bool(match["tree"]),
            stream=bool(match["stream"]),
            unit=int(match["unit"] or 0),
            target=match["target"] or "",
        )
        if str(found) == name:
            return found
    raise ConfigError(
        f"{name:.80} is not the name of an arithmetic; examples: k16, k8, k32, k32p4, fma, exact, k16/8 (8 slices of "
        "K). gemmill explain names that of a kernel"
    )


@lru_cache(1 << 16)
def arithmetic_named(kernel: SlicedKernel) -> str | None:
    """Return the name of the arithmetic of a kernel in a record or pack.

    None for names that do not determine it: those of baselines, edited kernels and kernels of other versions.
    """
    if is_edited(kernel.name) or is_former(kernel.name):
        return None
    try:
        return str(arithmetic_of(parse_name(kernel.name), kernel.slices))
    except ConfigError:
        return None


def arithmetic_of(config: GemmConfig, slices: int = 1) -> Arithmetic:
    """Return the arithmetic of a kernel with a number of slices of K, which counts only where the launch sets it.

    ``slices`` 0 gives the arithmetic of the kernel alone, whose number of slices may be open.
    """
    whole, decomposition = _in_one_slice(config), decomposition_of(config)
    if whole.step == "exact" or decomposition.is_data_parallel:
        return whole
    if decomposition.is_shared_in_clusters:
        slices = config.scheduler.splits
    if slices == 1 and not decomposition.has_shares:
        return whole
    if decomposition.has_shares:
        return replace(whole, stream=True, unit=config.tile.k)
    sliced = replace(whole, slices=slices, tree=decomposition.adds_in_tree)
    unit = config.tile.k * tiles_of_unit(config, slices)
    return sliced if unit == whole.slice_unit else replace(sliced, unit=unit)


def tiles_of_unit(config: GemmConfig, slices: int = 0) -> int:
    """Return the K tiles of a unit, in which slices of a kernel are balanced.

    It is what warps share, if they share any of K. Otherwise, for up to :data:`UNITED_SLICES` slices it is 2,048 bits
    of K for every tile K that divides them, so that kernels of several tile K have the same slices; else one K tile.
    """
    whole = _in_one_slice(config)
    tiles, rest = divmod(whole.slice_unit, config.tile.k)
    united = slices <= UNITED_SLICES or whole.unit > 0
    return tiles if tiles and not rest and united else 1


def target_of(step: str, arch: str) -> str:
    """Return the :attr:`~Arithmetic.target` of the steps of a kind on a target; empty where their bits are those of
    sm_90."""
    return "" if arch in _MEASURED or step in _PORTABLE else arch


@lru_cache(4096)
def _in_one_slice(config: GemmConfig) -> Arithmetic:
    """Return the arithmetic with which one CTA of a kernel sums a slice of K."""
    plan = plan_of(config)
    step = _step(config, plan)
    target = target_of(step, config.arch)
    if step in _PORTABLE:
        return Arithmetic(step)
    if isinstance(plan, GemvPlan):
        vector = f"{plan.vector}x{config.stages // 2}" if config.b.major == "k" else f"{config.stages}n{plan.vector}"
        warps = config.tile.k // plan.warp_k
        return Arithmetic(step, warps=warps, vector=vector, unit=config.tile.k, target=target)
    warps, unit = 1, config.tile.k
    if isinstance(plan, MmaPlan):
        warps = plan.warps[2]
    elif isinstance(plan, WgmmaPlan):
        warps, unit = plan.slices, unit * plan.slices  # each takes one of as many K tiles
    return Arithmetic(step, config.promote, warps, unit=unit if warps > 1 else 0, target=target)


def _step(config: GemmConfig, plan: KernelPlan) -> str:
    """Return the kind of step with which a kernel sums products."""
    step = tensor_core_step(config.a.dtype, config.b.dtype, config.accumulator)
    if step == "exact":
        return step
    if isinstance(plan, SimtPlan):
        return "fma"
    converts = not isinstance(plan, WgmmaPlan) and config.target.capability == (9, 0)
    is_fp8 = {config.a.dtype, config.b.dtype} <= {*FP8}
    return "k16x2" if is_fp8 and converts else step


def tensor_core_step(a: DTypeName, b: DTypeName, accumulator: DTypeName) -> str:
    """Return the kind of step in which tensor cores sum products of two types, after they upconverted the narrower
    one."""
    if accumulator == "s32":
        return "exact"
    return f"k{256 // max(DTYPES[a].loaded.bits, DTYPES[b].loaded.bits)}{'f16' if accumulator == 'f16' else ''}"
