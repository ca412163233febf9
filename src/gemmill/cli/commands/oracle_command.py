"""oracle: D to the bit, on the CPU."""

from __future__ import annotations

import hashlib
import io
import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated
from zipfile import BadZipFile

import numpy as np
import typer

from gemmill.cli import completion, output
from gemmill.cli.app import app
from gemmill.cli.options import kernel, output_file
from gemmill.cli.output import UsageError, usage
from gemmill.cli.problem_options import ProblemOptions
from gemmill.library.arithmetic import Arithmetic, arithmetic_of
from gemmill.library.bits import ANY, INVARIANT, required_arithmetic
from gemmill.library.dtypes import DTypeName
from gemmill.library.epilogues.parse import parse
from gemmill.library.epilogues.tree import Kind
from gemmill.library.errors import ProblemError
from gemmill.library.files import ending, os_error_text, publish
from gemmill.library.oracle.elements import ARRAYS, checked_array
from gemmill.library.oracle.oracle import oracle_of
from gemmill.library.oracle.problems import check_supported, random_matrix
from gemmill.library.problem import GemmProblem


@dataclass(frozen=True)
class OrderOptions:
    """The order in which products are summed."""

    bits: Annotated[
        str | None,
        typer.Option(
            metavar="BITS",
            help="Arithmetic: invariant (default), cublas or a name such as k16/8.",
            autocompletion=completion.arithmetics,
        ),
    ] = None
    name: Annotated[
        str | None,
        typer.Option(
            "--kernel", metavar="KERNEL", help="Arithmetic of this kernel.", autocompletion=completion.kernels
        ),
    ] = None
    slices: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Number of K slices of a split-K --kernel.")
    ] = None  # fmt: skip

    def arithmetic(self, problem: GemmProblem) -> Arithmetic:
        """The arithmetic for a problem."""
        if self.name is not None:
            if self.bits is not None:
                raise UsageError("both --bits and --kernel are given; pass only one")
            found = arithmetic_of(kernel(self.name), self.slices or 0)
            if found.slices == 0:
                raise UsageError(f"the kernel has arithmetic {found}, where S is the launch's number; pass --slices S")
            return found
        if self.slices is not None:
            raise UsageError("--slices needs a split-K kernel; pass --kernel KERNEL")
        with usage(ProblemError):
            required = required_arithmetic(INVARIANT if self.bits is None else self.bits, problem)
        if required is None:
            raise UsageError(f"--bits is {ANY}, which names no arithmetic; omit it")
        return required


@dataclass(frozen=True)
class ValueOptions:
    """The operands and factors."""

    operands: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Read a (M, K), b (K, N), c and epilogue operands from this .npz file. Default: random.",
        ),
    ] = None
    seed: Annotated[int, typer.Option(min=0, metavar="N", help="Seed of random operands.")] = 0
    alpha: Annotated[float, typer.Option(metavar="N", help="Factor of A @ B.")] = 1.0
    beta: Annotated[float, typer.Option(metavar="N", help="Factor of C.")] = 1.0

    def arrays(self, problem: GemmProblem) -> Mapping[str, np.ndarray]:
        """The operands of a problem by name."""
        types, shapes = _types(problem), _shapes(problem)
        if self.operands is None:
            draw = np.random.default_rng(self.seed)
            return {
                name: random_matrix(1, math.prod(shapes[name]), dtype, draw).reshape(shapes[name])
                for name, dtype in types.items()
            }
        try:
            with np.load(self.operands) as file:
                found = {name: file[name] for name in types}
        except (OSError, ValueError, KeyError, TypeError, EOFError, BadZipFile, zlib.error) as error:
            says = os_error_text(error) if isinstance(error, OSError) else f"{error}"
            raise UsageError(
                f"--operands {self.operands} must be an .npz file with {', '.join(types)}: {says}"
            ) from None
        for name, array in found.items():
            if array.shape != shapes[name]:
                raise UsageError(f"{name} in {self.operands} is {array.shape}; the problem needs {shapes[name]}")
        with usage(ProblemError):
            return {name: checked_array(array, types[name], name) for name, array in found.items()}


def _types(problem: GemmProblem) -> dict[str, DTypeName]:
    types: dict[str, DTypeName] = {"a": problem.a_dtype, "b": problem.b_dtype}
    types |= {"c": problem.c_dtype} if problem.c_dtype else {}
    return types | {x.name: x.dtype for x in parse(problem.epilogue).operands}


def _shapes(problem: GemmProblem) -> dict[str, tuple[int, ...]]:
    """Shapes by name; C has those of D."""
    m, columns = problem.d_rows, problem.d_columns
    shapes = {"a": (problem.m, problem.k), "b": (problem.k, problem.n), "c": (m, columns)}
    kinds: dict[Kind, tuple[int, ...]] = {"row": (m,), "column": (columns,), "matrix": (m, columns)}
    return shapes | {x.name: kinds.get(x.kind, ()) for x in parse(problem.epilogue).operands}


@app.command()
def oracle(
    options: ProblemOptions,
    order: OrderOptions,
    inputs: ValueOptions,
    to: Annotated[Path | None, output_file("Write D to this .npy file, or operands and D to this .npz file.")] = None,
) -> None:
    """Compute D to the bit, on the CPU.

    oracle computes the bits that kernels of an arithmetic give on Hopper, from a model of the tensor core, and prints
    their SHA-256. It needs no GPU. Arrays hold bits where NumPy has no such type: uint16 for bf16, uint8 for fp8. Two
    free cores compute 512 x 512 x 4096 in less than a second; with fma in 7 seconds, in f64 in 20. Random operands are
    the same everywhere. Epilogues may use functions that kernels do not approximate, such as relu, but not gelu. Scales
    of A or B are not supported.

    \b
    Examples:
      gemmill oracle --mnkl 512,512,4096
      gemmill oracle --mnkl 64,1024,8192 --a-dtype e4m3 --bits k32/4 --json
      gemmill oracle --problem "128x128x1000 f16 d=f32" --seed 7 -o d.npz
      gemmill oracle --mnkl 64,64,4096 --kernel KERNEL --slices 4 --operands saved.npz
    """
    problem = options.single()
    arithmetic = order.arithmetic(problem)
    if to is not None and ending(to) not in (".npy", ".npz"):
        raise UsageError(f"--output is {to}; its name must end in .npy or .npz")
    if problem.batch != 1:
        raise UsageError(f"the problem has {problem.batch} matrices; oracle computes one")
    check_supported(problem, arithmetic)
    arrays = inputs.arrays(problem)
    rows = {x.name: arrays[x.name][:, None] for x in parse(problem.epilogue).operands if x.kind == "row"}
    d = oracle_of(problem, arithmetic, {"alpha": inputs.alpha, "beta": inputs.beta, **arrays, **rows})
    if to is not None:
        data = io.BytesIO()
        np.savez(data, allow_pickle=False, d=d, **arrays) if ending(to) == ".npz" else np.save(data, d)
        publish(to, [data.getvalue()])
    report = {
        "problem": str(problem),
        "arithmetic": str(arithmetic),
        "order": arithmetic.in_words(),
        "sha256": hashlib.sha256(d.tobytes()).hexdigest(),
        "array": ARRAYS[problem.d_dtype],
    }
    text = f"{problem}\n{arithmetic}: {report['order']}\nSHA-256 of D: {report['sha256']}"
    output.print_result("oracle", report, text)
