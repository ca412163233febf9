"""The command line: what it prints, its exit codes, and that no error becomes a traceback."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import typer
from tests.cases.manifests import ONE
from tests.cases.problems import plain
from typer.testing import CliRunner, Result

from gemmill.cli import application
from gemmill.cli.app import Commands
from gemmill.cli.kernel_sets import KernelSets, of_bits
from gemmill.emitters.emit import emit
from gemmill.library.arch import DEFAULT_GPU
from gemmill.library.arithmetic import arithmetic_named
from gemmill.library.config.fields import config_of, fields_of
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.manifest.load import load_manifest, shipped_manifest
from gemmill.library.problem import GemmProblem
from gemmill.profiler.baselines.baseline import BASELINES
from gemmill.profiler.imports.file_formats import FORMATS
from gemmill.profiler.sweep.shape_suites import Shape
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.decisions import Decision
from gemmill.runtime.select.kernels.faults import faults
from gemmill.runtime.select.model_file import model_of
from gemmill.runtime.storage.pack import Pack
from gemmill.runtime.storage.store import Store

SMALL = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x32x64_1x1_pingpong_s4_m1_k1_linear"
REFUSED = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_256x256x64_2x1_cooperative_s4_m8_k1_linear"
MANIFEST = """\
name: small
defaults:
  a: {dtype: bf16, major: k}
  b: {dtype: bf16, major: k}
  accumulator: f32
  d: {dtype: bf16, major: n}
sets:
  - {tile: 64x32x64, schedule: pingpong, stages: 4}
presets:
  quick: {where: stages == 4}
"""


def gemmill(*arguments: str | Path) -> Result:
    """Run a command in this process."""
    return CliRunner().invoke(application(), [str(argument) for argument in arguments])


def ok(*arguments: str | Path) -> str:
    """Standard output of a command that must succeed."""
    result = gemmill(*arguments)
    assert result.exit_code == 0, result.output
    return result.stdout


def process(*arguments: str | Path, **environment: str) -> subprocess.Popen[str]:
    """Start a command in a process of its own."""
    return subprocess.Popen(
        [sys.executable, "-m", "gemmill", *map(str, arguments)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
        # Where tests run in the background of a shell, Ctrl-C is ignored, and children inherit that.
        preexec_fn=partial(signal.signal, signal.SIGINT, signal.SIG_DFL),
    )


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """A manifest of one small kernel, :data:`SMALL`."""
    path = tmp_path / "small.yaml"
    path.write_text(MANIFEST)
    return path


@pytest.fixture
def pack(manifest: Path, tmp_path: Path) -> Path:
    """A pack of it."""
    ok("pack", manifest, "-o", tmp_path / "small.pack")
    return tmp_path / "small.pack"


def leaves(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """Every command below a group, by its words."""
    for name, sub in getattr(command, "commands", {}).items():
        yield from leaves(sub, (*path, name)) if hasattr(sub, "commands") else [(*path, name)]


def test_every_command_explains_itself_with_an_example() -> None:
    for path in leaves(typer.main.get_command(application())):
        group = ok(*path[:-1], "--help")
        text = ok(*path, "--help")
        assert f"gemmill {' '.join(path).replace('pack make', 'pack')}" in group + text, path


def test_help_lists_every_command_once_with_a_whole_summary(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    root: Any = typer.main.get_command(application())
    text = ok("--help")
    for name in root.commands:
        assert len(re.findall(rf"^  {name} ", text, re.MULTILINE)) == 1, name
    groups = [(), *((name,) for name, command in root.commands.items() if hasattr(command, "commands"))]
    for group in groups:
        assert not re.search(r"^  .*\.\.\.$", ok(*group, "--help"), re.MULTILINE), group


def test_validate_reports_every_error_of_every_file_at_its_place(manifest: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(MANIFEST.replace("stages: 4}", "stages: 4, tilde: 1}").replace("f32", "f33"))
    result = gemmill("validate", manifest, wrong)
    assert result.exit_code == 1
    assert str(manifest) in result.stdout
    lines = [line for line in result.stderr.splitlines() if line.startswith(str(wrong))]
    assert len(lines) >= 2
    assert all(re.match(rf"{re.escape(str(wrong))}:\d+:\d+: \S+: ", line) for line in lines)
    report = json.loads(gemmill("validate", manifest, wrong, "--json").stdout)["items"]
    assert [entry["kernels"] for entry in report] == [1, 0]
    assert report[1]["errors"] == lines


def test_a_misspelt_command_of_pack_is_no_manifest() -> None:
    result = gemmill("pack", "verfy", "quick.pack")
    assert result.exit_code == 2
    assert "'verfy' is neither a command nor a manifest, did you mean verify?" in result.stderr


def test_validate_checks_the_others_where_one_is_missing(manifest: Path, tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(MANIFEST.replace("f32", "f33"))
    result = gemmill("validate", wrong, "no_such_manifest", manifest)
    assert result.exit_code == 2
    assert f"{wrong}:" in result.stderr
    assert "no_such_manifest" in result.stderr
    assert str(manifest) in result.stdout


@pytest.mark.heavy
def test_a_file_is_what_it_says_even_if_it_is_called_like_a_manifest_that_ships(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "bf16").write_text(MANIFEST)
    monkeypatch.chdir(tmp_path)
    for name in ("bf16", "./bf16"):
        assert ok("list", name).split() == [SMALL]
    assert str(load_manifest(shipped_manifest("bf16")).count().legal) in ok("list")


def test_a_kernel_name_may_be_longer_than_a_file_name(tmp_path: Path) -> None:
    terms = " + ".join(f"bias{i}[m] * exp(acc)" for i in range(14))
    path = tmp_path / "long.yaml"
    path.write_text(MANIFEST.replace("stages: 4}", f"stages: 4, epilogue: 'd = acc + {terms}'}}"))
    (name,) = ok("list", path).split()
    assert len(name) > 255
    assert name in ok("explain", name)


def test_a_former_name_is_told_once_on_stderr(manifest: Path) -> None:
    manifest.write_text(MANIFEST.replace("stages: 4}", "stages: 4, scheduler: {swizzle: 1}}"))
    result = gemmill("list", manifest, "--where", "scheduler.swizzle == 1")
    assert result.exit_code == 0
    assert SMALL in result.stdout
    says = [
        line for line in result.stderr.splitlines() if "scheduler.swizzle is now called scheduler.swizzle_size" in line
    ]
    assert len(says) == 1
    assert says[0].startswith(f"warning: {manifest}:")
    assert result.stderr.count("is now called") == 2


def test_outputs_are_neither_inputs_nor_each_other(manifest: Path, tmp_path: Path) -> None:
    text = manifest.read_text()
    for command in (("emit", manifest, "-o", manifest), ("pack", manifest, "-o", manifest)):
        result = gemmill(*command)
        assert result.exit_code == 2
        assert "use another file name" in result.stderr
    assert manifest.read_text() == text
    records = tmp_path / "records.jsonl"
    records.write_text("")
    assert gemmill("report", records, "--csv", records).exit_code == 2
    assert gemmill("roofline", "--records", records, "-o", records).exit_code == 2
    assert gemmill("report", records, "--csv", tmp_path / "x", "--junit", tmp_path / "x").exit_code == 2


def test_an_output_follows_links_and_goes_through_pipes(manifest: Path, tmp_path: Path) -> None:
    target, link, pipe = (tmp_path / name for name in ("target.cu", "link.cu", "pipe.cu"))
    target.write_text("old")
    link.symlink_to(target)
    ok("emit", manifest, "-o", link)
    assert link.is_symlink()
    assert "Kernel::run" in target.read_text()
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True) as reader:
        ok("emit", manifest, "-o", pipe)
        assert reader.communicate()[0] == target.read_text()
    assert pipe.is_fifo()


def test_a_manifest_may_come_through_a_pipe(manifest: Path) -> None:
    command = f"cat {manifest} | {sys.executable} -m gemmill list /dev/stdin"
    assert subprocess.check_output(["bash", "-c", command], text=True).split() == [SMALL]


def test_a_set_that_rules_refuse_wholly_can_be_counted_and_asked_why(tmp_path: Path) -> None:
    path = tmp_path / "refused.yaml"
    path.write_text(MANIFEST.replace("64x32x64", "64x512x64"))
    assert gemmill("list", path).exit_code == 1
    assert json.loads(ok("list", path, "--count", "--json"))["legal"] == 0
    assert "tile-n" in ok("list", path, "--refused")
    nothing = gemmill("list", "tf32", "--preset", "quick", "--refused")
    assert (nothing.exit_code, nothing.stdout) == (0, "")
    assert nothing.stderr.startswith("tf32: no rule rejects a config; ")


@pytest.mark.slow
def test_a_store_that_keeps_nothing_is_an_error_of_build(
    manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("GEMMILL_STORE", str(tmp_path / "file"))
    result = gemmill("build", manifest)
    assert result.exit_code == 1
    assert "the store did not keep 1 of 1 kernels after compilation" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [("store", "path"), *(pytest.param(a, marks=pytest.mark.heavy) for a in (("--version",), ("list", "--help")))],
)
def test_no_traceback_where_nothing_can_be_printed(arguments: tuple[str, ...]) -> None:
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-m", "gemmill", *arguments]
        result = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert result.returncode == 1
    assert "Traceback" not in result.stderr
    assert "No space left" in result.stderr


@pytest.mark.slow
@pytest.mark.heavy
def test_list_prints_names_that_parse_and_counts_that_add_up() -> None:
    names = ok("list", "bf16").split()
    assert [kernel_name(parse_name(name)) for name in names] == names
    assert [entry["name"] for entry in json.loads(ok("list", "bf16", "--json"))["items"]] == names
    count = json.loads(ok("list", "bf16", "--count", "--json"))
    assert count["legal"] == len(names)
    refused = sum(count["refused_by_rule"].values())
    assert count["candidates"] == count["filtered"] + refused + count["legal"] + count["duplicates"]
    few = ok("list", "bf16", "--where", "tile.m == 64").split()
    assert 0 < len(few) < len(names)


def test_a_filter_that_nothing_passes_is_an_error() -> None:
    result = gemmill("list", "simt", "--where", "tile.m == 7")
    assert result.exit_code == 1
    assert "tile.m == 7" in result.stderr


def test_explain_names_the_rule_and_a_change_that_makes_the_config_legal() -> None:
    result = gemmill("explain", REFUSED)
    assert result.exit_code == 1
    assert "accumulator-registers" in result.stdout
    for verdict in json.loads(gemmill("explain", REFUSED, "--json").stdout)["verdicts"]:
        mended = config_of({**fields_of(parse_name(REFUSED)), **verdict["fix"]})
        assert json.loads(ok("explain", kernel_name(mended), "--json"))["legal"]


def test_explain_counts_d_subtiles() -> None:
    name = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_192x176x64_1x2_cooperative_s{}_m8_k1_linear"
    needs = [json.loads(ok("explain", name.format(stages), "--json"))["needs"] for stages in (3, 4)]
    assert [need["D subtiles a warpgroup"] for need in needs] == [2, 1]


def test_explain_and_list_name_the_arithmetic() -> None:
    sliced = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x128x64_1x1_cooperative_s6_m8_splitk_linear"
    assert json.loads(ok("explain", sliced, "--json"))["arithmetic"] == "k16/S"
    told = json.loads(ok("explain", sliced, "--slices", "8", "--json"))
    assert told["arithmetic"] == "k16/8"
    assert f"arithmetic: k16/8 ({told['sums']})" in ok("explain", sliced, "--slices", "8")
    assert gemmill("explain", SMALL, "--slices", "8").exit_code == 2
    rows = json.loads(ok("list", "bf16", "--bits", "k16/8", "--json"))["items"]
    assert {row["arithmetic"] for row in rows} == {"k16/S"}
    assert sliced in {row["name"] for row in rows}
    assert {*ok("list", "bf16", "--bits", "k16/S").split()} == {row["name"] for row in rows}
    many = ok("list", "bf16", "--bits", "k16/200@64").split()  # serial kernels have at most 8
    assert many
    assert all("_splitk_" in name for name in many)
    absent = gemmill("list", "bf16", "--bits", "k32")
    assert (absent.exit_code, "no kernel has the arithmetic k32; these" in absent.stderr) == (1, True)
    assert gemmill("list", "bf16", "--bits", "fast").exit_code == gemmill("list", "--bits", "k16").exit_code == 2


def test_explain_takes_a_file_with_one_config_and_no_more(manifest: Path) -> None:
    assert json.loads(ok("explain", manifest, "--json"))["name"] == SMALL
    manifest.write_text(MANIFEST.replace("stages: 4}", "stages: [4, 5]}"))
    assert gemmill("explain", manifest).exit_code == 2


def test_emit_prints_the_source_and_refuses_what_the_rules_refuse(tmp_path: Path) -> None:
    text = emit(parse_name(SMALL)).text
    assert ok("emit", SMALL) == text
    ok("emit", SMALL, "-o", tmp_path / "kernel.cu")
    assert (tmp_path / "kernel.cu").read_text() == text
    result = gemmill("emit", REFUSED)
    assert result.exit_code == 1
    assert "accumulator-registers" in result.stderr


@pytest.mark.slow
def test_build_compiles_once(manifest: Path, tmp_path: Path) -> None:
    build = ("build", manifest, "--preset", "quick", "--store", tmp_path / "store")
    assert "1 compiled, 0 already in the store" in ok(*build)
    assert "0 compiled, 1 already in the store" in ok(*build)
    (kernel,) = json.loads(ok(*build, "--json"))["items"]
    assert kernel["name"] == SMALL
    assert kernel["cached"]
    assert kernel["spill_stores"] == kernel["spill_loads"] == 0


@pytest.mark.slow
def test_a_pack_for_shapes_has_the_kernels_that_they_need(tmp_path: Path) -> None:
    manifest, shapes, to = (tmp_path / name for name in ("three.yaml", "shapes.yaml", "few.pack"))
    manifest.write_text(MANIFEST.replace("tile: 64x32x64", 'tile: ["64x16x64", "64x32x64", "64x64x64"]'))
    shapes.write_text("name: two\nshapes:\n  - [4096, 4096, 4096]\n  - [4096, 8192, 4096]\n")
    said = ok("pack", manifest, "--shapes", shapes, "-o", to)
    (kernel,) = json.loads(ok("pack", "inspect", to, "--json"))["kernels"]
    assert "_64x64x64_" in kernel["name"]
    assert "slowdown of 2 problems relative to the fastest kernel: at most 0.0%" in said
    assert ok("select", "--mnkl", "4096,8192,4096", "--pack", to).strip() == kernel["name"]
    before = to.read_bytes()
    result = gemmill("pack", manifest, "--shapes", shapes, "--budget", "1K", "-o", to)
    assert result.exit_code == 1
    assert "--budget 1K leaves 2 of 2 problems without a kernel; raise --budget" in result.stderr
    assert to.read_bytes() == before
    size = f"{to.stat().st_size}"
    ok("pack", manifest, "--shapes", shapes, "--budget", size, "-o", tmp_path / "same.pack")
    assert (tmp_path / "same.pack").read_bytes() == before
    for arguments, says in (
        (("--budget", "1M"), "--regret, --budget, --objective, --bits and --gpu need --shapes or --problem"),
        (("--regret", "0.1"), "--regret, --budget, --objective, --bits and --gpu need --shapes or --problem"),
        (("--gpu", "H200"), "--regret, --budget, --objective, --bits and --gpu need --shapes or --problem"),
        (("--bits", "invariant"), "--regret, --budget, --objective, --bits and --gpu need --shapes or --problem"),
        (("--objective", "burst"), "--regret, --budget, --objective, --bits and --gpu need --shapes or --problem"),
        (("--shapes", shapes, "--budget", "many"), "expected a number of bytes such as 500M"),
        (("--shapes", "none"), "neither a file nor a shipped suite"),
        (("--problem", "64x64 bf16"), "the extents are '64x64'; write MxNxK"),
        (("--problem", "64x64x64 bf16", "--shapes", shapes), "both a suite and --problem are given; pass only one"),
    ):
        result = gemmill("pack", manifest, *arguments, "-o", to)
        assert result.exit_code == 2
        assert says in result.stderr


@pytest.mark.slow
def test_a_pack_for_bits_has_the_kernels_of_calls_with_these_bits(tmp_path: Path) -> None:
    manifest, to = tmp_path / "two.yaml", tmp_path / "some.pack"
    manifest.write_text(MANIFEST.replace("stages: 4}", "stages: 4, scheduler: {decomposition: [tiles, splitk]}}"))
    problem = GemmProblem(16, 512, 16384)
    pack = ("pack", manifest, "--problem", str(problem), "--gpu", "H200", "-o", to)
    ok(*pack)
    assert ["splitk" in name for name in Pack.open(to).names()] == [True], "the fastest slices K"
    for bits in ("invariant", "cublas", "k16/8"):
        ok(*pack, "--bits", bits)
        registry = Registry(packs=[to], gpu="H200")
        choice = registry.select(problem, bits=bits)
        assert Pack.open(to).names() == [choice.name]
        assert choice.arithmetic == choice.required
        assert registry.get(choice.name).digest, "from the pack"
        assert registry.select(problem.but(m=5000), bits=bits).kernel == choice.kernel
    lost = gemmill(*pack, "--bits", "k32")
    assert lost.exit_code == 1
    assert (
        f"no kernel supports the formats of the shapes of --problem with --bits k32, such as {problem}" in lost.stderr
    )


@pytest.mark.slow
def test_what_ran_most_often_comes_first_into_a_pack(tmp_path: Path) -> None:
    """Of two shapes, each of which another kernel solves best, a budget for one kernel serves the one that ran more."""
    manifest, shapes, to = (tmp_path / name for name in ("two.yaml", "shapes.yaml", "one.pack"))
    manifest.write_text(MANIFEST.replace("tile: 64x32x64", 'tile: ["64x16x64", "64x64x64"]'))
    pack = ("pack", manifest, "--shapes", shapes, "--regret", "0", "-o", to)
    for counts, tile in (((7, 2), "_64x16x64_"), ((2, 7), "_64x64x64_")):
        few, many = ("{m: 16, n: 1024, k: 1024, count: 1}", f"{{m: 4096, n: 4096, k: 4096, count: {counts[1]}}}")
        again = f"{{m: 16, n: 1024, k: 1024, count: {counts[0] - 1}}}"  # a shape named twice adds to its count
        shapes.write_text(f"shapes: [{few}, {many}, {again}]")
        ok(*pack)
        assert len(Pack.open(to).names()) == 2
        assert "on average over all runs" in ok(*pack, "--budget", str(to.stat().st_size - 1))
        (name,) = Pack.open(to).names()
        assert tile in name


@pytest.mark.slow
@pytest.mark.heavy
def test_kernels_are_chosen_and_packed_for_a_gpu_that_is_not_here(tmp_path: Path) -> None:
    # Measured on both, where an H100 has less bandwidth for it.
    shape = ("16384", "8192", "28672")
    burst = ("--objective", "burst")
    select = ("select", "--mnkl", ",".join(shape), "--a-dtype", "e4m3", *burst, "--gpu")
    on_h200, on_h100 = (ok(*select, gpu).strip() for gpu in ("h200", "H100"))
    assert on_h200 != on_h100
    shapes, to = tmp_path / "shapes.yaml", tmp_path / "h100.pack"
    shapes.write_text(f"name: one\nshapes:\n  - [{', '.join(shape)}]\n")
    where = f"d.dtype == 'bf16' and d.major == 'n' and c.dtype == 'none' and ({_either(on_h200, on_h100)})"
    pack = ("pack", "fp8", "--where", where, "--shapes", shapes, "--regret", "0", *burst)
    ok(*pack, "--gpu", "H100", "-o", to)
    assert [kernel["name"] for kernel in json.loads(ok("pack", "inspect", to, "--json"))["kernels"]] == [on_h100]


def _either(*names: str) -> str:
    """A condition that these kernels alone meet."""
    return " or ".join(
        "(" + " and ".join(f"{field} == {value!r}" for field, value in fields_of(parse_name(name)).items()) + ")"
        for name in names
    )


@pytest.mark.slow
@pytest.mark.heavy
def test_a_pack_for_shapes_rests_on_what_ships_and_takes_it_along(tmp_path: Path) -> None:
    tables = model_of(DEFAULT_GPU.name)
    assert tables is not None
    problem = plain((64, 4096, 7168, 1), ("bf16", "k"), ("bf16", "k"), "f32", None, ("bf16", "n"))
    (us, fastest), *_, (_, slowest) = ((us, kernel.name) for us, kernel in tables.times(problem))
    shapes, to = tmp_path / "shapes.yaml", tmp_path / "one.pack"
    shapes.write_text("shapes: [[64, 4096, 7168]]")
    ok("pack", "bf16", "--where", _either(fastest, slowest), "--shapes", shapes, "--regret", "0", "-o", to)
    (decision,) = Pack.open(to).decisions
    assert decision == Decision(problem=problem, gpu=DEFAULT_GPU.name, kernel=fastest, us=us)
    assert Pack.open(to).names() == [fastest]
    # Of two that each serve one shape best a budget leaves one, and it serves both, and their transposes.
    elsewhere = tables.times(replace(problem, m=128, n=8192, k=8192))[0][1].name
    shapes.write_text("shapes: [[64, 4096, 7168], [128, 8192, 8192]]")
    pack = ("pack", "bf16", "--where", _either(fastest, elsewhere), "--shapes", shapes, "--regret", "0", "-o", to)
    ok(*pack)
    assert set(Pack.open(to).names()) == {fastest, elsewhere}
    assert "slowdown of 4 problems" in ok(*pack, "--budget", str(to.stat().st_size - 1))
    assert len(Pack.open(to).names()) == 1
    # What is the fastest in a long run is in it, and none of what ships, which is of bursts.
    shapes.write_text("shapes: [{m: 8192, n: 8192, k: 8192, d_major: n}]")
    registry, long = Registry(gpu=DEFAULT_GPU), GemmProblem(m=8192, n=8192, k=8192)
    held, alone = registry.select(long).name, registry.select(long, objective="burst").name
    assert held != alone
    pack = ("pack", "bf16", "--where", _either(held, alone), "--shapes", shapes, "--regret", "0", "-o", to)
    assert "slowdown of 1 problems relative to the fastest kernel: at most 0.0%" in ok(*pack)
    assert (Pack.open(to).names(), Pack.open(to).decisions) == ([held], ())
    ok(*pack, "--objective", "burst")
    assert [decision.kernel for decision in Pack.open(to).decisions] == Pack.open(to).names() == [alone]


@pytest.mark.slow
def test_pack_writes_inspects_and_finds_damage(pack: Path) -> None:
    (kernel,) = json.loads(ok("pack", "inspect", pack, "--json"))["kernels"]
    assert kernel["name"] == SMALL
    ok("pack", "verify", pack)
    assert ok("select", "--mnkl", "64,64,64", "--pack", pack).strip() == SMALL
    data = bytearray(pack.read_bytes())
    data[-100] ^= 1
    pack.write_bytes(data)
    result = gemmill("pack", "verify", pack)
    assert result.exit_code == 1
    assert SMALL in result.stderr


@pytest.mark.slow
def test_store_lists_verifies_and_clears(tmp_path: Path) -> None:
    store = tmp_path / "store"
    artifact = Registry(manifests=()).get(SMALL)
    Store(store).put(artifact.key, artifact)
    (entry,) = json.loads(ok("store", "list", "--json", "--store", store))["items"]
    assert entry["name"] == SMALL
    ok("store", "verify", "--store", store)
    (file,) = (path for path in store.rglob("*") if entry["key"] in path.name and path.is_file())
    file.write_bytes(file.read_bytes()[:-1])
    assert gemmill("store", "verify", "--store", store).exit_code == 1
    refused = gemmill("store", "clear", "--store", store)
    assert refused.exit_code == 2
    assert f"1 kernels and the cached results in {store}, but stdin is no terminal; pass --yes" in refused.stderr
    assert json.loads(ok("store", "stats", "--json", "--store", store))["entries"] == 1
    assert ok("store", "clear", "--store", store, "--yes") == "1 kernels removed\n"
    assert json.loads(ok("store", "stats", "--json", "--store", store))["entries"] == 0
    assert ok("store", "path", "--store", store).strip() == str(store)


@pytest.mark.parametrize("command", ["list", "stats", "verify", "clear", "prune"])
def test_a_store_that_cannot_be_read_is_not_called_empty(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    yes = ("--yes",) if command == "clear" else ()
    for store in (tmp_path / "file", tmp_path / "file" / "store"):
        monkeypatch.setenv("GEMMILL_STORE", str(store))
        result = gemmill("store", command, *yes)
        assert result.exit_code == 1
        assert f"cannot read the store: {store}: Not a directory" in result.stderr
        assert result.stdout == ""
    ok("store", command, *yes, "--store", tmp_path / "not there yet")


def test_select_ranks_kernels_and_says_why() -> None:
    arguments = ("select", "--mnkl", "4096,4096,4096,1", "--a-major", "m", "--b-major", "n")
    report = json.loads(ok(*arguments, "--top", "3", "--json"))
    times = [entry["us"] for entry in report["ranking"]]
    assert times == sorted(times)
    assert len(times) == 3
    config = parse_name(report["name"])
    assert (config.a.major, config.b.major) == ("mn", "mn")
    name, gpu, reason = ok(*arguments, "--why").splitlines()
    assert (name, reason) == (report["name"], report["reason"])
    assert re.fullmatch(r"GPU: NVIDIA .+, .+; --gpu selects another", gpu)
    assert "GPU: NVIDIA H200, from --gpu\n" in ok(*arguments, "--why", "--gpu", "h200")


def test_select_quick_has_no_effect() -> None:
    size = ("--mnkl", "1234,4096,4096", "--gpu", "H200")
    quick = gemmill("select", *size, "--quick")
    assert "--quick has no effect" in quick.stderr
    assert quick.stdout == ok("select", *size)


@pytest.mark.parametrize("option", [("--batch-invariant",), ("--bits", "invariant"), ("--bits", "k16")])
def test_select_for_every_m(option: tuple[str, ...]) -> None:
    for m in (1, 64, 5000):
        report = json.loads(ok("select", "--mnkl", f"{m},1024,1001", *option, "--json"))
        assert report["reason"].endswith("; arithmetic k16, as required")
        assert report["arithmetic"] == report["required"] == "k16"


def test_profile_names_the_problems_that_bits_leave_out(capsys: pytest.CaptureFixture[str]) -> None:
    none = gemmill("profile", "simt", "--problem", "64x64x64 f32 tn", "--bits", "k16")
    assert none.exit_code == 1
    assert "--bits k16 leaves out 1 of 1 problems: no kernel for 64x64x64 f32 tn has arithmetic k16" in none.stderr
    sets = KernelSets(manifest=["bf16", "simt"], where="d.dtype in ['bf16', 'f64'] and c.dtype == 'none'")
    chosen, _ = sets.units_of([Shape.of(GemmProblem(64, 64, 4096, a=a)) for a in ("bf16", "f64")])
    limited = of_bits(chosen, "cublas", sets)
    assert {str(arithmetic_named(kernel)) for unit in limited for kernel in unit.kernels} == {"k16"}
    assert "how cuBLAS sums is not known" in capsys.readouterr().err
    assert of_bits(chosen, "any", sets) == chosen


def test_select_refuses_bits_that_no_kernel_gives() -> None:
    unknown = gemmill("select", "--mnkl", "64,64,64", "--a", "f64", "--bits", "cublas")
    assert (unknown.exit_code, "how cuBLAS sums is not known" in unknown.stderr) == (1, True)
    both = gemmill("select", "--mnkl", "64,64,64", "--bits", "k16", "--batch-invariant")
    assert (both.exit_code, "omit --batch-invariant" in both.stderr) == (2, True)


@pytest.mark.parametrize(
    ("options", "formats"),
    [
        (("s8",), "s8k16_s8k16_s32_none_s32"),
        (("s8", "--b-dtype", "bf16"), "s8k16_bf16k16_f32_none_bf16"),
        (("tf32",), "tf32k16_tf32k16_f32_none_f32"),
        (("e4m3",), "e4m3k16_e4m3k16_f32_none_bf16"),
        (("e4m3", "--promoted"), "e4m3k16_e4m3k16_f32p4_none_bf16"),
        (("e4m3", "--block-scaled"), "e4m3k16s1x128_e4m3k16s128x128_f32p4_none_bf16"),
    ],
)
def test_accumulator_and_output_follow_the_wider_type(options: tuple[str, ...], formats: str) -> None:
    name = ok("select", "--mnkl", "8192,8192,8192", "--a-dtype", *options)
    assert re.match(rf"sm90a_{formats}[mn]16_", name), "of the problem or of its transpose"


def test_select_names_the_constraint_that_no_kernel_meets() -> None:
    result = gemmill("select", "--mnkl", "64,64,63", "--a-dtype", "bf16", "--b-dtype", "s8", "--manifest", "mixed")
    assert result.exit_code == 1
    assert "alignment" in result.stderr


def test_run_refuses_a_kernel_of_other_operands() -> None:
    result = gemmill("bench", "--mnkl", "64,64,64", "--b-major", "n", "--kernel", SMALL)
    assert result.exit_code == 1
    assert "does not support" in result.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "environment", "status", "says"),
    [
        (("bench", "--mnkl", "64,64,64"), {"CUDA_VISIBLE_DEVICES": ""}, 3, "there is no GPU to run kernels on: "),
        pytest.param(
            ("bench", "--mnkl", "256,7168,2048", "--d-dtype", "f32"),
            *({"CUDA_VISIBLE_DEVICES": ""}, 3, "error: "),
            marks=pytest.mark.heavy,
        ),
        (("build", "simt", "--preset", "quick"), {"GEMMILL_INCLUDE": "/nowhere"}, 3, "unset GEMMILL_INCLUDE"),
        (("store", "list"), {"GEMMILL_STOER": "/tmp"}, 0, "did you mean GEMMILL_STORE"),
    ],
)
def test_what_the_machine_lacks_or_a_new_process_finds_wrong(
    arguments: tuple[str, ...], environment: dict[str, str], status: int, says: str
) -> None:
    child = process(*arguments, **environment)
    _, errors = child.communicate()
    assert child.returncode == status, errors
    assert says in errors
    assert "Traceback" not in errors


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "environment", "status", "says"),
    [
        (("build", "MANIFEST", "--store", ""), {}, 2, "an empty name is not a directory"),
        (("build", "MANIFEST", "--store", "STORE"), {"GEMMILL_STORE_BYTES": "1K"}, 1, "the store's limit of 1,024"),
        (("list",), {"GEMMILL_JOBS": "many"}, 2, "GEMMILL_JOBS"),
    ],
)
def test_what_the_environment_gets_wrong(
    arguments: tuple[str, ...],
    environment: dict[str, str],
    status: int,
    says: str,
    manifest: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    places = {"MANIFEST": str(manifest), "STORE": str(tmp_path / "store")}
    result = gemmill(*(places.get(argument, argument) for argument in arguments))
    assert result.exit_code == status, result.output
    assert says in result.stderr


def test_an_unforeseen_error_is_one_line_unless_debugging(monkeypatch: pytest.MonkeyPatch) -> None:
    app = typer.Typer(cls=Commands, pretty_exceptions_enable=False)

    @app.command()
    def fail() -> None:
        raise ZeroDivisionError("of the test")

    @app.callback()
    def main() -> None:
        pass

    result = CliRunner().invoke(app, ["fail"])
    assert result.exit_code == 1
    assert "ZeroDivisionError: of the test" in result.stderr
    assert "Traceback" not in result.stderr
    monkeypatch.setenv("GEMMILL_DEBUG", "1")
    assert isinstance(CliRunner().invoke(app, ["fail"]).exception, ZeroDivisionError)


@pytest.mark.slow
def test_a_reader_that_goes_away_is_no_error() -> None:
    child = process("list", "bf16")
    assert child.stdout is not None
    assert child.stderr is not None
    child.stdout.readline()
    child.stdout.close()
    assert child.stderr.read() == ""
    child.wait()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (signal.SIGTERM, 143),
        pytest.param(signal.SIGINT, 130, marks=pytest.mark.heavy),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.heavy),
    ],
)
def test_ending_a_build_leaves_the_store_sound_and_nothing_else(
    sent: signal.Signals, status: int, manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest.write_text(MANIFEST.replace("stages: 4}", f"stages: {[*range(2, 16)]}}}"))
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    monkeypatch.setenv("TMPDIR", str(temporary))
    store = Store(tmp_path / "store")
    child = process("build", manifest, "--jobs", "1", "--store", store.path, "--json")
    while not store.list() and child.poll() is None:
        time.sleep(0.05)
    child.send_signal(sent)
    answer, errors = child.communicate(timeout=60)
    assert child.returncode == status, errors
    assert json.loads(answer)["error"]["code"] == ("interrupted" if sent == signal.SIGINT else "terminated")
    assert ("interrupted" in errors) == (sent == signal.SIGINT)
    assert "Traceback" not in errors
    assert not list(temporary.iterdir())
    assert store.list()
    assert not store.verify()


@pytest.mark.heavy
def test_doctor_lists_the_toolchain_and_finds_a_store_that_cannot_be(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = {finding["what"]: finding for finding in json.loads(gemmill("doctor", "--json").stdout)["items"]}
    assert {"nvrtc", "cutlass", "cccl", "cudart", "store"} <= found.keys()
    (tmp_path / "file").touch()
    monkeypatch.setenv("GEMMILL_STORE", str(tmp_path / "file" / "store"))
    result = gemmill("doctor")
    assert result.exit_code == 1
    assert "set GEMMILL_STORE" in result.stdout


@pytest.mark.slow
@pytest.mark.parametrize("which", ["small", pytest.param("bf16", marks=pytest.mark.heavy)])
def test_the_demo_goes_all_the_way(which: str, manifest: Path) -> None:
    text = ok("demo") if which == "bf16" else ok("demo", manifest)
    for number in range(1, 7):
        assert f"\n{number}. " in text
    assert "0 damaged" in text


@pytest.mark.gpu
def test_run_verifies_and_times_beside_cublas() -> None:
    for extents in ("512,512,512,1", "16,512,512,1"):  # the latter transposed
        rows = json.loads(ok("bench", "--mnkl", extents, "--json"))["items"]
        found = {",".join(str(row["problem"][x]) for x in ("m", "n", "k", "batch")) for row in rows}
        assert found == {extents}
        assert {row["problem"]["d_major"] for row in rows} == {"n"}
        cublas = next(row for row in rows if row["kernel"] == "cublas")
        (kernel,) = (row for row in rows if row["kernel"] not in BASELINES)
        assert kernel["verified"]
        assert kernel["us"] > 0
        assert kernel["ratio"] == pytest.approx(cublas["us"] / kernel["us"])


@pytest.mark.gpu
def test_profile_appends_records_that_select_prefers_and_measures_nothing_twice(manifest: Path, tmp_path: Path) -> None:
    shapes, records = tmp_path / "shapes.yaml", tmp_path / "records.jsonl"
    shapes.write_text("shapes: [[512, 512, 512]]")
    arguments = ("profile", manifest, "--shapes", shapes, "--records", records, "--json")
    rows = json.loads(ok(*arguments))["items"]
    assert [row["kernel"] for row in rows if row["kernel"] not in BASELINES] == [rows[0]["kernel"]]
    assert "cublas" in {row["kernel"] for row in rows}
    assert json.loads(ok(*arguments))["items"] == []
    choice = json.loads(ok("select", "--mnkl", "512,512,512", "--manifest", manifest, "--records", records, "--json"))
    assert choice["source"] == "measured"


def test_shapes_prints_a_suite_that_says_the_same(tmp_path: Path) -> None:
    trace = Path(__file__).parents[1] / "data" / "shapes" / "trace.json.gz"
    done = gemmill("shapes", trace)
    assert done.exit_code == 0
    assert "the sizes of groups are not recorded" in done.stderr
    (path := tmp_path / "s.yaml").write_text(done.stdout)
    again = json.loads(gemmill("shapes", path, "--json").stdout)
    first = json.loads(gemmill("shapes", trace, "--json").stdout)
    assert again["shapes"] == first["shapes"]
    assert gemmill("shapes", path, "--m", "16,x").exit_code == 2


def test_shapes_says_what_it_reads_leaves_out_and_assumes(tmp_path: Path) -> None:
    help_text = ok("shapes", "--help")
    for form in FORMATS:
        assert f"- {form.name}: {form.sign}" in help_text
    (tmp_path / "README").write_text("of vLLM\n")
    (config := tmp_path / "E=8,N=64,dtype=fp8_w8a8,block_shape=[128,128].json").write_text(
        '{"4": {"BLOCK_SIZE_M": 16}}'
    )
    done = gemmill("shapes", tmp_path, "--k", "256")
    assert done.exit_code == 0
    said = [line.partition(": ") for line in done.stderr.splitlines()]
    assert [kind for kind, _, _ in said] == ["left out", "assumed", "assumed"]
    routed = json.loads(gemmill("shapes", config, "--k", "256", "--top-k", "2", "--json").stdout)
    assert [shape["m"] for shape in routed["shapes"]] == [8, 8]
    assert [text.partition(".json:1: ")[2] for text in routed["assumed"]] == [
        "the sizes of groups are not in the file; assuming equal sizes"
    ]
    assert routed["left_out"] == []


def test_select_names_the_kernels_of_a_list(tmp_path: Path) -> None:
    (path := tmp_path / "l.json").write_text('[{"m": 64, "n": 4096, "k": 4096, "a": "fp16"}, [128, 4096, 4096]]')
    found = json.loads(gemmill("select", "--shapes", path, "--json").stdout)["items"]
    assert [row["text"] for row in found] == ["64x4096x4096 f16 tn", "128x4096x4096 bf16 tn"]
    assert "_f16k16_" in found[0]["name"]
    done = gemmill("select", "--shapes", path, "--epilogue", "d = silu(acc + bias[n])")
    assert done.exit_code == 0
    assert done.stdout.count("xdEsiluP") == 2
    (path := tmp_path / "none.json").write_text('[{"m": 64, "n": 64, "k": 64, "a": "s4", "b": "u4"}, [64, 64, 64]]')
    done = gemmill("select", "--shapes", path)
    assert done.exit_code == 1
    assert "error: no kernel supports 64x64x64 s4*u4" in done.stderr
    assert gemmill("select", "--shapes", path, "--mnkl", "1,2,3").exit_code == 2
    both = json.loads(gemmill("select", "--mnkl", "64,64,64", "--mnkl", "64,64,128", "--json").stdout)["items"]
    assert [row["text"] for row in both] == ["64x64x64 bf16 tn", "64x64x128 bf16 tn"]
    assert "--mnkl is given 2 times; pass it once" in gemmill("oracle", "--mnkl", "6,6,6", "--mnkl", "6,6,7").stderr
    done = gemmill("bench", "--problem", "64x64x64 bf16 grouped=4", "--sizes", "60,4")
    assert done.exit_code == 2
    assert "sizes has 2 numbers, but 64x64x64 bf16 tn grouped=4 has 4 groups" in " ".join(done.stderr.split())
    done = gemmill(
        "select", "--mnkl", "64,64,64", "--b", "u4", "--b-scale", "1x128", "--epilogue", "d = silu(gate) * up"
    )
    assert done.exit_code == 1
    assert "error: no kernel supports" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("select", "--mnkl", "1,2"), "usage", "--mnkl is '1,2'; it must be M,N,K"),
        (("select", "--nothing"), "usage", "No such option"),
        (("validate", "nosuch.yaml"), "usage", "neither a file nor a shipped manifest"),
        (("list", "{bad}"), "manifest", "bad.yaml:2:1: YAML:"),
        (("pack", "inspect", "{bad}"), "pack", "is no pack|not a pack|pack"),
        (("select", "--mnkl", "64,64,64", "--a", "s4", "--b", "u4"), "unsupported_problem", "no kernel supports"),
    ],
)
def test_errors_are_json_too(tmp_path: Path, arguments: tuple[str, ...], code: str, says: str) -> None:
    (bad := tmp_path / "bad.yaml").write_text("x: [")
    done = gemmill(*(argument.format(bad=bad) for argument in arguments), "--json")
    assert done.exit_code in (1, 2)
    error = json.loads(done.stdout)["error"]
    assert error["code"] == code
    assert any(part in error["message"] for part in says.split("|"))
    assert error.keys() == {"code", "message", "where", "hint"}
    if code == "manifest":
        assert error["where"].startswith(f"{bad}:2:1")


@pytest.mark.slow
def test_a_pack_serves_the_problems_of_a_trace_that_its_manifest_can(tmp_path: Path) -> None:
    (path := tmp_path / "m.yaml").write_text(ONE)
    extents = '"m": 64, "n": 96, "k": 64'
    (shapes := tmp_path / "l.json").write_text(f'[{{{extents}, "a": "bf16"}}, {{{extents}, "a": "e4m3"}}]')
    done = gemmill("pack", path, "--shapes", shapes, "-o", tmp_path / "o.pack", "--json")
    assert done.exit_code == 0
    assert "left out 1 of 2 shapes, because no kernel supports their formats: 64x96x64 e4m3 tn" in done.stderr
    assert [*json.loads(done.stdout)["losses"]] == ["64x96x64 bf16 tn"]
    shapes.write_text(f'[{{{extents}, "a": "bf16"}}, {{{extents}, "epilogue": "d = acc + bias.bf16[n]", "a": "bf16"}}]')
    done = gemmill("pack", path, "--shapes", shapes, "-o", tmp_path / "o.pack")
    assert done.exit_code == 0, done.stderr
    assert "left out" not in done.stderr
    packed = Registry(packs=[tmp_path / "o.pack"])
    for problem in ("64x96x64 bf16 tn", "64x96x64 bf16 tn epilogue='d = acc + bias.bf16[n]'"):
        assert packed.select(GemmProblem.from_text(problem)).name in packed.packs[0].names()
    shapes.write_text(f'[{{{extents}, "a": "e4m3"}}]')
    done = gemmill("pack", path, "--shapes", shapes, "-o", tmp_path / "o.pack")
    assert done.exit_code == 1
    assert f"such as 64x96x64 e4m3 tn; omit {path} to use all shipped kernels. To print what gemmill" in done.stderr


@pytest.mark.slow
def test_one_pack_serves_a_list_of_several_types(tmp_path: Path) -> None:
    """Without a manifest, each problem gets a kernel of the set for its types, also if that is made from another."""
    lines = ["64x512x256 bf16 tn", "64x512x256 e4m3 tn", "64x512x256 s8 tn", "64x512x256 bf16*u4 tn b_scale=1x128"]
    lines += ["64x512x256 bf16 tn d=f32", "512x512x256 bf16 tn grouped=4"]
    asked = [word for line in (*lines, "64x64x64 bf16*s4 tn") for word in ("--problem", line)]
    done = gemmill("pack", *asked, "--gpu", "H200", "-o", tmp_path / "model.pack", "--json")
    assert done.exit_code == 0, done.stderr
    assert done.stderr.startswith("left out 1 of 7 shapes, because no kernel supports their formats: 64x64x64 bf16*s4")
    assert [*json.loads(done.stdout)["losses"]] == lines
    packed = Registry(packs=[tmp_path / "model.pack"], gpu="H200")
    for line in lines:
        assert packed.select(GemmProblem.from_text(line)).name in packed.packs[0].names()


def test_kernels_come_from_the_named_sets_or_all() -> None:
    mixed = [Shape.of(GemmProblem.from_text(line)) for line in ("64x64x64 bf16", "64x64x64 s8", "64x64x64 f32 nn")]
    found, missing = KernelSets().units_of(mixed)
    assert ([unit.problem for unit in found], missing) == ([shape.problem for shape in mixed], [])
    for unit in found:
        for kernel in unit.kernels:
            config = parse_name(kernel.name)
            assert not faults(config, unit.problem) or not faults(config, unit.problem.transposed)
    found, missing = KernelSets(manifest=["bf16", "int8"], where="tile.m == 64").units_of(mixed)
    assert missing == mixed[2:]
    assert {parse_name(kernel.name).tile.m for unit in found for kernel in unit.kernels} == {64}
    open_formats = Shape(64, 64, 64)
    assert KernelSets().problems_of(open_formats) == [GemmProblem(m=64, n=64, k=64)]
    every = KernelSets(manifest=["bf16", "int8"]).problems_of(open_formats)
    assert {problem.a_dtype for problem in every} == {"bf16", "s8", "u8"}
    assert len(every) > 10


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        ((), 2, "no kernels are named; pass MANIFEST, or --shapes FILE or --problem TEXT"),
        (("bf16", "nosuch"), 2, "'nosuch' is neither a file nor a shipped manifest"),
        (("bf16", "fp8", "--where", "a.dtype == 'bf16'"), 1, "fp8: no kernel of the set passes"),
        (("bf16", "--preset", "quikc"), 2, "bf16 has no preset 'quikc', did you mean quick?"),
        (("--problem", "64x64x64 bf16", "--preset", "quikc"), 2, "has preset 'quikc', did you mean quick?"),
        (("--problem", "64x64x64 bf16", "--where", "tile.m == 7"), 1, "no shipped manifest has a kernel of --where"),
        (
            ("--problem", "64x64x64 bf16 grouped=2", "--preset", "quick"),
            1,
            "such as 64x64x64 bf16 tn grouped=2; omit --preset 'quick' to use all shipped kernels",
        ),
    ],
)
def test_a_pack_of_no_kernels_is_not_made(arguments: tuple[str, ...], code: int, says: str, tmp_path: Path) -> None:
    done = gemmill("pack", "-o", tmp_path / "no.pack", *arguments)
    assert done.exit_code == code
    assert says in " ".join(done.stderr.split())
    assert not (tmp_path / "no.pack").exists()


def test_profile_is_told_what_to_measure() -> None:
    for arguments, says in (
        ((), "no problem is given; pass --shapes FILE or --problem TEXT"),
        (("--problem", "64x64x64 bf16 grouped=4", "--sizes", "zipf"), "it must be balanced, zipf:S"),
        (("--problem", "64x64x64 bf16 a_scal=1x128"), "did you mean a_scale"),
    ):
        result = gemmill("profile", "bf16", *arguments)
        assert result.exit_code == 2
        assert says in " ".join(result.stderr.split())
    result = gemmill("profile", "int8", "--problem", "64x64x64 bf16")
    assert result.exit_code == 1
    assert "no kernel supports the formats of the shapes of --problem, such as 64x64x64 bf16 tn" in result.stderr


def test_shapes_lists_the_suites_that_ship() -> None:
    found = {suite["name"]: suite for suite in json.loads(ok("shapes", "--json"))["items"]}
    assert found["moe"]["shapes"] == 52
    assert found["moe"]["says"].startswith("Experts of six public models")
    assert "moe" in ok("shapes")
