"""The operators of PyTorch on a GPU: PyTorch's checks, what compiles and is captured, fakes that leave the context."""

from __future__ import annotations

from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

from tests.torch.cases import CASES, Case, positional, wide  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import gemmill.torch  # noqa: E402

DEFINED = {name: case for name, case in CASES.items() if name not in ("mm with options", "grouped_mm in slots")}
"""Those whose options fit their dtypes on a GPU, and that write all of D."""


def on_gpu(x: Any) -> Any:
    """A tensor of a case, with its strides, on the GPU."""
    if isinstance(x, list):
        return [on_gpu(each) for each in x]
    if not isinstance(x, torch.Tensor):
        return x
    made = torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device="cuda")
    elements = [slice(None) if stride else slice(1) for stride in x.stride()]  # of what is expanded, one
    made[elements].copy_(x[elements])
    return made


def listed(found: Any) -> list[Any]:
    return [*found] if isinstance(found, list | tuple) else [found]


@pytest.mark.parametrize("case", DEFINED.values(), ids=DEFINED)
def test_kernels_give_what_references_give(case: Case) -> None:
    """And layouts of outputs are those of fakes."""
    arguments, keywords = positional(case._replace(tensors={name: on_gpu(x) for name, x in case.tensors.items()}))
    found = listed(case.functional()(*arguments, **keywords))
    for x, y in zip(found, listed(case.expected(**case.tensors)), strict=True):
        rtol = 2**-3 if x.dtype == torch.float8_e4m3fn else 2**-7  # a neighbour, if sums differ
        torch.testing.assert_close(x.cpu().double(), y.to(x.dtype).double(), rtol=rtol, atol=2**-7)
    with FakeTensorMode() as mode:

        def fake(x: Any) -> Any:
            if isinstance(x, list):
                return [fake(each) for each in x]
            return mode.from_tensor(x) if isinstance(x, torch.Tensor) else x

        made = listed(case.functional()(*[fake(x) for x in arguments], **keywords))
    assert [(x.shape, x.stride(), x.dtype, x.device) for x in made] == [
        (x.shape, x.stride(), x.dtype, x.device) for x in found
    ]


@pytest.mark.parametrize("name", ["mm", "addmm", "bmm", "baddbmm", "mixed_mm of s8", "grouped_mm of rows", "epilogue"])
def test_opcheck(name: str) -> None:
    case = CASES[name]
    case = case._replace(tensors={key: on_gpu(x) for key, x in case.tensors.items()})
    arguments, keywords = positional(case)
    torch.library.opcheck(case.functional(), arguments, keywords)
    found = case.functional()(*arguments, **keywords)
    arguments, keywords = positional(case, [torch.empty_like(x) for x in found] if name == "epilogue" else found)
    torch.library.opcheck(case.mutating(), arguments, keywords)


def program(a: Any, b: Any, c: Any) -> Any:
    return gemmill.matmul(gemmill.matmul(a, b, c=c).relu(), b, epilogue="d = silu(acc) + x[n]", x=c)


def tensors(m: int = 64) -> list[Any]:
    return [0.1 * wide(*shape).cuda() for shape in ((m, 64), (64, 64), (64,))]


@pytest.mark.parametrize("mode", ["default", "reduce-overhead"])
def test_a_compiled_program_gives_what_it_gives_eagerly(mode: str) -> None:
    torch.compiler.reset()
    compiled = torch.compile(program, fullgraph=True, mode=mode)
    for _ in range(3):  # eagerly, recorded, replayed
        operands = tensors()
        torch.testing.assert_close(compiled(*operands).clone(), program(*operands))


def test_gradients_are_those_of_torch() -> None:
    torch.compiler.reset()
    grads = []
    for multiply in (
        lambda a, b, c: torch.ops.gemmill.addmm(c, a, b),
        torch.compile(lambda a, b, c: gemmill.matmul(a, b, c=c), fullgraph=True),
        lambda a, b, c: torch.addmm(c, a, b),
    ):
        operands = [x.requires_grad_() for x in tensors(128)]
        multiply(*operands).square().sum().backward()
        grads.append([x.grad for x in operands])
    for mine in grads[:2]:
        for x, y in zip(mine, grads[2], strict=True):
            torch.testing.assert_close(x, y, rtol=2**-6, atol=2**-4)


@pytest.mark.parametrize("warm", [False, True])
def test_fakes_never_reach_a_launcher(warm: bool) -> None:
    a, b, c = tensors()
    for _ in range(3 * warm):
        gemmill.matmul(a, b, c=c)
    with FakeTensorMode() as mode:
        fakes = [mode.from_tensor(x) for x in (a, b, c)]
        assert type(gemmill.matmul(fakes[0], fakes[1], c=fakes[2])) is type(fakes[0])
        assert gemmill.grouped_matmul(fakes[0], fakes[1].expand(2, 64, 64), torch.empty(2, dtype=torch.int32)).is_cuda
    meta = [x.to("meta") for x in (a, b)]
    with pytest.raises(gemmill.OperandError, match="a is on meta"):
        gemmill.matmul(*meta)
    assert torch.ops.gemmill.mm(*meta).is_meta
    torch.cuda.synchronize()
    torch.testing.assert_close(gemmill.matmul(a, b, c=c), torch.addmm(c, a, b), rtol=2**-7, atol=2**-7)
