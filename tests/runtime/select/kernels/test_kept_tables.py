"""Tables that a store has are those that are made, and are made again where they do not hold."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.runtime.select.problems import H200, KERNELS

from gemmill.library.arch import Gpu
from gemmill.library.config.names import parse_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.runtime.select.cost.table import FeatureTable
from gemmill.runtime.select.kernels.kept_tables import kept_table
from gemmill.runtime.select.model_file import model_of
from gemmill.runtime.storage.store import Store

NAMES = [
    *KERNELS,
    "sm90_bf16k8_bf16k8_f32_none_bf16n4_16x16x128_1x1_multistage_s4_m8_k1_linear",
    "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1stream_linear",
]
MODEL = model_of(H200.name)
assert MODEL is not None
NETWORK = MODEL.network


def made() -> FeatureTable:
    entries = [(SlicedKernel(name), parse_name(name), i % 2 > 0) for i, name in enumerate(NAMES)]
    return FeatureTable.of(entries, H200, NETWORK)


def refused() -> FeatureTable:
    raise AssertionError("it is not to be made")


def kept(folder: Path, make: Callable[[], FeatureTable | None], gpu: Gpu = H200) -> FeatureTable | None:
    return kept_table(Store(folder), "origin", ("bf16",), gpu, "key", NETWORK, make)


def assert_equal(found: Any, expected: Any) -> None:
    if isinstance(expected, dict):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert_equal(found[name], value)
    elif isinstance(expected, np.ndarray):
        assert found.dtype == expected.dtype
        assert np.array_equal(found, expected)
    elif isinstance(expected, list | tuple):
        for x, y in zip(found, expected, strict=True):
            assert_equal(x, y)
    else:
        assert found == expected


def test_a_table_that_is_kept_equals_the_one_that_was_made(tmp_path: Path) -> None:
    expected, found = kept(tmp_path, made), kept(tmp_path, refused)
    assert expected is not None
    assert found is not None
    for field in fields(FeatureTable):
        assert_equal(getattr(found, field.name), getattr(expected, field.name))


def test_that_there_are_no_kernels_is_kept(tmp_path: Path) -> None:
    assert kept(tmp_path, lambda: None) is None
    assert kept(tmp_path, refused) is None


def test_a_table_that_is_damaged_or_of_other_figures_is_made_again(tmp_path: Path) -> None:
    kept(tmp_path, lambda: None)
    smaller = H200._replace(sms=100)
    assert kept(tmp_path, made, smaller) is not None
    [note] = (tmp_path / "tables").iterdir()
    damaged = note.read_bytes().replace(b"128x", b"192x")
    assert damaged != note.read_bytes()
    note.write_bytes(damaged)
    with pytest.raises(AssertionError, match="not to be made"):
        kept(tmp_path, refused, smaller)
