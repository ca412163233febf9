"""The fast path of a call against its specification, on a GPU: the same bits, errors and prepared calls."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tests.cases.plain import plainly
from tests.gpu.harness import torch
from tests.runtime.api.test_fast_path import alike

import gemmill
from gemmill.library.errors import GemmillError
from gemmill.runtime.api import caches, fast_path

pytestmark = pytest.mark.gpu

M, N, K = 48, 64, 72
DTYPES = {"f16": torch.float16, "f32": torch.float32, "s32": torch.int32}


def tensor(shape: tuple[int, ...], dtype: str, how: str) -> Any:
    count = torch.Size(shape).numel()
    values = torch.randint(-2, 3, (count + 1,), device="cuda").to(DTYPES[dtype])
    made = values[1:].view(shape) if how == "odd address" else values[:count].clone().view(shape)
    return made.mT.contiguous().mT if how == "transposed" and len(shape) > 1 else made


def outcomes(call: Callable[..., Any], calls: list[dict[str, Any]]) -> list[Any]:
    """What comes of some calls, the first time that any is made: the error, or D and what an epilogue writes. Tensors
    are then as they were: D of one call may be C of another."""
    tensors = {id(x): x for arguments in calls for x in arguments.values() if isinstance(x, torch.Tensor)}
    before = [(x, x.clone()) for x in tensors.values()]
    caches.forget_calls()
    found: list[Any] = []
    for arguments in calls:
        written = [arguments[name] for name in ("out", "top") if arguments.get(name) is not None]
        for x in written:
            x.fill_(1)
        try:
            d = call(**arguments)
        except (GemmillError, TypeError, ValueError) as error:
            found.append((type(error), str(error)))
            continue
        found.append([x.contiguous().view(torch.uint8).tolist() for x in (d, *written)])
    for x, values in before:
        x.copy_(values)
    return [*found, caches.prepared.cache_info().currsize]


@pytest.mark.parametrize("guards", [True, False])
@pytest.mark.parametrize("epilogue", [None, "d = acc * s + bias[n]", "d = acc; top[n] = max(acc)"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=15)
@given(data=st.data())
def test_both_ways_give_the_same(
    data: st.DataObject, epilogue: str | None, guards: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not guards:
        monkeypatch.setattr(fast_path, "_guards", lambda: None)
    shapes: dict[str, Any] = {
        "a": [(M, K), (2 * M, K)],
        "b": [(K, N), (K, N), (N, N)],
        "out": [(M, N)],
        "c": [(M, N), (N,)],
    }
    sound: dict[str, Any] = {name: tensor(shapes[name][0], "f16", "") for name in ("a", "b", "out")}
    if epilogue:
        shapes |= {"bias": [(N,)]} if "bias" in epilogue else {"top": [(N,)]}
        del shapes["c"]
        sound |= {"epilogue": epilogue, **({"s": 1.0} if " s" in epilogue else {})}
        sound |= {name: tensor((N,), "f32", "") for name in ("bias", "top") if name in shapes}
    if data.draw(st.booleans(), label="out is allocated"):
        del sound["out"], shapes["out"]
    calls = data.draw(alike(tensor, sound, shapes))
    try:
        assert outcomes(gemmill.matmul, calls) == outcomes(plainly(gemmill.matmul), calls)
    finally:
        caches.forget_calls()


def test_a_plan_and_a_call_of_one_signature_share_what_was_selected_but_no_addresses() -> None:
    caches.forget_calls()
    a, b, other = (tensor(shape, "f16", "") for shape in ((M, K), (K, N), (M, K)))
    plans = [gemmill.plan(x, b, out=torch.empty(M, N, device="cuda", dtype=torch.float16)) for x in (a, other)]
    assert caches.prepared.cache_info().currsize == 1
    assert plans[0].choice is plans[1].choice is not None
    out = gemmill.matmul(other, b)
    for plan in plans:
        plan()
    assert caches.prepared.cache_info().currsize == 1
    torch.cuda.synchronize()
    assert torch.equal(plans[0].out, (a.float() @ b.float()).half())
    assert torch.equal(plans[1].out, out)
    assert torch.equal(out, (other.float() @ b.float()).half())
