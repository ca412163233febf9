from collections.abc import Mapping
from typing import get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases.examples import examples

from gemmill.library.arch import ARCHS
from gemmill.library.config.domains import WORDS
from gemmill.library.config.fields import FIELD_NAMES, ConfigView, Fields, Value, config_of, fields_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import parse_name
from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.epilogues.parse import canonical
from gemmill.library.families.families import new_plan
from gemmill.library.families.wgmma.wgmma_plan import MAX_AUTO_STAGES, WgmmaPlan
from gemmill.library.legality.rule import Rule
from gemmill.library.legality.rules import DOMAINS, RULES, broken, legal, nearest_fix, verdicts

LEGAL = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear"
WITH_C = LEGAL.replace("none", "bf16n16")
QUANTISING = "h = acc; s[m, n/128] = scale(h); d = h / s"

WILD: Mapping[str, st.SearchStrategy[Value]] = {
    "align": st.sampled_from([1, 2, 4, 8, 16, 32, 48]),
    "m": st.integers(1, 600),
    "n": st.integers(1, 600),
    "k": st.integers(1, 300),
    "stages": st.integers(1, 40),
    "swizzle_size": st.integers(1, 40),
    "splits": st.integers(1, 5),
}
"""Legal and illegal values of the integer fields, by their last word."""


@st.composite
def any_fields(draw: st.DrawFn) -> dict[str, Value]:
    """Fields of configs, near the legal ones and far from them."""
    fields: dict[str, Value] = {}
    for name in FIELD_NAMES:
        allowed = [word for word in WORDS.get(name, ()) if word != "none"]
        wild = WILD.get(name.rpartition(".")[2])
        tame = st.sampled_from(DOMAINS.get(name, allowed))
        fields[name] = draw(tame if wild is None else st.one_of(tame, wild))
    if draw(st.booleans()):
        fields |= {"c.dtype": "none", "c.major": "none", "c.align": 0}
    return fields


def changed(name: str, **fields: Value) -> dict[str, Value]:
    """Fields of a config with some replaced; underscores stand for dots."""
    base = fields_of(parse_name(name))
    return {**base, **{field.replace("_", "."): value for field, value in fields.items()}}


def test_every_rule_has_an_id_of_its_own_a_source_and_known_fields() -> None:
    assert len({rule.id for rule in RULES}) == len(RULES)
    for rule in RULES:
        assert rule.source
        assert set(rule.fields) <= set(FIELD_NAMES)


@given(any_fields())
def test_rules_read_no_field_that_they_do_not_declare(fields: dict[str, Value]) -> None:
    for rule in RULES:
        assert rule.finding(ConfigView({name: fields[name] for name in rule.fields})) == rule.finding(
            ConfigView(fields)
        )


@pytest.mark.slow
@examples(3, full=40)
@given(any_fields())
def test_every_fix_makes_the_whole_config_legal(fields: dict[str, Value]) -> None:
    found = verdicts(fields)
    assert legal(fields) == (not found)
    for verdict in found:
        assert verdict.fix is not None, verdict.rule
        assert all(fields[name] != value for name, value in verdict.fix.items())
        fixed = {**fields, **verdict.fix}
        assert legal(fixed)
        config_of(fixed)
        assert not any(legal({**fixed, name: fields[name]}) for name in verdict.fix), "no change is needless"


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
@examples(4)
@given(fields=any_fields())
def test_a_change_within_a_rule_s_own_fields_is_preferred(rule: Rule, fields: dict[str, Value]) -> None:
    others = [other for other in RULES if other is not rule]
    own_domains = {name: DOMAINS[name] for name in rule.fields if not name.startswith("c.")}
    config = ConfigView(fields)
    if not rule.allows(config) and all(other.allows(config) for other in others):
        fix = nearest_fix(rule, fields)
        assert fix is not None
        one_field = [
            (name, value) for name, domain in own_domains.items() for value in domain if legal({**fields, name: value})
        ]
        if one_field:
            assert len(fix) == 1
            assert set(fix) <= set(rule.fields)


@given(any_fields())
def test_auto_stages_is_the_deepest_pipeline_that_fits(fields: dict[str, Value]) -> None:
    plan = new_plan(ConfigView(fields))
    stages, most = plan.auto_stages, plan.max_auto_stages
    assert 0 <= stages <= most
    if plan.family in ("simt", "gemv"):
        assert stages == most >= 2
        return
    capacity = plan.config.target.shared_bytes
    if stages:
        assert new_plan(ConfigView({**fields, "stages": stages})).shared_bytes <= capacity
    if stages < most:
        deeper = new_plan(ConfigView({**fields, "stages": stages + 1}))
        assert deeper.shared_bytes > capacity or (isinstance(deeper, WgmmaPlan) and deeper.d_buffers == 1)


@pytest.mark.parametrize("c", ["none", "bf16"])
@pytest.mark.parametrize("d", ["e4m3", "bf16", "f32"])
@pytest.mark.parametrize("major", ["n", "m"])
def test_subtiles_cover_a_tile_from_multiples_of_16_bytes(c: str, d: str, major: str) -> None:
    for tile_n in range(8, 257, 8):
        fields = changed(LEGAL, tile_m=64, schedule="pingpong", tile_n=tile_n, c_dtype=c, d_dtype=d, d_major=major)
        plan = WgmmaPlan(ConfigView(fields))
        n, size = plan.subtile_n, DTYPES[d].bytes
        assert 0 <= plan.subtiles * n - tile_n < n
        narrower = 2 * -(-64 * plan.dividing_n * size // 1024) * 1024
        room = ARCHS["sm90a"].shared_bytes - plan.fixed_bytes - 2 * narrower
        stages = min(room // plan.bytes_per_stage, MAX_AUTO_STAGES)
        assert plan.auto_stages == stages, "what is written twice costs no stage"
        if major == "n" and n * size % 16 == 0:
            assert (tile_n - n) * size % 16 == 0


@pytest.mark.parametrize(
    ("tile_n", "change", "columns"),
    [
        (112, {}, 56),
        (152, {}, 64),
        (160, {"tile.m": 192}, 64),  # 40 divide them, in rows of which TMA takes two lines
        (160, {}, 40),  # 64 would cost a stage
        (152, {"d.major": "m"}, 32),
        (160, {"d.major": "m"}, 40),  # 56 would be three for four, and longer
        (152, {"d.dtype": "f32"}, 16),
        (152, {"c.dtype": "bf16", "c.major": "n"}, 8),
        (152, {"epilogue": "d = silu(acc + bias[n])"}, 32),
        (152, {"epilogue": "d = silu(acc); per_row[m] = sum(d)"}, 8),
        (152, {"epilogue": "d = silu(acc) + r[m, n]"}, 8),  # d may be written where r lies
    ],
)
def test_where_few_columns_divide_a_plain_tile_some_are_written_twice(
    tile_n: int, change: dict[str, Value], columns: int
) -> None:
    assert WgmmaPlan(ConfigView({**changed(LEGAL, tile_n=tile_n), **change})).subtile_n == columns


@pytest.mark.parametrize("name", [LEGAL, WITH_C.replace("128x256", "128x192")])
def test_legal_configs_get_no_verdict(name: str) -> None:
    assert verdicts(parse_name(name)) == []


@pytest.mark.parametrize(
    ("fields", "rule", "says", "fix"),
    [
        ({"b.dtype": "f16"}, "mma-types", "bf16 x f16", {"b.dtype": "bf16"}),
        (
            {"accumulator": "f16"},
            "mma-types",
            "accumulator is f16; for bf16 x bf16 it must be f32",
            {"accumulator": "f32"},
        ),
        ({"c.dtype": "f16"}, "epilogue-types", "C is f16; with D bf16 it must be bf16 or f32", None),
        ({"b.align": 8, "d.align": 4}, "tma-alignment", "B is aligned to 8 bytes and D is aligned to 4", None),
        (
            {"tile.m": 100},
            "tile-m",
            "tile M is 100; for cooperative kernels it must be 128, 192 or 256",
            {"tile.m": 128},
        ),
        ({"tile.m": 64}, "tile-m", "tile M is 64", {"tile.m": 128}),
        ({"tile.n": 250}, "tile-n", "tile N is 250; it must be a multiple of 8 from 8 to 256", {"tile.n": 248}),
        ({"tile.n": 264}, "tile-n", "tile N is 264", {"tile.n": 256}),
        ({"tile.k": 60}, "tile-k", "tile K is 60", {"tile.k": 64}),
        ({"cluster.m": 3}, "cluster-shape", "cluster is 3x1; it must be 1, 2 or 4 along", {"cluster.m": 4}),
        ({"cluster.m": 4, "cluster.n": 4}, "cluster-shape", "cluster is 4x4; it must have at most 8", {"cluster.m": 2}),
        ({"scheduler.swizzle_size": 3}, "scheduler-swizzle", "swizzle_size is 3", {"scheduler.swizzle_size": 4}),
        ({"scheduler.splits": 2}, "scheduler-splits", "splits is 2; it must be 1", {"scheduler.splits": 1}),
        (
            {"scheduler.splits": 4, "scheduler.decomposition": "splitk"},
            "scheduler-splits",
            "splits is 4; it must be 1 when the decomposition is splitk",
            {"scheduler.splits": 1},
        ),
        (
            {"schedule": "pingpong", "tile.n": 128, "scheduler.decomposition": "stream"},
            "decomposition",
            "decomposition is stream; pingpong kernels support only tiles, splitk, cluster, serial or tree",
            None,
        ),
        (
            {"d.align": 1, "scheduler.decomposition": "splitk"},
            "reduction-alignment",
            "D is bf16 and aligned to 1 bytes; its alignment must be 2, 4, 8 or 16",
            {"d.align": 2},
        ),
        (
            {"scheduler.batching": "grouped", "scheduler.decomposition": "splitk"},
            "parts-batching",
            "batching is grouped; splitk kernels support only strided batching",
            {"scheduler.batching": "strided"},
        ),
        (
            {"scheduler.batching": "nested", "scheduler.decomposition": "serial", "tile.n": 192},
            "parts-batching",
            "batching is nested; serial kernels support only strided batching",
            {"scheduler.batching": "strided"},
        ),
        (
            {"scheduler.decomposition": "serial"},
            "accumulator-registers",
            "a 64x256 accumulator of a slice of K and one of all slices take 256 registers per thread; the limit",
            {"tile.n": 192},
        ),
        (
            {"scheduler.decomposition": "cluster", "scheduler.splits": 6, "cluster.m": 1, "tile.n": 192, "stages": 2},
            "scheduler-splits",
            "splits is 6; cluster kernels support 2 to 4",
            {"scheduler.splits": 4},
        ),
        (
            {"scheduler.decomposition": "cluster", "scheduler.splits": 2, "tile.n": 128},
            "cluster-parts",
            "cluster is 2x1; with the cluster decomposition it must be 1x1",
            {"cluster.m": 1},
        ),
        (
            {"scheduler.decomposition": "cluster", "scheduler.splits": 4, "cluster.m": 1, "tile.n": 112},
            "cluster-parts",
            "tile N is 112; it must be a multiple of 32, so that each of 4 CTAs stores a multiple of 8 columns",
            {"tile.n": 128},
        ),
        ({"stages": 1}, "min-stages", "stages is 1; it must be at least 2", {"stages": 2}),
        (
            {"epilogue": "d = acc + x[m, n] + y[m, n] + z[m, n]"},
            "epilogue-matrices",
            "reads 3 matrices at any strides and 0 vectors along N",
            None,
        ),
        (
            {"epilogue": canonical("d = x[m, n] + y[m, n] + acc * v[n] * w[n] * f[n] * g[n] * h[n]")},
            "epilogue-matrices",
            "the limit is 2 matrices, and 12 vectors less 4 for each matrix",
            None,
        ),
        (
            {"a.scale": "1x128", "epilogue": canonical("d = acc * a_scale[m]")},
            "epilogue-scales",
            "a_scale already names the 1x128 scales that the main loop reads; use another name",
            None,
        ),
        ({"stages": 5}, "shared-memory", "5 stages of 49,152 bytes", {"stages": 4}),
        ({"tile.n": 1000, "stages": 2}, "tma-box", "500 rows along tile.n; the limit is 256", None),
        ({"b.major": "mn", "tile.k": 41}, "multicast-slice", "it must be a multiple of 2 x 1", None),
        (
            {"d.major": "m", "scheduler.batching": "grouped"},
            "row-groups",
            "D is m-major; with grouped batching it must",
            None,
        ),
        (
            {"scheduler.batching": "ngrouped"},
            "row-groups",
            "D is n-major; with ngrouped batching it must be m-major",
            {"scheduler.batching": "strided"},
        ),
        (
            {"scheduler.batching": "nmasked", "d.major": "m"},
            "mixed-batching",
            "batching is nmasked; A is bf16, which must be narrower than B (bf16)",
            None,
        ),
        (
            {"scheduler.batching": "ngrouped", "d.major": "m", "b.major": "mn", "a.dtype": "s8"},
            "row-groups",
            "B is contiguous along N; with ngrouped batching B must be K-major and C m-major",
            {"scheduler.batching": "strided"},
        ),
        ({"scheduler.batching": "array"}, "array-clusters", "cluster is 2x1; with array batching it must", None),
        (
            {"scheduler.batching": "kgrouped", "a.major": "mn", "b.major": "mn", "tile.n": 192},
            "multicast-panels",
            "B is multicast to 2 CTAs that each load panels of 64, so it must be a multiple of 2 x 64",
            None,
        ),
        ({"scheduler.batching": "array", "tile.k": 48}, "array-panels", "a row of A's tile has 96 bytes", None),
        (
            {"scheduler.symmetry": "symmetric", "d.major": "m"},
            "symmetric-d",
            "D is symmetric and D is m-major; it must be n-major",
            None,
        ),
        (
            {"scheduler.symmetry": "symmetric", "scheduler.decomposition": "stream"},
            "symmetric-d",
            "D is symmetric and decomposition is stream; it must be tiles",
            None,
        ),
        (
            {"scheduler.symmetry": "symmetric", "c.dtype": "bf16", "c.major": "n", "c.align": 16, "tile.n": 96},
            "symmetric-d",
            "D is symmetric and the tile is 128x96; with C it must be square",
            None,
        ),
        (
            {"scheduler.rows": "gathered"},
            "gathered-rows",
            "rows is gathered and batching is strided; it must be grouped, ngrouped or kgrouped",
            {"scheduler.rows": "stored"},
        ),
        (
            {"scheduler.rows": "gathered", "scheduler.batching": "grouped", "cluster.n": 2, "cluster.m": 1},
            "gathered-rows",
            "cluster.n is 2; it must be 1, because each CTA copies its own rows",
            None,
        ),
        (
            {
                "scheduler.rows": "gathered",
                "scheduler.batching": "grouped",
                "b.major": "mn",
                "tile.k": 128,
                "a.dtype": "e4m3",
                "b.dtype": "e4m3",
                "stages": 3,
            },
            "gathered-rows",
            "B is e4m3 and mn-major; it must be k-major",
            None,
        ),
        (
            {
                "scheduler.rows": "gathered",
                "scheduler.batching": "grouped",
                "tile.k": 32,
                "d.dtype": "f32",
                "a.dtype": "tf32",
                "b.dtype": "tf32",
            },
            "gathered-rows",
            "A is tf32, to which only TMA rounds f32",
            None,
        ),
        (
            {"scheduler.rows": "gathered", "scheduler.batching": "grouped", "tile.k": 32},
            "gathered-rows",
            "a row of A's tile has 64 bytes; it must have a multiple of 128",
            None,
        ),
        (
            {"scheduler.rows": "gathered", "scheduler.batching": "grouped", "tile.m": 256, "tile.n": 128},
            "gathered-rows",
            "tile M is 256; it must be at most 128",
            None,
        ),
        (
            {"scheduler.rows": "gathered", "scheduler.batching": "ngrouped", "a.dtype": "u4", "a.scale": "1x128"}
            | {"d.major": "m"},
            "gathered-rows",
            "cluster.m is 2; it must be 1, because each CTA copies its own rows",
            None,
        ),
        (
            {"a.align": 4, "d.major": "m"},
            "unaligned-a",
            "A is aligned to 4 bytes, so that producer warps copy it, and the alignment of A must be 2 or 16",
            {"a.align": 2},
        ),
        (
            {"a.dtype": "tf32", "b.dtype": "tf32", "d.dtype": "f32", "a.align": 4, "b.major": "mn", "tile.k": 32},
            "unaligned-a",
            "B is tf32 and mn-major; it must be k-major: no warp transposes it",
            {"a.align": 16},
        ),
        (
            {"a.dtype": "e4m3", "b.dtype": "bf16", "a.align": 1},
            "unaligned-a",
            "B is bf16; it must have 8 bits, as A has",
            None,
        ),
        (
            {"a.dtype": "s8", "b.dtype": "u8", "accumulator": "s32", "d.dtype": "s32", "a.align": 1, "tile.k": 64},
            "unaligned-tile",
            "tile K is 64; it must be 128",
            {"tile.k": 128},
        ),
        (
            {"a.align": 2, "a.major": "mn", "tile.m": 256, "tile.n": 64},
            "unaligned-tile",
            "tile M is 256; it must be 64 or 128",
            None,
        ),
        (
            {"a.align": 2, "scheduler.rows": "gathered", "scheduler.batching": "grouped"},
            "unaligned-tile",
            "batching is grouped; it must be strided",
            None,
        ),
        ({"scheduler.batching": "kgrouped"}, "k-groups", "the major of A and B is k; with kgrouped batching", None),
        (
            {"tile.m": 256, "stages": 2},
            "accumulator-registers",
            "the limit for 2 consumer warpgroups without C and with n-major bf16 D is 192",
            {"tile.n": 192},
        ),
    ],
)
def test_verdicts_name_the_values_on_both_sides_and_the_way_out(
    fields: dict[str, Value], rule: str, says: str, fix: dict[str, Value] | None
) -> None:
    base = fields_of(parse_name(WITH_C if "c.dtype" in fields else LEGAL))
    by_rule = {verdict.rule: verdict for verdict in verdicts({**base, **fields})}
    assert rule in by_rule
    assert says in by_rule[rule].message
    if fix is not None:
        assert by_rule[rule].fix == fix
        assert all(f"{name} = {value}" in str(by_rule[rule]) for name, value in fix.items())


FP8 = "sm90a_e4m3k16_e4m3k16_f32_none_bf16n16_128x128x128_1x1_pingpong_s4_m8_k1_linear"
GEMV = "sm90_bf16k16_bf16k16_f32_none_bf16n16_8x64x256_1x1_gemv_s8_m8_k1_linear"
SIMT = "sm80_f32k4_f32k4_f32_none_f32n4_128x128x8_1x1_simt_s2_m8_k1_linear"
MMA = "sm80_bf16k16_bf16k16_f32_none_bf16n16_128x128x32_1x1_multistage_s3_m8_k1_linear"


@pytest.mark.parametrize(
    ("name", "fields", "rule", "says"),
    [
        (LEGAL, {"d.dtype": "f64"}, "epilogue-types", "D is f64; with accumulator f32 it must be bf16, f16, f32,"),
        (LEGAL, {"a.major": "any"}, "tma-majors", "the major of A is any; TMA needs one contiguous extent"),
        (LEGAL, {"d.major": "any"}, "tma-output-majors", "the major of D is any; TMA needs one contiguous extent"),
        (LEGAL, {"epilogue": "d = silu(acc + c)"}, "epilogue-c", "the epilogue reads C, but the config has none"),
        (
            LEGAL,
            {"epilogue": "d = gate * up", "tile.n": 152},
            "epilogue-gated",
            "tile N is 152; for an epilogue that pairs columns it must be a multiple of 16",
        ),
        (
            LEGAL,
            {"epilogue": "d = gate * up", "scheduler.decomposition": "splitk"},
            "epilogue-gated",
            "split-K does not support an epilogue that pairs columns: d = gate * up",
        ),
        (
            LEGAL,
            {"epilogue": "d = gate8.m * up8.m", "scheduler.decomposition": "splitk"},
            "epilogue-gated",
            "split-K does not support an epilogue that pairs rows: d = gate8.m * up8.m",
        ),
        (
            LEGAL,
            {"epilogue": "d = gate8.m * up8.m", "scheduler.batching": "grouped"},
            "epilogue-gated",
            "grouped batching does not support an epilogue that pairs rows: d = gate8.m * up8.m",
        ),
        *(
            (LEGAL, {"epilogue": "d = gate_half * up_half", **fields}, "gated-halves", says)
            for fields, says in (
                ({"b.major": "n"}, "B is n-major; an epilogue that pairs the halves of N needs k"),
                (
                    {"scheduler.batching": "kgrouped"},
                    "kgrouped batching does not support an epilogue that pairs halves",
                ),
                ({"tile.n": 144, "cluster.m": 2}, "a CTA loads 72 columns of B; an epilogue that pairs the halves"),
            )
        ),
        (
            "sm90a_e4m3k16s1x128_e4m3k16s128x128_f32p4_none_bf16n16_128x256x128_1x1_cooperative_s3_m8_k1_linear",
            {"epilogue": "d = gate_half * up_half", "tile.n": 192},
            "gated-halves",
            "tile N is 192, half of which can overlap two 128-column blocks of B's scales",
        ),
        (GEMV, {"epilogue": "d = gate8.m * up8.m"}, "epilogue-family", "do not support an epilogue that pairs rows"),
        (LEGAL, {"epilogue": QUANTISING}, "quantised-d", "D is bf16 and n-major; an epilogue that scales blocks needs"),
        (
            LEGAL,
            {"epilogue": QUANTISING, "d.dtype": "e4m3", "tile.n": 192},
            "quantised-d",
            "a tile has 192 columns of D; it must have a multiple of 128",
        ),
        (
            LEGAL,
            {"epilogue": QUANTISING, "d.dtype": "e4m3", "scheduler.decomposition": "splitk"},
            "quantised-d",
            "decomposition is splitk; an epilogue that scales blocks of columns needs tiles",
        ),
        (
            LEGAL,
            {"epilogue": "h = acc * r[m] + x[m, n]; s[m, n/128] = scale(h); d = h / s", "d.dtype": "e4m3"},
            "quantised-d",
            "reads 5 vectors, where a matrix counts for 4; the limit is 4",
        ),
        (
            LEGAL,
            {
                "epilogue": "h = acc; t[m] = sum(h); s[m, n/128] = scale(h); d = h / s",
                "d.dtype": "e4m3",
                "scheduler.batching": "masked",
                "cluster.m": 2,
            },
            "quantised-d",
            "scales blocks and reduces; with groups along M the cluster must be 1x1",
        ),
        (
            LEGAL,
            {"epilogue": "h = gelu(acc); s[m, n/128] = scale(h); d = h / s", "d.dtype": "e4m3"},
            "accumulator-registers",
            "is 96",
        ),
        (
            "sm90a_e4m3k16s1x128_e4m3k16s128x128_f32p4_none_bf16n16_128x256x128_1x1_cooperative_s3_m8_k1_linear",
            {"epilogue": "d = gelu(gate8 + x[n]) * up8 * y * z"},
            "accumulator-registers",
            "takes 192 registers per thread; the limit for 2 consumer warpgroups is 128",
        ),
        (
            GEMV,
            {"epilogue": QUANTISING},
            "epilogue-family",
            "gemv kernels do not support an epilogue that scales blocks of columns: h = acc",
        ),
        (
            LEGAL,
            {"epilogue": "d = silu(acc)", "scheduler.batching": "array"},
            "epilogue-groups",
            "array batching supports only the linear epilogue, not d = silu(acc)",
        ),
        (
            LEGAL,
            {"epilogue": "d = acc + x.n[m, n]", "scheduler.batching": "grouped"},
            "epilogue-groups",
            "grouped batching does not support epilogue matrices moved by TMA; write x[m, n] without a major",
        ),
        (
            LEGAL,
            {"promote": 4},
            "promotion",
            "A is bf16; with two-level accumulation (promote) it must be e4m3, e5m2,",
        ),
        (
            FP8,
            {"promote": 4, "accumulator": "f16"},
            "promotion",
            "accumulator is f16; with two-level accumulation (promote) it must be f32",
        ),
        (FP8, {"promote": 4, "tile.k": 64}, "promotion", "tile K is 64; with two-level accumulation (promote) it must"),
        (
            FP8,
            {"a.scale": "1x128", "b.scale": "128x128"},
            "block-scales",
            "promote is 0; block scales need two-level accumulation, so it must be 4",
        ),
        (
            FP8,
            {"a.scale": "1x128", "promote": 4},
            "block-scales",
            "the scales of A and B are 1x128 and none; they must be none and none, or 1x128 and 128x128",
        ),
        (
            FP8,
            {"a.scale": "1x128", "b.scale": "128x128", "promote": 4, "tile.n": 176},
            "scaled-tile",
            "tile N is 176; such tiles can span three 128-column blocks of B's scales",
        ),
        (GEMV, {"b.dtype": "f16"}, "gemv-types", "A x B is bf16 x f16 with accumulator f32; gemv kernels support bf16"),
        (GEMV, {"a.major": "mn"}, "gemv-majors", "A's major is mn; for gemv kernels it must be k or any"),
        (GEMV, {"tile.m": 64}, "gemv-tile-m", "tile M is 64; for gemv kernels it must be 8, 16 or 32"),
        (GEMV, {"stages": 3}, "gemv-stages", "stages is 3; gemv kernels support 2, 4, 8 or 16"),
        (GEMV, {"tile.n": 8}, "gemv-warps", "tile.n is 8; it must be a multiple of 16, which a warp covers"),
        (GEMV, {"cluster.m": 2}, "gemv-cluster", "cluster is 2x1; for gemv kernels it must be 1x1"),
        (GEMV, {"scheduler.batching": "grouped"}, "batching", "batching is grouped; gemv kernels support only strided"),
        (SIMT, {"tile.m": 48}, "simt-tile", "tile M is 48; for simt kernels it must be 32, 64, 128 or 256"),
        (SIMT, {"stages": 3}, "simt-stages", "stages is 3; for simt kernels it must be 2"),
        (SIMT, {"accumulator": "f16"}, "simt-types", "accumulator is f16; for simt kernels it must be f32, s32 or f64"),
        (SIMT, {"a.dtype": "tf32"}, "simt-types", "A is tf32 and B is f32; either both or neither must be tf32"),
        (
            SIMT,
            {"a.align": 2},
            "simt-alignment-a",
            "A is f32 and k-major, and aligned to 2 bytes; its alignment must be 16, 8 or 4",
        ),
        (
            SIMT,
            {"arch": "sm80", "epilogue": "d = acc + x.e4m3[n]"},
            "epilogue-family",
            "e4m3 is fp8, which sm80 does not support: d = acc + x.e4m3[n]",
        ),
        (SIMT, {"promote": 4}, "simt-plain", "promote is 4; simt kernels do not support two-level accumulation"),
        (
            MMA,
            {"tile.n": 48},
            "mma-sync-tile",
            "tile N is 48; for multistage kernels it must be 16, 32, 64, 128 or 256",
        ),
        (MMA, {"tile.k": 48}, "mma-sync-tile-k", "tile K is 48; with bf16 operands it must be 16, 32, 64 or 128"),
        (
            MMA,
            {"a.dtype": "e4m3", "b.dtype": "e4m3"},
            "mma-fp8",
            "sm80 does not support fp8 (A and B); arch must be sm89, sm90, sm90a or sm120",
        ),
        (MMA, {"b.dtype": "f16"}, "mma-sync-types", "mma.sync does not support bf16 x f16; A x B must be bf16 x bf16,"),
        (
            "sm90a_e4m3k16s1x128_e4m3k16s128x128_f32p4_none_bf16n16_256x128x128_1x2_cooperative_s3_m8grouped_k1_linear",
            {"cluster.m": 2},
            "scaled-groups",
            "tile M is 256 and the cluster has 4 CTAs",
        ),
    ],
)
def test_a_message_names_the_value_and_the_rule(name: str, fields: dict[str, Value], rule: str, says: str) -> None:
    base = fields_of(parse_name(name))
    assert legal(base)
    assert says in {broken_rule.id: message for broken_rule, message in broken({**base, **fields})}[rule]


def test_three_consumer_warpgroups_have_fewer_registers_each() -> None:
    assert legal(changed(LEGAL, tile_m=192, tile_n=192, stages=2))
    (verdict,) = verdicts(changed(LEGAL, tile_m=192, tile_n=208, stages=2))
    assert verdict.rule == "accumulator-registers"
    assert "3 consumer warpgroups" in verdict.message


@pytest.mark.parametrize(
    ("spills", "says", "compiles"),
    [
        (
            "sm90a_f16k16_f16k16_f32_f32n16_f32n16_128x176x64_2x1_pingpong_s4_m8_k1_linear",
            "with C and f32 D is 160",
            ({"tile.n": 160}, {"c.dtype": "none", "d.major": "m"}, {"c.dtype": "none", "tile.n": 192}),
        ),
        (
            "sm90a_e4m3k16_e4m3k16_f32_none_e4m3m16_128x176x128_1x1_pingpong_s5_m8_k1_linear",
            "without C and with m-major e4m3 D is 160",
            ({"tile.n": 160}, {"d.major": "n"}, {"d.dtype": "bf16"}),
        ),
        (
            "sm90a_u8k16_u8mn16_s32_none_f32n16_128x192x128_1x1_pingpong_s2_m8masked_k1_linear",
            "n-major f32 D of masked groups and a transposed B is 160",
            ({"tile.n": 160}, {"b.major": "k"}, {"d.dtype": "bf16"}, {"scheduler.batching": "grouped"}),
        ),
        (
            "sm90a_f64k16_f64k16_f64_f64m8_f64m8_32x256x16_1x1_multistage_s2_m8_k1_linear",
            "takes 128 registers of each of 128 threads; the limit is 64 with 256 columns of an m-major C and D",
            ({"tile.n": 128}, {"c.major": "n"}, {"d.major": "n"}),
        ),
    ],
)
def test_what_ptxas_spills_is_refused_and_no_more_than_that(
    spills: str, says: str, compiles: tuple[dict[str, Value], ...]
) -> None:
    fields = fields_of(parse_name(spills))
    (verdict,) = verdicts(fields)
    assert says in verdict.message
    assert all(legal({**fields, **change}) for change in compiles)


def test_f16_accumulators_take_half_the_registers() -> None:
    f16 = changed(LEGAL, a_dtype="f16", b_dtype="f16", d_dtype="f16", tile_m=256, tile_n=256, stages=2)
    assert not legal(f16)
    assert legal({**f16, "accumulator": "f16"})


@pytest.mark.parametrize(
    ("fields", "rule", "says", "fix"),
    [
        (
            {"a.dtype": "bf16", "b.dtype": "bf16"},
            "mma-sync-quadpair",
            "A x B is bf16 x bf16; on sm70 multistage kernels support only f16 x f16",
            {"arch": "sm80"},
        ),
        (
            {"accumulator": "f16"},
            "mma-sync-types",
            "accumulator is f16; for f16 x f16 it must be f32",
            {"accumulator": "f32"},
        ),
        (
            {"d.dtype": "bf16"},
            "mma-conversion",
            "D is bf16, which sm70 does not support; arch must be sm80",
            {"d.dtype": "f16"},
        ),
        ({"stages": 3}, "mma-sync-stages", "stages is 3; sm70 has no cp.async, so it must be 2", {"stages": 2}),
        ({"tile.k": 64}, "mma-sync-loaded-bytes", "256 threads loads 64 bytes of a stage of A", {"tile.k": 32}),
        ({"schedule": "gemv"}, "family", "arch is sm70; gemv kernels support sm80", None),
    ],
)
def test_sm70_multiplies_f16_into_what_it_can_convert_to(
    fields: dict[str, Value], rule: str, says: str, fix: dict[str, Value] | None
) -> None:
    volta = parse_name("sm70_f16k16_f16k16_f32_none_f16n16_128x128x32_1x1_multistage_s2_m8_k1_linear")
    assert legal(volta)
    by_rule = {verdict.rule: verdict for verdict in verdicts({**fields_of(volta), **fields})}
    assert says in by_rule[rule].message
    if fix is not None:
        assert by_rule[rule].fix == fix


def test_stages_have_room_for_the_sums_of_slices() -> None:
    odd = parse_name("sm90_bf16k2_bf16k2_f32_none_bf16n4_64x64x64_1x1_multistage_s3_m8_k1_linear")
    assert legal(odd)
    (verdict,) = verdicts({**fields_of(odd), "stages": 2})
    assert verdict.rule == "mma-sync-slices"
    assert (
        "the sums of 4 K slices take 49,152 bytes of shared memory; the stages that they overwrite have 36,864"
        in verdict.message
    )
    assert verdict.fix == {"stages": 3}


def test_sums_of_parts_are_not_rounded_to_f16() -> None:
    f16 = changed(LEGAL, a_dtype="f16", b_dtype="f16", d_dtype="f16", accumulator="f16", stages=2)
    assert legal({**f16, "scheduler.decomposition": "splitk"})
    for decomposition, splits in (("stream", 1), ("cluster", 2)):
        parts: dict[str, Value] = {"scheduler.decomposition": decomposition, "scheduler.splits": splits, "cluster.m": 1}
        (verdict,) = verdicts({**f16, **parts})
        assert verdict.rule == "sums-of-parts"


def test_serial_kernels_add_slices_of_one_level_in_f32() -> None:
    serial: dict[str, Value] = {"scheduler.decomposition": "serial", "tile.n": 192}
    assert legal({**changed(LEGAL), **serial})
    for fields, says in (
        (changed(LEGAL, a_dtype="f16", b_dtype="f16", d_dtype="f16", accumulator="f16"), "accumulator is f16; serial"),
        (changed(LEGAL, a_dtype="s8", b_dtype="s8", d_dtype="s8", accumulator="s32"), "accumulator is s32; serial"),
        (
            {**changed(LEGAL, a_dtype="e4m3", b_dtype="e4m3", promote=4), "tile.k": 128, "stages": 3},
            "promote is 4; serial",
        ),
        ({**changed(LEGAL, a_dtype="s8"), "tile.k": 64}, "kernels need operands of equal width"),
        (
            {**changed(LEGAL, a_dtype="tf32", b_dtype="tf32", a_major="mn"), "tile.k": 32},
            "serial kernels need a K-major A",
        ),
    ):
        assert any(says in verdict.message for verdict in verdicts({**fields, **serial})), says


def test_a_split_kernel_takes_c_and_d_of_any_alignment() -> None:
    loose = changed(WITH_C, d_align=2, c_align=4, stages=2)
    assert {verdict.rule for verdict in verdicts(loose)} == {"tma-alignment"}
    assert legal({**loose, "scheduler.decomposition": "splitk"})


def test_an_absent_c_is_neither_aligned_nor_mended() -> None:
    (verdict,) = verdicts(changed(LEGAL, d_align=8))
    assert verdict.fix == {"d.align": 16}


def test_every_config_that_validates_can_be_judged() -> None:
    # The rules' tables must cover every word that a config accepts.
    assert set(get_args(DTypeName)) == set(DTYPES)
    config = parse_name(LEGAL)
    for name, words in WORDS.items():
        for word in words:
            if not (word == "none" or name.startswith("c.")):
                verdicts(config_of({**fields_of(config), name: word}))


def test_a_config_and_its_fields_are_judged_alike() -> None:
    config = parse_name(LEGAL.replace("s4", "s9"))
    assert isinstance(config, GemmConfig)
    fields: Fields = fields_of(config)
    assert [str(v) for v in verdicts(config)] == [str(v) for v in verdicts(fields)]
