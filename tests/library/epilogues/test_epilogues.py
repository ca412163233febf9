import contextlib
import re
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gemmill.emitters import include_path
from gemmill.library.config.fields import config_of, fields_of
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.dtypes import DTypeName
from gemmill.library.epilogues.evaluation import Bounded, evaluate, scales_of, values
from gemmill.library.epilogues.function_table import FUNCTIONS, rounded
from gemmill.library.epilogues.parse import LINEAR, canonical, decode, encode, parse, serves, spelling, unstaged
from gemmill.library.epilogues.tree import (
    Assignment,
    Call,
    Epilogue,
    Node,
    Number,
    Operand,
    Value,
    fault_of_m,
    fault_of_n,
    roundings,
    sums_by_name,
    transposed,
    with_dtypes,
)
from gemmill.library.errors import ConfigError, ExpressionError
from gemmill.library.legality.rules import verdicts

NAME = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear"

SCALED = "s[m, n/128] = scale(h); d = h / s"
"""The end of an epilogue that quantises h."""

KINDS = {"s": "scalar", "row": "row", "bias": "column", "per": "batch", "r": "matrix"}
OPERANDS = [Operand(name, kind, dtype) for name, kind in KINDS.items() for dtype in ("f32", "bf16")]  # type: ignore[arg-type]
LEAVES: st.SearchStrategy[Any] = st.sampled_from(
    [
        *(Value("acc"), Value("c"), Operand("alpha", "scalar", "f32"), Operand("beta", "scalar", "f32")),
        *(operand for operand in OPERANDS if operand.dtype == "f32"),
    ]
) | st.floats(-(2.0**100), 2.0**100, width=32).map(lambda x: Number(x + 0.0))


def calls(numbers: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    def call(name: str, arguments: tuple[Node, ...]) -> Node:
        if name == "neg" and isinstance(arguments[0], Number):
            return Number(0.0 - arguments[0].value)  # as the parser folds it
        return Call(name, arguments)

    comparisons = st.tuples(st.sampled_from(["lt", "le", "gt", "ge", "eq", "ne"]), numbers, numbers).map(
        lambda x: Call(x[0], x[1:])
    )
    conditions = st.recursive(
        comparisons,
        lambda inner: (
            st.tuples(st.sampled_from(["and", "or"]), inner, inner).map(lambda x: Call(x[0], x[1:]))
            | inner.map(lambda x: Call("not", (x,)))
        ),
        max_leaves=3,
    )

    def of(name: str) -> st.SearchStrategy[Any]:
        kinds = {"number": numbers, "condition": conditions}
        return st.tuples(*(kinds[kind] for kind in FUNCTIONS[name].takes)).map(lambda x: call(name, x))

    return st.sampled_from([n for n, f in FUNCTIONS.items() if f.gives == "number"]).flatmap(of)


NUMBERS: st.SearchStrategy[Any] = st.recursive(LEAVES, calls, max_leaves=12)
PLAIN = NUMBERS.map(lambda node: Epilogue((Assignment("d", "d", "matrix", "f32", Call("add", (Value("acc"), node))),)))


def quantising(node: Node, dtype: DTypeName, gate: str, factor: Node) -> Epilogue:
    """An epilogue that scales a function of the sums, and multiplies D by a factor."""
    columns = {"": ("acc", "acc"), "1": ("gate", "up"), "8": ("gate8", "up8")}[gate]

    def gated(x: Node) -> Node:
        if isinstance(x, Call):
            return x._replace(arguments=tuple(map(gated, x.arguments)))
        return Value(columns[0]) if x == Value("acc") else x

    h = Call("mul", (gated(node), Value(columns[1])))
    d = Call("mul", (Call("div", (Value("h"), Value("s"))), factor))
    return Epilogue(
        (
            Assignment("h", "local", "matrix", "f32", h),
            Assignment("s", "scale", "block", dtype, Value("h")),
            Assignment("d", "d", "matrix", "f32", d),
        )
    )


UNIFORM: st.SearchStrategy[Any] = st.sampled_from([Operand("s2", "scalar", "f32"), Number(2.0), Value("h")])
QUANTISING = st.builds(
    quantising, NUMBERS, st.sampled_from(["f32", "ue8m0"]), st.sampled_from(["", "1", "8"]), UNIFORM
).filter(lambda epilogue: "s" not in {x.name for x in epilogue.operands})
EPILOGUES = PLAIN | QUANTISING


@given(EPILOGUES)
def test_the_text_of_a_tree_parses_back_to_it(epilogue: Epilogue) -> None:
    assert parse(str(epilogue)) == epilogue


@given(EPILOGUES)
def test_text_is_canonical_and_a_name_holds_it(epilogue: Epilogue) -> None:
    text = spelling(epilogue)
    assert canonical(text) == text
    part = encode(text)
    assert re.fullmatch("[a-zA-Z][a-zA-Z0-9]*", part)
    assert decode(part) == text
    c = "bf16n16" if epilogue.reads_c else "none"
    name = NAME.replace("linear", part).replace("_none_", f"_{c}_")
    assert parse_name(name).epilogue == text
    assert kernel_name(parse_name(name)) == name


@given(EPILOGUES)
def test_parentheses_are_minimal(epilogue: Epilogue) -> None:
    text = str(epilogue)
    for opening in (i for i, x in enumerate(text) if x == "(" and (i == 0 or not text[i - 1].isalnum())):
        depth = 0
        for closing in range(opening, len(text)):
            depth += (text[closing] == "(") - (text[closing] == ")")
            if depth == 0:
                break
        without = text[:opening] + text[opening + 1 : closing] + text[closing + 1 :]
        with contextlib.suppress(ExpressionError):
            assert parse(without) != epilogue


@given(st.text(alphabet="acdbmn_silu()[]*+-=;., <>01", max_size=40))
def test_any_text_is_an_epilogue_or_an_error_inside_it(text: str) -> None:
    try:
        spelled = canonical(text)
    except ExpressionError as error:
        column = error.column
    else:
        assert canonical(spelled) == spelled
        column = 0
    assert 0 <= column <= len(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("d=alpha*acc+beta*c", LINEAR),
        ("d = alpha*acc", LINEAR),
        ("d = (((acc)) * 2.0)", "d = acc * 2"),
        ("aux = acc; d = relu(acc)", "aux[m, n] = acc; d = relu(acc)"),
        ("t = acc + 1\nd = t * t\n", "t = acc + 1; d = t * t"),
        ("d = max(acc,\n  0)", "d = max(acc, 0)"),
        ("aux.bf16 = acc + b1.f32[n]; d = aux", "aux.bf16[m, n] = acc + b1[n]; d = aux"),
        ("amax = max( abs(acc) );d=acc", "amax = max(abs(acc)); d = acc"),
        ("aux.bf16.n = acc; d = aux + r.f32.m[m, n]", "aux.bf16.n[m, n] = acc; d = aux + r.m[m, n]"),
        ("d = acc - (x[m] - y[n]) - (1 - 2)", "d = acc - (x[m] - y[n]) - (1 - 2)"),
        ("d = -(-1) * acc - -2", "d = 1 * acc - -2"),
        ("h=gate8*up8;s.ue8m0[m,n / 128]=scale(h);d=h/s", "h = gate8 * up8; s.ue8m0[m, n/128] = scale(h); d = h / s"),
        ("d = acc * scale[n]", "d = acc * scale[n]"),
        ("d = silu( gate8 . m)*up8.m", "d = silu(gate8.m) * up8.m"),
        (
            "d = where(not (acc < 0) and (s > 0 or s < -1), acc, 0)",
            "d = where(not acc < 0 and (s > 0 or s < -1), acc, 0)",
        ),
    ],
)
def test_spellings(text: str, expected: str) -> None:
    assert canonical(text) == expected


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("", 0, "the epilogue is empty"),
        ("d = acc ** 2", 4, "the power operator is not supported"),
        ("d = reul(acc)", 4, "unknown function 'reul', did you mean relu?"),
        ("d = acc + bias[k]", 15, "the index is [k]; it must be [m]"),
        ("d = acc + n", 10, "'n' is an index"),
        ("d = acc[n]", 4, "'acc' is the value of an element"),
        ("d = acc + x.bf16.n[n]", 10, "'x' has no index [m, n]; only a matrix can be n-major"),
        ("d = acc + x.n.bf16[m, n]", 10, "'x.n' is not a name"),
        ("x.n = max(acc); d = acc", 0, "x is a reduction; only a matrix can be n-major"),
        ("d = acc + x.s4[n]", 10, "the type is 's4'; it must be f32"),
        ("x = acc", 7, "d is not assigned"),
        ("d = 3 + s", 0, "the epilogue must read the sums of products"),
        ("d = relu(acc, 1)", 4, "relu takes 1 argument, not 2"),
        ("t = acc; d = t +", 16, "invalid syntax"),
        ("d = acc; d = acc", 9, "'d' is assigned twice"),
        ("d = sum(acc)", 4, "d must not be a reduction"),
        ("d = acc + sum(acc)", 10, "sum must be the whole right side of an assignment"),
        ("d = acc; top.bf16 = max(acc)", 9, "the type of a reduction must be f32"),
        ("d = acc; top[m, n] = max(acc)", 9, "its index must be [m], [n] or [batch]"),
        ("d = acc; top[m, n/128] = max(acc)", 9, "its index must be [m], [n] or [batch]"),
        ("top = max(acc); d = acc / top", 0, "the epilogue cannot read its result"),
        ("per_row[m] = acc; d = acc", 0, "an output smaller than D must be a reduction"),
        ("d = acc if acc else 1", 4, "where(condition, x, y)"),
        ("d = acc < 1", 4, "is a condition"),
        ("d = where(acc, 1, 2)", 10, "is a number"),
        ("d = 0 < acc < 1", 4, "chained comparisons are not supported"),
        ("d = acc + x[n] + x[m]", 17, "has another index, type or major earlier"),
        ("d = acc + gate", 10, "an epilogue cannot read both acc and gate or up"),
        ("d = gate8 * up", 12, "an epilogue cannot read both gate or up and gate8 or up8"),
        ("d = gate8.m * up8", 14, "an epilogue cannot read both gate8 or up8 and gate8.m or up8.m"),
        ("d = gate.m * up", 4, "'gate' is the value of an element; write it without an index or type"),
        ("h = gate8.m; s[m, n/128] = scale(h); d = h / s", 0, "that scales blocks of columns cannot pair rows"),
        (
            "h = acc; s[m, n/64] = scale(h); d = h / s",
            11,
            "it must be [m], [n], [m, n] or [batch], or of a scale [m, n/128]",
        ),
        ("h = acc; s[m] = scale(h); d = h / s", 9, "s is a scale; its index must be [m, n/128]"),
        ("h = acc; s.bf16[m, n/128] = scale(h); d = h", 9, "the type of a scale must be f32 or ue8m0"),
        ("h = acc; s[m, n/128] = h; d = h", 9, "s[m, n/128] must be a scale"),
        ("s[m, n/128] = scale(acc); d = acc / s", 14, "scale takes a name that is assigned"),
        ("h = x[n]; s[m, n/128] = scale(h); d = acc / s", 24, "scale takes a name that is assigned the sums"),
        ("d = acc / scale(acc)", 10, "scale takes a name and must be the whole right side"),
        ("d = acc + s[m, n/128]", 10, "'s' has the index of a scale"),
        ("h = acc; s[m, n/128] = scale(h); t[m, n/128] = scale(h); d = h / s", 33, "t and s are scales"),
        ("h = acc; d = h; s[m, n/128] = scale(h)", 16, "d is assigned before the scale s"),
        ("h = acc; s[m, n/128] = scale(h); q = h / s; d = q", 37, "q reads the scale s; only d can"),
        ("h = acc; s[m, n/128] = scale(h); d = h / s; top = max(d)", 54, "top reads d, which is divided by"),
        ("d = scale(acc)", 4, "d must not be a scale"),
        ("h = acc; s[m, n/128] = scale(h); d = h / s + x[n]", 37, "d can read only h, s and scalars"),
        ("h = acc; s[m, n/128] = scale(h); d = acc / s", 37, "d can read only h, s and scalars"),
        ("d = x + acc; x = acc", 13, "is read before it is assigned"),
        ("d = acc; relu = acc", 9, "is a reserved name"),
        ("d = acc + out", 10, "cannot name an operand"),
        ("d = acc + Bias[n]", 10, "lower-case"),
        ("d = acc + alpha[m]", 10, "a scalar that the caller passes"),
        ("d = acc * 1e39", 10, "exceeds float32"),
        ("d = acc / 1e-50", 10, "the number is too small for float32"),
        ("d = relu(acc); x = 2 - 1e-400 * d", 23, "the number is too small for float32"),
        ("d = add(acc, 1)", 4, "unknown function 'add'"),
        ("d = acc * 0x" + "f" * 5000, 10, "exceeds float32"),
        ("d = acc + self[n]", 10, "cannot name an operand"),
        ("d = acc + é", 10, "is not allowed in an epilogue"),
        ("d = acc # why", 8, "comments are not allowed"),
        ("d = acc.__class__", 4, "the type is '__class__'"),
        ("d = (lambda: acc)()", 4, "not allowed"),
        ("__import__('os')", 0, "is not an assignment"),
        ("d = acc + True", 10, "not allowed"),
    ],
)
def test_refusals_name_the_place_and_the_reason(text: str, column: int, says: str) -> None:
    with pytest.raises(ExpressionError) as refused:
        parse(text)
    assert says in str(refused.value)
    assert refused.value.column == column


@pytest.mark.parametrize("depth", [400, 5000])
def test_what_is_nested_too_deeply_is_refused(depth: int) -> None:
    with pytest.raises(ExpressionError):
        parse("d = " + "-" * depth + "acc")


def test_values_that_read_each_other_often_are_parsed_at_once() -> None:
    """In time that grows with their number: each of these reads the two before it, and none the sums."""
    names = "; ".join(f"t{i} = t{i - 1} + t{i - 2}" for i in range(2, 90))
    with pytest.raises(ExpressionError, match="scale takes a name that is assigned the sums"):
        parse(f"t0 = x; t1 = x; {names}; s[m, n/128] = scale(t89); d = acc / s")


def test_the_reference_reduces_over_all_of_d_whatever_a_value_depends_on() -> None:
    inputs = {"alpha": np.array(2.0), "acc": np.zeros((2, 3)), "bias": np.array([1.0, 2.0, 3.0])}
    text = "d = alpha * acc; total = sum(bias[n]); top[n] = max(bias[n]); per_row[m] = sum(bias[n]); count = sum(1)"
    found = {name: x.value.tolist() for name, x in evaluate(parse(text), inputs, np).items()}
    assert (found["total"], found["top"], found["per_row"], found["count"]) == (12, [1, 2, 3], [6, 6], 6)
    large = evaluate(parse("d = max(acc, 123456789)"), {"acc": np.array([[1.0]])}, np)["d"]
    assert abs(float(np.float32(123456789)) - large.value) <= large.error


def test_a_parsed_epilogue_says_what_it_takes() -> None:
    epilogue = parse("t = alpha * acc * s[m] + beta * c; aux.f16 = t; d = t + r[m, n]; top = max(d)")
    assert [(o.name, o.kind) for o in epilogue.operands] == [("s", "row"), ("r", "matrix")]
    assert [(o.name, o.role, o.dtype) for o in epilogue.outputs] == [("aux", "store", "f16"), ("top", "max", "f32")]
    assert epilogue.factors == {"alpha", "beta"}
    assert epilogue.reads_c
    assert epilogue.c_is_scaled
    assert not parse("d = acc + c").c_is_scaled
    assert not parse("d = beta * c + acc * c").c_is_scaled
    assert parse("d = silu(gate) * up").gated


def test_types_and_transposition() -> None:
    epilogue = parse("d = acc * s[m] + x[n]; per_row[m] = sum(d)")
    assert str(with_dtypes(epilogue, {"x": "bf16"})) == "d = acc * s[m] + x.bf16[n]; per_row[m] = sum(d)"
    assert str(transposed(epilogue)) == "d = acc * s[n] + x[m]; per_row[n] = sum(d)"
    for text, says in (("d = gate * up", "use gate8 and up8"), (f"h = acc; {SCALED}", "scales blocks")):
        assert not parse(text).has_transpose
        with pytest.raises(ValueError, match=says):
            transposed(parse(text))
    staged = parse("aux.m = acc; d = acc + r.bf16.n[m, n] + s[m, n]")
    assert staged.majors == {"r": "n", "aux": "m"}
    assert str(transposed(staged)) == "aux.n[m, n] = acc; d = acc + r.bf16.m[m, n] + s[m, n]"


def test_a_kernel_serves_epilogues_that_offer_what_it_demands() -> None:
    wanted = canonical("aux.n = acc; d = acc + r.bf16.n[m, n]")
    for kernel in (wanted, unstaged(wanted), canonical("aux = acc; d = acc + r.bf16.n[m, n]")):
        assert serves(kernel, wanted)
        assert serves(wanted, kernel) == (kernel == wanted)
    for other in ("aux.m = acc; d = acc + r.bf16.n[m, n]", "aux.n = acc; d = acc - r.bf16.n[m, n]", LINEAR):
        assert not serves(canonical(other), wanted)


def test_configs_hold_canonical_epilogues_that_read_c_where_there_is_one() -> None:
    config = parse_name(NAME)
    assert not verdicts(replace(config, epilogue="d = relu(acc)", cluster=config.cluster))
    fields = fields_of(config)
    with pytest.raises(ValueError, match="not canonical; write 'd = relu"):
        config_of({**fields, "epilogue": "d=relu(acc)"})
    with pytest.raises(ValueError, match="unknown function"):
        config_of({**fields, "epilogue": "d = rleu(acc)"})
    refused = verdicts(replace(config, epilogue="d = acc + c"))
    assert [v.rule for v in refused] == ["epilogue-c"]
    with pytest.raises(ConfigError, match="epilogue 'xdEreluPaccQQ'"):
        parse_name(NAME.replace("linear", "xdEreluPaccQQ"))
    with pytest.raises(ConfigError, match="must be spelled"):
        parse_name(NAME.replace("linear", "xdEPaccQ"))


NARROW = {
    "bf16": (7, -126, 3e38),
    "f16": (10, -14, 65504),
    "e4m3": (3, -6, 448),
    "e5m2": (2, -14, 57344),
}


@given(st.floats(-1e5, 1e5), st.sampled_from([*NARROW]))
def test_rounding_goes_to_the_nearest(x: float, dtype: str) -> None:
    bits, least, most = NARROW[dtype]
    y = float(rounded(np.array(x), dtype, np))
    if abs(x) <= most:
        step = 2.0 ** (max(np.frexp(x)[1] - 1, least) - bits)
        assert abs(y - x) <= step / 2
        assert (y / step).is_integer()
    elif dtype in ("e4m3", "e5m2"):
        assert abs(y) == most


def test_the_reference_evaluates_and_bounds() -> None:
    rng = np.random.default_rng(0)
    acc, bias = rng.normal(size=(5, 7)), rng.normal(size=7)
    results = evaluate(
        parse("t = acc + bias[n]; d = silu(t); per_row[m] = sum(t); top = max(abs(t))"), {"acc": acc, "bias": bias}, np
    )
    t = acc + bias
    np.testing.assert_allclose(results["d"].value, t / (1 + np.exp(-t)))
    np.testing.assert_allclose(results["per_row"].value, t.sum(1))
    assert results["top"].value == abs(t).max()
    assert (results["d"].error > 0).all()
    assert (results["d"].error < 2e-5).all()
    # Single precision stays within the bound.
    single = (acc.astype(np.float32) + bias.astype(np.float32)).astype(np.float32)
    inputs = {"acc": acc.astype(np.float32).astype(float), "bias": bias.astype(np.float32).astype(float)}
    exact = evaluate(parse("d = (acc + bias[n]) * (acc + bias[n]) / 3"), inputs, np)["d"]
    assert (abs(single * single / np.float32(3) - exact.value) <= exact.error).all()
    # Of an operand in f64, also the rounding to single precision.
    exact = evaluate(parse("d = acc + bias.f64[n]"), {"acc": inputs["acc"], "bias": bias}, np)["d"]
    assert (abs(single - exact.value) <= exact.error).all()
    assert (exact.error > evaluate(parse("d = acc + bias[n]"), inputs, np)["d"].error).all()


@pytest.mark.parametrize("gate", ["gate", "gate8"])
@pytest.mark.parametrize("dtype", ["f32", "ue8m0"])
def test_single_precision_quantises_within_the_bounds(gate: str, dtype: str) -> None:
    text = f"h = {gate} * up{gate[4:]}; {SCALED.replace('s[', f's.{dtype}[')}"
    rng = np.random.default_rng(0)
    sums = (rng.normal(size=(40, 512)) * 2.0 ** rng.integers(-12, 10, (40, 1))).astype(np.float32)
    sums[0] = 0
    named = sums_by_name(parse(text), sums)
    columns = np.arange(256) * 2 if gate == "gate" else np.arange(512).reshape(-1, 2, 8)[:, 0].ravel()
    left, right = named.values()
    assert (left == sums[:, columns]).all()
    assert (right == sums[:, columns + (1 if gate == "gate" else 8)]).all()

    h = left * right
    scales = np.maximum(abs(h).reshape(40, 2, 128).max(-1) * np.float32(1 / 448), np.float32(2.0**-40))
    if dtype == "ue8m0":
        scales = (((scales.view(np.uint32) + 0x7FFFFF) >> 23) << 23).view(np.float32)
    d = h * (1 / scales).repeat(128, 1)
    found = evaluate(parse(text), {name: x.astype(float) for name, x in named.items()}, np, "e4m3")
    for name, single in (("s", scales), ("d", d)):
        assert single.shape == found[name].value.shape
        assert (abs(single - found[name].value) <= found[name].error).all()
    assert (found["d"].error <= 6 * 2.0**-23 * abs(found["d"].value)).mean() > 0.9
    assert (abs(d) <= 448.0001).all()
    assert (abs(d[1:]).reshape(-1, 128).max(-1) > 223).all()  # nothing is lost to a scale that is too large
    exact = values(parse(text), {name: x.astype(float) for name, x in named.items()}, np, np.asarray)
    assert all((abs(exact[name] - found[name].value) <= found[name].error).all() for name in ("s", "d"))


def test_a_scale_near_a_power_of_two_may_be_either() -> None:
    epilogue = parse(f"h = acc * 1; {SCALED.replace('s[', 's.ue8m0[')}")
    found = evaluate(epilogue, {"acc": Bounded(np.full((1, 128), 448.0), np.full((1, 128), 1e-5))}, np)
    for name, either in (("s", (1, 2)), ("d", (448, 224))):
        value, error = found[name].value, found[name].error
        assert all((abs(x - value) <= error).all() for x in either)
        assert (error < value).all()


def test_halves_pair_a_column_with_the_one_half_of_n_after_it() -> None:
    epilogue = parse("d = silu(gate_half) * up_half")
    assert (epilogue.gate_columns, epilogue.gates_halves, epilogue.has_transpose) == (8, True, False)
    assert epilogue.shape_of_d(3, 48) == (3, 24)
    sums = np.arange(3 * 48).reshape(3, 48)
    named = sums_by_name(epilogue, sums)
    assert [*named] == ["gate_half", "up_half"]
    assert (named["gate_half"] == sums[:, :24]).all()
    assert (named["up_half"] == sums[:, 24:]).all()
    assert fault_of_n(epilogue, 24) == "a gated epilogue combines runs of 8 columns, so N must be a multiple of 16"
    with pytest.raises(ExpressionError, match="cannot read both gate8 or up8 and gate_half or up_half"):
        parse("d = gate_half * up8")
    assert decode(encode(str(epilogue))) == str(epilogue)


def test_no_rows_are_quantised_to_no_rows() -> None:
    epilogue = parse(f"h = gate8 * up8; {SCALED}")
    found = evaluate(epilogue, {x: Bounded(v, v) for x, v in sums_by_name(epilogue, np.zeros((0, 512))).items()}, np)
    assert {name: x.value.shape for name, x in found.items()} == {"d": (0, 256), "s": (0, 2)}


def test_scales_in_ue8m0_are_rounded_up_and_nan_unless_finite() -> None:
    largest = np.array([448.0, 448 * 1.001, 447.0, 0.0, 1e30, np.inf, np.nan])
    with np.errstate(invalid="ignore"):
        found = scales_of(largest, "ue8m0", np)
    assert found[:4].tolist() == [1, 2, 1, 2.0**-40]
    assert 1e30 / 448 <= found[4] < 2e30 / 448
    assert np.isnan(found[5:]).all()


@pytest.mark.parametrize(
    ("text", "n", "says"),
    [
        ("d = acc", 7, ""),
        ("d = gate * up", 7, "N must be even"),
        ("d = gate8 * up8", 24, "runs of 8 columns, so N must be a multiple of 16"),
        ("d = gate8.m * up8.m", 7, ""),
        (f"h = acc; {SCALED}", 192, "blocks of 128 columns of D, so N must be a multiple of 128"),
        (f"h = gate * up; {SCALED}", 384, "so N must be a multiple of 256"),
        (f"h = gate * up; {SCALED}", 512, ""),
    ],
)
def test_n_must_hold_whole_runs_and_blocks(text: str, n: int, says: str) -> None:
    fault = fault_of_n(parse(text), n)
    assert says in fault
    assert bool(fault) == bool(says)


@pytest.mark.parametrize(
    ("text", "d_dtype", "expected"),
    [
        (f"h = silu(acc); {SCALED}", "e4m3", {"h": "e4m3", "s": "e4m3", "d": "e4m3"}),
        (f"h = silu(acc); aux.bf16 = h; {SCALED}", "e4m3", {"h": "bf16", "aux": "bf16", "s": "e4m3", "d": "e4m3"}),
        (f"h = silu(acc); amax = max(h); {SCALED}", "e4m3", {"h": "f32", "amax": "f32", "s": "e4m3", "d": "e4m3"}),
        ("d = gelu(acc)", "bf16", {"d": "bf16"}),
        ("d = gelu(acc)", "f32", {"d": "f32"}),
        ("d = gelu(acc)", "e4m3", {"d": "f32"}),
        ("t = silu(acc); d = t * 2 + bias[n]", "f16", {"t": "f16", "d": "f16"}),
        ("t = silu(acc); d = exp(t)", "bf16", {"t": "f32", "d": "bf16"}),
        ("t = silu(acc); d = t; amax = max(abs(t))", "bf16", {"t": "f32", "d": "bf16", "amax": "f32"}),
        ("t = silu(acc); aux.f16 = t; d = t", "bf16", {"t": "f16", "aux": "f16", "d": "bf16"}),
        ("t = silu(acc); d = where(t > 0, t, 0)", "bf16", {"t": "f32", "d": "bf16"}),
    ],
)
def test_values_know_what_they_are_rounded_to(text: str, d_dtype: Any, expected: dict[str, str]) -> None:
    assert roundings(parse(text), d_dtype) == expected


def test_short_forms_are_as_exact_as_they_say() -> None:
    """The formulas of math.cuh in single precision, over all bf16 and f16 values and beside them."""
    header = (include_path() / "gemmill" / "epilogue" / "math.cuh").read_text()
    bodies = re.findall(r"float gelu<gemmill::(\w+)>\(float x\) \{(.*?)\n\}", header, re.DOTALL)
    constants = {dtype: [np.float32(x) for x in re.findall(r"(-?\d+\.\d+(?:e-\d+)?)f", body)] for dtype, body in bodies}

    def fma(x: Any, y: Any, z: Any) -> Any:
        return (x.astype(float) * y + z).astype(np.float32)

    def gelu_bf16(x: Any) -> Any:
        origin, e, b, d, a = constants["bf16"]
        y = np.minimum(fma(x, x, origin), np.finfo(np.float32).max)  # rounded towards zero
        r = (1 / np.sqrt(y.astype(float))).astype(np.float32)
        s = fma(r, fma(r, e, fma(y, b, d)), a)
        return x * (1 / (1 + np.exp2(x * s)))

    def gelu_f16(x: Any) -> Any:
        end, *coefficients, _ = constants["f16"]
        t, p = np.minimum(abs(x), end), np.zeros_like(x)
        for coefficient in coefficients:
            p = fma(p, t, coefficient)
        return np.maximum(x, 0) - t * np.exp2(p).astype(float)

    bits = np.arange(1 << 16, dtype=np.uint16)
    every = np.concatenate([(bits.astype(np.uint32) << 16).view(np.float32), bits.view(np.float16).astype(np.float32)])
    x = np.concatenate([every, np.random.default_rng(0).normal(scale=4, size=100_000).astype(np.float32)])
    x = x[(abs(x) < 1e37) & ((abs(x) > 1e-37) | (x == 0))]
    formulas: dict[DTypeName, Callable[[Any], Any]] = {"bf16": gelu_bf16, "f16": gelu_f16}
    for dtype, formula in formulas.items():
        with np.errstate(over="ignore", divide="ignore"):
            result = formula(x)
            wanted = evaluate(parse("d = gelu(acc)"), {"acc": x.astype(float)}, np, dtype)["d"]
        assert (abs(result - wanted.value) <= wanted.error).all(), dtype
        # Of use only if it is small beside the rounding to the type that follows, relative to its least half ulp.
        rounding = 2.0 ** -{"bf16": 9, "f16": 12}[dtype]
        normal = (abs(wanted.value) > 2.0**-12) & (abs(x) < 16)
        assert (wanted.error[normal] < rounding / 4 * abs(wanted.value[normal])).all(), dtype


def test_what_is_too_deep_does_not_depend_on_the_caller() -> None:
    def from_below(frames: int, text: str) -> str:
        return from_below(frames - 1, text) if frames else canonical(text)

    fits = "d = " + " + ".join(["acc"] * 60)
    assert from_below(400, fits) == canonical(fits)
    for text in ("d = " + " + ".join(["acc"] * 70), "d = " + "exp(" * 70 + "acc" + ")" * 70):
        with pytest.raises(ExpressionError, match="64 deep") as error:
            from_below(400, text)
        assert error.value.column


def test_the_largest_number_of_float32_may_be_written_as_it_is_printed() -> None:
    assert canonical("d = min(acc, 3.4028235e38)") == "d = min(acc, 3.4028235e+38)"
    for number in ("3.5e38", "1e999", "9" * 400):
        with pytest.raises(ExpressionError, match="exceeds float32"):
            canonical(f"d = acc * {number}")


def test_the_gate_of_rows_is_the_transpose_of_the_gate_of_columns() -> None:
    epilogue = parse("t = gate8 * x[m] + y[n]; d = silu(t) * up8 + z.bf16.n[m, n]; top[n] = max(up8)")
    turned = transposed(epilogue)
    assert str(turned) == "t = gate8.m * x[n] + y[m]; d = silu(t) * up8.m + z.bf16.m[m, n]; top[m] = max(up8.m)"
    assert (turned.gate_rows, turned.gate_columns, turned.shape_of_d(32, 48)) == (8, 0, (16, 48))
    assert (epilogue.gate_rows, epilogue.gate_columns, epilogue.shape_of_d(32, 48)) == (0, 8, (32, 24))
    assert transposed(turned) == epilogue
    sums = np.arange(2 * 5 * 48).reshape(2, 5, 48)
    rows, columns = (sums_by_name(x, y) for x, y in ((turned, sums.swapaxes(1, 2)), (epilogue, sums)))
    assert [*rows] == ["gate8.m", "up8.m"]
    for of_rows, of_columns in zip(rows.values(), columns.values(), strict=True):
        assert (of_rows.swapaxes(1, 2) == of_columns).all()
    assert fault_of_m(turned, 48) == fault_of_m(epilogue, 7) == ""
    assert fault_of_m(turned, 24) == "the epilogue combines runs of 8 rows, so M must be a multiple of 16"
