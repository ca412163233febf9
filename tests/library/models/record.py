"""Records the linear layers of public models in transformers: ``python -m tests.library.models.record``.

It needs transformers, as .venv-torch has. Each model of tests/cases/models.py runs on the meta device, which has
neither weights nor arithmetic. Every product of an input with a weight is recorded in ``RECORDED``: rows, output
features, input features and experts, with a count.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import transformers
from tests.cases.models import CONFIGS, IMAGE, TOKENS
from torch.nn.functional import linear
from torch.overrides import TorchFunctionMode

RECORDED = Path(__file__).parents[2] / "data" / "models" / "transformers.json"


class Recorder(TorchFunctionMode):  # type: ignore[misc]  # PyTorch is not installed where mypy runs
    """Counts the products of inputs and weights."""

    def __init__(self) -> None:
        super().__init__()
        self.products: Counter[tuple[int, int, int, int]] = Counter()

    def __torch_function__(self, function: Callable[..., Any], _: Any, args: Any = (), kwargs: Any = None) -> Any:
        name = getattr(function, "__name__", "")
        if name == "__bool__" and args[0].is_meta:  # tests of masks, which have no values
            return True
        if function is linear:
            self._add(args[0], *args[1].shape)
        elif name == "addmm":  # GPT-2's Conv1D has its weight as K x N
            self._add(args[1], *args[2].shape[::-1])
        elif name in ("conv2d", "conv3d"):  # patches do not overlap
            n, *window = args[1].shape
            rows = math.prod(function(*args, **(kwargs or {})).shape) // n
            self.products[rows, n, math.prod(window), 0] += 1
        elif name in ("_grouped_mm", "grouped_mm"):
            experts, k, n = args[1].shape
            self._add(args[0], n, k, experts)
        elif name == "multi_head_attention_forward":  # SigLIP's, which has one weight for queries, keys and values
            query, key, hidden = args[0], args[1], args[0].shape[-1]
            self._add(query, hidden, hidden)
            self._add(key, 2 * hidden, hidden)
            self._add(query, hidden, hidden)
            return query, None
        elif name in ("matmul", "__matmul__") and is_weight(args[1]):
            self._add(args[0], *args[1].shape[::-1])
        return function(*args, **(kwargs or {}))

    def _add(self, x: torch.Tensor, n: int, k: int, experts: int = 0) -> None:
        self.products[x.numel() // x.shape[-1], n, k, experts] += 1


def is_weight(operand: torch.Tensor) -> bool:
    """Whether an operand is a parameter of two dimensions or its transpose."""
    return operand.dim() == 2 and any(isinstance(x, torch.nn.Parameter) for x in (operand, operand._base))


def record(config: dict[str, Any]) -> list[list[int]]:
    """The products of a model: rows, N, K, experts and count."""
    kind = config["model_type"]
    fields = {key: value for key, value in config.items() if key != "quantization_config"}
    parsed = transformers.CONFIG_MAPPING[kind].from_dict(fields)
    with torch.device("meta"):
        torch.set_default_dtype(torch.bfloat16)
        model = getattr(transformers, config["architectures"][0])(parsed).eval()
        if any(key in config for key in ("num_experts", "num_local_experts", "n_routed_experts")):
            model.set_experts_implementation("grouped_mm")
        with torch.no_grad(), Recorder() as recorder:
            tokens = torch.zeros(1, TOKENS, dtype=torch.long)
            if kind == "vit":
                model(pixels(parsed))
            elif kind in ("clip", "siglip"):
                model(input_ids=tokens, pixel_values=pixels(parsed.vision_config))
            else:
                model(input_ids=tokens)
            if kind == "gemma3":
                model.model.get_image_features(pixels(parsed.vision_config))
            elif kind.endswith("_vl"):
                see(type(model.model.visual), parsed.vision_config)
    return [[*product, count] for product, count in sorted(recorder.products.items())]


def pixels(config: Any) -> torch.Tensor:
    """One image of the size in a config."""
    return torch.zeros(1, 3, config.image_size, config.image_size)


def see(tower: Any, config: Any) -> None:
    """Run a new tower of Qwen's on one image; on the CPU, because it computes positions from sizes."""
    rows, columns = (size // config.patch_size for size in IMAGE)
    patches = torch.zeros(rows * columns, 3 * config.temporal_patch_size * config.patch_size**2, device="cpu")
    with torch.device("cpu"):
        tower(config)(patches, torch.tensor([[1, rows, columns]]))


if __name__ == "__main__":
    found = {name: record(dict(config)) for name, config in CONFIGS.items()}
    rows = (f'  "{name}": {json.dumps(products)}' for name, products in found.items())
    RECORDED.write_text("{\n" + ",\n".join(rows) + "\n}\n", encoding="utf-8")
