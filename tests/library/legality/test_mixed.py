"""Rules and resources of kernels that upconvert a narrow A, or transpose 8-bit and tf32 stages."""

from __future__ import annotations

import pytest

from gemmill.library.config.fields import ConfigView, Value, fields_of
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.epilogues.parse import canonical
from gemmill.library.families.wgmma.wgmma_plan import WgmmaPlan
from gemmill.library.legality.rules import legal, verdicts

U4 = "sm90a_u4k16s1x128z_bf16k16_f32_none_bf16m16_64x16x128_2x1_cooperative_s16_m8_k1_linear"
E4M3 = "sm90a_s4k16s1x128_e4m3k16_f32p4_none_bf16m16_128x128x128_1x1_cooperative_s7_m8ngrouped_k1_linear"
S8 = "sm90a_s8mn16_s8mn16_s32_none_s32n16_128x128x128_1x1_cooperative_s3_m8_k1_linear"


def changed(name: str, changes: dict[str, Value]) -> dict[str, Value]:
    return fields_of(parse_name(name)) | changes


def plan(name: str, changes: dict[str, Value]) -> WgmmaPlan:
    return WgmmaPlan(ConfigView(changed(name, changes)))


@pytest.mark.parametrize("name", [U4, E4M3, S8])
def test_names_parse_back_and_are_legal(name: str) -> None:
    assert verdicts(parse_name(name)) == []
    assert kernel_name(parse_name(name)) == name


@pytest.mark.parametrize(
    ("name", "changes", "rule", "says"),
    [
        (U4, {"a.dtype": "f32"}, "mma-types", "f32 x bf16"),
        (U4, {"a.major": "mn"}, "mma-majors", "an A narrower than B must be K-major"),
        (U4, {"a.scale": "1x128", "b.scale": "1x128"}, "block-scales", "B must have none"),
        (U4, {"a.scale": "128x128"}, "block-scales", "A none, 1x32, 1x64"),
        (U4, {"a.dtype": "e2m1"}, "block-scales", "for e2m1 x bf16 B must have none, and A 1x32e8"),
        (U4, {"a.dtype": "e2m1", "a.scale": "none"}, "block-scales", "for e2m1 x bf16 B must have none, and A 1x32e8"),
        (U4, {"a.scale": "1x32e8"}, "block-scales", "A none, 1x32, 1x64"),
        (U4, {"tile.k": 64}, "tile-k", "with a u4 A that 4 warpgroups share it must be 128 or 256"),
        (U4, {"stages": 15}, "min-stages", "stages is 15; it must be a multiple of 4, the warpgroups that take stages"),
        (U4, {"tile.k": 96, "tile.m": 128}, "tile-k", "with a u4 A it must be 64, 128 or 256"),
        (U4, {"tile.k": 256, "a.dtype": "s8"}, "tile-k", "it must be 64 or 128"),
        (U4, {"tile.n": 80}, "accumulator-registers", "the limit for 4 consumer warpgroups is 48"),
        (U4, {"accumulator": "f16"}, "mma-types", "for u4 x bf16 it must be f32"),
        (U4, {"tile.m": 128, "tile.n": 176}, "accumulator-registers", "the limit for 2 consumer warpgroups is 128"),
        (U4, {"tile.m": 256, "tile.n": 40}, "accumulator-registers", "the limit for 2 consumer warpgroups is 0"),
        (U4, {"a.dtype": "bf16", "a.scale": "none"}, "tile-m", "tile M is 64; for cooperative kernels it must be 128"),
        (E4M3, {"promote": 0}, "block-scales", "promote is 0; for s4 x e4m3 it must be 4, since scales multiply sums"),
        (E4M3, {"a.scale": "1x64"}, "block-scales", "for s4 x e4m3 B must have none, and A 1x128"),
        (E4M3, {"a.scale": "none"}, "block-scales", "for s4 x e4m3 B must have none, and A 1x128"),
        (E4M3, {"a.dtype": "u4"}, "mma-types", "WGMMA does not support u4 x e4m3"),
        (E4M3, {"tile.n": 136, "stages": 6}, "accumulator-registers", "the limit for 2 consumer warpgroups is"),
        (E4M3, {"tile.m": 64, "tile.n": 32}, "accumulator-registers", "the limit for 4 consumer warpgroups is 48"),
        (E4M3, {"epilogue": canonical("d = acc * x[m, n]")}, "accumulator-registers", "with two levels takes 160"),
        (S8, {"tile.n": 80}, "tile-n", "tile N is 80, or 80 bytes; with an mn-major B"),
        (S8, {"tile.k": 96}, "mma-majors", "tile K is 96 bytes and must be 64, 128 or 256 bytes"),
        # Transposed in place where a panel is square, else to another place.
        (S8, {"stages": 7}, "shared-memory", "7 stages of 32,768 bytes"),
        (S8, {"tile.k": 64, "stages": 8}, "shared-memory", "8 stages of 32,768 bytes"),
    ],
)
def test_what_is_refused(name: str, changes: dict[str, Value], rule: str, says: str) -> None:
    by_rule = {verdict.rule: verdict for verdict in verdicts(changed(name, changes))}
    assert rule in by_rule, by_rule
    assert says in by_rule[rule].message
    assert by_rule[rule].fix is not None


def test_zero_points_and_small_groups_take_shared_memory() -> None:
    assert plan(U4, {}).stage_bytes == (64 * 128 // 2, 16 * 128 * 2)
    scales = {"1x128z": 2 * 64 * 2, "1x128": 64 * 2, "1x32": 4 * 64 * 2, "1x32e8": 4 * 64, "none": 0}
    assert {scale: plan(U4, {"a.scale": scale}).scale_bytes for scale in scales} == scales


def test_scales_that_multiply_sums_are_of_f32() -> None:
    assert plan(E4M3, {}).scale_bytes == 128 * 4
    assert plan(E4M3, {}).stage_bytes == (128 * 128 // 2, 128 * 128)
    assert plan(E4M3, {}).accumulator_registers == 2 * 64
    assert legal(changed(E4M3, {"tile.m": 64, "tile.n": 8, "stages": 16}))
    assert legal(changed(E4M3, {"epilogue": canonical("d = silu(gate8.m * a_scale[n]) * (up8.m * a_scale[n])")}))


def test_only_what_wgmma_cannot_read_is_transposed() -> None:
    assert plan(S8, {"tile.k": 64}).stage_bytes == (2 * 128 * 64, 2 * 128 * 64)
    assert plan(S8, {"a.major": "k", "tile.k": 64}).stage_bytes == (128 * 64, 2 * 128 * 64)
    in_place = 128 * 128, 128 * 128
    assert plan(S8, {}).stage_bytes == plan(S8, {"a.major": "k"}).stage_bytes == in_place
    bf16: dict[str, Value] = {"a.dtype": "bf16", "b.dtype": "bf16", "tile.k": 64}
    assert plan(S8, bf16).stage_bytes == (128 * 64 * 2, 128 * 64 * 2)


def test_four_warpgroups_share_64_rows_by_slices_of_k() -> None:
    assert plan(U4, {}).slices == plan(U4, {}).consumer_warpgroups == 4
    assert plan(U4, {}).storing_warpgroups == 1
    assert plan(U4, {}).warpgroup_m == 64
    assert plan(U4, {"tile.n": 32}).auto_stages % 4 == 0
    assert plan(U4, {"schedule": "pingpong"}).slices == 1
    assert legal(changed(U4, {"schedule": "pingpong"}))


@pytest.mark.parametrize(
    ("tile", "dtype", "expected"),  # consumer warpgroups, the rows of each, steps of a stage
    [
        ((256, 16, 128), "u4", (4, 64, 2)),
        ((256, 16, 128), "s8", (4, 64, 2)),
        ((256, 16, 64), "u4", (2, 128, 1)),
        ((128, 16, 128), "u4", (2, 64, 1)),
        ((256, 40, 128), "u4", (2, 128, 1)),
        ((64, 16, 128), "u4", (4, 64, 4)),
    ],
)
def test_warpgroups_and_steps(tile: tuple[int, int, int], dtype: str, expected: tuple[int, int, int]) -> None:
    extents = dict(zip(("tile.m", "tile.n", "tile.k"), tile, strict=True))
    kernel = plan(U4, {**extents, "a.dtype": dtype, "a.scale": "1x128"})
    assert (kernel.consumer_warpgroups, kernel.warpgroup_m, kernel.steps) == expected
