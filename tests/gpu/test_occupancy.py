"""The driver holds as many CTAs of a kernel on an SM as drawings state."""

from __future__ import annotations

import pytest

from gemmill.library.config.names import parse_name
from gemmill.runtime.driver import bindings, check, current
from gemmill.runtime.health.trial_kernels import KERNELS
from gemmill.runtime.kernel_occupancy import occupancy_of
from gemmill.runtime.launch.kernel import load
from gemmill.runtime.registry import Registry

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("name", KERNELS, ids=lambda name: parse_name(name).family)
def test_the_driver_holds_as_many_ctas(name: str) -> None:
    artifact = Registry(manifests=()).get(parse_name(name))
    spec = artifact.launch
    with current(0):
        function = load(0, artifact).function
        ctas = bindings().cuOccupancyMaxActiveBlocksPerMultiprocessor(function, spec.threads, spec.shared_bytes)
    assert int(check(ctas, "reading how many CTAs fit an SM")) == occupancy_of(artifact).ctas
