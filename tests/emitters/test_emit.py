"""Emitted text: golden files, purity, and what the emitter refuses."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from itertools import pairwise, product
from operator import attrgetter
from pathlib import Path

import pytest
from tests.cases.kernels import GOLDEN, KernelCase
from tests.emitters.golden import FOLDER

from gemmill.emitters import headers_digest, include_path
from gemmill.emitters.emit import emit
from gemmill.emitters.epilogue.text import epilogue_text
from gemmill.library.config.fields import fields_of
from gemmill.library.config.model import FAMILIES
from gemmill.library.config.names import parse_name
from gemmill.library.epilogues.parse import canonical, parse
from gemmill.library.epilogues.tree import transposed
from gemmill.library.errors import ConfigError
from gemmill.library.legality.rules import DOMAINS
from gemmill.library.legality.search import any_legal

NAMES = {case.id: case.name for case in GOLDEN}
EXPRESSIVE, WITH_C = NAMES["epilogue"], NAMES["cooperative-c-multicast-of-both"]


@pytest.mark.parametrize("case", GOLDEN, ids=attrgetter("id"))
def test_text_is_the_golden_text(case: KernelCase) -> None:
    golden = FOLDER / f"{case.name}.cu"
    assert emit(case.config).text == golden.read_text(), "rewrite with: python -m tests.emitters.golden"


def test_golden_kernels_have_every_order_of_work_that_there_is() -> None:
    """Of each schedule, every decomposition of K and every kind of batch."""
    assert {path.stem for path in FOLDER.glob("*.cu")} == {case.name for case in GOLDEN}
    orders = product(FAMILIES, DOMAINS["scheduler.decomposition"], DOMAINS["scheduler.batching"])
    fields = ("schedule", "scheduler.decomposition", "scheduler.batching")
    legal = {order for order in orders if any_legal(dict(zip(fields, order, strict=True))) is not None}
    kept = (fields_of(case.config) for case in GOLDEN)
    assert {tuple(one[name] for name in fields) for one in kept} == legal


def test_text_is_the_same_in_every_process_and_folder(tmp_path: Path) -> None:
    program = (
        "from gemmill.emitters.emit import emit\nfrom gemmill.library.config.names import parse_name\n"
        f"source = emit(parse_name({EXPRESSIVE!r}))\nprint(source.digest, source.headers_digest)"
    )
    for seed in ("1", "2"):
        child = subprocess.run(
            [sys.executable, "-c", program],
            cwd=tmp_path,
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        )
        assert child.stdout.split() == [emit(parse_name(EXPRESSIVE)).digest, headers_digest()]


def test_text_names_no_path() -> None:
    assert str(include_path().parent) not in emit(parse_name(EXPRESSIVE)).text


def test_a_refused_config_is_not_emitted() -> None:
    config = parse_name(EXPRESSIVE)
    wide = replace(config, tile=replace(config.tile, n=116))
    with pytest.raises(ConfigError, match=r"\[tile-n\] tile N is 116"):
        emit(wide)
    with pytest.raises(ConfigError, match=r"arch is 'sm99', .*: Input should be 'sm70', "):
        emit(replace(config, arch="sm99"))  # type: ignore[arg-type]


def test_parameters_do_not_overlap_and_descriptors_are_aligned() -> None:
    launch = emit(parse_name(WITH_C)).launch
    scalars = [offset for name, offset in launch.offsets.items() if name != "epilogue"]  # which alpha begins
    spans = [(box.offset, 128) for box in launch.boxes] + [(offset, 4) for offset in scalars]
    spans.sort()
    assert all(start + size <= following for (start, size), (following, _) in pairwise(spans))
    assert spans[-1][0] + spans[-1][1] <= launch.params_bytes
    assert all(box.offset % 64 == 0 for box in launch.boxes)


@pytest.mark.parametrize(
    "text",
    [
        "d = alpha * acc * x[m] * y[n]",
        "d = alpha * acc * y[n] * z * x[m] * r[m, n]",
        "d = relu(acc * y[n] * x[m]) * sigmoid(x[m]) * y[n]",
        "d = alpha * acc * z[batch] * tanh(x[m] * y[n]) * x[m]",
        "d = acc * x[m] - r[m, n] * y[n] * 3",
    ],
)
def test_the_transposed_problem_multiplies_in_the_same_order(text: str) -> None:
    config = parse_name("sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x128x64_1x1_pingpong_s8_m8_k1_linear")
    direct = parse(text)
    orders = [
        [re.sub(r"\w+\.", "", line) for line in epilogue_text(replace(config, epilogue=str(epilogue))).splitlines()]
        for epilogue in (direct, transposed(direct))
    ]
    products = [[line for line in lines if "math::mul(" in line] for lines in orders]
    assert products[0] == products[1] != []


def test_one_scale_for_all_rows_is_multiplied_in_the_order_of_one_scale_a_row() -> None:
    config = parse_name("sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x128x64_1x1_pingpong_s8_m8_k1_linear")
    products = {
        line
        for x, y in product(("x", "x[m]", "x[batch]"), ("y[n]", "y[m, n]"))
        for line in epilogue_text(replace(config, epilogue=f"d = alpha * acc * {x} * {y}")).splitlines()
        if "math::mul(" in line
    }
    assert {re.sub(r"\w+\.", "", line).strip() for line in products} == {
        "Compute const d_ = math::mul(math::mul(math::mul(alpha, x_), acc), y_);"
    }


@pytest.mark.parametrize(
    ("text", "emitted"),
    [
        ("d = acc + x[n]", "math::add(acc, column.x_)"),
        ("d = alpha * acc + x[n]", "math::fma(uniform.alpha, acc, column.x_)"),
        ("d = x[n] - acc * y[m]", "math::fma(-row.y_, acc, column.x_)"),
        ("d = acc * y[m] - x[n]", "math::fma(row.y_, acc, -column.x_)"),
        ("d = acc * x[n] + y[m] * acc", "math::fma(row.y_, acc, math::mul(column.x_, acc))"),
        ("d = (acc - x[n]) * 2", "math::mul(Compute(2.0), math::sub(acc, column.x_))"),
    ],
)
def test_the_text_says_which_product_is_fused(text: str, emitted: str) -> None:
    config = parse_name("sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x128x64_1x1_pingpong_s8_m8_k1_linear")
    assert f"Compute const d_ = {emitted};" in epilogue_text(replace(config, epilogue=canonical(text)))
