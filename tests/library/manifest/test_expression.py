import ast
from contextlib import suppress

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from gemmill.library.config.domains import WORDS
from gemmill.library.config.fields import FIELD_NAMES, ConfigView, Value, fields_of
from gemmill.library.config.names import parse_name
from gemmill.library.errors import ExpressionError
from gemmill.library.manifest.expression import parse

FIELDS = fields_of(parse_name("sm90a_bf16k16_bf16mn16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear"))
INTEGERS = [name for name in FIELD_NAMES if name not in WORDS]


def holds(text: str, fields: dict[str, Value] = FIELDS) -> bool:
    return all(term.check(ConfigView(fields)) for term in parse(text))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("tile.m * tile.n <= 128 * 256", True),
        ("tile.m * tile.n < 128 * 256", False),
        ("schedule == 'cooperative' and stages == 4", True),
        ("schedule == 'pingpong' or not (stages == 5)", True),
        ("64 <= tile.m < 128", False),
        ("tile.n % 64 == 0 and tile.n // 3 == 85", True),
        ("-tile.m + 129 == 1", True),
        ("tile.m in [64, 128]", True),
        ("a.major not in ('k', 'mn')", False),
        ("a.major == b.major", False),
        ("c.dtype == 'none'", True),
        ("c.dtype != d.dtype", True),
        ("tile.m == 128 or stages == 4 and tile.m == 64", True),
        ("  cluster.m == 2  ", True),
        ("epilogue == 'linear' and epilogue != 'd = relu(acc)'", True),
        ("tile.m == 128\nand tile.n == 256\n", True),
    ],
)
def test_filters_mean_what_python_means(text: str, expected: bool) -> None:
    assert holds(text) is expected


def test_a_filter_reads_only_the_fields_it_names_and_splits_at_its_outermost_and() -> None:
    terms = parse("tile.m == 128 and (a.major == 'k' or stages > 2)")
    assert [term.fields for term in terms] == [("tile.m",), ("a.major", "stages")]
    assert [term.check(ConfigView({name: FIELDS[name] for name in term.fields})) for term in terms] == [True, True]


@pytest.mark.parametrize(
    ("text", "column", "says"),
    [
        ("", 0, "the filter is empty"),
        ("tile.m ==", 9, "invalid syntax"),
        ("(tile.m == 1", 0, "never closed"),
        ("tile.m = 1", 7, "invalid syntax"),
        ("tile.m == 1 # why", 12, "comments are not allowed"),
        ("tile.q == 1", 0, "unknown field 'tile.q', did you mean tile.n?"),
        ("stages == 1 or tile == 1", 15, "did you mean tile.m or tile.n or tile.k?"),
        ("zzz == 1", 0, "fields: arch, a.dtype"),
        (
            "schedule == 'pingpnog'",
            12,
            "never 'pingpnog', did you mean pingpong? allowed: cooperative, pingpong, multistage, simt or gemv",
        ),
        ("schedule in ['pingpong', 'x']", 25, "schedule is never 'x'"),
        ("'f8' == accumulator", 0, "accumulator is never 'f8'"),
        ("'bf17' not in [a.dtype, b.dtype]", 0, "a.dtype is never 'bf17', did you mean bf16?"),
        ("epilogue == 'd = relu( acc )'", 12, "never 'd = relu( acc )'; write the canonical 'd = relu(acc)'"),
        ("epilogue in ['linear', 'd = alpha * acc']", 23, "write the canonical 'linear'"),
        ("epilogue == 'd = relu(acc'", 12, "never 'd = relu(acc': '(' was never closed"),
        ("'é' == 3", 7, "'3' is an integer"),
        ("schedule == pingpong", 12, "quote text: 'pingpong'"),
        ("tile.m == 'large'", 10, "'tile.m' is an integer"),
        ("schedule < 'pingpong'", 0, "is text; compare it with =="),
        ("schedule + 1 == 2", 0, "'schedule' is text, not an integer"),
        ("tile.m", 0, "is not a comparison"),
        ("not tile.m", 4, "is not a comparison"),
        ("tile.m == True", 10, "not allowed"),
        ("tile.m == 1.5", 10, "not allowed"),
        ("tile.m / 2 == 1", 0, "not allowed"),
        ("tile.m ** 2 == 1", 0, "not allowed"),
        ("tile.m is 128", 0, "the comparison must be =="),
        ("tile.m in 128", 10, "needs a list of values"),
        ("tile.m in []", 10, "needs a list of values"),
        ("1 == 1", 0, "reads no field"),
        ("tile.m == 1 and 2 == 2", 16, "reads no field"),
        ("  tile.q == 1", 2, "unknown field"),
        ("__import__('os').system('true') == 0", 0, "not allowed"),
        ("(lambda: 1)() == tile.m", 0, "not allowed"),
        ("tile.m.__class__ == 1", 0, "unknown field"),
        ("[x for x in arch] == 1", 0, "not allowed"),
        ("(" * 5000, 200, "too many nested parentheses"),
        ("-" * 9000 + "tile.m == 1", 0, "cannot be read"),
        ("-" * 20000 + "tile.m == 1", 0, "the filter has 20,011 characters; the limit is 10,000"),
        ("tile.m == 1\0", 11, "null bytes"),
    ],
)
def test_what_is_no_filter_is_refused_at_its_column(text: str, column: int, says: str) -> None:
    with pytest.raises(ExpressionError) as refused:
        parse(text)
    assert says in str(refused.value)
    assert refused.value.column == column


def test_division_by_zero_names_the_values() -> None:
    with pytest.raises(
        ExpressionError, match=r"^'tile.m // \(.*\) == 1' divides by zero for tile.m = 128, tile.n = 256"
    ):
        holds("tile.m // (tile.n - 256) == 1")


@given(st.text(max_size=60) | st.text(alphabet="tile.mnk()=<>!+-*/%[]' andorti0123456789", max_size=60))
def test_any_text_is_a_filter_or_an_expression_error(text: str) -> None:
    with suppress(ExpressionError):
        holds(text)


def joined(inner: st.SearchStrategy[str], operators: list[str]) -> st.SearchStrategy[str]:
    return st.tuples(inner, st.sampled_from(operators), inner).map(lambda parts: f"({' '.join(parts)})")


VALUES = st.recursive(
    st.sampled_from(INTEGERS) | st.integers(0, 300).map(str),
    lambda inner: joined(inner, ["+", "-", "*", "//", "%"]),
    max_leaves=6,
)
FILTERS = st.recursive(
    st.tuples(st.sampled_from(INTEGERS), VALUES).flatmap(
        lambda sides: joined(st.sampled_from(sides), ["==", "!=", "<", "<=", ">", ">="])
    ),
    lambda inner: joined(inner, ["and", "or"]) | inner.map(lambda text: f"(not {text})"),
    max_leaves=5,
)


class _Values(ast.NodeTransformer):
    """Puts the values of dotted fields in their places."""

    def visit_Attribute(self, node: ast.Attribute) -> ast.expr:
        return ast.copy_location(ast.Constant(FIELDS[ast.unparse(node)]), node)


@given(FILTERS)
def test_random_filters_agree_with_python(text: str) -> None:
    tree = _Values().visit(ast.parse(text, mode="eval"))
    try:
        actual = holds(text)
    except ExpressionError as error:
        assume("reads no field" not in str(error))
        with pytest.raises(ZeroDivisionError):
            eval(compile(tree, "<filter>", "eval"), dict(FIELDS))
    else:
        assert actual == eval(compile(tree, "<filter>", "eval"), dict(FIELDS))
