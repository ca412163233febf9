"""Every pairing of types that WGMMA multiplies, into every D that the rules allow: exact, random, odd and one-sided."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from tests.gpu.harness import check, kernel, make_case, run, torch

from gemmill.emitters.emit import emit
from gemmill.library.config.fields import Value
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.config.scales import BLOCK_SCALES
from gemmill.library.dtypes import DTYPES, FP8, DTypeName
from gemmill.library.families.shared_rules import D_DTYPES
from gemmill.library.families.wgmma.operand_rules import ACCUMULATORS
from gemmill.library.legality.rules import legal, verdicts
from gemmill.runtime.compile.compiler import Compiler
from gemmill.runtime.registry import Registry

pytestmark = pytest.mark.gpu

SHAPES = (
    ("128x128", "cooperative", "1x1"),
    ("64x96", "pingpong", "1x1"),
    ("256x80", "cooperative", "2x1"),
    ("128x176", "pingpong", "1x2"),
    ("192x112", "cooperative", "1x1"),
    ("128x256", "cooperative", "2x1"),
    ("64x256", "pingpong", "2x1"),
    ("128x48", "pingpong", "1x1"),
)
"""Tile, schedule and cluster, taken in turn."""
OUTPUTS: tuple[dict[str, Value], ...] = (
    {"d__major": "m"},
    {"c__dtype": "same"},
    {"c__dtype": "same", "c__major": "m", "d__major": "m"},
    {"c__dtype": "f32", "d__major": "m"},
    {"c__dtype": "f32", "c__major": "m"},
)
"""C and the major of D, taken in turn beside the plain epilogue."""
DEPTHS = (128, 64, 256, 96)
"""Bytes of a row of a stage, taken in turn."""


def pairings() -> Iterator[dict[str, Value]]:
    """Every pairing of one width, accumulator and promotion, into every D; pairings of lesser use into one."""
    for (a, b), accumulators in ACCUMULATORS.items():
        if DTYPES[a].bits != DTYPES[b].bits:
            continue  # test_mixed.py has those
        for accumulator, promote in itertools.product(accumulators, (0, 4)):
            outputs = D_DTYPES[accumulator]
            for d in outputs if a == b and a not in ("e5m2", "u8") else outputs[:1]:
                yield {"ab": a, "b__dtype": b, "accumulator": accumulator, "promote": promote, "d__dtype": d}


def family() -> Iterator[GemmConfig]:
    """All pairings with the plain epilogue and with another, the shapes in turn: of them the next that is legal."""
    shapes, outputs, depths = itertools.cycle(SHAPES), itertools.cycle(OUTPUTS), itertools.cycle(DEPTHS)
    for pairing in pairings():
        for output in ({}, next(outputs)):
            fields: dict[str, Value] = {**pairing, **output}
            if "c__dtype" in output and (output["c__dtype"] == "same" or pairing["d__dtype"] == "s32"):
                fields["c__dtype"] = pairing["d__dtype"]
            depth = 128 if pairing["promote"] else next(depths) // DTYPES[str(pairing["ab"])].bytes
            for tile, schedule, cluster in itertools.islice(shapes, len(SHAPES)):
                config = kernel(f"{tile}x{depth}", schedule, cluster, **fields)  # type: ignore[arg-type]
                if legal(config):
                    yield config
                    break


def scaled(
    tile: str, schedule: str, cluster: str, a: str, b: str, scales_of: DTypeName = "f32", **fields: Value
) -> GemmConfig:
    """A kernel of block-scaled operands."""
    a_scale, b_scale = BLOCK_SCALES[scales_of]
    scales: dict[str, Value] = {"promote": 4, "a__scale": a_scale, "b__scale": b_scale}
    return kernel(f"{tile}x128", schedule, cluster, ab=a, b__dtype=b, **scales, **fields)


SCALED = (
    scaled("128x128", "cooperative", "1x1", "e4m3", "e4m3"),
    scaled("128x128", "cooperative", "2x1", "e4m3", "e4m3", d__dtype="f32"),
    scaled("64x96", "pingpong", "1x1", "e4m3", "e5m2"),
    scaled("128x64", "pingpong", "1x2", "e5m2", "e4m3", d__major="m"),
    scaled("128x112", "cooperative", "1x1", "e5m2", "e5m2", c__dtype="f32", d__dtype="f32"),
    scaled("128x192", "cooperative", "2x1", "e4m3", "e4m3"),
    scaled("192x128", "cooperative", "1x2", "e4m3", "e4m3"),
    scaled("256x128", "cooperative", "4x1", "e4m3", "e4m3"),
    scaled("64x96", "pingpong", "2x1", "e4m3", "e5m2", scales_of="ue8m0"),
    scaled("192x128", "cooperative", "1x2", "e5m2", "e4m3", scales_of="ue8m0"),
)
"""Tiles that meet one block of B's scales, and two; WGMMAs of half a tile and a whole one; clusters."""

CONFIGS = (*family(), *SCALED)
each_config = pytest.mark.parametrize("config", CONFIGS, ids=kernel_name)


@pytest.fixture(scope="module", autouse=True)
def compiled(registry: Registry) -> None:
    """Compiles all kernels in parallel."""
    registry.warm(CONFIGS)


def scalars(config: GemmConfig) -> dict[str, float]:
    """Alpha and beta that multiply exactly; whole numbers where the epilogue is of integers."""
    if config.accumulator == "s32":
        return {"beta": -3.0} if config.c else {}
    return {"alpha": -0.5, "beta": 2.0} if config.c else {"alpha": -0.5}


@each_config
def test_odd_sizes_many_tiles_and_batches_are_exact(config: GemmConfig, registry: Registry) -> None:
    assert not verdicts(config)
    tile, cluster = config.tile, config.cluster
    sizes = (
        (tile.m + 1, tile.n + 3, tile.k * config.stages + 1, None),
        (tile.m * cluster.m - 1, tile.n * cluster.n * 2 + 5, tile.k + 17, 3),
        (13 * tile.m * cluster.m + 5, 12 * tile.n * cluster.n - 3, 1, None),  # more tiles than the GPU holds
        (3, 75, 0, None),
    )
    for index, (m, n, k, batch) in enumerate(sizes):
        options = {"batch": batch, "seed": index, "pad": index % 3, "offset": 2 * index}
        check(config, m, n, k, registry, **options, **scalars(config))


@each_config
def test_random_operands_stay_within_each_elements_bound(config: GemmConfig, registry: Registry) -> None:
    check(config, 777, 520, 4096 if config.cluster.m * config.cluster.n > 1 else 200, registry, data="random")


@pytest.mark.parametrize("config", SCALED, ids=kernel_name)
def test_chains_of_multiply_adds_change_no_bit(config: GemmConfig, registry: Registry) -> None:
    as_ptxas_has_it = Registry(manifests=())
    as_ptxas_has_it.add(Compiler().compile(replace(emit(config), chain=0), config))
    case = make_case(config, 777, 520, 4096, data="random")
    run(config, case, registry)
    chained = case.d.tensor.clone()
    case.d.tensor.fill_(float("nan"))
    run(config, case, as_ptxas_has_it)
    assert torch.equal(case.d.tensor, chained)


@pytest.mark.parametrize("d", ["s8", "u8", "e4m3", "e5m2"])
def test_eight_bit_outputs_saturate(d: str, registry: Registry) -> None:
    integer = DTYPES[d].is_integer
    config = kernel("128x128x128", ab="s8" if integer else "e4m3", d__dtype=d)
    case = make_case(config, 300, 200, 512, alpha=1.0 if integer else 1024.0)
    run(config, case, registry)
    case.check()
    values = case.d.tensor.double()
    info = (torch.iinfo if integer else torch.finfo)(case.d.tensor.dtype)
    assert (values.min(), values.max()) == (info.min, info.max)


def one_sided(promote: int, k: int, registry: Registry) -> Any:
    """Relative errors of sums of products that are all positive."""
    config = kernel("128x128x128", ab="e4m3", promote=promote, d__dtype="f32")
    case = make_case(config, 256, 256, k, data="random")
    for operand in (case.a, case.b):
        operand.tensor.copy_(operand.tensor.float().abs())
    run(config, case, registry)
    wanted = case.a.tensor.double() @ case.b.tensor.double()
    return (case.d.tensor.double() - wanted) / wanted


def test_promotion_keeps_long_one_sided_fp8_sums(registry: Registry) -> None:
    fast, promoted = (one_sided(promote, 65536, registry) for promote in (0, 4))
    # A product that is cut off loses less than 2^-13 of the sum so far: of all of K, or of the 128 products that the
    # tensor cores sum before they are promoted.
    assert float(promoted.abs().max()) < (128 + 8) * 2.0**-13
    assert float(fast.max()) < -0.05, "fast accumulation is expected to lose what is small beside the sum"


@pytest.mark.parametrize(("a", "b"), list(itertools.product(FP8, FP8)))
def test_fast_accumulation_keeps_what_thirteen_bits_hold(a: str, b: str, registry: Registry) -> None:
    config = kernel("128x128x128", ab=a, b__dtype=b, d__dtype="f32")
    check(config, 300, 200, 2048, registry)
