"""The kernel that copies operands, assembled as the driver would."""

from __future__ import annotations

import pytest
from cuda.core import Program, ProgramOptions

from gemmill.emitters.copies import emit_copies


@pytest.mark.parametrize(("overlaps", "arch"), [(True, "sm_90"), (False, "sm_70"), (False, "sm_80"), (False, "sm_120")])
def test_ptx_assembles(overlaps: bool, arch: str) -> None:
    assert Program(emit_copies(overlaps), "ptx", ProgramOptions(arch=arch)).compile("cubin").code
