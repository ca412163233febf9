"""Builds the epilogue expression of a region, and finds the tensors that it reads."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

from gemmill.library.epilogues.parse import parse
from gemmill.library.epilogues.tree import Assignment, Call, Epilogue, Node, Number, Operand, Value, walk
from gemmill.library.errors import ExpressionError
from gemmill.runtime.torch.inductor.pointwise import (
    CONVERSION,
    TWICE,
    VIEWS,
    is_atom,
    is_condition,
    is_passed_on,
    number,
    simplified,
    tree_of,
)
from gemmill.runtime.torch.inductor.products import NARROW, Product
from gemmill.runtime.torch.inductor.regions import FLOATS, Region
from gemmill.runtime.torch.inductor.shapes import Place, is_a_view, is_like, place

aten = torch.ops.aten
MOST: Mapping[str, int] = {"matrix": 2, "column": 8, "row": 8, "batch": 2, "scalar": 8}
"""The most operands of each kind in an expression. Kernels with TMA support so many matrices with any strides; the
limits of vectors are below those of the kernels."""
_ACC = Value("acc")


class Read(NamedTuple):
    """A tensor that an expression reads."""

    node: Any
    place: Place


class Folded(NamedTuple):
    """An expression and its operands."""

    tree: Node | None
    """The tree of D, or None if the expression has local values."""
    text: str
    operands: Mapping[str, Read]

    @property
    def bytes(self) -> int:
        """Bytes that the matrix operands add for each element of D."""
        reads = self.operands.values()
        return sum(x.node.meta["val"].dtype.itemsize for x in reads if x.place.kind == "matrix")


def folded(product: Product, region: Region) -> Folded | None:
    """The expression of a product with a region; None if no kernel can compute it."""
    foldings = [x for x in (_folded(product, (*region.inner, *region.nodes)), _folded(product, region.nodes)) if x]
    return min(foldings, key=lambda x: x.bytes, default=None)  # for equal bytes the first, which fuses more


def with_vector(product: Product) -> Folded | None:
    """The expression of a product whose C is a vector along N, so that kernels read it once for all rows; else None."""
    folding = _folded(product, ()) if product.c is not None and product.takes_expressions else None
    return folding if folding and all(x.place.kind == "column" for x in folding.operands.values()) else None


def _folded(product: Product, nodes: Sequence[Any]) -> Folded | None:
    builder = _TreeBuilder(product)
    root = builder.product()
    if nodes:
        root = None if root is None else builder.region(nodes, root)
    if root is None or not _may_be_stored(nodes[-1] if nodes else product.node, root, product):
        return None
    if any(count > MOST[kind] for kind, count in Counter(x.place.kind for x in builder.operands.values()).items()):
        return None
    assignments = _inlined([*builder.assignments, Assignment("d", "d", "matrix", "f32", root)])
    text = str(Epilogue(tuple(assignments)))
    try:
        named = {x.name for x in parse(text).operands}
    except ExpressionError:  # too long, too deep, or with a number that f32 lacks
        return None
    operands = {name: x for name, x in builder.operands.items() if name in named}
    return Folded(assignments[0].value if len(assignments) == 1 else None, text, operands)


class _TreeBuilder:
    """Builds the trees of nodes, and collects the operands that they read."""

    def __init__(self, product: Product) -> None:
        self._product = product
        self._trees: dict[Any, Node] = {}
        self.assignments: list[Assignment] = []
        self.operands: dict[str, Read] = {}

    def product(self) -> Node | None:
        """The tree of the product: ``alpha * acc + beta * c``."""
        product = self._product
        tree = simplified(Call("mul", (Number(product.alpha), _ACC)))
        if product.c is None:
            return tree
        c = self._operand(product.c, product.shape)
        return None if c is None else Call("add", (tree, simplified(Call("mul", (Number(product.beta), c)))))

    def region(self, nodes: Sequence[Any], root: Node) -> Node | None:
        """The tree of the last node. ``nodes`` are in the order of the graph, ``root`` is the tree of the product."""
        inside = {self._product.node, *nodes}
        uses = _uses(nodes, inside)
        self._keep(self._product.node, root, uses)
        for node in nodes:
            tree = self._of(node, inside)
            if tree is None:
                return None
            self._keep(node, tree, uses)
        return self._trees[nodes[-1]]

    def _of(self, node: Any, inside: set[Any]) -> Node | None:
        shape = node.meta["val"].shape

        def read(x: Any) -> Node | None:
            if x in inside:
                return self._trees[x]
            return self._operand(x, shape) if isinstance(x, torch.fx.Node) else number(x)

        return read(node.args[0]) if is_passed_on(node) else tree_of(node, read)

    def _keep(self, node: Any, tree: Node, uses: Mapping[Any, int]) -> None:
        """Store the tree of a node. A number that is read several times becomes a local value."""
        if uses[node] > 1 and not is_atom(tree) and not is_condition(tree) and not is_passed_on(node):
            name = f"t{len(self.assignments) + 1}"
            self.assignments.append(Assignment(name, "local", "matrix", "f32", tree))
            tree = Value(name)
        self._trees[node] = tree

    def _operand(self, node: Any, shape: Any) -> Node | None:
        """The operand for a tensor that broadcasts to the ``shape``; None if expressions cannot read it.

        If the tensor only expands another one, or converts it to a wider type, the operand is that other one.
        """
        while node.op == "call_function" and (node.target is aten.expand.default or _is_widening(node)):
            node = node.args[0]
        if node.op == "call_function" and node.target is aten.full.default and not node.args[0]:
            return number(node.args[1])
        value = node.meta["val"]
        d = self._product.shape
        where = place(value.shape, shape, d)
        while where is not None and where.kind == "matrix" and node.target in VIEWS and is_like(value.shape, d):
            if not is_like(node.args[0].meta["val"].shape, d):
                break
            node = node.args[0]
            value = node.meta["val"]
        if where is None or value.dtype not in FLOATS or not is_a_view(value, where):
            return None
        read = Read(node, where)
        name = next((name for name, x in self.operands.items() if x == read), f"x{len(self.operands) + 1}")
        self.operands[name] = read
        return Operand(name, where.kind, "f32")


def _is_widening(node: Any) -> bool:
    """Whether a node is a conversion that loses nothing."""
    if node.target is not CONVERSION:
        return False
    return bool(node.meta["val"].dtype == torch.float32 and node.args[0].meta["val"].dtype in FLOATS)


def _uses(nodes: Sequence[Any], inside: set[Any]) -> Counter[Any]:
    """How often the tree of each node is used, not counting views and conversions of it."""
    uses: Counter[Any] = Counter()
    for node in nodes:
        if is_passed_on(node):
            continue
        for x in node.args:
            while isinstance(x, torch.fx.Node) and x in inside:
                uses[x] += 1 + (node.target in TWICE)
                if not (x.op == "call_function" and is_passed_on(x)):
                    break
                x = x.args[0]
    return uses


def _may_be_stored(end: Any, root: Node, product: Product) -> bool:
    """Whether a kernel may write the end of a region as D.

    D may be wider than the product only if the program returns it; otherwise the next fused kernel would read twice the
    bytes. D may have 8 bits only if a ``clamp`` keeps all values in range, because kernels saturate and PyTorch does
    not.
    """
    dtype = end.meta["val"].dtype
    if is_condition(root):
        return False
    if dtype not in NARROW:
        product_dtype = product.node.meta["val"].dtype
        is_returned = any(user.op == "output" for user in end.users)
        return dtype in FLOATS and (dtype.itemsize <= product_dtype.itemsize or is_returned)
    match root:
        case Call("clamp", (_, Number(low), Number(high))):
            return max(-low, high) <= float(torch.finfo(dtype).max)
    return False


def _inlined(assignments: list[Assignment]) -> list[Assignment]:
    """Inline the assignments that are read once, and drop those that are never read."""
    kept: list[Assignment] = []
    for assignment in reversed(assignments):
        name = Value(assignment.name)
        reads = sum(x == name for later in kept for x in walk(later.value))
        if assignment.role == "d" or reads > 1:
            kept.insert(0, assignment)
        elif reads:
            kept = [x._replace(value=_with(x.value, {name: assignment.value})) for x in kept]
    return kept


def _with(tree: Node, replacements: Mapping[Node, Node]) -> Node:
    if isinstance(tree, Call):
        return tree._replace(arguments=tuple(_with(x, replacements) for x in tree.arguments))
    return replacements.get(tree, tree)


class Linear(NamedTuple):
    """The terms of ``alpha * acc + beta * c``."""

    alpha: float
    c: str | None = None
    beta: float = 1.0


def linear(tree: Node | None) -> Linear | None:
    """The terms of a tree that is only ``alpha * acc + beta * c``; else None."""
    if tree is None:
        return None
    if (alpha := _factor(tree, _is_sum)) is not None:
        return Linear(alpha[0])
    if isinstance(tree, Call) and tree.function == "add":
        for x, y in (tree.arguments, tree.arguments[::-1]):
            alpha, beta = _factor(x, _is_sum), _factor(y, _is_term)
            if alpha is not None and beta is not None:
                assert isinstance(beta[1], Operand)
                return Linear(alpha[0], beta[1].name, beta[0])
    return None


def _is_sum(tree: Node) -> bool:
    return tree == _ACC


def _is_term(tree: Node) -> bool:
    return isinstance(tree, Operand) and tree.kind == "matrix"


def _factor(tree: Node, wanted: Callable[[Node], bool]) -> tuple[float, Node] | None:
    """A factor (1 without one) and the wanted value that it multiplies; None for other trees."""
    match tree:
        case Call("mul", (Number(factor), x)) | Call("mul", (x, Number(factor))) if wanted(x):
            return factor, x
        case _ if wanted(tree):
            return 1.0, tree
    return None
