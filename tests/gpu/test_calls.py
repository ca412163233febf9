"""A sample of the calls drawn at random; tensors without memory, by every way that could take them for others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import gemmill
from gemmill.library.errors import OperandError

torch = pytest.importorskip("torch")
pytestmark = pytest.mark.gpu

from tests.gpu import calls  # noqa: E402 (it imports torch)


def test_calls_drawn_at_random_are_right_or_refused() -> None:
    assert calls.main(["--calls", "300", "--seed", "1"]) == 0


def freed(x: Any) -> Any:
    x = x.clone()[1:]  # with an offset, its address is not 0
    x.untyped_storage().resize_(0)
    return x


def fake(x: Any) -> Any:
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode():
        return torch.empty(x.shape[0] + 1, x.shape[1], dtype=x.dtype, device="cuda")[1:]


def functional(x: Any) -> Any:
    return torch._to_functional_tensor(x)


LOST: dict[Callable[[Any], Any], tuple[type[Exception], str]] = {
    freed: (OperandError, "{} has no memory"),
    fake: (AssertionError, "convert all Tensors to FakeTensors"),  # PyTorch's own words, of any of its operators
    functional: (RuntimeError, "custom .non-ATen. operator"),
}


@pytest.mark.parametrize("name", ["a", "b", "out", "c"])
@pytest.mark.parametrize("lost", LOST)
def test_a_warm_call_does_not_take_what_has_no_memory_for_what_had(name: str, lost: Callable[[Any], Any]) -> None:
    def tensors() -> dict[str, Any]:
        return {x: torch.ones(64, 64, dtype=torch.bfloat16, device="cuda") for x in ("a", "b", "out", "c")}

    for _ in range(3):  # recognised by guards, then by keys
        given = tensors()
        gemmill.matmul(given.pop("a"), given.pop("b"), **given)
    given = tensors()
    whole = torch.ones(65, 64, dtype=torch.bfloat16, device="cuda")
    given[name] = lost(whole if lost is freed else given[name])
    error, words = LOST[lost]
    with pytest.raises(error, match=words.format(name)):
        gemmill.matmul(given.pop("a"), given.pop("b"), **given)
    given = tensors()
    assert (gemmill.matmul(given.pop("a"), given.pop("b"), **given) == 65).all()
    torch.cuda.synchronize()
