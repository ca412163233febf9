"""Imports run one way: library <- emitters <- runtime <- profiler <- service <- cli; importing gemmill loads none."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import gemmill

PACKAGE = Path(gemmill.__file__).parent
LAYERS = ("library", "emitters", "runtime", "profiler", "service", "cli")
ROOMS = {
    "select": (),
    "storage": ("settings", "select.decisions", "select.choice_table"),  # data types
    "compile": ("settings", "storage", "workers"),
    "operands": ("driver",),
    "launch": ("driver", "storage", "operands", "select.choice", "select.kernels.faults"),
    "torch": ("api", "operands", "torch_dispatch"),
    "jax": ("api", "operands", "launch"),
}
"""What each room of the runtime may import of the others."""
OTHERS = ("torch", "jax")
"""Packages with a room of their own, called as they are."""
HEAVY = {"torch", "jax", "cryptography", "cuda", "numpy", "pydantic", "yaml", "rich", "typer", "elftools", "zstandard"}
"""What ``import gemmill`` must leave alone."""


def modules(layer: str) -> list[Path]:
    return sorted((PACKAGE / layer).rglob("*.py"))


def imports(tree: ast.AST) -> Iterator[str]:
    """Every module that a tree imports, at any depth, except for type checking."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"relative import in line {node.lineno}"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        else:
            yield from imports(node)


def without_bodies(tree: ast.Module) -> ast.Module:
    """What a module does when it is itself imported: all but functions."""

    class WithoutBodies(ast.NodeTransformer):
        def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
            return None

    return ast.Module(WithoutBodies().visit(tree).body, [])


def imports_on_load(tree: ast.Module) -> set[str]:
    """The top-level packages that a module imports when it is itself imported."""
    return {name.partition(".")[0] for name in imports(without_bodies(tree))}


@pytest.mark.parametrize("layer", LAYERS)
def test_imports_run_one_way(layer: str) -> None:
    above = LAYERS[LAYERS.index(layer) + 1 :]
    found = modules(layer)
    assert found, f"src/gemmill/{layer} holds no modules"
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in found
        for name in imports(ast.parse(path.read_text()))
        if name.startswith(tuple(f"gemmill.{other}" for other in above))
    ]
    assert not wrong


@pytest.mark.parametrize("room", ROOMS)
def test_rooms_of_the_runtime_know_few_others(room: str) -> None:
    allowed = tuple(f"gemmill.runtime.{other}." for other in (room, *ROOMS[room]))
    found = modules(f"runtime/{room}")
    assert found, f"runtime/{room} holds no modules"
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in found
        for name in imports(ast.parse(path.read_text()))
        if name.startswith("gemmill.runtime.") and not f"{name}.".startswith(allowed)
    ]
    assert not wrong


@pytest.mark.parametrize("layer", [layer for layer in LAYERS if layer != "cli"])
def test_no_module_imports_the_package_s_root_from_below(layer: str) -> None:
    wrong = [
        f"{path.relative_to(PACKAGE)} imports {name}"
        for path in modules(layer)
        for name in imports(ast.parse(path.read_text()))
        if name == "gemmill" or (name.startswith("gemmill.") and name.split(".")[1] not in LAYERS)
    ]
    assert not wrong


@pytest.mark.parametrize("package", OTHERS)
@pytest.mark.parametrize("layer", LAYERS)
def test_no_module_but_those_of_its_room_needs_a_package_to_be_imported(layer: str, package: str) -> None:
    """Nor imports that room but while a function runs."""
    room = PACKAGE / "runtime" / package
    others = [(path, ast.parse(path.read_text())) for path in modules(layer) if room not in path.parents]
    wrong = [path for path, tree in others if package in imports_on_load(tree)]
    within = f"gemmill.runtime.{package}."
    wrong += [path for path, tree in others if any(f"{x}.".startswith(within) for x in imports(without_bodies(tree)))]
    assert not wrong


@pytest.mark.parametrize("layer", ["library", "emitters"])
def test_vocabulary_and_emitters_know_nothing_of_cuda(layer: str) -> None:
    wrong = [p for p in modules(layer) if any(n.partition(".")[0] == "cuda" for n in imports(ast.parse(p.read_text())))]
    assert not wrong


def loaded_by(statement: str) -> set[str]:
    """Top-level packages in ``sys.modules`` of a fresh interpreter after a statement."""
    code = f"{statement}\nimport sys; print(*{{name.partition('.')[0] for name in sys.modules}})"
    return set(subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True).stdout.split())


def test_import_gemmill_is_light() -> None:
    assert not (loaded_by("import gemmill") - loaded_by("pass")) & HEAVY


def test_a_process_without_a_remote_does_without_http_and_signatures() -> None:
    registry = "import gemmill; assert gemmill.Registry(manifests=()).remote is None"
    assert not (loaded_by(registry) - loaded_by("pass")) & {"http", "ssl", "cryptography", "concurrent"}


def test_others_are_imported_by_who_asks_for_them() -> None:
    assert not {*OTHERS} & loaded_by("import gemmill; gemmill.matmul, gemmill.grouped_matmul, gemmill.plan")


def test_public_names_resolve_and_others_do_not() -> None:
    for name in dir(gemmill):
        assert getattr(gemmill, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'matmull'"):
        gemmill.matmull  # type: ignore[attr-defined]  # noqa: B018
