"""The kernel that copies operands, assembled as the driver would."""

from __future__ import annotations

import pytest
from cuda.bindings import nvjitlink

from gemmill.emitters.copies import emit_copies


@pytest.mark.parametrize(("overlaps", "arch"), [(True, "sm_90"), (False, "sm_70"), (False, "sm_80"), (False, "sm_120")])
def test_ptx_assembles(overlaps: bool, arch: str) -> None:
    text = emit_copies(overlaps).encode() + b"\0"
    linker = nvjitlink.create(1, [f"-arch={arch}"])
    try:
        nvjitlink.add_data(linker, nvjitlink.InputType.PTX, text, len(text), "copies")
        nvjitlink.complete(linker)
        assert nvjitlink.get_linked_cubin_size(linker) > 0
    finally:
        nvjitlink.destroy(linker)
