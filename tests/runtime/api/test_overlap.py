"""No function writes where another tensor of the call lies, or twice to one place; nor does a call of what it prepared.

Addresses are looked at before anything is selected, so nothing needs a GPU.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from tests.cases.exporter import Exporter, Words, on_gpu

from gemmill import OperandError, array_matmul, grouped_matmul, matmul, plan
from gemmill.runtime.api import caches

PLACE = 1 << 45
A, B, OUT = on_gpu((64, 64)), on_gpu((64, 64)), on_gpu((64, 64), address=PLACE)
A_ALONG_M, GROUPS, ENDS = on_gpu((64, 64), strides=(1, 64)), on_gpu((4, 64, 64)), on_gpu((4,), "s32")


def there(shape: tuple[int, ...], dtype: Any = "bf16", **how: Any) -> Exporter:
    """A tensor where ``OUT`` is."""
    return on_gpu(shape, dtype, address=PLACE, **how)


ITSELF = there((64, 64), strides=(1, 1))
Arguments = dict[str, Any]
OVERLAPS: dict[str, list[tuple[Arguments, str]]] = {
    "matmul": [
        ({"a": there((64, 64)), "b": B}, "out and a overlap in memory"),
        ({"a": A, "b": there((64, 64), strides=(1, 64))}, "out and b overlap in memory"),
        ({"a": A, "b": B, "out": ITSELF}, "out has strides .* its elements overlap"),
        ({"a": on_gpu((4, 64, 64)), "b": B, "out": there((4, 64, 64), strides=(0, 64, 1))}, "its elements overlap"),
        ({"a": A, "b": B, "c": there((64, 64), strides=(1, 64))}, "out and c overlap in memory"),
        ({"a": A, "b": B, "c": there((64,))}, "out and c overlap in memory"),
        ({"a": A, "b": B, "epilogue": "d = acc + x[n]", "x": there((64,))}, "out and x overlap in memory"),
        (
            {"a": A, "b": B, "epilogue": "aux[m, n] = acc; d = acc", "aux": there((64, 64))},
            "out and aux overlap in memory",
        ),
        ({"a": A, "b": B, "epilogue": "aux[m, n] = acc; d = acc", "aux": A}, "aux and a overlap in memory"),
        ({"a": A, "b": B, "epilogue": "aux[m, n] = acc; d = acc", "aux": ITSELF}, "aux has strides .* overlap"),
        ({"a": A, "b": B, "epilogue": "d = acc; top[n] = max(acc)", "top": there((64,), "f32")}, "out and top overlap"),
    ],
    "grouped_matmul": [
        ({"a": there((64, 64)), "b": GROUPS, "offsets": ENDS}, "out and a overlap in memory"),
        ({"a": A, "b": GROUPS, "offsets": there((4,), "s32")}, "out and offsets overlap in memory"),
        ({"a": A, "b": GROUPS, "offsets": ENDS, "out": ITSELF}, "its elements overlap"),
        ({"a": GROUPS, "b": GROUPS, "counts": there((4,), "s32"), "out": there((4, 64, 64))}, "out and counts overlap"),
        ({"a": A_ALONG_M, "b": B, "offsets": ENDS, "out": there((4, 64, 64), strides=(64, 64, 1))}, "overlap"),
    ],
    "array_matmul": [
        ({"a": A, "b": B, "addresses": Words(3, 4), "out": ITSELF}, "its elements overlap"),
        ({"a": A, "b": B, "addresses": Words(3, 4, address=0)}, "addresses has no memory"),
    ],
}
FUNCTIONS: dict[str, Callable[..., Any]] = {
    "matmul": matmul,
    "grouped_matmul": grouped_matmul,
    "array_matmul": array_matmul,
}
TABLE = [
    pytest.param(function, arguments, says, id=f"{function.__name__}-{name}-{i}")
    for name, rows in OVERLAPS.items()
    for i, (arguments, says) in enumerate(rows)
    for function in (FUNCTIONS[name], plan)
]


@pytest.mark.parametrize(("function", "arguments", "says"), TABLE)
def test_what_is_written_lies_nowhere_else(function: Callable[..., Any], arguments: Arguments, says: str) -> None:
    with pytest.raises(OperandError, match=says):
        function(**{"out": OUT} | arguments)


@pytest.fixture
def filled(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Addresses that the driver was to fill, which needs a GPU."""
    found: list[int] = []
    monkeypatch.setattr("gemmill.runtime.driver.fill", lambda device, stream, address, *_: found.append(address))
    return found


def test_calls_of_one_signature_are_looked_at_each_time(filled: list[int]) -> None:
    caches.forget_calls()
    top, low = on_gpu((64,), "f32"), on_gpu((64,), "f32")
    text = "d = acc; t[n] = max(acc); l[n] = min(acc)"
    fused: Arguments = {"a": on_gpu((0, 64)), "b": B, "out": on_gpu((0, 64)), "epilogue": text}
    for _ in range(2):
        matmul(**fused, t=top, l=low)
        with pytest.raises(OperandError, match=r"t and l overlap in memory .* both are written"):
            matmul(**fused, t=top, l=top)
    assert len(filled) == 4, "two calls fill two outputs each, and what is refused fills none"
    launch = plan(**fused, t=top, l=low)
    with pytest.raises(OperandError, match="t and l overlap in memory"):
        launch.rebind(l=top)
    launch()
    assert len(filled) == 6
