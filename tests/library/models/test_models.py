"""Layers of public models, compared with those that transformers runs; and configs that are wrong or absurd."""

from __future__ import annotations

import json
import struct
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases.models import CONFIGS, IMAGE, TOKENS

from gemmill.library.errors import ProblemError, RecordError
from gemmill.library.models.architectures import ARCHITECTURES
from gemmill.library.models.fields import Notes
from gemmill.library.models.images import Images
from gemmill.library.models.problems import Deployment, LayerProblem, problems_of
from gemmill.library.models.source import read_config
from gemmill.library.problem import GemmProblem

DATA = Path(__file__).parents[2] / "data" / "models"
RECORDED = json.loads((DATA / "transformers.json").read_text(encoding="utf-8"))
GGUF = DATA / "Qwen3-30B-A3B.gguf"
"""A header that the package gguf has written."""
LLAMA, QWEN, DEEPSEEK = CONFIGS["Llama-3.1-8B"], CONFIGS["Qwen3-30B-A3B"], CONFIGS["DeepSeek-V3"]


def problems(config: Mapping[str, Any], notes: Notes | None = None, **how: Any) -> list[LayerProblem]:
    return problems_of(config, Deployment(**{"tokens": (TOKENS,), **how}), notes or Notes())


def texts(config: Mapping[str, Any], **how: Any) -> dict[str, str]:
    """The problem of each layer, by the last part of its name."""
    return {
        name.split(".")[-1] if "experts" not in name else ".".join(name.split(".")[-2:]): str(layer.problem)
        for layer in problems(config, **how)
        for name in layer.layers
    }


@pytest.mark.parametrize("name", CONFIGS)
def test_layers_are_those_of_transformers(name: str) -> None:
    """Rows, extents, experts and counts of all products are those that the modules compute."""
    config = CONFIGS[name]
    images = Images(1, *IMAGE) if config["model_type"].endswith("_vl") else None
    found: Counter[tuple[int, ...]] = Counter()
    for layer in problems(config, separate=True, quantization="none", images=images):
        problem = layer.problem
        experts = problem.batch if problem.batching == "grouped" else 0
        found[problem.m, problem.n, problem.k, experts] += layer.count
    assert found == {tuple(product): count for *product, count in RECORDED[name]}


def test_every_type_is_recorded() -> None:
    untested = {"kimi_k2", "gemma", "olmo", "glm"}  # of the rows of deepseek_v3, gemma2, olmo2 and glm4
    assert {config["model_type"] for config in CONFIGS.values()} == {*ARCHITECTURES} - untested


def test_engines_fuse_layers_and_share_them() -> None:
    whole = {
        "qkv_proj": "16x6144x4096 bf16 tn",
        "o_proj": "16x4096x4096 bf16 tn",
        "gate_up_proj": "16x28672x4096 bf16 tn",
        "down_proj": "16x4096x14336 bf16 tn",
        "lm_head": "16x128256x4096 bf16 tn",
    }
    assert texts(LLAMA) == whole
    sixteenth = texts(LLAMA, tp=16)
    assert sixteenth["qkv_proj"] == "16x512x4096 bf16 tn", "two heads, and one of keys and values, which GPUs share"
    assert sixteenth["o_proj"] == "16x4096x256 bf16 tn"
    assert sixteenth["down_proj"] == "16x4096x896 bf16 tn"
    with pytest.raises(ProblemError, match=r"q_proj has 32 parts along n, which 3 GPUs cannot share"):
        problems(LLAMA, tp=3)
    assert texts(DEEPSEEK, quantization="none")["fused_qkv_a_proj"] == "16x2112x7168 bf16 tn"
    notes = Notes()
    assert str(problems(CONFIGS["GPT-2"], notes, tp=2)[-1].problem) == "16x25152x768 bf16 tn"
    assert "lm_head has 50257 outputs; engines pad them to 50304" in notes.assumed


def test_gpus_have_whole_experts_with_ep() -> None:
    assert texts(QWEN)["experts.gate_up_proj"] == "128x1536x2048 bf16 tn grouped=128"
    assert texts(QWEN, tp=4)["experts.gate_up_proj"] == "128x384x2048 bf16 tn grouped=128"
    assert texts(QWEN, tp=4, ep=4)["experts.gate_up_proj"] == "32x1536x2048 bf16 tn grouped=32"
    for config, ep in ((QWEN, 3), (LLAMA, 2)):
        with pytest.raises(ProblemError, match=r"experts"):
            problems(config, ep=ep)


def test_training_adds_the_gradients_of_inputs_and_weights() -> None:
    found = problems(CONFIGS["OLMoE-1B-7B"], training=True)
    down = {layer.step: str(layer.problem) for layer in found if layer.layers[-1].endswith("experts.down_proj")}
    assert down == {
        "forward": "128x2048x1024 bf16 tn grouped=64",
        "input gradient": "128x1024x2048 bf16 tt grouped=64",
        "weight gradient": "2048x1024x128 bf16 nt kgrouped=64",
    }
    with pytest.raises(ProblemError, match=r"--quantization none"):
        problems(DEEPSEEK, training=True)


def compressed(weights: Mapping[str, Any], inputs: Mapping[str, Any] | None, **more: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs}
    return {"quant_method": "compressed-tensors", "config_groups": {"group_0": group}, **more}


WHOLE = "epilogue='d = alpha * acc * a_scale * b_scale'"
ROWS = "epilogue='d = alpha * acc * a_scale[m] * b_scale[n]'"


@pytest.mark.parametrize(
    ("quantization", "line"),
    [
        ({"quant_method": "fp8", "weight_block_size": [128, 128]}, "e4m3 tn a_scale=1x128 b_scale=128x128"),
        ({"quant_method": "fp8", "activation_scheme": "static"}, f"e4m3 tn {WHOLE}"),
        ({"quant_method": "fbgemm_fp8"}, f"e4m3 tn {ROWS}"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 128, "sym": True}, "bf16*s4 tn b_scale=1x128"),
        ({"quant_method": "gptq", "bits": 4, "group_size": 32, "sym": False}, "bf16*u4 tn b_scale=1x32z"),
        ({"quant_method": "gptq", "bits": 8, "group_size": 128}, "bf16*s8 tn b_scale=1x128"),
        ({"quant_method": "gptq", "bits": 8, "group_size": -1}, "bf16*s8 tn epilogue='d = alpha * acc * b_scale[n]'"),
        ({"quant_method": "gptq", "bits": 4, "group_size": -1}, "bf16*s4 tn b_scale=1x128"),
        ({"quant_method": "awq", "bits": 4, "group_size": 64}, "bf16*u4 tn b_scale=1x64z"),
        ({"quant_method": "bitsandbytes", "load_in_4bit": True}, "bf16 tn"),
        (
            compressed(
                {"type": "float", "num_bits": 8, "strategy": "channel"},
                {"type": "float", "num_bits": 8, "strategy": "token"},
            ),
            f"e4m3 tn {ROWS}",
        ),
        (
            compressed({"type": "int", "num_bits": 8, "strategy": "channel"}, {"type": "int", "num_bits": 8}),
            f"s8 tn d=bf16 {ROWS}",
        ),
        (
            compressed({"type": "int", "num_bits": 4, "strategy": "group", "group_size": 128}, None),
            "bf16*s4 tn b_scale=1x128",
        ),
    ],
)
def test_quantisation_is_that_of_the_config(quantization: dict[str, Any], line: str) -> None:
    found = texts({**LLAMA, "quantization_config": quantization})
    expected = GemmProblem.from_text(f"16x4096x14336 {line}")
    assert found["down_proj"] == str(expected)
    assert found["lm_head"] == "16x128256x4096 bf16 tn", "engines leave the head alone"
    assert texts({**LLAMA, "quantization_config": quantization}, quantization="none") == texts(LLAMA)


def test_experts_in_fp8_have_a_scale_each() -> None:
    found = texts({**QWEN, "quantization_config": {"quant_method": "fp8"}})
    assert found["experts.down_proj"].endswith(" grouped=128 epilogue='d = alpha * acc * a_scale * b_scale[batch]'")
    assert found["o_proj"].endswith(WHOLE)


@pytest.mark.parametrize(
    ("key", "names", "skipped"),
    [
        ("modules_to_not_convert", ["model.layers.*.self_attn", "lm_head"], {"qkv_proj", "o_proj"}),
        ("ignored_layers", ["model.layers.0.mlp.down_proj", "down_proj"], {"down_proj"}),
        ("ignore", ["re:.*(gate|up)_proj$"], {"gate_up_proj"}),
        ("ignore", ["qkv_proj"], {"qkv_proj"}),
    ],
)
def test_modules_that_are_left_alone(key: str, names: list[str], skipped: set[str]) -> None:
    found = texts({**LLAMA, "quantization_config": {"quant_method": "fp8", key: names}})
    assert {name for name, line in found.items() if " bf16 " in line} == skipped | {"lm_head"}


@pytest.mark.parametrize(
    "name", ["re:vision_tower.*", "re:model.vision_tower.*", "re:.*vision_tower.*", "vision_tower"]
)
def test_towers_are_left_alone(name: str) -> None:
    """By their names in transformers, of which newer versions have towers in ``model``."""
    quantization = {"quant_method": "fp8", "ignore": [name, "multi_modal_projector"]}
    for layer in problems({**CONFIGS["Gemma-3-4B"], "quantization_config": quantization}):
        is_quantised = "model.layers" in layer.layers[0]
        assert layer.problem.a_dtype == ("e4m3" if is_quantised else "bf16")


def test_heads_of_classes() -> None:
    """Decoders too have them: reward models are classifiers of one class."""
    config = without(LLAMA, architectures=["LlamaForSequenceClassification"], id2label={"0": "reward"})
    found = texts(config)
    assert found["classifier"] == "16x1x4096 bf16 tn"
    assert "lm_head" not in found


def test_modules_of_one_layer_are_left_alone() -> None:
    quantization = {"quant_method": "fp8", "ignored_layers": ["model.layers.1"]}
    found = problems({**LLAMA, "quantization_config": quantization})
    assert {layer.problem.a_dtype: layer.count for layer in found if layer.problem.k == 14336} == {"e4m3": 2, "bf16": 1}


def without(config: Mapping[str, Any], *names: str, **fields: Any) -> dict[str, Any]:
    return {key: value for key, value in config.items() if key not in names} | fields


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, r"model_type is None; gemmill reads bert, clip"),
        ({"model_type": "lama"}, r"model_type is 'lama', did you mean llama\? gemmill reads bert"),
        (without(LLAMA, "hidden_size"), r"no hidden_size, n_embd, d_model or embed_dim, which a model of type llama"),
        (without(CONFIGS["Mistral-7B-v0.3"], "num_key_value_heads"), r"no num_key_value_heads or num_kv_heads"),
        (without(QWEN, "moe_intermediate_size"), r"no moe_intermediate_size"),
        (without(QWEN, num_experts_per_tok=500), r"128 experts, but 500 for each token"),
        (without(LLAMA, num_hidden_layers=10**9), r"num_hidden_layers is 1000000000; .* from 1 to 10,000"),
        (without(LLAMA, hidden_size=-4096), r"hidden_size is -4096; it must be a whole number from 1"),
        (without(LLAMA, vocab_size=1 << 5000), r"vocab_size is a number of 5001 bits"),
        (without(LLAMA, hidden_size=4097), r"no head_dim"),
        (without(LLAMA, torch_dtype="float8"), r"dtype is 'float8'; it must be bfloat16, float16 or float32"),
        (without(QWEN, mlp_only_layers=3), r"mlp_only_layers is 3; it must be a list"),
        (without(LLAMA, quantization_config={"quant_method": "quip"}), r"quant_method is 'quip'; gemmill reads fp8"),
        (
            without(LLAMA, quantization_config={"quant_method": "fp8", "ignore": ["re:(a+)+$"]}),
            r"has 're:\(a\+\)\+\$'; gemmill reads names",
        ),
        (
            without(LLAMA, quantization_config={"quant_method": "gptq", "bits": 3, "group_size": 128}),
            r"weights have 3 bits and groups of 128",
        ),
        (
            without(LLAMA, quantization_config={"quant_method": "gptq", "bits": 8, "group_size": 32}),
            r"weights have 8 bits and groups of 32",
        ),
        (
            without(LLAMA, quantization_config=compressed({"type": "float", "num_bits": 8, "strategy": ["x"]}, None)),
            r"strategy of weights in config_groups is \['x'\]; it must be a word",
        ),
        (without(CONFIGS["Gemma-3-4B"], text_config=None), r"text_config is None; a model of type gemma3 needs"),
        (without(CONFIGS["ViT-B-16"], image_size=8), r"8 x 8 pixels, which is 0 x 0 patches"),
        (without(CONFIGS["ViT-B-16"], "image_size"), r"no layer is left: the vision tower"),
    ],
)
def test_what_is_wrong_in_a_config_is_named(config: dict[str, Any], message: str) -> None:
    with pytest.raises(ProblemError, match=message):
        problems(config)


def test_what_a_model_does_not_take_is_said() -> None:
    with pytest.raises(ProblemError, match=r"--images is passed, but the model has no vision tower; omit it"):
        problems(LLAMA, images=Images(1, 224, 224))
    problems(CONFIGS["ViT-B-16"], notes := Notes())
    assert [*notes.left_out] == ["the numbers of tokens, since all layers multiply images"]


def test_what_a_config_lacks_is_said() -> None:
    notes = Notes()
    problems_of(without(LLAMA, "num_key_value_heads", "torch_dtype", "architectures"), Deployment(), notes)
    assert [text.partition(";")[0] for text in notes.assumed] == [
        "the config has no dtype",
        "num_key_value_heads is missing",
        "architectures is missing",
        "lm_head multiplies every token",
        "1, 16, 256, 2048 tokens",
    ]
    notes = Notes()
    problems(CONFIGS["Gemma-3-4B"], notes)
    assert "text_config.head_dim is missing; assuming 256, the default of gemma3_text in transformers" in notes.assumed


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from([0, -1, 1 << 40, 1 << 4000]) | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


def refusal(config: Mapping[str, Any]) -> str:
    """The error for a config; empty if it has problems."""
    try:
        problems(config)
    except ProblemError as error:
        return str(error)
    return ""


@given(st.data())
def test_absurd_configs_are_errors(data: st.DataObject) -> None:
    """Any values in place of those of a config give problems, or an error that says what is wrong."""
    config = dict(data.draw(st.sampled_from([*CONFIGS.values()])))
    config |= data.draw(st.dictionaries(st.sampled_from([*config, "quantization_config"]), ODD, min_size=1, max_size=4))
    assert len(refusal(config)) < 1000


@given(st.dictionaries(st.sampled_from(["quant_method", "bits", "config_groups", "ignore", "weight_block_size"]), ODD))
def test_absurd_quantisations_are_errors(quantization: dict[str, Any]) -> None:
    for method in ("fp8", "gptq", "awq", "compressed-tensors", "mxfp4", "bitsandbytes"):
        assert len(refusal({**LLAMA, "quantization_config": {"quant_method": method, **quantization}})) < 1000


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"[1]", "the JSON is no mapping"),
        (b'{"model_type": ', "1: invalid JSON"),
        (b'{"n": NaN}', "NaN is not a number"),
        (b"\xff\xfe", "invalid JSON"),
        (b"[" * 100_000, "invalid JSON"),
        (b"9" * 5000, "invalid JSON"),
    ],
)
def test_files_that_are_no_configs(content: bytes, message: str, tmp_path: Path) -> None:
    (path := tmp_path / "config.json").write_bytes(content)
    with pytest.raises(RecordError, match=message):
        read_config(path, Notes())


def test_a_folder_and_an_index_of_weights_name_the_config(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "x"}')
    (index := tmp_path / "model.safetensors.index.json").write_text('{"weight_map": {}}')
    assert read_config(tmp_path, Notes()) == read_config(index, Notes()) == {"model_type": "x"}
    with pytest.raises(RecordError, match=r"none.*No such file"):
        read_config(tmp_path / "none", Notes())


def test_the_header_of_a_gguf_file_is_a_config() -> None:
    notes = Notes()
    config = read_config(GGUF, notes)
    assert texts(config) == texts(without(QWEN, mlp_only_layers=[]))
    says = "weights are Q4_K, Q6_K, blocks that gemmill lacks; assuming bf16; --quantization passes others"
    assert [*notes.assumed] == [says]
    assert (
        texts(config, quantization="int4")["experts.down_proj"] == "128x2048x768 bf16*s4 tn grouped=128 b_scale=1x128"
    )


def test_a_file_of_that_name_that_is_no_gguf_is_refused(tmp_path: Path) -> None:
    (path := tmp_path / "x.gguf").write_bytes(GGUF.read_bytes()[1:])
    with pytest.raises(RecordError, match=r"x\.gguf: the file does not begin as GGUF does; download it again"):
        read_config(path, Notes())


def test_lists_of_a_gguf_file_are_refused(tmp_path: Path) -> None:
    """A value for each layer, which is no value for all."""
    key, value = b"qwen3moe.attention.head_count_kv", struct.pack("<II", 4, 4)
    listed = struct.pack("<IIQ", 9, 4, 1) + value[4:]
    (path := tmp_path / "x.gguf").write_bytes(GGUF.read_bytes().replace(key + value, key + listed))
    with pytest.raises(RecordError, match=r"num_key_value_heads is a list with a value for each layer"):
        read_config(path, Notes())


@given(st.integers(0, 1777), st.binary(max_size=16))
def test_damaged_headers_are_errors(place: int, data: bytes) -> None:
    """Bytes replaced, or the end cut off: fields, or an error that names the file."""
    content = GGUF.read_bytes()
    with TemporaryDirectory() as folder:
        (path := Path(folder) / "x.gguf").write_bytes(content[:place] + data + content[place + len(data) or 1777 :])
        try:
            found = texts(read_config(path, Notes()))
        except (RecordError, ProblemError) as error:
            found = {"error": str(error)}
    assert found
