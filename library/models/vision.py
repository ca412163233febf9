"""The layers of vision towers, alone and beside text."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType

from gemmill.library.models import text
from gemmill.library.models.architecture import Architecture, head_of
from gemmill.library.models.blocks import VISION_QKV, classifier, encoder, mlp
from gemmill.library.models.fields import Fields
from gemmill.library.models.images import PATCHES, Images, images_of, patches_of
from gemmill.library.models.linear import Linear

GEMMA3_TEXT: Mapping[str, int] = MappingProxyType({"heads": 8, "kv_heads": 4, "head_dim": 256, "vocab_size": 262208})
"""Defaults of transformers for the text of Gemma 3."""
_ENCODER = MappingProxyType({"hidden_size": 768, "intermediate_size": 3072, "layers": 12, "heads": 12})
_SIGLIP_TEXT = _ENCODER
_SIGLIP_VISION = MappingProxyType({**_ENCODER, "image_size": 224, "patch_size": 16})
_CLIP_TEXT = MappingProxyType({"hidden_size": 512, "intermediate_size": 2048, "layers": 12, "heads": 8})
_CLIP_VISION = MappingProxyType({**_ENCODER, "image_size": 224, "patch_size": 32})


def vit(fields: Fields, row: Architecture, images: Images | None) -> Iterator[Linear]:
    """A vision transformer, with a classifier or a pooler."""
    hidden, head = fields.whole("hidden_size"), head_of(fields, "class")
    if (images := images_of(fields, images)) is None:
        return
    patches = images.number * patches_of(fields, images)
    yield _embedding(fields, "vit", patches)
    yield from encoder(fields, "vit.encoder.layer", patches + images.number)
    if head == "none":
        yield Linear("vit.pooler.dense", fields.whole("pooler_output_size", hidden), hidden, rows=images.number)
    else:
        yield classifier(fields, images.number)


def _siglip_tower(fields: Fields, images: Images | None, at: str = "vision_model") -> Iterator[Linear]:
    """The vision tower of SigLIP, and its head, in which one query for each image attends to all patches."""
    hidden = fields.whole("hidden_size")
    if (images := images_of(fields, images)) is None:
        return
    patches = images.number * patches_of(fields, images)
    yield _embedding(fields, at, patches)
    yield from encoder(fields, f"{at}.encoder.layers", patches)
    if fields.flag("vision_use_head", True):
        at, one = f"{at}.head", images.number
        yield Linear(f"{at}.attention.q_proj", hidden, hidden, rows=one)
        yield Linear(f"{at}.attention.kv_proj", 2 * hidden, hidden, rows=patches)
        yield Linear(f"{at}.attention.out_proj", hidden, hidden, rows=one)
        yield from mlp(f"{at}.mlp", hidden, fields.whole("intermediate_size"), gated=False, rows=one)


def siglip(fields: Fields, row: Architecture, images: Images | None) -> Iterator[Linear]:
    """SigLIP: an encoder of text and a vision tower."""
    words = fields.part("text_config", "siglip_text_model", _SIGLIP_TEXT)
    hidden = words.whole("hidden_size")
    yield from encoder(words, "text_model.encoder.layers", None)
    fields.notes.assume("one text: its projection multiplies one row")
    yield Linear("text_model.head", words.whole("projection_size", hidden), hidden, rows=1)
    yield from _siglip_tower(fields.part("vision_config", "siglip_vision_model", _SIGLIP_VISION), images)


def clip(fields: Fields, row: Architecture, images: Images | None) -> Iterator[Linear]:
    """CLIP: an encoder of text and a vision tower, with projections to a common space."""
    words = fields.part("text_config", "clip_text_model", _CLIP_TEXT)
    width = fields.whole("projection_dim", 512)
    yield from encoder(words, "text_model.encoder.layers", None)
    fields.notes.assume("one text: its projection multiplies one row")
    yield Linear("text_projection", width, words.whole("hidden_size"), rows=1)
    tower = fields.part("vision_config", "clip_vision_model", _CLIP_VISION)
    if (images := images_of(tower, images)) is None:
        return
    patches = images.number * patches_of(tower, images)
    yield _embedding(tower, "vision_model", patches)
    yield from encoder(tower, "vision_model.encoder.layers", patches + images.number)
    yield Linear("visual_projection", width, tower.whole("hidden_size"), rows=images.number)


def gemma3(fields: Fields, row: Architecture, images: Images | None) -> Iterator[Linear]:
    """Gemma 3 with SigLIP's tower, whose patches are pooled into tokens."""
    words = fields.part("text_config", "gemma3_text", GEMMA3_TEXT)
    yield from text.layers(words, row)
    yield from text.decoder_head(fields, words)
    tower = fields.part("vision_config", "siglip_vision_model", _SIGLIP_VISION)
    if (images := images_of(tower, images)) is None:
        return
    yield from _siglip_tower(tower, images, "vision_tower.vision_model")
    at, rows = "multi_modal_projector.mm_input_projection", fields.whole("mm_tokens_per_image", 256)
    yield Linear(at, words.whole("hidden_size"), tower.whole("hidden_size"), rows=images.number * rows)


def qwen2_vl(fields: Fields, row: Architecture, images: Images | None) -> Iterator[Linear]:
    """Qwen2-VL. Its tower calls the hidden size ``embed_dim``, and that of the text ``hidden_size``."""
    words = yield from _qwen_text(fields, row)
    part = fields.part("vision_config", fields.type)
    width = part.whole("embed_dim")
    sizes = {"hidden_size": width, "intermediate_size": width * part.whole("mlp_ratio", 4)}
    tower = replace(part, config={**part.config, **sizes})
    yield from _qwen_tower(tower, images, words.whole("hidden_size"), gated=False)


def qwen2_5_vl(fields: Fields, row: Architecture, images: Images | None) -> Iterator[Linear]:
    """Qwen2.5-VL."""
    yield from _qwen_text(fields, row)
    tower = fields.part("vision_config", fields.type)
    yield from _qwen_tower(tower, images, tower.whole("out_hidden_size"), gated=True)


def _qwen_text(fields: Fields, row: Architecture) -> Generator[Linear, None, Fields]:
    """The text of Qwen's models, whose fields are in a part or beside it. Returns the fields."""
    words = fields.part("text_config", fields.type) if fields.has("text_config") else fields
    yield from text.layers(words, row)
    yield from text.decoder_head(fields, words)
    return words


def _qwen_tower(fields: Fields, images: Images | None, out: int, *, gated: bool) -> Iterator[Linear]:
    """A tower for images of any size, and the layers that merge squares of patches into tokens of width ``out``."""
    if (images := images_of(fields, images)) is None:
        return
    merge, depth = fields.whole("spatial_merge_size", 2), fields.whole("temporal_patch_size", 2)
    patches = images.number * patches_of(fields, images, merge)
    yield _embedding(fields, "visual", patches, depth)
    yield from encoder(fields, "visual.blocks", patches, gated=gated, fuses=VISION_QKV)
    merged, rows = fields.whole("hidden_size") * merge**2, patches // merge**2
    yield Linear("visual.merger.mlp.0", merged, merged, rows=rows)
    yield Linear("visual.merger.mlp.2", out, merged, rows=rows)


def _embedding(fields: Fields, at: str, rows: int, depth: int = 1) -> Linear:
    """The convolution that makes a vector of each patch, as the product that it is; ``depth`` frames share a patch."""
    k = fields.whole("channels", 3) * fields.whole("patch_size") ** 2 * depth
    return Linear(f"{at}.{PATCHES}", fields.whole("hidden_size"), k, rows=rows, plain=True)
