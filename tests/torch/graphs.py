"""Graphs as Inductor makes them, with gemmill's pass run on them, executed node by node: nothing is generated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from torch._inductor.compile_fx import compile_fx  # noqa: E402

from gemmill.runtime.torch.inductor.installation import GemmillPass  # noqa: E402


class Graphs:
    """A backend of ``torch.compile``: graphs after the pass are kept, forward before backward.

    ``execute`` runs one, of its module and arguments.
    """

    def __init__(self, execute: Callable[[Any, list[Any]], Any] = lambda module, given: module(*given)) -> None:
        self.graphs: list[Any] = []
        self._execute = execute

    def __call__(self, module: Any, inputs: Any) -> Any:
        return compile_fx(module, inputs, inner_compile=self._inner)

    def _inner(self, module: Any, inputs: Any, **_: Any) -> Callable[..., Any]:
        module.graph.eliminate_dead_code()
        GemmillPass(None)(module.graph)
        module.graph.lint()
        module.graph.eliminate_dead_code()
        _copy_for_views(module.graph)
        module.recompile()
        self.graphs.append(module.graph)

        def boxed(arguments: list[Any]) -> Any:
            given = [*arguments]
            arguments.clear()
            return self._execute(module, given)

        boxed._boxed_call = True  # type: ignore[attr-defined]
        return boxed

    @property
    def calls(self) -> list[list[str]]:
        """Operators of gemmill in each graph; of expressions their texts."""
        return [[name for node in graph.nodes if (name := called(node))] for graph in self.graphs]

    def left(self) -> list[str]:
        """Products that are still PyTorch's."""
        names = ("mm", "addmm", "bmm", "baddbmm", "_scaled_mm", "_grouped_mm")
        targets = [str(node.target) for graph in self.graphs for node in graph.nodes]
        return [x for x in targets if x.startswith("aten.") and x.split(".")[1] in names]


def _copy_for_views(graph: Any) -> None:
    """Have views copy where need be, as code of Inductor does, where it has put attention as one operator: what that
    returns has strides of its own, of heads whose width is padded."""
    if any("scaled_dot_product" in str(node.target) for node in graph.nodes):
        for node in graph.nodes:
            if node.target is torch.ops.aten.view.default:
                node.target = torch.ops.aten.reshape.default


def called(node: Any) -> str:
    """What a node calls of gemmill, as a text: ``mm``, ``addmm(beta=2.0)``, ``d = relu(acc)``."""
    if not str(node.target).startswith("gemmill."):
        return ""
    keywords = {name: x for name, x in node.kwargs.items() if name != "options"}
    shown = ", ".join(f"{name}={str(x).removeprefix('torch.')}" for name, x in keywords.items())
    name = str(node.target).split(".")[1]
    text = node.args[0] if name == "epilogue" else name
    return f"{text}({shown})" if shown and name != "epilogue" else f"{text} -> {shown}" if shown else text


def listed(x: Any) -> list[Any]:
    """Results of a function that returns one or several."""
    return [*x] if isinstance(x, tuple | list) else [x]


def assert_as_exact(found: Any, eager: Any, exact: Any, factor: float = 1.25) -> None:
    """Layouts as in eager mode, and errors of values at most some times as large, but for a rounding."""
    for x, y, z in zip(listed(found), listed(eager), listed(exact), strict=True):
        assert (x.shape, x.stride(), x.dtype) == (y.shape, y.stride(), y.dtype)
        error, allowed = (x.double() - z).abs().max(), (y.double() - z).abs().max()
        assert error <= factor * allowed + torch.finfo(x.dtype).eps * z.abs().max()
