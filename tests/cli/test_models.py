"""``gemmill model``: its suite has the problems of its JSON, and commands take it and the config itself."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.cases.models import CONFIGS
from tests.cli.test_cli import gemmill, ok
from tests.library.models.test_models import GGUF

from gemmill.library.problem import GemmProblem
from gemmill.profiler.sweep.shape_suites import load_shapes
from gemmill.runtime.pack_choice import BETWEEN, REGRET
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.cost.energy import AS_FAST


def written(folder: Path, name: str) -> Path:
    """The folder of a model."""
    (model := folder / name).mkdir()
    (model / "config.json").write_text(json.dumps(dict(CONFIGS[name])))
    return model


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("gpt-oss-120b", ("--tokens", "1,64", "--tp", "2")),
        ("DeepSeek-V3", ("--tokens", "1,64", "--tp", "8", "--ep", "8")),
        ("Qwen3-30B-A3B", ("--training", "--tokens", "4096,8192")),
        ("CLIP-ViT-B-32", ("--images", "8x224x224", "--dtype", "f16")),
        ("Llama-3.1-8B", ("--quantization", "fp8-rows", "--separate")),
    ],
)
def test_the_suite_has_the_problems_of_the_json(name: str, options: tuple[str, ...], tmp_path: Path) -> None:
    model = written(tmp_path, name)
    report = json.loads(gemmill("model", model, *options, "--json").stdout)
    expected: dict[GemmProblem, int] = {}
    for row in report["problems"]:
        problem = GemmProblem.from_text(row["text"])
        expected[problem] = expected.get(problem, 0) + row["count"]
    (path := tmp_path / "suite.yaml").write_text(gemmill("model", model, *options).stdout)
    suite = load_shapes(path)
    assert suite.name == name
    assert {shape.problem: count for shape, count in suite.counts.items()} == expected


SERVED = """
import json, sys
import gemmill
registry = gemmill.Registry(packs=[sys.argv[1]], gpu="H200")
for text in json.loads(sys.argv[2]):
    choice = registry.select(gemmill.GemmProblem.from_text(text))
    assert choice.source == "table", choice
    assert choice.name in registry.packs[0]
print([name for name in sys.modules if name.startswith(("numpy", "gemmill.runtime.select.cost", "gemmill.emitters"))])
"""


@pytest.mark.slow
def test_a_pack_of_a_model_serves_its_forward_pass_without_a_model_of_time(tmp_path: Path) -> None:
    model, pack = written(tmp_path, "gpt-oss-120b"), tmp_path / "model.pack"
    command = ("model", model, "--gpu", "H200", "--tokens", "1,64", "--regret", "9", "--json")
    made = json.loads(gemmill(*command, "--pack", pack).stdout)
    assert made["schema"] == "gemmill.pack.make/1"
    assert made["bytes"] == pack.stat().st_size
    assert [layer["extent"] for layer in made["choices"]["layers"]] == ["m", "m", "m", "n", "n", "m"]
    inspected = json.loads(ok("pack", "inspect", pack, "--json"))
    assert inspected["choices"] == made["choices"]
    assert "Mx5120x2880" in ok("pack", "inspect", pack)
    suite = json.loads(gemmill("model", model, "--tokens", "1,2,64,1000,40000", "--json").stdout)
    texts = json.dumps([row["text"] for row in suite["problems"]])
    served = subprocess.run([sys.executable, "-c", SERVED, pack, texts], capture_output=True, text=True, check=False)
    assert served.stdout == "[]\n", served.stderr
    budget = made["bytes"] - 1
    small = json.loads(gemmill(*command, "--pack", tmp_path / "small.pack", "--budget", str(budget)).stdout)
    assert small["bytes"] <= budget, "the table counts"
    assert len(small["kernels"]) < len(made["kernels"])


@pytest.mark.slow
def test_a_pack_is_good_for_the_numbers_of_tokens_between_those_named(tmp_path: Path) -> None:
    model, pack = written(tmp_path, "Falcon-7B"), tmp_path / "model.pack"
    said = ok("model", model, "--gpu", "H200", "--tokens", "8,32", "--pack", pack)
    assert re.search(
        r"slowdown of 10 problems .* of 10 between them, with other sizes of the same layers: at most", said
    )
    packed, shipped = Registry(packs=[pack], gpu="H200"), Registry(gpu="H200")
    suite = json.loads(gemmill("model", model, "--tokens", "8,16,24,32", "--json").stdout)
    for problem in (GemmProblem.from_text(row["text"]) for row in suite["problems"]):
        ranked = shipped.selector_for(problem).candidates(problem, 10_000)
        us = {candidate.kernel: candidate.us for candidate in ranked}
        allowed = BETWEEN if problem.m == 24 else REGRET
        assert us[packed.select(problem).kernel] <= ranked[0].us * (1 + allowed) * AS_FAST, problem


def test_commands_take_the_suite_and_the_config(tmp_path: Path) -> None:
    config = written(tmp_path, "gpt-oss-120b") / "config.json"
    done = gemmill("model", config)
    (suite := tmp_path / "suite.yaml").write_text(done.stdout)
    chosen = ("--gpu", "H200", "--json")
    assert json.loads(gemmill("select", "--shapes", config, *chosen).stdout) == json.loads(
        ok("select", "--shapes", suite, *chosen)
    )
    assert done.stderr.splitlines() == [
        "assumed: lm_head multiplies every token; in prefill, engines need only the last of each sequence",
        "assumed: experts take equal shares of the tokens",
        "assumed: 1, 16, 256, 2048 tokens; gemmill model --tokens passes others",
    ]


@pytest.mark.parametrize("name", ["model.gguf", "MODEL.GGUF"])
def test_commands_take_a_gguf_file(name: str, tmp_path: Path) -> None:
    path = shutil.copyfile(GGUF, tmp_path / name)
    rows = json.loads(gemmill("shapes", path, "--m", "1,16", "--json").stdout)["shapes"]
    problems = json.loads(gemmill("model", path, "--tokens", "1,16", "--json").stdout)["problems"]
    assert sum(row["count"] for row in rows) == sum(row["count"] for row in problems)
    assert {row["m"] for row in rows} == {row["m"] for row in problems}


def test_what_is_wrong_is_named_with_the_file(tmp_path: Path) -> None:
    (config := tmp_path / "config.json").write_text('{"model_type": "rwkv"}')
    for command in (("model", config), ("model", tmp_path), ("select", "--shapes", config)):
        done = gemmill(*command)
        assert done.exit_code == 1
        assert "model_type is 'rwkv'; gemmill reads bert, clip" in done.stderr
        assert str(tmp_path) in done.stderr


def test_options_of_packs_need_a_pack(tmp_path: Path) -> None:
    refused = gemmill("model", written(tmp_path, "Llama-3.1-8B"), "--regret", "0.1")
    assert refused.exit_code == 2
    assert "--jobs and --store need --pack" in refused.stderr


def test_a_pack_does_not_overwrite_the_config(tmp_path: Path) -> None:
    config = (model := written(tmp_path, "Llama-3.1-8B")) / "config.json"
    for source in (model, config):
        refused = gemmill("model", source, "--pack", config)
        assert (refused.exit_code, "is also an input" in refused.stderr) == (2, True)
