"""The operators on real CPU tensors: what PyTorch's own checks say, values, and fakes against what they stand for."""

from __future__ import annotations

import inspect
from typing import Any

import pytest

torch: Any = pytest.importorskip("torch")

from tests.torch.cases import CASES, FP8, Case, positional, wide  # noqa: E402
from torch._subclasses.fake_tensor import FakeTensorMode  # noqa: E402

import gemmill  # noqa: E402
from gemmill.runtime.torch.launches import AT_KERNEL  # noqa: E402
from gemmill.runtime.torch.operators import OPERATORS  # noqa: E402
from gemmill.runtime.torch.option_text import NAMES  # noqa: E402

cases = pytest.mark.parametrize("case", CASES.values(), ids=CASES)


def listed(found: Any) -> list[Any]:
    return [*found] if isinstance(found, list | tuple) else [found]


def outs(case: Case) -> Any:
    """Tensors to write to: column-major, where strides may be so."""
    arguments, keywords = positional(case)
    made = listed(case.functional()(*arguments, **keywords))
    empty = [torch.full_like(x.mT if x.dim() > 1 else x, 7) for x in made]
    turned = [x.mT if x.dim() > 1 else x for x in empty]
    return turned if case.operator == "epilogue" else turned[0]


def test_every_operator_has_a_case() -> None:
    assert {case.operator for case in CASES.values()} == {*OPERATORS}


@cases
def test_values_are_those_of_float64(case: Case) -> None:
    arguments, keywords = positional(case)
    found = listed(case.functional()(*arguments, **keywords))
    wanted = listed(case.expected(**case.tensors))
    assert len(found) == len(wanted)
    for x, y in zip(found, wanted, strict=True):
        assert torch.equal(x, y.to(x.dtype))
    written = outs(case)
    arguments, keywords = positional(case, written)
    assert case.mutating()(*arguments, **keywords) is None
    for x, y in zip(listed(written), found, strict=True):
        assert torch.equal(x, y)


@cases
def test_opcheck(case: Case) -> None:
    """With bf16 for fp8, which its comparisons do not take on the CPU. They do not take ue8m0 either, which e2m1
    needs."""
    dtypes = {name: getattr(x, "dtype", None) for name, x in case.tensors.items()}
    if torch.float8_e8m0fnu in dtypes.values():
        pytest.skip("opcheck compares no ue8m0")
    tensors = {name: x.bfloat16() if dtypes[name] is FP8 else x for name, x in case.tensors.items()}
    keywords = {name: torch.bfloat16 if x is FP8 else x for name, x in case.keywords.items()}
    case = case._replace(tensors=tensors, keywords=keywords)
    arguments, keywords = positional(case)
    torch.library.opcheck(case.functional(), arguments, keywords)
    arguments, keywords = positional(case, outs(case))
    torch.library.opcheck(case.mutating(), arguments, keywords)


def test_s4_weights_beside_e4m3() -> None:
    """Scales of groups multiply sums, and scales of rows too, where an expression names them."""
    a, numbers = wide(5, 192).to(FP8), wide(16, 192, dtype=torch.int32)
    b = (numbers[:, 0::2] & 15 | (numbers[:, 1::2] & 15) << 4).to(torch.uint8)
    of_rows, of_groups = wide(5, 1, dtype=torch.float32), wide(2, 16, dtype=torch.float32)
    values = numbers.double() * of_groups.double().repeat_interleave(128, 0)[:192].mT
    wanted = a.double() @ values.mT * of_rows.double()
    found = torch.ops.gemmill.mixed_mm(a, b.mT, of_rows, of_groups, b_dtype="s4", out_dtype=torch.float32)
    assert torch.equal(found.double(), wanted)
    assert torch.ops.gemmill.mixed_mm(a, b.mT, of_rows, of_groups, b_dtype="s4").dtype == torch.bfloat16
    keywords: dict[str, Any] = {"b_dtype": "s4", "out_dtype": torch.float32}
    for text in ("d = relu(acc)", "d = relu(acc * a_scale[m])"):
        arguments = text, a, b.mT, [of_rows, of_groups], ["a_scale", "b_scale"]
        (found,) = torch.ops.gemmill.epilogue(*arguments, **keywords)
        assert torch.equal(found.double(), wanted.relu())
    offsets = torch.tensor([2, 2, 5], dtype=torch.int32)
    experts, scales = (x.expand(3, *x.shape) for x in (b, of_groups))
    found = torch.ops.gemmill.grouped_mm(a, experts.mT, offsets, None, of_rows, scales, **keywords)
    assert torch.equal(found.double(), wanted)


@cases
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_fakes_have_the_layout_of_what_they_stand_for(case: Case, device: str) -> None:
    """Those of the GPU too, whose outputs are as packed."""
    arguments, keywords = positional(case)
    real = listed(case.functional()(*arguments, **keywords))
    with FakeTensorMode() as mode:

        def fake(x: Any) -> Any:
            if isinstance(x, list):
                return [fake(each) for each in x]
            if not isinstance(x, torch.Tensor):
                return x
            made = mode.from_tensor(x)
            return made if device == "cpu" else torch.empty_strided(x.shape, x.stride(), dtype=x.dtype, device=device)

        made = listed(case.functional()(*[fake(x) for x in arguments], **keywords))
    assert [(x.shape, x.stride(), x.dtype) for x in made] == [(x.shape, x.stride(), x.dtype) for x in real]
    assert {x.device.type for x in made} == {device}


@pytest.mark.parametrize(
    ("operator", "tensors", "says"),
    [
        ("mm", (wide(5, 7), wide(8, 3)), "columns of a must equal the number of rows of b"),
        ("mm", (wide(2, 5, 7), wide(7, 3)), r"expected \(M, K\) and \(K, N\)"),
        ("bmm", (wide(7), wide(7, 3)), r"expected \(..., M, K\)"),
        ("grouped_mm", (wide(6, 8), wide(8, 4), None), "offsets and counts are both missing"),
    ],
)
def test_fakes_refuse_what_kernels_refuse(operator: str, tensors: tuple[Any, ...], says: str) -> None:
    with FakeTensorMode() as mode, pytest.raises(RuntimeError, match=says):
        getattr(torch.ops.gemmill, operator)(*[x if x is None else mode.from_tensor(x) for x in tensors])


@pytest.mark.parametrize(
    ("tensors", "says"),
    [
        ({"offsets": torch.tensor([2, 6], dtype=torch.int32)}, "b has 3 matrices and offsets has 2 entries"),
        ({"b": wide(8, 8), "a_scale": torch.ones(6, 1), "b_scale": torch.ones(1, 1)}, "scales are not supported with"),
        ({"offsets": torch.tensor([2.0, 2.0, 6.0])}, "offsets is f32; it must be s32"),
        ({"options": "bits='same'"}, "bits is 'same'"),
        ({"a": wide(6, 8).char()}, "a is s8 and b is bf16; upconverting a is not supported with offsets"),
    ],
)
def test_groups_that_kernels_refuse_are_refused_on_the_cpu(tensors: dict[str, Any], says: str) -> None:
    given = {"a": wide(6, 8), "b": wide(3, 8, 8), "offsets": torch.tensor([2, 2, 6], dtype=torch.int32), **tensors}
    with pytest.raises(gemmill.OperandError, match=says):
        torch.ops.gemmill.grouped_mm(**given)


@pytest.mark.parametrize(
    ("text", "says"), [("tf32=true", "expected a text like"), ("tf33=True", "tf33 is not an option, expected")]
)
def test_options_that_are_none_are_refused(text: str, says: str) -> None:
    with pytest.raises(gemmill.OperandError, match=says):
        torch.ops.gemmill.mm(wide(5, 7), wide(7, 3), options=text)


@pytest.mark.parametrize("name", [name for name, row in OPERATORS.items() if name != "epilogue"])
def test_arguments_are_those_of_the_function_that_launches(name: str) -> None:
    """Which takes any keyword, and would take a strange one for an epilogue's operand."""
    schema = getattr(torch.ops.gemmill, name).default._schema
    wanted = {x.name for x in schema.arguments} - {"options"}
    assert wanted <= {*inspect.signature(OPERATORS[name].launch(AT_KERNEL)).parameters}
    assert {*NAMES} - {*inspect.signature(gemmill.matmul).parameters} == {"expected_rows"}
    assert "expected_rows" in inspect.signature(gemmill.grouped_matmul).parameters
