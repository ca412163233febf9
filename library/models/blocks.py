"""The blocks that models consist of: attention, MLPs and experts."""

from __future__ import annotations

from collections.abc import Iterator

from gemmill.library.errors import ProblemError
from gemmill.library.models.architecture import Experts
from gemmill.library.models.fields import Fields
from gemmill.library.models.linear import Linear

QKV, GATE_UP, VISION_QKV = "qkv_proj", "gate_up_proj", "qkv"
"""Names of fused layers."""


def attention(fields: Fields, at: str, kv_heads: int, *, rows: int | None = None, fuses: str = QKV) -> Iterator[Linear]:
    """The projections of queries, keys, values and outputs."""
    hidden, heads = fields.whole("hidden_size"), fields.whole("heads")
    dim = fields.whole("head_dim", _quotient(fields, hidden, heads))
    for name, count in (("q_proj", heads), ("k_proj", kv_heads), ("v_proj", kv_heads)):
        repeats = name != "q_proj"
        yield Linear(f"{at}.{name}", count * dim, hidden, fuses, "n", count, repeats=repeats, rows=rows)
    yield Linear(f"{at}.o_proj", hidden, heads * dim, split="k", units=heads, rows=rows)


def _quotient(fields: Fields, hidden: int, heads: int) -> int | None:
    """The usual extent of a head; None if the heads do not divide the hidden size, so that the config must have it."""
    return None if fields.has("head_dim") or hidden % heads else hidden // heads


def latent_attention(fields: Fields, at: str) -> Iterator[Linear]:
    """The projections of multi-head latent attention (DeepSeek-V2): queries, keys and values pass through a narrow
    vector."""
    hidden, heads, latent = fields.whole("hidden_size"), fields.whole("heads"), fields.whole("kv_lora_rank")
    rope, plain, value = (fields.whole(name) for name in ("qk_rope_head_dim", "qk_nope_head_dim", "v_head_dim"))
    queries = heads * (plain + rope)
    if fields.has("q_lora_rank"):
        narrow = fields.whole("q_lora_rank")
        yield Linear(f"{at}.q_b_proj", queries, narrow, split="n", units=heads)
        yield Linear(f"{at}.q_a_proj", narrow, hidden, "fused_qkv_a_proj")
    else:
        yield Linear(f"{at}.q_proj", queries, hidden, split="n", units=heads)
    yield Linear(f"{at}.kv_a_proj_with_mqa", latent + rope, hidden, "fused_qkv_a_proj")
    yield Linear(f"{at}.kv_b_proj", heads * (plain + value), latent, split="n", units=heads)
    yield Linear(f"{at}.o_proj", hidden, heads * value, split="k", units=heads)
    fields.notes.leave_out(
        "products of each head: in decode, engines multiply the halves of kv_b_proj into queries and outputs; it is "
        "listed as one product, as in prefill"
    )


def mlp(at: str, hidden: int, size: int, *, gated: bool, rows: int | None = None) -> Iterator[Linear]:
    """An MLP; a gated one has two layers side by side before the activation."""
    for name in ("gate_proj", "up_proj") if gated else ("up_proj",):
        fuses = GATE_UP if gated else ""
        yield Linear(f"{at}.{name}", size, hidden, fuses, "n", size, rows=rows)
    yield Linear(f"{at}.down_proj", hidden, size, split="k", units=size, rows=rows)


def experts(fields: Fields, at: str, where: Experts) -> Iterator[Linear]:
    """A router, routed experts, and shared experts if the architecture has some. All experts are gated."""
    hidden, count, top_k = fields.whole("hidden_size"), fields.whole("experts"), fields.whole("top_k")
    size = fields.whole(where.size)
    if top_k > count:
        raise ProblemError(f"the config has {count} experts, but {top_k} for each token")
    yield Linear(f"{at}.gate", count, hidden, plain=True)
    names = f"{at}.experts.gate_up_proj", f"{at}.experts.down_proj"
    yield Linear(names[0], 2 * size, hidden, split="n", units=size, experts=count, top_k=top_k)
    yield Linear(names[1], hidden, size, split="k", units=size, experts=count, top_k=top_k)
    if not where.shared:
        return
    shared = fields.whole(where.shared, 0 if where.shared in fields.config else None, least=0)
    if shared and where.shared == "n_shared_experts":
        yield from mlp(f"{at}.shared_experts", hidden, shared * size, gated=True)
    elif shared:
        yield from mlp(f"{at}.shared_expert", hidden, shared, gated=True)
        yield Linear(f"{at}.shared_expert_gate", 1, hidden, plain=True)


def encoder(fields: Fields, at: str, rows: int | None, *, gated: bool = False, fuses: str = QKV) -> Iterator[Linear]:
    """The layers of a transformer in which each position attends to all."""
    hidden, heads = fields.whole("hidden_size"), fields.whole("heads")
    for layer in range(fields.whole("layers")):
        yield from attention(fields, f"{at}.{layer}.attn", heads, rows=rows, fuses=fuses)
        yield from mlp(f"{at}.{layer}.mlp", hidden, fields.whole("intermediate_size"), gated=gated, rows=rows)


def classifier(fields: Fields, rows: int | None, width: int | None = None) -> Linear:
    """The layer from vectors of ``width``, by default of the hidden size, to the labels of a config."""
    labels = fields.config.get("id2label")
    count = len(labels) if isinstance(labels, dict) and labels else fields.whole("num_labels", 2)
    return Linear("classifier", count, width or fields.whole("hidden_size"), rows=rows, plain=True)
