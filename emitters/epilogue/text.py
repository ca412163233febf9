"""The source of an epilogue (``LinearEpilogue``, or a functor emitted from an expression), and its parameter layout.

The parameters start with the TMA descriptors of matrices with a major: operands, then outputs. Then follow alpha and
beta, and the expression's operands, output matrices and reductions, in that order, each as a struct of
epilogue/operands.cuh.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from string import Template
from typing import NamedTuple

from gemmill.library.config.model import GemmConfig
from gemmill.library.dtypes import DTYPES, DTypeName
from gemmill.library.epilogues.function_table import FUNCTIONS
from gemmill.library.epilogues.order import FUSED, ordered, with_reciprocals
from gemmill.library.epilogues.parse import LINEAR, parse
from gemmill.library.epilogues.tree import (
    BLOCK,
    GATES,
    Assignment,
    Call,
    Epilogue,
    Kind,
    Node,
    Number,
    Operand,
    Value,
    roundings,
)
from gemmill.library.launch import TMA_BYTES
from gemmill.library.legality.quantities import align_up

_BYTES: Mapping[Kind, int] = {"scalar": 16, "row": 16, "column": 16, "batch": 16, "matrix": 32, "block": 32}
"""Size in bytes of the parameter struct of each kind of operand: an address, then a value or strides."""
_TEMPLATE = Template("""\
// $expression
struct Epilogue : gemmill::$matrices {
  using Compute = $compute;
  static constexpr bool kIsExpression = true;
  static constexpr bool kIsPartial = false;
  static constexpr bool kGated = $gated, kGatesHalves = $gates_halves;
  static constexpr int kGateColumns = $gate_columns, kGateRows = $gate_rows, kScaledColumns = $scaled_columns;
  static constexpr int kTotals = $totals, kRowTotals = $row_totals, kColumnTotals = $column_totals;
  static constexpr int kReductions = kTotals + kRowTotals + kColumnTotals;
  static constexpr bool kAddresses = $addresses;
  __device__ static constexpr gemmill::Reduce reduce(int i) { return $reduce; }

  struct Params {$descriptors
    Compute alpha, beta;$parameters
  };
  struct Uniform {$uniform_members};
  struct Row {$row_members};
  struct Column {$column_members};
  struct Element {$element_members};
  struct Extras {$extras_members};

  Params const& params;

  __device__ explicit Epilogue(Params const& params_) : params(params_) {}
  __device__ bool needs_c() const { return $needs_c; }
  __device__ Uniform uniform(int batch) const { return {$uniform}; }
  __device__ Row row(int m, int batch) const { return {$row}; }
  __device__ Column column(int n, int batch) const { return {$column}; }
  __device__ void columns(int n0, int n1, int end, int batch, Column& first, Column& second) const {$columns}
  __device__ Element element(int m, int n, int batch) const { return {$element}; }
  __device__ void elements(int m, int n0, int n1, int end, int batch, Element& first, Element& second) const {$elements}
  __device__ void touch(int m, int rows, int m_end, int n, int columns, int n_end, int batch, int thread) const {$touch}
$staged  __device__ void store(Extras const& extras, int m, int n, int batch) const {$store}
  __device__ void store_two(Extras const& first, Extras const& second, int m, int n0, int n1, int end,
                            int batch) const {$store_two}

  __device__ Compute compute($sums, Compute c, Uniform const& uniform, Row const& row, Column const& column,
                             Element const& element, Extras& extras) const {
    using namespace gemmill;
$statements
  }
$quantised  __device__ Compute operator()(Compute accumulator, Compute c, int m, int n, int batch) const {
    return gemmill::evaluate(*this, accumulator, c, m, n, batch);
  }
};
static_assert(sizeof(Epilogue::Params) == $bytes, "the host lays out the same members, without padding");
""")
_QUANTISED = Template("""\
  using Scale = $element;
  __device__ void store_scale(Scale scale, int m, int n, int batch) const {
    *params.$scale.at(m, n / kScaledColumns, batch) = scale;
  }
  __device__ Compute quantised(Compute $scaled, Compute $scale, Uniform const& uniform) const {
    using namespace gemmill;
    return $value;
  }
""")


def compute_type(config: GemmConfig) -> DTypeName:
    """The dtype in which a kernel's epilogue computes: f64 for f64 sums, s32 for an s32 D, otherwise f32."""
    if config.accumulator == "f64":
        return "f64"
    return "s32" if config.accumulator == config.d.dtype == "s32" else "f32"


def epilogue_type(config: GemmConfig) -> str:
    """The C++ type of a config's epilogue."""
    if config.epilogue != LINEAR:
        return "::Epilogue"
    compute = compute_type(config)
    named = {"f32": "gemmill::LinearEpilogue", "s32": "gemmill::IntegerEpilogue"}
    return named.get(compute) or f"gemmill::Linear<{DTYPES[compute].cpp}>"


def epilogue_offsets(config: GemmConfig) -> dict[str, int]:
    """Byte offsets within the epilogue's parameters of ``epilogue`` itself, ``alpha``, ``beta`` and ``epilogue.NAME``.

    At ``epilogue.NAME`` is an address. After it, at 8 bytes, follows for scalars the value that applies if the address
    is 0; for matrices and scales of blocks the strides along M, N (or blocks) and the batch; for other kinds the stride
    along the batch, all in elements.
    """
    size = DTYPES[compute_type(config)].bytes
    start = TMA_BYTES * len(staged_matrices(config))
    offsets, end = {"epilogue": 0, "alpha": start, "beta": start + size}, start + 2 * size
    for name, kind in _passed(parse(config.epilogue)):
        offsets[f"epilogue.{name}"] = end
        end += _BYTES[kind]
    return offsets


def epilogue_bytes(config: GemmConfig) -> int:
    """The size in bytes of the epilogue's parameters."""
    passed, descriptors = _passed(parse(config.epilogue)), TMA_BYTES * len(staged_matrices(config))
    size = 2 * DTYPES[compute_type(config)].bytes + sum(_BYTES[kind] for _, kind in passed)
    return align_up(descriptors + size, 64) if descriptors else size


def staged_matrices(config: GemmConfig) -> list[Operand | Assignment]:
    """The matrices with TMA descriptors, in order: operands, then outputs."""
    inputs, outputs = parse(config.epilogue).staged
    return [*inputs, *outputs]


class _Parts(NamedTuple):
    """An epilogue's operands and outputs, grouped by how the functor handles them."""

    epilogue: Epilogue
    kinds: Mapping[Kind, Sequence[Operand]]
    """Operands by kind."""
    factors: Sequence[str]
    """The ones of alpha and beta that the epilogue reads."""
    inputs: Sequence[Operand]
    """Matrices that TMA loads."""
    outputs: Sequence[Assignment]
    """Matrices that TMA stores."""
    reductions: Sequence[Assignment]

    @classmethod
    def of(cls, epilogue: Epilogue) -> _Parts:
        kinds = {kind: [o for o in epilogue.operands if o.kind == kind] for kind in _BYTES}
        factors = [name for name in ("alpha", "beta") if name in epilogue.factors]
        return cls(epilogue, kinds, factors, *epilogue.staged, _reductions(epilogue))

    @property
    def uniform(self) -> list[Operand]:
        """Operands with one value for a whole matrix."""
        return [*self.kinds["scalar"], *self.kinds["batch"]]

    @property
    def names(self) -> dict[str, str]:
        """The variables of the functor, by the name of a value."""
        given = {x: x for x in ("acc", "c")} | {x: "gate" if x.startswith("gate") else "up" for x in GATES}
        return given | {a.name: f"{a.name}_" for a in self.epilogue.assignments}

    @property
    def places(self) -> dict[str, str]:
        """Where the functor finds each operand, by name."""
        return {
            **{name: f"uniform.{name}" for name in self.factors},
            **{o.name: f"uniform.{o.name}_" for o in self.uniform},
            **{o.name: f"row.{o.name}_" for o in self.kinds["row"]},
            **{o.name: f"column.{o.name}_" for o in self.kinds["column"]},
            **{o.name: f"element.{o.name}_" for o in self.kinds["matrix"]},
        }

    @property
    def elements(self) -> list[Operand]:
        """Matrices that threads read without TMA."""
        return [o for o in self.kinds["matrix"] if o not in self.inputs]

    @property
    def stores(self) -> list[Assignment]:
        """Outputs with a value per element."""
        return [a for a in self.epilogue.outputs if a.role == "store"]

    @property
    def direct(self) -> list[Assignment]:
        """Outputs that threads write without TMA."""
        return [a for a in self.stores if a not in self.outputs]


def epilogue_text(config: GemmConfig) -> str:
    """The source of an expression's functor, which precedes the config; empty for ``linear``."""
    if config.epilogue == LINEAR:
        return ""
    parts = _Parts.of(parse(config.epilogue))
    epilogue, staged = parts.epilogue, len(parts.inputs) + len(parts.outputs)
    formats = f"{_formats(parts.inputs)}, {_formats(parts.outputs)}"
    return _TEMPLATE.substitute(
        expression=config.epilogue,
        compute=DTYPES[compute_type(config)].cpp,
        gated=str(epilogue.gated).lower(),
        gates_halves=str(epilogue.gates_halves).lower(),
        gate_columns=epilogue.gate_columns,
        gate_rows=epilogue.gate_rows,
        scaled_columns=BLOCK if epilogue.scale else 0,
        addresses=str(bool(parts.elements or parts.direct)).lower(),
        parameters=_parameters(epilogue),
        needs_c="params.beta != 0" if epilogue.reads_c and epilogue.c_is_scaled else str(epilogue.reads_c).lower(),
        matrices=f"StagedMatrices<{formats}>" if staged else "NoMatrices",
        descriptors=f"\n    cute::TmaDescriptor matrices[{staged}];" if staged else "",
        staged=_place("input", "Element", parts.inputs) + _place("output", "Extras", parts.outputs),
        sums="Compute gate, Compute up" if epilogue.gated or epilogue.gate_rows else "Compute acc, Compute",
        statements="\n".join(f"    {statement}" for statement in _statements(parts, config)),
        quantised=_quantised(parts, config),
        bytes=epilogue_bytes(config),
        **_reduced(parts),
        **_structs(parts),
        **_loads(parts),
        **_stores(parts),
    )


def _statements(parts: _Parts, config: GemmConfig) -> list[str]:
    """The body of the functor: a constant for each assignment, then the values to store or reduce. With a scale it
    returns the value that is scaled, in place of D."""
    epilogue, names, places = parts.epilogue, parts.names, parts.places
    rounded = roundings(epilogue, config.d.dtype)
    apart = () if epilogue.scale is None else ("d", epilogue.scale.name)
    result = "d_" if epilogue.scale is None else _cpp(epilogue.scale.value, names, places, "f32")
    return [
        *(
            f"Compute const {names[a.name]} = {_cpp(ordered(a.value), names, places, rounded[a.name])};"
            for a in epilogue.assignments
            if a.name not in apart
        ),
        *(f"extras.{a.name}_ = {names[a.name]};" for a in parts.stores),
        *(f"extras.reduced[{i}] = {names[a.name]};" for i, a in enumerate(parts.reductions)),
        f"return {result};",
    ]


def _quantised(parts: _Parts, config: GemmConfig) -> str:
    """The functions that store a scale, and compute D from it and the value that was scaled; empty without a scale."""
    scale = parts.epilogue.scale
    if scale is None:
        return ""
    (d,) = (a for a in parts.epilogue.assignments if a.role == "d")
    value = ordered(with_reciprocals(d.value, scale.name))
    scaled, divisor = (_cpp(x, parts.names, parts.places, "f32") for x in (scale.value, Value(scale.name)))
    return _QUANTISED.substitute(
        element=DTYPES[scale.dtype].cpp,
        scaled=scaled,
        scale=divisor,
        value=_cpp(value, parts.names, parts.places, roundings(parts.epilogue, config.d.dtype)["d"]),
    )


def _reduced(parts: _Parts) -> dict[str, object]:
    """The placeholders for the functor's reductions."""
    roles = (f"i == {i} ? gemmill::Reduce::{a.role.capitalize()} : " for i, a in enumerate(parts.reductions))
    return {
        "totals": sum(a.kind in ("scalar", "batch") for a in parts.reductions),
        "row_totals": sum(a.kind == "row" for a in parts.reductions),
        "column_totals": sum(a.kind == "column" for a in parts.reductions),
        "reduce": "".join(roles) + "gemmill::Reduce::Sum",
    }


def _structs(parts: _Parts) -> dict[str, str]:
    """The members of the structs that a thread holds per matrix, per row, per column and per element."""
    stores, count = parts.stores, len(parts.reductions)
    reduced = f" Compute reduced[{count}];" if count else ""
    return {
        "uniform_members": _struct([*parts.factors, *(f"{o.name}_" for o in parts.uniform)]),
        "row_members": _struct(f"{o.name}_" for o in parts.kinds["row"]),
        "column_members": _struct(f"{o.name}_" for o in parts.kinds["column"]),
        "element_members": _struct(f"{o.name}_" for o in (*parts.elements, *parts.inputs)),
        "extras_members": _struct(f"{a.name}_" for a in stores)[:-1] + reduced + " " if stores or count else "",
    }


def _loads(parts: _Parts) -> dict[str, str]:
    """The code that loads operands, and that prefetches them."""
    kinds, elements = parts.kinds, parts.elements
    uniform = (
        *(f"params.{name}" for name in parts.factors),
        *(f"gemmill::load<Compute>(params.{o.name}_)" for o in kinds["scalar"]),
        *(f"gemmill::load<Compute>(params.{o.name}_, 0, batch)" for o in kinds["batch"]),
    )
    touch = (
        *(f"gemmill::touch(params.{o.name}_, thread);" for o in kinds["scalar"]),
        *(f"gemmill::touch(params.{o.name}_, 0, 1, 1, batch, thread);" for o in kinds["batch"]),
        *(f"gemmill::touch(params.{o.name}_, m, rows, m_end, batch, thread);" for o in kinds["row"]),
        *(f"gemmill::touch(params.{o.name}_, n, columns, n_end, batch, thread);" for o in kinds["column"]),
    )
    two = "gemmill::load_two<Compute>(params.{0}_, {1}n0, n1, end, batch, first.{0}_, second.{0}_);"
    return {
        "uniform": ", ".join(uniform),
        "row": ", ".join(f"gemmill::load<Compute>(params.{o.name}_, m, batch)" for o in kinds["row"]),
        "column": ", ".join(f"gemmill::load<Compute>(params.{o.name}_, n, batch)" for o in kinds["column"]),
        "columns": _block(two.format(o.name, "") for o in kinds["column"]),
        "element": ", ".join(f"gemmill::load<Compute>(params.{o.name}_, m, n, batch)" for o in elements),
        "elements": _block(two.format(o.name, "m, ") for o in elements),
        "touch": _block(touch),
    }


def _stores(parts: _Parts) -> dict[str, str]:
    """The code that stores outputs without TMA."""
    two = "gemmill::store_two(params.{0}_, m, n0, n1, end, batch, first.{0}_, second.{0}_);"
    return {
        "store": _block(f"gemmill::store(params.{a.name}_, m, n, batch, extras.{a.name}_);" for a in parts.direct),
        "store_two": _block(two.format(a.name) for a in parts.direct),
    }


def _reductions(epilogue: Epilogue) -> list[Assignment]:
    """Reductions in the order of their parameters: totals, row reductions, column reductions."""
    order = ("scalar", "batch", "row", "column")
    return sorted((a for a in epilogue.outputs if a.is_reduction), key=lambda a: max(1, order.index(a.kind)))


def _members(epilogue: Epilogue) -> list[tuple[str, Kind]]:
    """Operands and outputs with their own parameter struct: those without a major."""
    stores = [(a.name, a.kind) for a in epilogue.outputs if not a.is_reduction and a.major == "any"]
    return [(o.name, o.kind) for o in epilogue.operands if o.major == "any"] + stores


def _passed(epilogue: Epilogue) -> list[tuple[str, Kind]]:
    """Name and kind of every parameter struct, in order."""
    if str(epilogue) == "d = alpha * acc + beta * c":
        return []
    return _members(epilogue) + [(a.name, a.kind) for a in _reductions(epilogue)]


def _parameters(epilogue: Epilogue) -> str:
    lines = []
    for o in epilogue.operands:
        if o.major != "any":
            continue
        element = DTYPES[o.dtype].cpp
        struct = "Scalar" if o.kind == "scalar" else "Matrix" if o.kind == "matrix" else "Values"
        argument = f"{element}, Compute" if o.kind == "scalar" else f"{element} const"
        lines.append(f"gemmill::{struct}<{argument}> {o.name}_;")
    lines += [
        f"gemmill::Matrix<{DTYPES[a.dtype].cpp}> {a.name}_;"
        for a in epilogue.outputs
        if not a.is_reduction and a.major == "any"
    ]
    if reductions := _reductions(epilogue):
        lines.append(f"gemmill::Values<float> reductions[kReductions];  // {', '.join(a.name for a in reductions)}")
    return "".join(f"\n    {line}" for line in lines)


def _formats(matrices: Iterable[Operand | Assignment]) -> str:
    """The C++ list of the formats of matrices that TMA moves."""
    formats = (f"gemmill::Format<{DTYPES[x.dtype].cpp}, gemmill::MajorOut::{x.major.upper()}>" for x in matrices)
    return f"gemmill::Formats<{', '.join(formats)}>"


def _place(function: str, struct: str, matrices: Iterable[Operand | Assignment]) -> str:
    """The C++ function that returns the value of matrix i from a struct of values."""
    names = [x.name for x in matrices]
    if not names:
        return ""
    places = "".join(f"i == {i} ? x.{name}_ : " for i, name in enumerate(names[:-1])) + f"x.{names[-1]}_"
    return f"  __device__ static Compute& {function}({struct}& x, int i) {{ return {places}; }}\n"


def _struct(members: Iterable[str]) -> str:
    """The C++ members of a struct."""
    listed = list(members)
    return f" Compute {', '.join(listed)}; " if listed else ""


def _block(statements: Iterable[str]) -> str:
    """The text between the braces of a C++ function."""
    lines = "".join(f"\n    {statement}" for statement in statements)
    return f"{lines}\n  " if lines else ""


def _cpp(node: Node, names: Mapping[str, str], places: Mapping[str, str], rounded: DTypeName) -> str:
    """An ordered node as C++. ``rounded`` is the type to which its value is eventually rounded."""
    match node:
        case Number(value):
            return f"Compute({value!r})"
        case Operand(name):
            return places[name]
        case Value(name):
            return names[name]
        case Call(name, arguments) if name in FUSED:
            return FUSED[name].format(*(_cpp(argument, names, places, rounded) for argument in arguments))
        case Call(name, arguments):
            row = FUNCTIONS[name]
            inside = rounded if row.passes_error else "f32"
            texts = [_cpp(argument, names, places, inside) for argument in arguments]
            form = row.form(rounded)
            return row.cpp.format(*texts, all=", ".join(texts), short=f"<gemmill::{form}>" if form else "")
