"""The kernels that multiply tokens by their adapters, assembled as the driver would."""

from __future__ import annotations

import pytest
from tests.emitters.test_routing import assemble

from gemmill.emitters.expanding import Expansion, emit_expand
from gemmill.emitters.shrinking import Shrinking, emit_shrink

KINDS = (
    Expansion("bf16", "s32", 16, 1, 8, "bf16", None, "bf16"),
    Expansion("bf16", "sorted", 128, 2, 1, None, "f32", "f32"),
    Expansion("f16", "sorted", 24, 2, 4, "f32", "f16", "f16"),
    Expansion("f16", "s64", 8, 1, 2, "f16", "bf16", "bf16"),
)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_adapting_assembles(kind: Expansion) -> None:
    assemble(emit_shrink(Shrinking(kind.dtype, kind.order, kind.rank, kind.blocks)), "sm_90")
    assemble(emit_expand(kind), "sm_90")
