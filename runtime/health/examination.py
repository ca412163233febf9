"""All that the doctor looks at, in the order in which it tells."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from gemmill.runtime.health.finding import Finding
from gemmill.runtime.health.gpus import gpus, model
from gemmill.runtime.health.packages import packages, pytorch
from gemmill.runtime.health.places import places
from gemmill.runtime.health.toolchain import toolchain
from gemmill.runtime.health.trust import trusted_keys


def examination(store: Path | None = None) -> Iterator[Finding]:
    """What is there and what is wrong with it; kernels are compiled where nothing that they need is.

    Args:
        store: folder of the store; None: the user's.
    """
    compiling = [*packages(), *toolchain()]
    yield from compiling
    found = [*gpus(), model(), pytorch(), *places(store), *trusted_keys()]
    yield from found
    if culprits := [f.what for f in (*compiling, *found) if f.state == "wrong" and f.what in _NEEDED]:
        yield Finding("kernels", "missing", f"not tried, as of what they need this is wrong: {', '.join(culprits)}")
    elif any(finding.what == "toolchain" for finding in compiling):
        yield Finding("kernels", "missing", "not tried, as nothing compiles here")
    else:
        from gemmill.runtime.health.kernels import kernels  # it needs all of the above

        yield from kernels()


_NEEDED = ("gemmill", "cuda-bindings", "nvrtc", "cutlass", "cccl", "cudart", "temporary files")
"""What compiling needs."""
