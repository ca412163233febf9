"""vLLM's batch-invariant mode (``VLLM_BATCH_INVARIANT=1``)."""

from __future__ import annotations

import vllm.envs as envs


def options() -> str:
    """The ``options`` of operators: in this mode, sums in an order that does not depend on the number of rows."""
    return "bits='invariant'" if envs.VLLM_BATCH_INVARIANT else ""
