"""From declaration to launch where the launch says in how many slices K goes: one cubin, whatever the number."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cases.remotes import Honest, Server
from tests.runtime.select.problems import H200

from gemmill.library.config.edited import edited_name
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import parse_name
from gemmill.library.errors import ConfigError
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
from gemmill.runtime.storage.remote.client import Remote
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
OPEN = "sm90a_bf16k16_bf16k16_f32_none_bf16n2_64x32x64_1x1_pingpong_s4_m1_splitk_linear"


def with_number(splits: int) -> str:
    return OPEN.replace("_splitk_", f"_k{splits}splitk_")


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
    assert [*configs] == [OPEN]


def test_the_model_chooses_the_number(registry: Registry) -> None:
    chosen = set()
    for size in ((64, 32, 1 << 16), (512, 512, 4096), (64, 4, 2000), (1000, 999, 9999), (64, 64, 0)):
        choice = registry.select(problem(*size))
        assert choice.config == parse_name(choice.name)
        assert choice.slices == choice.config.scheduler.splits
        chosen.add(choice.config.scheduler.splits)
    assert len(chosen) > 2
    choice = registry.select(problem(64, 32, 1 << 16))
    assert f"with K split {choice.config.scheduler.splits} ways" in choice.why


def test_a_measured_number_is_taken_and_said(declared: KernelSet) -> None:
    measured, other = problem(64, 32, 4096), problem(64, 32, 4097)
    decisions = [
        Decision(problem=measured, gpu=H200.name, kernel=with_number(splits), us=us)
        for splits, us in ((48, 2.0), (3, 1.0))
    ]
    selector = Selector({OPEN: parse_name(OPEN)}, H200, decisions)
    choice = selector.select(measured)
    assert (choice.name, choice.source, choice.runners_up) == (with_number(3), "measured", ((with_number(48), 2.0),))
    assert selector.select(other).source == "model"


@pytest.mark.parametrize("size", [(64, 32, 1 << 16), (512, 512, 4096)])
def test_a_kernel_named_without_a_number_takes_the_models(registry: Registry, size: tuple[int, int, int]) -> None:
    m, n, k = size

    def named(kernel: str, slices: int | None = None) -> str | None:
        tensors = {
            "a": TensorView(1 << 40, (m, k), (k, 1), "bf16", 0),
            "b": TensorView(2 << 40, (k, n), (1, k), "bf16", 0),
            "out": TensorView(3 << 40, (m, n), (n, 1), "bf16", 0),
        }
        return kernel_for(GemmCall(tensors, DEFAULTS._replace(kernel=kernel, slices=slices, registry=registry)))

    chosen = registry.select(GemmProblem(m=m, n=n, k=k)).name
    assert named(OPEN) == chosen
    assert named(with_number(37)) == with_number(37)
    assert named(edited_name(OPEN, "ab" * 32)) == edited_name(chosen, "ab" * 32)
    assert named(OPEN, 37) == named(with_number(37), 37) == with_number(37)
    assert named(edited_name(OPEN, "ab" * 32), 37) == edited_name(with_number(37), "ab" * 32)
    whole = OPEN.replace("splitk", "k1").replace("n2_", "n16_")
    for kernel, slices, says in (
        (OPEN, 257, "slices is 257; .*_splitk_linear takes 1 to 256"),
        (with_number(37), 36, "has another number: name .*_splitk_linear"),
        (whole, 2, "is no split-K kernel: leave slices out"),
    ):
        with pytest.raises(ConfigError, match=says):
            named(kernel, slices)


@pytest.mark.slow
def test_all_numbers_have_one_cubin(registry: Registry, tmp_path: Path) -> None:
    some = [with_number(splits) for splits in (2, 48, 256)]
    outcomes: list[Outcome] = []
    artifacts = registry.warm([*some, OPEN], on_done=outcomes.append)
    assert [outcome.name for outcome in outcomes] == [OPEN]
    assert [artifact.name for artifact in artifacts] == [*some, OPEN]
    assert len({artifact.digest for artifact in artifacts}) == registry.store.stats().entries == 1
    for artifact in artifacts:
        verify(artifact)
    assert registry.get(some[1]) is artifacts[1]
    with pytest.raises(ConfigError, match="splits is 257; splitk kernels take 1 to 256"):
        registry.get(with_number(257))

    decision = Decision(problem=problem(64, 32, 4096), gpu=H200.name, kernel=some[1], us=1.0)
    write_pack(tmp_path / "one.pack", [artifacts[-1]], [decision])
    assert Pack.open(tmp_path / "one.pack").names() == [OPEN]
    packed = Registry(packs=[tmp_path / "one.pack"], gpu=H200, store=tmp_path / "none")
    assert packed.select(decision.problem).name == some[1]
    assert packed.get(some[1]) == artifacts[1]
    assert packed.select(problem(64, 32, 1 << 16)) == registry.select(problem(64, 32, 1 << 16))

    with Server(Honest([artifacts[-1]], [])) as server:
        remote = Remote(server.url, trusted=None, mode="only")
        served = Registry(manifests=(), gpu=H200, store=tmp_path / "served", remote=remote)
        assert served.get(some[2]) == artifacts[2]
        assert len(served.warm(some)) == len(some)
        assert server.asked() == ["POST /v1/instantiate", "GET /v1/blobs"], "once for all numbers"

    asked = [problem(64, 32, 1 << 16), problem(512, 512, 4096)]
    lock = Lock.from_bytes(kernel_lock.lock(registry, asked).to_bytes())
    assert lock.problems == {str(each): registry.select(each).name for each in asked}
    assert [*lock.kernels] == [OPEN]
    fetched = kernel_lock.fetch(Registry(manifests=(), store=Store(registry.store.path)), lock)
    assert [(each.artifact.name, each.source) for each in fetched] == [(OPEN, "store")]
