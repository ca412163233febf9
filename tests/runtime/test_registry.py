"""The registry: the same kernel from wherever it is cheapest, and the selector over all of them."""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gemmill.emitters.emit import emit
from gemmill.library.arch import DEFAULT_GPU, GPUS
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.errors import (
    CompileError,
    ConfigError,
    DeviceError,
    ManifestError,
    PackError,
    UnsupportedProblemError,
)
from gemmill.library.problem import GemmProblem
from gemmill.runtime.compile.pool import Outcome
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.gpus import figures
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.pack import Pack, write_pack
from gemmill.runtime.storage.store import Store

PROBLEM = GemmProblem(512, 256, 128, 1, "bf16", "k", "bf16", "k", "f32", "bf16", "n")


@pytest.fixture
def pack(tmp_path: Path, artifact: Artifact) -> Path:
    path = tmp_path / "one.pack"
    write_pack(path, [artifact])
    return path


def entries(registry: Registry) -> int:
    return registry.store.stats().entries


def test_a_loaded_kernel_is_not_looked_up_again(artifact: Artifact) -> None:
    registry = Registry(manifests=())
    first = registry.get(artifact.name)
    assert first == artifact
    assert registry.get(artifact.config) is first


def test_a_pack_comes_before_the_store_and_the_store_before_the_compiler(
    pack: Path, tmp_path: Path, artifacts: tuple[Artifact, ...]
) -> None:
    packed, other = artifacts
    registry = Registry(packs=[pack], store=tmp_path / "store")
    assert registry.get(packed.name) == packed
    assert entries(registry) == 0
    Store(tmp_path / "store").put(other.key, other)
    used = registry.store.list()[0].used
    assert registry.get(other.name) == other, "a kernel that no manifest declares"
    assert entries(registry) == 1
    assert registry.store.list()[0].used >= used


def test_a_kernel_that_was_handed_over_comes_before_any_other(pack: Path, tmp_path: Path, artifact: Artifact) -> None:
    registry = Registry(packs=[pack], store=tmp_path / "store")
    mine = replace(artifact, cubin=artifact.cubin + b"mine")
    registry.add(mine)
    assert registry.get(artifact.name) is mine
    assert entries(registry) == 0


def test_what_is_compiled_is_stored(tmp_path: Path, artifact: Artifact) -> None:
    registry = Registry(manifests=(), store=tmp_path)
    assert registry.get(artifact.name) == artifact, "another compilation, the same bytes"
    assert registry.store.get(artifact.key) == artifact


def test_a_damaged_pack_member_is_an_error_unless_another_pack_has_it(pack: Path, artifact: Artifact) -> None:
    damaged = pack.with_name("damaged.pack")
    data = bytearray(pack.read_bytes())
    data[-10] ^= 1
    damaged.write_bytes(data)
    with pytest.raises(PackError, match="damaged"):
        Registry(packs=[damaged]).get(artifact.name)
    assert Registry(packs=[damaged, pack]).get(artifact.name) == artifact


def test_names_that_do_not_parse_and_configs_that_break_rules(configs: tuple[GemmConfig, ...]) -> None:
    registry = Registry(manifests=())
    with pytest.raises(ConfigError):
        registry.get("sm90a_nonsense")
    with pytest.raises(ConfigError):
        registry.get(replace(configs[0], stages=50))


def test_configs_made_by_hand_are_checked_as_names_are(configs: tuple[GemmConfig, ...], pack: Path) -> None:
    registry = Registry(packs=[pack])
    nowhere: Any = "sm99"
    with pytest.raises(ConfigError, match=r"arch is 'sm99', .*: Input should be 'sm70', "):
        registry.get(replace(configs[0], arch=nowhere))
    with pytest.raises(ConfigError, match="stages is 's0'"):
        registry.warm([replace(configs[0], stages=0)])


@pytest.mark.slow
def test_warming_compiles_in_parallel_what_is_missing(
    pack: Path, tmp_path: Path, artifacts: tuple[Artifact, ...]
) -> None:
    packed, other = artifacts
    seen: list[Outcome] = []
    registry = Registry(packs=[pack], store=tmp_path / "store")
    wanted: list[str | GemmConfig | GemmProblem] = [other.config, packed.name, other.name, PROBLEM]
    assert registry.warm(wanted, on_done=seen.append) == [other, packed, other, packed]
    assert [outcome.name for outcome in seen] == [other.name]
    registry.store.clear()
    assert registry.get(other.name) == other, "loaded, not looked up"
    assert entries(registry) == 0


@pytest.mark.slow
def test_warming_names_what_failed_and_warms_the_rest(tmp_path: Path, artifact: Artifact) -> None:
    registry = Registry(manifests=(), store=tmp_path)
    registry.store.put(artifact.key, artifact)
    bad = replace(artifact.config, stages=50)
    with pytest.raises(CompileError, match=rf"1 of 2 kernels did not compile:\n{kernel_name(bad)}"):
        registry.warm([bad, artifact.name])
    registry.store.clear()
    assert registry.get(artifact.name) == artifact
    assert entries(registry) == 0


def test_threads_share_a_registry(tmp_path: Path, artifact: Artifact) -> None:
    registry = Registry(manifests=(), store=tmp_path)
    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(registry.get, [artifact.name] * 16))
    assert all(one is found[0] for one in found)


@pytest.mark.slow
def test_the_default_registry_holds_the_shipped_kernels() -> None:
    registry = Registry()
    names = {kernel_set.name for kernel_set in registry.kernel_sets}
    assert {"bf16", "f16"} <= names
    configs = Registry(manifests=["bf16"]).configs()
    assert len(configs) > 400
    assert all(kernel_name(config) == name for name, config in list(configs.items())[::50])
    assert registry.select(PROBLEM).name in configs


@pytest.mark.slow
def test_a_choice_among_kernels_of_a_problem_s_types_is_that_among_all() -> None:
    registry = Registry(gpu=DEFAULT_GPU)
    problems = [
        PROBLEM,
        GemmProblem(5, 4096, 4096, 1, "bf16", "k", "s8", "k", "f32", "bf16", "n"),  # runs transposed
        GemmProblem(300, 200, 100, 1, "e4m3", "mn", "e5m2", "k", "f16", "f16", "n", a_align=1),  # sums in f32
        GemmProblem(64, 64, 64, 1, "f64", "k", "f64", "mn", "f64", "f64", "m", promote=4),
    ]
    assert [registry.select(problem) for problem in problems] == [*map(registry.selector.select, problems)]
    with pytest.raises(DeviceError, match="'H300' is none of"):
        Registry(manifests=["mixed"], gpu="H300")
    assert Registry(manifests=["mixed"], gpu="h200").gpu is GPUS["NVIDIA H200"]
    narrow = GemmProblem(16, 4096, 4096, a="bf16", b="u4", b_scale="1x128z")
    chosen = registry.select(narrow)
    assert (chosen.config.a.dtype, chosen.config.a.scale) == ("u4", "1x128z"), "kernels upconvert A alone"
    nowhere = GemmProblem(64, 64, 64, 1, "s4", "k", "s4", "k", "s32", "s32", "n")
    with pytest.raises(UnsupportedProblemError) as among_all:
        registry.selector.select(nowhere)
    with pytest.raises(UnsupportedProblemError, match=re.escape(str(among_all.value))):
        registry.select(nowhere)


def test_packs_run_as_they_are_and_manifests_with_another_d_as_well(
    tmp_path: Path, configs: tuple[GemmConfig, ...], artifacts: tuple[Artifact, ...]
) -> None:
    wide = replace(configs[0], d=replace(configs[0].d, dtype="f32"))
    write_pack(tmp_path / "three.pack", [*artifacts, Registry(manifests=()).get(wide)])
    manifest = """
        name: three
        defaults: {arch: sm90a, a: {dtype: bf16, major: k}, b: {dtype: bf16, major: k}, accumulator: f32, c: none}
        sets:
          - {d: {dtype: [bf16, f32], major: n}, tile: 64x32x64, schedule: pingpong, stages: 4}
          - {d: {dtype: bf16, major: n}, tile: 128x32x64, cluster: 2x1, schedule: cooperative, stages: 4}
    """
    (tmp_path / "three.yaml").write_text(textwrap.dedent(manifest))
    packed, declared = Registry(packs=[tmp_path / "three.pack"]), Registry(manifests=[tmp_path / "three.yaml"])
    asked = replace(PROBLEM, d_dtype="f32")
    assert [candidate.name for candidate in packed.candidates(asked, 9)] == [kernel_name(wide)]
    tiles = {parse_name(candidate.name).tile for candidate in declared.candidates(asked, 9)}
    assert tiles == {config.tile for config in configs}


def test_files_that_are_wrong_are_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(PackError):
        Registry(packs=[tmp_path / "none.pack"])
    with pytest.raises(ManifestError):
        Registry(manifests=[tmp_path / "none.yaml"])
    (tmp_path / "mine.yaml").write_text("name: mine\nextends: bf16\ndefaults: {a: {dtype: f16}}\n")
    with pytest.raises(ManifestError, match="no candidate is legal"):
        Registry(manifests=[tmp_path / "mine.yaml"])


def test_a_registry_without_kernels_for_a_problem_says_so(pack: Path) -> None:
    with pytest.raises(UnsupportedProblemError, match="B's major k \\(the problem has mn\\)"):
        Registry(packs=[pack]).select(GemmProblem(512, 256, 128, 1, "bf16", "k", "bf16", "mn", "f32", "bf16", "n"))


@pytest.mark.parametrize(
    ("name", "row"),
    [("NVIDIA H200", "NVIDIA H200"), ("NVIDIA H200 NVL", "NVIDIA H200"), ("NVIDIA H20", "NVIDIA H20")],
)
def test_gpus_are_known_by_the_drivers_name(name: str, row: str) -> None:
    assert figures(name, (9, 0)) == GPUS[row]


def test_an_unknown_gpu_keeps_its_name_and_capability() -> None:
    gpu = figures("NVIDIA X1", (10, 0))
    assert (gpu.name, gpu.capability, gpu.sms) == ("NVIDIA X1", (10, 0), DEFAULT_GPU.sms)


def test_importing_the_registry_imports_no_compiler() -> None:
    code = (
        "import sys, gemmill.runtime.registry\n"
        "heavy = ('elftools', 'cuda.bindings.nvrtc', 'cuda.pathfinder', 'torch', 'gemmill.emitters')\n"
        "print([name for name in sys.modules if name.startswith(heavy)])"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


@pytest.fixture(scope="module")
def edited(artifact: Artifact, tmp_path_factory: pytest.TempPathFactory) -> tuple[Registry, Artifact]:
    """A kernel whose page somebody edited, and the registry that was given it."""
    text = emit(artifact.config).text.replace("Raster::M", "Raster::N")
    registry = Registry(manifests=(), store=tmp_path_factory.mktemp("edited"))
    return registry, registry.add_source(artifact.name, text)


@pytest.mark.slow
def test_an_edited_kernel_is_had_by_its_own_name_alone(edited: tuple[Registry, Artifact], artifact: Artifact) -> None:
    registry, mine = edited
    assert mine.name == f"{artifact.name}+src.{mine.provenance.source_digest[:12]}"
    assert mine.digest != artifact.digest
    assert mine.launch == artifact.launch
    assert registry.get(mine.name) is mine
    assert registry.get(artifact.name) == registry.get(artifact.config) == artifact
    other = Registry(manifests=(), store=registry.store)
    assert other.get(artifact.name) == artifact, "the store holds both"
    with pytest.raises(ConfigError, match="is an edited kernel, which"):
        other.get(mine.name)
    assert {registry.store.load(entry).name for entry in registry.store.list()} >= {mine.name, artifact.name}
    assert registry.store.verify() == {}


@pytest.mark.slow
def test_a_page_as_it_was_emitted_is_no_emitted_kernel(edited: tuple[Registry, Artifact], artifact: Artifact) -> None:
    registry, _ = edited
    same = registry.add_source(artifact.config, emit(artifact.config).text)
    assert same.cubin == artifact.cubin
    assert same.key != artifact.key
    assert registry.get(artifact.name) == artifact


@pytest.mark.slow
def test_a_pack_has_edited_kernels_beside_those_of_their_configs(
    edited: tuple[Registry, Artifact], artifact: Artifact, tmp_path: Path
) -> None:
    _, mine = edited
    path = tmp_path / "both.pack"
    write_pack(path, [mine, artifact])
    pack = Pack.open(path, tmp_path)
    assert pack.names() == [artifact.name, mine.name]
    assert pack.get(mine.name) == mine
    assert pack.verify() == {}
    assert pack.configs() == {artifact.name: artifact.config}
    registry = Registry(packs=[path])
    assert registry.select(PROBLEM).name == artifact.name
    assert registry.get(artifact.name) == artifact
    assert registry.get(mine.name) == mine
    write_pack(path, [mine])
    with pytest.raises(UnsupportedProblemError, match="Edited kernels run only by name"):
        Registry(packs=[path]).select(PROBLEM)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("before", "after", "says"),
    [
        ("kTileM = 64", "kTileM = 128", "the kernel computes shared_bytes = "),
        ("kStages = 4", "kStages = 5", "the kernel computes .* its LaunchSpec has"),
        (
            "__grid_constant__ Kernel::Params const params",
            "__grid_constant__ Kernel::Params const params, int more",
            "params_bytes",
        ),
        ("__launch_bounds__(Kernel::kThreads, 1)", "__launch_bounds__(512, 1)", "its cubin has threads = 512"),
        ('extern "C" __global__', "__global__", 'does not define an extern "C" kernel'),
        ("Kernel::run(params);", "Kernel::walk(params);", 'class .* has no member "walk"'),
    ],
)
def test_a_page_that_is_not_launched_as_its_kernel_is_refused(
    artifact: Artifact, before: str, after: str, says: str, tmp_path: Path
) -> None:
    text = emit(artifact.config).text
    assert before in text
    registry = Registry(manifests=(), store=tmp_path)
    with pytest.raises(CompileError, match=says):
        registry.add_source(artifact.config, text.replace(before, after))
    assert entries(registry) == 0
