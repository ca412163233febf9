"""Kernels of peak rates multiply what they say; ``gemmill roofline`` measures them, in the right units."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_cli import gemmill, ok
from tests.gpu.harness import fill, torch
from tests.profiler.analysis.test_report import SCALED

from gemmill.emitters.peak_rate import MEASURED_DTYPES
from gemmill.library.dtypes import DTypeName
from gemmill.library.records import read_records
from gemmill.profiler.analysis.figures import figures
from gemmill.profiler.measure.peak_rates import PeakRateLaunch
from gemmill.runtime import driver

pytestmark = pytest.mark.gpu


def sums_of_threads(tile: Any) -> Any:
    """What each of 256 threads sums of a tile (128, 256): two warpgroups with 64 rows each.

    A thread has two rows of its warp's 16, eight apart, and of each eight columns two (PTX ISA, "wgmma.mma_async",
    accumulator fragments).
    """
    split = tile.reshape(2, 4, 2, 8, 32, 4, 2)  # warpgroup, warp, half, row, eight columns, pair, column
    return split.sum(dim=(2, 4, 6)).reshape(256)


@pytest.mark.parametrize("dtype", MEASURED_DTYPES)
def test_every_block_sums_the_products_of_its_stages(dtype: DTypeName) -> None:
    tiles, steps = 2, 6
    launch = PeakRateLaunch(dtype, tiles, steps, partial(fill, data="integers", seed=1, dtype=dtype))
    # A and B hold the same integers, apart from their extents: give B others.
    fill(launch.b, "integers", 2, dtype)
    launch.sums.fill_(-1)
    launch()
    torch.cuda.synchronize()
    # The last tile goes on with the stage after the first tile's last.
    stages = [step % len(launch.a) for step in range((tiles - 1) * steps, tiles * steps)]
    tile = sum(launch.a[stage].double() @ launch.b[stage].double().T for stage in stages)
    assert launch.sums.shape == (torch.cuda.get_device_properties(0).multi_processor_count, 256)
    assert torch.equal(launch.sums.double(), sums_of_threads(tile).expand(launch.sums.shape))
    assert launch.flops == 2 * 128 * 256 * launch.a.shape[2] * tiles * steps * len(launch.sums)


def test_roofline_measures_this_gpu_and_sets_records_beside_it(tmp_path: Path) -> None:
    name = driver.device_name(0)
    records, other, peak_rates = (tmp_path / x for x in ("records.jsonl", "other.jsonl", "gpu.peak-rates.json"))
    here = [m.model_copy(update={"gpu": name}) for m in read_records(SCALED)]
    records.write_text("".join(m.model_dump_json() + "\n" for m in here))
    found = json.loads(ok("roofline", "--dtypes", "e4m3,bf16", "--records", records, "-o", peak_rates, "--json"))
    assert found["peak_rates"] == json.loads(peak_rates.read_text())
    assert found["peak_rates"]["gpu"] == name
    rates = found["peak_rates"]["compute_tflops"]
    assert list(rates) == ["bf16", "e4m3"]
    # Of any Hopper, whatever its power limit: the units are right.
    assert 100 < rates["bf16"]["median"] < 1100
    assert 200 < rates["e4m3"]["median"] < 2200
    assert 0.5 < found["peak_rates"]["copy_tbps"]["median"] < 10
    assert len(found["problems"]) == len(figures(here))
    assert all(problem["roof"] in ("e4m3", "copy") and problem["of_roof"] > 0 for problem in found["problems"])

    table = tmp_path / "table.csv"
    ok("report", records, "--peak-rates", peak_rates, "--csv", table)
    assert "of_roof" in table.read_text()

    other.write_text("".join(m.model_copy(update={"gpu": "another"}).model_dump_json() + "\n" for m in here))
    result = gemmill("roofline", "--dtypes", "bf16", "--records", records, "--records", other)
    assert result.exit_code == 1
    assert "were measured on another" in result.stderr
    assert "WGMMA bf16" in result.stdout
    assert "no peak rate was measured for e4m3" in result.stderr
