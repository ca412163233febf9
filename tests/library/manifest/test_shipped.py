"""The manifests that ship, and the JSON Schema that editors complete them with."""

import itertools
import json
from collections import Counter

import jsonschema
import pytest
import yaml
from tests.cases.manifests import shipped_set

from gemmill.library.config.fields import fields_of
from gemmill.library.config.names import kernel_name
from gemmill.library.errors import ManifestError
from gemmill.library.families.wgmma.tile_rules import CLUSTER, CLUSTER_CTAS, TILE_K_BYTES, TILE_M, TILE_N
from gemmill.library.manifest.load import SHIPPED, shipped_manifest, shipped_manifests
from gemmill.library.manifest.schema import json_schema, schema_text

pytestmark = pytest.mark.slow

SIXTEEN = ["bf16", "f16"]
NAMES = [*SIXTEEN, "f32", "fp8", "int8", "mixed", "mma", "simt", "tf32"]
VALIDATOR = jsonschema.Draft7Validator(json_schema())


def test_the_manifests_that_ship() -> None:
    assert shipped_manifests() == NAMES
    assert all(shipped_manifest(name).is_file() for name in NAMES)
    with pytest.raises(ManifestError, match=r"there is no built-in manifest 'bf61', did you mean bf16\?"):
        shipped_manifest("bf61")


@pytest.mark.parametrize("name", NAMES)
def test_a_quick_preset_is_a_handful_of_the_set(name: str) -> None:
    kernel_set = shipped_set(name)
    quick = list(kernel_set.expand("quick"))
    assert 3 <= len(quick) <= 8
    assert set(quick) < set(kernel_set.expand())


@pytest.mark.parametrize("name", SIXTEEN)
def test_a_shipped_set_has_a_few_hundred_kernels_and_a_quick_preset(name: str) -> None:
    kernel_set = shipped_set(name)
    count = kernel_set.count()
    assert 250 <= count.legal <= 900
    assert count.refused_by_rule == {}
    quick = list(kernel_set.expand("quick"))
    assert 5 <= len(quick) <= 8
    assert {config.schedule for config in quick} == {"cooperative", "pingpong"}
    assert len({(config.a.major, config.b.major) for config in quick}) == 4


@pytest.mark.parametrize("name", SIXTEEN)
def test_every_problem_format_is_served_by_several_tiles(name: str) -> None:
    served: Counter[tuple[object, ...]] = Counter(
        (c.a.major, c.b.major, c.d.major, c.d.dtype, c.c and (c.c.dtype, c.c.major))
        for c in shipped_set(name).expand(where="accumulator == 'f32' and schedule != 'gemv'")
    )
    for a, b, d, dtype, with_c in itertools.product(("k", "mn"), ("k", "mn"), "nm", (name, "f32"), (False, True)):
        assert served[a, b, d, dtype, (dtype, d) if with_c else None] >= 2
    assert len(served) == 32


@pytest.mark.parametrize("name", ["bf16", "f16", "fp8", "int8", "tf32"])
def test_tiles_fit_any_number_of_tokens(name: str) -> None:
    """As rows of tiles, or as columns of D^T; 65 tokens in tiles of 128 are computed as twice as many."""
    where = "a.major == 'k' and b.major == 'k' and c.dtype == 'none' and scheduler.batching == 'strided'"
    extents = {c.tile.m if c.d.major == "n" else c.tile.n for c in shipped_set(name).expand(where=where)}
    wasted = {m: min(-(-m // extent) * extent / m for extent in extents if extent >= 48) for m in range(65, 1025)}
    assert max(wasted.values()) < 1.25


@pytest.mark.parametrize("name", SIXTEEN)
def test_few_rows_of_any_strides_and_alignment_are_served(name: str) -> None:
    gemv = [*shipped_set(name).expand(where="schedule == 'gemv'")]
    for b, align, dtype, with_c in itertools.product(("k", "mn"), (2, 16), (name, "f32"), (False, True)):
        if align == 2 and dtype == "f32":
            continue
        found = [c for c in gemv if (c.b.major, c.b.align, c.d.dtype, c.c is not None) == (b, align, dtype, with_c)]
        assert any(c.a.major == c.d.major == "any" for c in found)


def test_f16_adds_f16_accumulators() -> None:
    formats = {
        (c.a.major, c.b.major, c.d.major, c.d.dtype, c.c is None)
        for c in shipped_set("f16").expand(where="accumulator == 'f16'")
    }
    assert formats == set(itertools.product(("k", "mn"), ("k", "mn"), "nm", ["f16"], (True, False)))


def test_f16_is_bf16_in_another_type() -> None:
    renamed = {kernel_name(config).replace("bf16", "f16") for config in shipped_set("bf16").expand()}
    assert renamed == {kernel_name(config) for config in shipped_set("f16").expand(where="accumulator == 'f32'")}


def test_the_sets_reach_every_member_of_the_family() -> None:
    seen: dict[str, set[object]] = {}
    for config in shipped_set("bf16").expand(where="schedule != 'gemv'"):
        for field, value in fields_of(config).items():
            seen.setdefault(field, set()).add(value)
    assert seen["tile.n"] >= {n for n in TILE_N if n % 16 == 0} | {8, 24}
    assert seen["tile.m"] == {m for rows in TILE_M.values() for m in rows}
    assert {min(TILE_K_BYTES) // 2, 64, max(TILE_K_BYTES) // 2} <= seen["tile.k"]
    assert seen["scheduler.raster"] == {"m", "n"}
    clusters = {(c.cluster.m, c.cluster.n) for c in shipped_set("bf16").expand()}
    assert clusters == {(m, n) for m in CLUSTER for n in CLUSTER if m * n <= CLUSTER_CTAS}


def test_the_json_schema_is_current() -> None:
    shipped = (SHIPPED / "schema.json").read_text(encoding="utf-8")
    assert shipped == schema_text(), "run: python -m gemmill.library.manifest.schema"
    jsonschema.Draft7Validator.check_schema(json.loads(shipped))


@pytest.mark.parametrize("name", NAMES)
def test_editors_accept_the_shipped_manifests(name: str) -> None:
    path = shipped_manifest(name)
    assert path.read_text(encoding="utf-8").startswith("# yaml-language-server: $schema=schema.json\n")
    VALIDATOR.validate(yaml.safe_load(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize(
    "part",
    [
        {"tille": "128x128x64"},
        {"tile": "128x128"},
        {"a": {"dtype": "bf61"}},
        {"c": "noen"},
        {"stages": "deep"},
        {"cluster": {"m": 0}},
        {"schedule": []},
        {"schedule": ["pingpong", "pingpong"]},
        {"scheduler": {"swizzle_size": None}},
    ],
)
def test_editors_mark_what_the_loader_refuses(part: dict[str, object]) -> None:
    assert list(VALIDATOR.iter_errors({"name": "x", "sets": [part]}))


@pytest.mark.parametrize(
    "part",
    [
        {"tile": ["128x128x64", {"m": [64, 128], "n": 64, "k": 64}]},
        {"c": ["none", "same", {"dtype": "f32", "major": "n"}]},
        {"stages": ["auto", 3]},
        {"d": [{"major": "n"}, {"dtype": ["bf16", "f32"]}]},
    ],
)
def test_editors_accept_lists_scalars_and_words(part: dict[str, object]) -> None:
    VALIDATOR.validate({"name": "x", "sets": [part]})
