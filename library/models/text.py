"""The layers of models of text: decoders, and BERT."""

from __future__ import annotations

from collections.abc import Iterator

from gemmill.library.models.architecture import Architecture, head_of
from gemmill.library.models.blocks import attention, classifier, encoder, experts, latent_attention, mlp
from gemmill.library.models.fields import Fields
from gemmill.library.models.images import Images
from gemmill.library.models.linear import VOCABULARY_UNIT, Linear


def decoder(fields: Fields, row: Architecture, images: Images | None) -> Iterator[Linear]:
    """A decoder with the head of its class."""
    yield from layers(fields, row)
    yield from decoder_head(fields, fields)


def layers(fields: Fields, row: Architecture) -> Iterator[Linear]:
    """The layers of a decoder."""
    hidden = fields.whole("hidden_size")
    for layer in range(fields.whole("layers")):
        at = f"model.layers.{layer}"
        if fields.has("kv_lora_rank"):
            yield from latent_attention(fields, f"{at}.self_attn")
        else:
            yield from attention(fields, f"{at}.self_attn", row.kv_heads(fields))
        if row.experts is not None and row.experts.in_layer(fields, layer):
            yield from experts(fields, f"{at}.mlp", row.experts)
        else:
            size = fields.whole("intermediate_size", row.mlp_factor and row.mlp_factor * hidden)
            yield from mlp(f"{at}.mlp", hidden, size, gated=row.gated)
    if fields.whole("num_nextn_predict_layers", 0, least=0):
        fields.notes.leave_out("the layers that predict further tokens (num_nextn_predict_layers)")


def vocabulary(fields: Fields, width: int | None = None, name: str = "lm_head") -> Linear:
    """The layer from vectors of ``width``, by default of the hidden size, to logits of the vocabulary."""
    words = fields.whole("vocab_size")
    padded = -(-words // VOCABULARY_UNIT) * VOCABULARY_UNIT
    return Linear(name, words, width or fields.whole("hidden_size"), split="n", units=padded, plain=True)


def decoder_head(fields: Fields, words: Fields, width: int | None = None) -> Iterator[Linear]:
    """The head that a config names, for vectors of ``width``, by default of the hidden size of the part ``words``."""
    head, width = head_of(fields, "vocabulary"), width or words.whole("hidden_size")
    if head == "none":
        return
    layer = vocabulary(words, width) if head == "vocabulary" else classifier(fields, None, width)
    fields.notes.assume(f"{layer.name} multiplies every token; in prefill, engines need only the last of each sequence")
    yield layer


def opt(fields: Fields, row: Architecture, images: Images | None) -> Iterator[Linear]:
    """OPT, whose embeddings can be narrower than its layers."""
    hidden = fields.whole("hidden_size")
    narrow = fields.whole("word_embed_proj_dim", hidden)
    if narrow != hidden:
        yield Linear("model.decoder.project_in", hidden, narrow)
    yield from layers(fields, row)
    if narrow != hidden:
        yield Linear("model.decoder.project_out", narrow, hidden)
    yield from decoder_head(fields, fields, narrow)


def bert(fields: Fields, row: Architecture, images: Images | None) -> Iterator[Linear]:
    """BERT, with the head of its class."""
    hidden, head = fields.whole("hidden_size"), head_of(fields, "vocabulary")
    yield from encoder(fields, "bert.encoder.layer", None)
    if head in ("none", "class"):
        fields.notes.assume("one sequence: the pooler and the classifier multiply one row")
        yield Linear("bert.pooler.dense", hidden, hidden, rows=1)
    if head in ("class", "classes of tokens"):
        yield classifier(fields, 1 if head == "class" else None)
    elif head == "vocabulary":
        yield Linear("cls.predictions.transform.dense", hidden, hidden)
        yield vocabulary(fields, name="cls.predictions.decoder")
