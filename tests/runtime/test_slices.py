"""From declaration to launch of split-K kernels: one cubin, whatever the slices of K of a launch."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.runtime.select.problems import H200

from gemmill.library.config.edited import edited_name
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import parse_name
from gemmill.library.decompositions.sliced_kernel import SlicedKernel
from gemmill.library.errors import ConfigError, RenamedWarning
from gemmill.library.manifest.kernelset import KernelSet
from gemmill.library.manifest.load import load_manifest
from gemmill.library.problem import GemmProblem
from gemmill.runtime import kernel_lock
from gemmill.runtime.api.prepare import kernel_for
from gemmill.runtime.compile.pool import Outcome
from gemmill.runtime.operands.call import GemmCall
from gemmill.runtime.operands.call_keywords import DEFAULTS
from gemmill.runtime.operands.tensors import TensorView
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.decisions import Decision
from gemmill.runtime.select.selector import Selector
from gemmill.runtime.storage.lockfile import Lock
from gemmill.runtime.storage.pack import Pack, write_pack
from gemmill.runtime.storage.store import Store
from gemmill.runtime.storage.verification import verify

MANIFEST = """
name: numbers
defaults:
  a: {dtype: bf16, major: k}
  b: {dtype: bf16, major: k}
  accumulator: f32
  d: {dtype: bf16, major: n, align: 2}
  schedule: pingpong
  stages: 4
  tile: 64x32x64
sets:
  - scheduler: {decomposition: splitk}
"""
NAME = "sm90a_bf16k16_bf16k16_f32_none_bf16n2_64x32x64_1x1_pingpong_s4_m1_splitk_linear"


def problem(m: int, n: int, k: int) -> GemmProblem:
    return GemmProblem(m=m, n=n, k=k, d_align=2)


@pytest.fixture(scope="module")
def declared(tmp_path_factory: pytest.TempPathFactory) -> KernelSet:
    path = tmp_path_factory.mktemp("manifest") / "numbers.yaml"
    path.write_text(MANIFEST)
    return load_manifest(path)


@pytest.fixture(scope="module")
def registry(declared: KernelSet, tmp_path_factory: pytest.TempPathFactory) -> Registry:
    return Registry([declared], store=tmp_path_factory.mktemp("store"), gpu=H200)


@pytest.fixture(scope="module")
def configs(registry: Registry) -> dict[str, GemmConfig]:
    return registry.configs()


def test_a_manifest_declares_one_kernel(configs: dict[str, GemmConfig]) -> None:
    assert [*configs] == [NAME]


def test_the_model_chooses_the_number(registry: Registry) -> None:
    chosen = set()
    for size in ((64, 32, 1 << 16), (512, 512, 4096), (64, 4, 2000), (1000, 999, 9999), (64, 64, 0)):
        choice = registry.select(problem(*size))
        assert (choice.name, choice.config) == (NAME, parse_name(NAME))
        chosen.add(choice.slices)
    assert len(chosen) > 2
    choice = registry.select(problem(64, 32, 1 << 16))
    assert f"with K split {choice.slices} ways" in choice.why


def test_a_measured_number_is_taken_and_said(declared: KernelSet) -> None:
    measured, other = problem(64, 32, 4096), problem(64, 32, 4097)
    decisions = [
        Decision(problem=measured, gpu=H200.name, kernel=NAME, slices=slices, us=us)
        for slices, us in ((48, 2.0), (3, 1.0))
    ]
    selector = Selector({NAME: parse_name(NAME)}, H200, decisions)
    choice = selector.select(measured)
    assert (choice.kernel, choice.source) == (SlicedKernel(NAME, 3), "measured")
    assert choice.runners_up == ((SlicedKernel(NAME, 48), 2.0),)
    assert selector.select(other).source == "model"


@pytest.mark.parametrize("size", [(64, 32, 1 << 16), (512, 512, 4096)])
def test_a_kernel_named_without_a_number_takes_the_models(registry: Registry, size: tuple[int, int, int]) -> None:
    m, n, k = size

    def named(kernel: str, slices: int | None = None) -> SlicedKernel | None:
        tensors = {
            "a": TensorView(1 << 40, (m, k), (k, 1), "bf16", 0),
            "b": TensorView(2 << 40, (k, n), (1, k), "bf16", 0),
            "out": TensorView(3 << 40, (m, n), (n, 1), "bf16", 0),
        }
        return kernel_for(GemmCall(tensors, DEFAULTS._replace(kernel=kernel, slices=slices, registry=registry)))

    chosen = registry.select(GemmProblem(m=m, n=n, k=k)).slices
    edited = edited_name(NAME, "ab" * 32)
    for name in (NAME, edited):
        assert named(name) == (name, chosen)
        assert named(name, 37) == (name, 37)
    with pytest.warns(RenamedWarning):
        assert named(NAME.replace("splitk", "k37splitk")) == (NAME, 37)
    with pytest.raises(ConfigError, match="slices is 257"):
        named(NAME, 257)


@pytest.mark.slow
def test_all_slices_have_one_cubin(registry: Registry, tmp_path: Path) -> None:
    asked = [problem(64, 32, 1 << 16), problem(512, 512, 4096)]
    assert len({registry.select(each).slices for each in asked}) == 2
    outcomes: list[Outcome] = []
    artifact, *others = registry.warm([*asked, NAME], on_done=outcomes.append)
    assert [outcome.name for outcome in outcomes] == [artifact.name] == [NAME]
    assert all(other is artifact for other in others)
    verify(artifact)
    with pytest.warns(RenamedWarning):
        assert registry.get(NAME.replace("splitk", "k48splitk")) is artifact

    decision = Decision(problem=problem(64, 32, 4096), gpu=H200.name, kernel=NAME, slices=48, us=1.0)
    write_pack(tmp_path / "one.pack", [artifact], [decision])
    assert Pack.open(tmp_path / "one.pack").names() == [NAME]
    packed = Registry(packs=[tmp_path / "one.pack"], gpu=H200, store=tmp_path / "none")
    assert packed.select(decision.problem).kernel == (NAME, 48)
    assert packed.select(problem(64, 32, 1 << 16)) == registry.select(problem(64, 32, 1 << 16))

    lock = Lock.from_bytes(kernel_lock.lock(registry, asked).to_bytes())
    assert lock.problems == {str(each): registry.select(each).kernel for each in asked}
    assert [*lock.kernels] == [NAME]
    fetched = kernel_lock.fetch(Registry(manifests=(), store=Store(registry.store.path)), lock)
    assert [(each.artifact.name, each.source) for each in fetched] == [(NAME, "store")]
