import random
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmill.library.config.names import kernel_name
from gemmill.library.errors import ManifestError
from gemmill.library.legality.rules import verdicts
from gemmill.library.manifest.kernelset import KernelSet
from gemmill.library.manifest.load import load_manifest, shipped_manifest

GOOD = """\
name: good
defaults:
  a: {dtype: bf16, major: k}
  b: {dtype: bf16, major: k}
  accumulator: f32
  d: {dtype: bf16, major: n}
sets:
  - tile: 64x64x64
    schedule: pingpong
"""


def load(folder: Path, text: str | bytes, name: str = "m.yaml") -> KernelSet:
    path = folder / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return load_manifest(path)


def faults(folder: Path, text: str | bytes) -> list[str]:
    """The lines of the error, each without the name of the folder."""
    with pytest.raises(ManifestError) as refused:
        load(folder, text)
    return str(refused.value).replace(f"{folder}/", "").splitlines()


def names(kernel_set: KernelSet) -> list[str]:
    return [kernel_name(config) for config in kernel_set.expand()]


def test_defaults_complete_a_set(tmp_path: Path) -> None:
    assert names(load(tmp_path, GOOD)) == [
        "sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x64x64_1x1_pingpong_s12_m1_k1_linear"
    ]


def test_lists_are_cross_products_the_last_field_varying_fastest(tmp_path: Path) -> None:
    text = GOOD + "    cluster: [1x1, {m: 2, n: [1, 2]}]\n    scheduler: {swizzle_size: [1, 8], raster: [n, m]}\n"
    found = [name.split("_") for name in names(load(tmp_path, text))]
    assert [(name[7], name[10]) for name in found] == [
        (cluster, order) for cluster in ("1x1", "2x1", "2x2") for order in ("n1", "n8", "m1", "m8")
    ]


def test_a_scalar_is_a_list_of_one(tmp_path: Path) -> None:
    spelt_out = GOOD.replace("64x64x64", "[{m: [64], n: [64], k: [64]}]").replace("pingpong", "[pingpong]")
    assert names(load(tmp_path, spelt_out)) == names(load(tmp_path, GOOD))


def test_c_can_be_none_or_as_d_or_spelt_out(tmp_path: Path) -> None:
    text = GOOD + "    c: [none, same, {dtype: f32, major: [n, m]}]\n    d: {major: [n, m]}\n"
    assert [tuple(name.split("_")[4:6]) for name in names(load(tmp_path, text))] == [
        (c or d, d) for d in ("bf16n16", "bf16m16") for c in ("none", None, "f32n16", "f32m16")
    ]


def test_leaves_are_completed_one_by_one(tmp_path: Path) -> None:
    text = GOOD + "    d: [{major: m}, {dtype: f32}]\n    scheduler: {swizzle_size: 4}\n"
    assert [name.split("_")[5] for name in names(load(tmp_path, text))] == ["bf16m16", "f32n16"]


def test_auto_and_numbers_of_stages_may_stand_together(tmp_path: Path) -> None:
    kernel_set = load(tmp_path, GOOD + "    stages: [3, auto, 12, 4]\n")
    assert [name.split("_")[9] for name in names(kernel_set)] == ["s3", "s12", "s4"]
    assert kernel_set.count().duplicates == 1


def test_sets_may_overlap_and_the_first_wins(tmp_path: Path) -> None:
    text = GOOD + "  - {tile: {m: 64, n: [32, 64], k: 64}, schedule: pingpong}\n"
    kernel_set = load(tmp_path, text)
    assert [name.split("_")[6] for name in names(kernel_set)] == ["64x64x64", "64x32x64"]
    assert kernel_set.count().duplicates == 1


def test_filters_of_a_set_and_of_the_manifest(tmp_path: Path) -> None:
    text = GOOD + "    cluster: [1x1, 2x1, 2x2]\n    where: cluster.m == 2\nwhere: cluster.n == 1\n"
    assert [name.split("_")[7] for name in names(load(tmp_path, text))] == ["2x1"]


def test_anchors_aliases_and_merge_keys(tmp_path: Path) -> None:
    text = GOOD.replace("- tile", "- &first\n    tile") + "  - {<<: *first, cluster: 2x1}\n"
    assert [name.split("_")[7] for name in names(load(tmp_path, text))] == ["1x1", "2x1"]


def test_presets_match_parts_of_configs(tmp_path: Path) -> None:
    text = (
        GOOD
        + "    c: [none, same]\n    cluster: [1x1, 2x1]\n    stages: [4, auto]\npresets:\n"
        + "  c: {match: {c: same}}\n  plain: {match: [{c: none, cluster: {m: 2}}], where: stages == 4}\n"
        + "  deep: {match: {stages: auto, c: none}}\n  all: {}\n"
    )
    kernel_set = load(tmp_path, text)
    assert {name: kernel_set.count(name).legal for name in kernel_set.presets} == {
        "c": 4, "plain": 1, "deep": 2, "all": 8,
    }  # fmt: skip


def test_the_linear_epilogue_written_out_is_that_with_c_or_that_without(tmp_path: Path) -> None:
    text = GOOD + (
        "    epilogue: d = alpha*acc\n  - {tile: 64x32x64, schedule: pingpong, c: [none, same]}\n"
        "  - {tile: 64x16x64, schedule: pingpong, c: same, epilogue: d = alpha * acc + beta * c}\n"
        "presets:\n  without: {match: {epilogue: d = alpha * acc}}\n  any: {match: {epilogue: linear}}\n"
        "  with: {match: {epilogue: d = alpha * acc + beta * c}}\n"
    )
    kernel_set = load(tmp_path, text)
    found = {preset: [config.c is not None for config in kernel_set.expand(preset)] for preset in kernel_set.presets}
    assert found == {"without": [False, False], "with": [True, True], "any": [False, False, True, True]}


def test_and_guards_against_division_by_zero(tmp_path: Path) -> None:
    text = GOOD + (
        "    stages: [2, 3, 4]\n    where: stages > 2 and 1 // (stages - 2) == 1\n"
        "  - {tile: 64x64x64, schedule: pingpong, stages: [2, 3], where: stages == 2 or 1 // (stages - 2) == 1}\n"
    )
    assert [name.split("_")[9] for name in names(load(tmp_path, text))] == ["s3", "s2"]


def test_a_set_s_filter_is_not_asked_about_candidates_of_others(tmp_path: Path) -> None:
    text = GOOD + (
        "    stages: [3, 4]\n    where: 1 // (stages - 2) == 1\n"
        "  - {tile: 64x64x64, schedule: pingpong, stages: [2, 3]}\n"
    )
    assert [name.split("_")[9] for name in names(load(tmp_path, text))] == ["s3", "s2"]


def test_extends_by_path_overrides_defaults_and_adds_sets(tmp_path: Path) -> None:
    load(tmp_path, GOOD + "presets: {one: {where: cluster.m == 1}, two: {where: stages > 2}}\n", "base.yaml")
    child = (
        "name: child\nextends: ./base.yaml\ndefaults: {a: {dtype: f16}, b: {dtype: f16}, d: {dtype: f16}}\n"
        "sets: [{tile: 64x32x64, schedule: pingpong, cluster: 2x1}]\npresets: {two: {where: cluster.m == 2}}\n"
    )
    kernel_set = load(tmp_path, child)
    assert kernel_set.name == "child"
    assert [name.split("_")[2:8:4] for name in names(kernel_set)] == [["f16k16", "64x64x64"], ["f16k16", "64x32x64"]]
    assert kernel_set.count("one").legal == kernel_set.count("two").legal == 1


def test_a_child_s_filter_holds_for_inherited_sets_and_presets_that_it_empties_go(tmp_path: Path) -> None:
    child = "name: pp\nextends: bf16\nwhere: schedule == 'pingpong' and tile.n == 16\n"
    kernel_set = load(tmp_path, child)
    assert all("_pingpong_" in name for name in names(kernel_set))
    assert "quick" not in kernel_set.presets


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", ["1:1: manifest: the file is empty"]),
        ("# nothing\n", ["1:1: manifest: the file is empty"]),
        ("- 1\n", ["1:1: manifest: is not a manifest; it must be a mapping with the keys name"]),
        ("name: x\n", ["1:1: sets: the manifest has no sets; add sets, or extend another manifest"]),
        ("name: x\nsets: []\n", ["2:7: sets: the manifest has no sets"]),
        ("name: x\nsets: 3\n", ["2:7: sets: must be a list"]),
        (GOOD.replace("name: good\n", ""), ["1:1: manifest: missing name"]),
        (GOOD.replace("sets:", "set:"), ["1:1: sets: the manifest has no", "7:1: set: unknown field, did you"]),
        (GOOD + "name: x\n", ["10:1: name: duplicate key; the first one is in line 1"]),
        (GOOD.replace("pingpong", "pingpnog"), ["9:15: sets[0].schedule: is 'pingpnog', did you mean pingpong?"]),
        (GOOD.replace("f32", "f33"), ["5:16: defaults.accumulator: is 'f33', did you mean"]),
        (GOOD + "    promote: 8\n", ["10:14: sets[0].promote: is 8; it must be 0, 2 or 4"]),
        (GOOD + "    stages: on\n", ["10:13: sets[0].stages: YAML 1.1 reads `on` as a truth value; quote it"]),
        (GOOD + "    stages: 010\n", ["10:13: sets[0].stages: YAML 1.1 reads `010` as 8; write a plain"]),
        (GOOD + "    stages: 1_0\n", ["10:13: sets[0].stages: YAML 1.1 reads `1_0` as 10; write a plain"]),
        (GOOD + "    stages: 12:30\n", ["10:13: sets[0].stages: YAML 1.1 reads `12:30` as 750; write a plain"]),
        (GOOD + "    stages: 0x4\n", ["10:13: sets[0].stages: YAML 1.1 reads `0x4` as 4; write a plain"]),
        (GOOD + "    stages: 4.0\n", ["10:13: sets[0].stages: `4.0` is not an integer"]),
        (GOOD + "    stages:\n", ["10:12: sets[0].stages: has no value; write one or remove the key"]),
        (GOOD + "    stages: 2001-01-01\n", ["10:13: sets[0].stages: YAML 1.1 reads `2001-01-01` as a date"]),
        (GOOD + "    stages: '4'\n", ["10:13: sets[0].stages: is '4'; it must be auto or an integer"]),
        (GOOD + "    stages: !x 4\n", ["10:13: sets[0].stages: the tag !x is not supported; remove it"]),
        (GOOD + "    on: 4\n", ["10:5: sets[0]: the key `on` is not text"]),
        (GOOD + "    cluster: {m: '2'}\n", ["10:18: sets[0].cluster.m: is the text '2'; it must be an integer"]),
        (GOOD + "    cluster: 2\n", ["10:14: sets[0].cluster: is 2; it must be a mapping with the keys m, n"]),
        (GOOD + "    cluster: 2x\n", ["10:14: sets[0].cluster: is '2x'; it must be MxN, or a mapping with the"]),
        (GOOD + "    cluster: {m: 0}\n", ["10:18: sets[0].cluster.m: is 0; it must be at least 1"]),
        (GOOD + "    cluster: {m: []}\n", ["10:18: sets[0].cluster.m: the list is empty"]),
        (GOOD + "    cluster: {m: [1, 1]}\n", ["10:18: sets[0].cluster.m: the list contains 1 twice"]),
        (GOOD + "    cluster: {q: 1}\n", ["10:15: sets[0].cluster.q: unknown field; allowed: m, n"]),
        (GOOD + "    c: noen\n", ["10:8: sets[0].c: is 'noen'; it must be none, same (as D), or a mapping"]),
        (GOOD + "    where: 3\n", ["10:12: sets[0].where: must be text, for example"]),
        (GOOD + "    epilogue: d = relu(acc) + foo(acc)\n", ["10:31: sets[0].epilogue: unknown function 'foo'"]),
        (GOOD + "    where: tile.m == 128\n", ["10:12: sets[0].where: no candidate passes"]),
        (GOOD + "    where: 64 == tile.q\n", ["10:18: sets[0].where: unknown field 'tile.q', did you"]),
        (GOOD + '    where: "64 == tile.q"\n', ["10:19: sets[0].where: unknown field 'tile.q', did you mean"]),
        (GOOD + "    where: |\n      64 == tile.q\n", ["10:12: sets[0].where: unknown field 'tile.q', did you"]),
        (
            GOOD + "    c: [none, same]\n    epilogue: d = alpha*acc\n",
            ["11:15: sets[0].epilogue: the config has a C, which the epilogue does not read: d = alpha * acc; remove"],
        ),
        (
            GOOD.replace("sets:", "  epilogue: d = alpha * acc + beta * c\nsets:"),
            ["9:5: sets[0]: the epilogue reads C, but the config has none: d = alpha * acc + beta * c; add c"],
        ),
        (GOOD + "    where: &w 'arch != ''sm80'' and tile.q == 1'\n", ["10:37: sets[0].where: unknown field 'tile.q'"]),
        (GOOD + '    epilogue: !!str "d =\\x20acc + bar(acc)"\n', ["10:35: sets[0].epilogue: unknown function 'bar'"]),
        (
            GOOD + "    where: 1 // (tile.m - 64) == 1\n",
            ["10:12: sets[0].where: '1 // (tile.m - 64) == 1' divides by zero for tile.m"],
        ),
        (GOOD + "where: tile.m == 128\n", ["10:8: where: no candidate of sets[0] passes"]),
        (
            GOOD + GOOD[GOOD.index("  - ") :].replace("64x", "128x", 1) + "where: tile.m == 128\n",
            ["12:8: where: no candidate of sets[0] passes"],
        ),
        (GOOD.replace("64x64x64", "64x64x60"), ["8:5: sets[0]: no candidate is legal; the first one breaks tile-k"]),
        (GOOD.replace("tile: 64x64x64\n    ", ""), ["8:5: sets[0]: missing tile.m, tile.n, tile.k"]),
        (GOOD + "presets: {p: {where: tile.m == 3}}\n", ["10:14: presets.p: the preset contains no kernel of"]),
        (
            GOOD + "presets: {p: {match: [{}, {tile: 128x64x64}]}}\n",
            ["10:27: presets.p.match[1]: this match contains no kernel of the manifest"],
        ),
        (GOOD + "presets: {p: {wher: x}}\n", ["10:15: presets.p.wher: unknown field, did you mean where?"]),
        (GOOD + "presets: [p]\n", ["10:10: presets: must be a mapping"]),
        (GOOD + "extends: m.yaml\n", ["10:10: extends: manifests extend each other in a cycle: m"]),
        (GOOD + "extends: gone.yaml\n", ["10:10: extends: 'gone.yaml' cannot be read: No such file"]),
        (GOOD + "extends: bf61\n", ["10:10: extends: there is no built-in manifest 'bf61', did you mean bf16?"]),
        (
            GOOD.replace("sets:", "extends: bf61\nwhere: 3\nsets:").replace("f32", "f23"),
            ["5:16: defaults.accumulator: is 'f23'", "7:10: extends: there is no", "8:8: where: must be"],
        ),
        (GOOD + "\tstages: 4\n", ["10:1: YAML: a tab cannot indent YAML; use spaces"]),
        (GOOD + "    stages: [4\n", ["11:1: YAML: did not find expected ',' or ']'"]),
        (GOOD + "    stages: *four\n", ["10:13: YAML: found undefined alias"]),
        (GOOD + "---\n" + GOOD, ["10:1: YAML: but found another document"]),
        (GOOD + "    stages: &s [*s]\n", ["10:13: sets[0].stages[0]: an alias must not be inside its"]),
        (GOOD + "    stages: " + "[" * 900, ["10:60: YAML: lists and mappings are nested more than 50 deep"]),
        (GOOD + "    stages: " + "[" * 100000, ["10:60: YAML: lists and mappings are nested more than 50 deep"]),
        (GOOD.encode("utf-16"), ["1:1: file: byte 0xff is not UTF-8; save the file as UTF-8"]),
        (GOOD.encode() + b"# caf\xe9\n", ["10:6: file: byte 0xe9 is not UTF-8; save the file as UTF-8"]),
        (GOOD + "# \x07\n", ["10:3: file: the control character U+0007 is not allowed"]),
    ],
)  # fmt: skip
def test_every_fault_has_a_place_and_a_way_out(tmp_path: Path, text: str | bytes, expected: list[str]) -> None:
    found = [line.removeprefix("m.yaml:") for line in faults(tmp_path, text)]
    assert len(found) == len(expected), found
    for line, start in zip(found, expected, strict=True):
        assert line.startswith(start)


def test_all_faults_of_a_file_are_reported_at_once_in_its_order(tmp_path: Path) -> None:
    text = (
        "name: 010\ndefualts: {}\nsets:\n"
        "  - {tile: 64x64, schedule: pingpong, schedule: pingpong, d: {dtype: f8, major: k}}\n"
        "  - {a: {dtype: [], major: 3}, c: {q: 1}, where: 'tile.m =='}\n"
        "  - {}\n"
        "presets: {p: 3, on: {}}\n"
    )
    found = faults(tmp_path, text)
    places = [tuple(map(int, line.split(":")[1:3])) for line in found]
    assert places == sorted(places)
    fields = [line.split(": ")[1] for line in found]
    for field in (
        *("name", "defualts", "sets[0].tile", "sets[0].schedule", "sets[0].d.dtype", "sets[0].d.major"),
        *("sets[1].a.dtype", "sets[1].a.major", "sets[1].c.q", "sets[1].where", "sets[2]", "presets.p", "presets"),
    ):
        assert fields.count(field) == 1, field
    assert len(fields) == 13


def test_the_faults_of_an_extended_manifest_name_its_file(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text(GOOD.replace("pingpong", "pong"))
    found = faults(tmp_path, "name: x\nextends: base.yaml\nsets: 3\n")
    assert [line.split(" ")[0] for line in found] == ["base.yaml:9:15:", "m.yaml:2:10:", "m.yaml:3:7:"]


def test_manifests_that_extend_each_other_in_a_circle(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("name: a\nextends: ./b.yaml\n")
    (tmp_path / "b.yaml").write_text("name: b\nextends: ./a.yaml\n")
    with pytest.raises(ManifestError, match=r"b.yaml:2:10: extends: .* in a cycle: a.yaml -> b.yaml -> a.yaml"):
        load_manifest(tmp_path / "a.yaml")


def test_a_child_that_leaves_no_inherited_kernel_is_told_why(tmp_path: Path) -> None:
    (line,) = faults(tmp_path, "name: x\nextends: bf16\ndefaults: {a: {dtype: f16}}\n")
    assert "no candidate is legal; the first one breaks mma-types: WGMMA does not support f16 x bf16" in line


def test_a_manifest_of_refused_candidates_loads_where_one_wants_to_know_why(tmp_path: Path) -> None:
    (tmp_path / "m.yaml").write_text(GOOD.replace("64x64x64", "64x64x60") + "presets: {p: {where: tile.k == 60}}\n")
    kernel_set = load_manifest(tmp_path / "m.yaml", legal=False)
    assert kernel_set.count("p").refused_by_rule == {"tile-k": 1}
    (config,) = kernel_set.expand(legal=False)
    assert [verdict.rule for verdict in verdicts(config)] == ["tile-k"]


@pytest.mark.parametrize(
    ("path", "says"),
    [("missing.yaml", "No such file"), (".", "is a folder"), ("a\0b", "null byte"), ("x" * 5000, "too long")],
)
def test_files_that_cannot_be_read(tmp_path: Path, path: str, says: str) -> None:
    with pytest.raises(ManifestError, match=says):
        load_manifest(tmp_path / path)


def test_aliases_that_explode_are_refused(tmp_path: Path) -> None:
    layers = "".join(f"k{i}: &k{i} [{', '.join([f'*k{i - 1}'] * 9)}]\n" for i in range(1, 10))
    found = faults(tmp_path, "k0: &k0 [1]\n" + layers)
    assert any("aliases expand to more than 200,000 values" in line for line in found)


def test_merges_that_explode_are_refused(tmp_path: Path) -> None:
    """Of keys that are there already, too, which add nothing."""
    layers = "".join(f"k{i}: &k{i} {{<<: [{', '.join([f'*k{i - 1}'] * 10)}]}}\n" for i in range(1, 10))
    found = faults(tmp_path, "k0: &k0 {p: 1}\n" + layers)
    assert any("aliases expand to more than 200,000 values" in line for line in found)


@pytest.mark.parametrize("link", ["[*k{}]", "{{<<: *k{}}}"])
def test_aliases_that_nest_deeply_are_refused(tmp_path: Path, link: str) -> None:
    chain = "".join(f"k{i}: &k{i} {link.format(i - 1)}\n" for i in range(1, 1500))
    found = faults(tmp_path, "k0: &k0 {p: 1}\n" + chain)
    assert any("aliases are nested more than 50 deep" in line for line in found)


def test_absurd_sizes_are_refused_before_they_are_built(tmp_path: Path) -> None:
    values = ", ".join(map(str, range(1, 2000)))
    text = GOOD.replace("64x64x64", f"{{m: [{values}], n: [{values}], k: [{values}]}}")
    (line,) = faults(tmp_path, text)
    assert "has 7,988,005,999 candidates; the limit is 100,000,000" in line


SHIPPED = shipped_manifest("f16").read_text() + shipped_manifest("bf16").read_text()
SNIPPETS = [
    *("on", "~", "010", "!!set ", "&a ", "*a", "<<: ", ": ", "- ", "[", "]", "{", "}", "|", "'", '"'),
    *("\n", "  ", "\t", "\0", "é", "\x85"),
]
"""What a hasty or hostile hand puts into YAML."""


@given(st.randoms(use_true_random=False), st.integers(1, 4), st.booleans())
def test_mutated_manifests_load_or_raise_manifest_errors(
    tmp_path_factory: pytest.TempPathFactory, chance: random.Random, edits: int, small: bool
) -> None:
    text = GOOD if small else shipped_manifest("bf16").read_text()
    words = SHIPPED.split()
    for _ in range(edits):
        start = chance.randrange(len(text))
        stop = min(len(text), start + chance.choice([0, 0, 1, 3, 30]))
        text = text[:start] + chance.choice([*SNIPPETS, "", *chance.sample(words, 5)]) + text[stop:]
    path = tmp_path_factory.mktemp("mutated") / "m.yaml"
    path.write_text(text, encoding="utf-8", newline="")
    lines: list[str] = []
    try:
        load_manifest(path).count()
    except ManifestError as error:
        lines = str(error).splitlines()
    assert all(re.match(rf"{re.escape(str(path))}(:\d+:\d+: [^ ]|: and \d+ more faults?$)", line) for line in lines)
    assert len(lines) <= 21


@given(st.binary(max_size=80) | st.text(max_size=80).map(lambda text: f"name: x\nsets: {text}".encode()))
def test_any_bytes_load_or_raise_manifest_errors(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    with pytest.raises(ManifestError):
        load(tmp_path_factory.mktemp("bytes"), raw)
