"""The kernels that multiply few tokens by their adapters, assembled as the driver would."""

from __future__ import annotations

import pytest
from tests.emitters.test_routing import assemble

from gemmill.emitters.adapting import Adaptation, emit_expand, emit_shrink

KINDS = (
    Adaptation("bf16", False, "bf16", None, "bf16"),
    Adaptation("bf16", True, None, "f32", "f32"),
    Adaptation("f16", True, "f32", "f16", "f16"),
    Adaptation("f16", False, "f16", "bf16", "bf16"),
)


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_adapting_assembles(kind: Adaptation) -> None:
    assemble(emit_shrink(kind.dtype, kind.routed), "sm_90")
    assemble(emit_expand(kind), "sm_90")
