"""Kernels load and run without the variables that nothing reads, and compute the same bits as with them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.cases.kernels import GOLDEN, KernelCase
from tests.gpu.harness import make_case, run, torch

from gemmill.emitters.emit import emit
from gemmill.library.config.names import parse_name
from gemmill.runtime.compile.compiler import Compiler
from gemmill.runtime.registry import Registry

pytestmark = pytest.mark.gpu

FAMILIES = {
    *("cooperative", "pingpong-f16-sums", "cooperative-splitk", "cooperative-stream"),
    *("cooperative-cluster", "block-scales", "promoted", "multistage-s8", "simt", "gemv", "gemv-gathered"),
}
"""Cases of every family and decomposition of K: of one code and of two."""
CASES = [case for case in GOLDEN if case.id in FAMILIES]


def test_the_cases_are_there() -> None:
    assert {case.id for case in CASES} == FAMILIES


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_a_kernel_computes_the_same_bits_without_its_unused_variables(case: KernelCase) -> None:
    config = parse_name(case.name.replace("sm80_", "sm90_"))  # sm_90 loads no cubins of sm_80
    compiler = Compiler()
    artifact = compiler.compile(emit(config), config)
    made = compiler._code(emit(config), config, lineinfo=False)
    assert len(artifact.cubin) < len(made.cubin) / 2
    operands = make_case(config, 5 if config.schedule == "gemv" else 777, 520, 2048, data="random")
    found = []
    for cubin in (made.cubin, artifact.cubin):
        registry = Registry(manifests=())
        registry.add(replace(artifact, cubin=cubin))
        operands.d.tensor.zero_()
        run(config, operands, registry)
        found.append(operands.d.tensor.clone())
    assert found[0].any()
    assert torch.equal(*found)
