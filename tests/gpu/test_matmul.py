"""``gemmill.matmul`` as its users call it: shapes of torch.matmul, other tensor libraries, and bad input."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import pytest
from tests.cases.calls import BAD_CALLS, BadCall
from tests.gpu.harness import torch

import gemmill
from gemmill.library.errors import GemmillError, OperandError
from gemmill.runtime.api import fast_path

pytestmark = pytest.mark.gpu


def integers(*shape: int, dtype: str = "bfloat16") -> Any:
    return torch.randint(-2, 3, shape, device="cuda").to(getattr(torch, dtype))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize(
    ("a", "b"),
    [
        ((64,), (64,)),
        ((64,), (64, 40)),
        ((48, 64), (64,)),
        ((5, 48, 64), (64,)),
        ((48, 64), (64, 40)),
        ((5, 48, 64), (64, 40)),
        ((48, 64), (5, 64, 40)),
        ((5, 48, 64), (5, 64, 40)),
        ((2, 3, 48, 64), (2, 3, 64, 40)),
        ((2, 3, 48, 64), (64, 40)),
        ((1, 3, 48, 64), (3, 64, 40)),
        ((7, 1, 64), (7, 64, 40)),
        ((1, 64), (64, 8)),
    ],
)
def test_shapes_of_torch_matmul(a: tuple[int, ...], b: tuple[int, ...], dtype: str) -> None:
    left, right = integers(*a, dtype=dtype), integers(*b, dtype=dtype)
    wanted = (left.float() @ right.float()).to(left.dtype)
    result = gemmill.matmul(left, right)
    assert result.shape == wanted.shape
    assert result.dtype == wanted.dtype
    assert torch.equal(result, wanted)
    assert torch.equal(gemmill.matmul(left, right), wanted), "the second call takes the fast path"


@pytest.mark.parametrize("transposed", ["", "a", "b", "d", "ab", "abd"])
def test_majors_follow_from_strides(transposed: str) -> None:
    a = integers(72, 48).T if "a" in transposed else integers(48, 72)
    b = integers(40, 72).T if "b" in transposed else integers(72, 40)
    out = torch.empty(40, 48, device="cuda", dtype=a.dtype).T if "d" in transposed else None
    assert torch.equal(gemmill.matmul(a, b, out=out), (a.float() @ b.float()).to(a.dtype))


def test_alpha_beta_c_and_dtypes() -> None:
    a, b, c = integers(96, 64), integers(64, 80), integers(96, 80)
    product = a.float() @ b.float()
    assert torch.equal(gemmill.matmul(a, b, c=c), (product + c.float()).to(a.dtype))
    assert torch.equal(gemmill.matmul(a, b, c=c, alpha=2, beta=0.5), (2 * product + c.float() / 2).to(a.dtype))
    assert torch.equal(gemmill.matmul(a, b, out_dtype="f32"), product)
    assert torch.equal(gemmill.matmul(a, b, out_dtype=torch.float32), product)
    out = c.clone()
    gemmill.matmul(a, b, out=out, c=out)
    assert torch.equal(out, (product + c.float()).to(a.dtype))
    half = a.half(), b.half()
    assert torch.equal(gemmill.matmul(*half, accumulator="f16"), product.half())


def test_calls_with_as_many_elements_are_told_apart() -> None:
    """Whose extents, strides, types, alignment or flags differ in one thing, in turns, so that each follows another."""

    def alike(dtype: str) -> list[tuple[Any, Any]]:
        a, b, more = integers(64, 64, dtype=dtype), integers(64, 64, dtype=dtype), integers(4097, dtype=dtype)
        wide, deep = integers(32, 128, dtype=dtype), integers(16, 256, dtype=dtype)
        flat, tall = integers(128, 32, dtype=dtype), integers(256, 16, dtype=dtype)
        pairs = [(x, y) for x in (a, a.T, more[1:].view(64, 64)) for y in (b, b.T, more[:4096].view(64, 64))]
        return [*pairs, (wide, flat), (flat, wide), (wide, wide.T), (deep, tall), (deep.view(4, 4, 256), tall)]

    assert fast_path._guards() is not None, "this version of PyTorch has none: calls are slower to recognise"
    pairs = [*alike("bfloat16"), *alike("float16"), *alike("bfloat16")]
    weight = torch.nn.Parameter(pairs[0][1])
    pairs += [(pairs[0][0], weight), (pairs[0][0], weight.detach())]
    pairs += [(a, a) for a in (pairs[0][0], pairs[0][0].half())]
    wanted = [(a.detach().float() @ b.detach().float()).to(a.dtype) for a, b in pairs]
    outs = [torch.empty_like(right) for right in wanted]
    for times in range(3):
        for (a, b), out, right in zip(pairs, outs, wanted, strict=True):
            with torch.inference_mode(times == 1):
                for _ in range(3):
                    assert torch.equal(gemmill.matmul(a, b), right)
                    with torch.no_grad():  # a weight requires a gradient, which what is written to `out` has not
                        assert gemmill.matmul(a, b, out=out.fill_(float("nan"))) is out
                    assert torch.equal(out, right)


def test_calls_with_other_options_or_another_c_are_told_apart() -> None:
    a, b = integers(64, 64), integers(64, 64)
    c, row, out = integers(64, 64), integers(64), torch.empty(64, 64, device="cuda", dtype=a.dtype)
    product = a.float() @ b.float()
    for _ in range(4):
        assert torch.equal(gemmill.matmul(a, b, out_dtype="f32"), product)
        assert torch.equal(gemmill.matmul(a, b, out=out), product.to(a.dtype))
        assert torch.equal(gemmill.matmul(a, b, alpha=2.0, out=out), (2 * product).to(a.dtype))
        assert torch.equal(gemmill.matmul(a, b, alpha=-2.0), (-2 * product).to(a.dtype))
        for added in (c, c.T, row, a):
            assert torch.equal(gemmill.matmul(a, b, c=added), (product + added.float()).to(a.dtype))
            assert torch.equal(gemmill.matmul(a, b, c=added, beta=3.0), (product + 3 * added.float()).to(a.dtype))
            assert torch.equal(gemmill.matmul(a, b, c=added, out=out), (product + added.float()).to(a.dtype))
            for x in (a, a.T):  # C and D are one tensor here, and another in calls of the same layouts
                sums = (x.float() @ b.float() + out.float()).to(a.dtype)
                assert torch.equal(gemmill.matmul(x, b, c=out, out=out), sums)
                sums = (x.float() @ b.float() + c.float()).to(a.dtype)
                assert torch.equal(gemmill.matmul(x, b, c=c, out=out), sums)


def test_calls_with_tensors_beside_their_operands_are_told_apart() -> None:
    a, b, out = integers(64, 64), integers(64, 64), torch.empty(64, 64, device="cuda", dtype=torch.bfloat16)
    product, other = a.float() @ b.float(), integers(64, 64)
    rows = [integers(64), integers(64), integers(64, dtype="float32"), integers(65)[1:]]
    foreign = Dlpack(rows[0])
    for _ in range(4):
        for bias in rows:
            for times in (2.0, 0.5):
                wanted = (times * product + bias.float()).to(a.dtype)
                call = {"epilogue": "d = times * acc + bias[n]", "times": times, "bias": bias}
                assert torch.equal(gemmill.matmul(a, b, **call), wanted)
                assert gemmill.matmul(a, b, out=out.fill_(float("nan")), **call) is out
                assert torch.equal(out, wanted)
        wrapped = gemmill.matmul(a, b, epilogue="d = acc + bias[n]", bias=foreign)
        torch.cuda.synchronize()
        assert torch.equal(wrapped, (product + rows[0].float()).to(a.dtype))
        apart = integers(128)[::2]
        strided = gemmill.matmul(a, b, epilogue="d = times * acc + bias[n]", times=2.0, bias=apart)
        assert torch.equal(strided, (2 * product + apart.float()).to(a.dtype))
        for c in (other, other.T):
            added = gemmill.matmul(a, b, c=c, epilogue="d = acc + c + bias[m]", bias=rows[0])
            assert torch.equal(added, (product + c.float() + rows[0].float()[:, None]).to(a.dtype))


def test_what_an_epilogue_writes_is_looked_at_in_every_call() -> None:
    a, b = integers(64, 64), integers(64, 64)
    product, memory = a.float() @ b.float(), torch.empty(3, 64, 64, device="cuda", dtype=torch.bfloat16)
    out, aux, between = memory[0], memory[1], memory.view(-1)[1024 : 1024 + 4096].view(64, 64)
    for _ in range(4):
        gemmill.matmul(a, b, out=out, epilogue="d = acc; aux[m, n] = 2 * acc", aux=aux)
        assert torch.equal(out, product.to(a.dtype))
        assert torch.equal(aux, (2 * product).to(a.dtype))
        with pytest.raises(OperandError, match="overlap in memory"):
            gemmill.matmul(a, b, out=out, epilogue="d = acc; aux[m, n] = 2 * acc", aux=between)


def test_scales_and_signs_of_zero_are_told_apart() -> None:
    a, b = (torch.ones(256, 256, device="cuda").to(torch.float8_e4m3fn) for _ in range(2))
    scales = [torch.full((256, 2), float(x), device="cuda").T.contiguous().T for x in (1, 2, 4)]
    of_b = torch.ones(2, 2, device="cuda")
    half, zeros = torch.ones(64, 64, device="cuda", dtype=torch.bfloat16), torch.full((64,), -0.0, device="cuda")
    for _ in range(4):
        for x, scale in zip((1, 2, 4), scales, strict=True):
            assert (gemmill.matmul(a, b.T, a_scale=scale, b_scale=of_b) == 256 * x).all()
        for times in (0.0, -0.0):
            d = gemmill.matmul(half, half, epilogue="d = times * acc + zeros[n]", times=times, zeros=zeros)
            assert torch.signbit(d).all() == (str(times) == "-0.0")


def test_a_view_that_negates_is_told_from_one_that_does_not() -> None:
    numbers = torch.randn(64, 64, device="cuda", dtype=torch.complex64)
    plain, negated = torch.view_as_real(numbers)[..., 1], numbers.conj().imag
    assert plain.stride() == negated.stride()
    b = torch.ones(64, 64, device="cuda")
    for _ in range(3):
        torch.testing.assert_close(gemmill.matmul(plain, b), -gemmill.matmul(negated, b), rtol=1e-5, atol=1e-4)


class Dlpack:
    """A tensor of a library that knows only DLPack."""

    def __init__(self, tensor: Any) -> None:
        self._tensor = tensor

    def __dlpack__(self, **options: Any) -> Any:
        return self._tensor.__dlpack__(**options)

    def __dlpack_device__(self) -> Any:
        return self._tensor.__dlpack_device__()


class CudaArray:
    """A tensor of a library that knows only the CUDA array interface."""

    def __init__(self, tensor: Any) -> None:
        self.__cuda_array_interface__ = tensor.__cuda_array_interface__
        self._tensor = tensor


@pytest.mark.parametrize(("wrap", "dtype"), [(Dlpack, "bfloat16"), (Dlpack, "float16"), (CudaArray, "float16")])
def test_other_libraries_in_place(wrap: Any, dtype: str) -> None:
    a, b = integers(48, 64, dtype=dtype), integers(40, 64, dtype=dtype).T
    wanted = (a.float() @ b.float()).to(a.dtype)
    for _ in range(2):
        out = torch.full_like(wanted, float("nan"))
        wrapped = wrap(out)
        torch.cuda.synchronize()
        assert gemmill.matmul(wrap(a), wrap(b), out=wrapped) is wrapped
        torch.cuda.synchronize()
        assert torch.equal(out, wanted)
    with pytest.raises(OperandError, match="out is missing"):
        gemmill.matmul(wrap(a), wrap(b))


def test_cupy_allocates_for_cupy() -> None:
    cupy = pytest.importorskip("cupy")
    a = cupy.arange(48 * 64).reshape(48, 64).astype(cupy.float16) % 3
    b = cupy.ones((64, 40), cupy.float16)
    cupy.cuda.runtime.deviceSynchronize()
    d = gemmill.matmul(a, b)
    cupy.cuda.runtime.deviceSynchronize()
    assert isinstance(d, cupy.ndarray)
    assert (d == a.astype(cupy.float32) @ b.astype(cupy.float32)).all()


@pytest.mark.parametrize("bad", BAD_CALLS, ids=attrgetter("id"))
def test_bad_input_is_refused_by_name(bad: BadCall) -> None:
    if torch.cuda.device_count() < bad.gpus:
        pytest.skip("one GPU")
    a, b = integers(64, 64), integers(64, 64)
    changes = bad.changes(torch, a, b)
    for call in (gemmill.matmul, gemmill.plan):
        with pytest.raises(bad.error, match=bad.says):
            call(**({"a": a, "b": b} | changes))
    assert torch.equal(gemmill.matmul(a, b), (a.float() @ b.float()).to(a.dtype)), "unusable afterwards"


def test_a_closed_plan_says_so() -> None:
    a, b = integers(64, 64), integers(64, 64)
    with gemmill.plan(a, b) as launch:
        launch()
    with pytest.raises(GemmillError, match="this plan is closed"):
        launch()
    with pytest.raises(GemmillError, match="this plan is closed"):
        launch.rebind(a=a)
    launch.close()


def test_rebind_refuses_another_layout_and_changes_nothing() -> None:
    a, b = integers(64, 64), integers(64, 64)
    launch = gemmill.plan(a, b)
    bad = [
        ({"a": integers(72, 64)}, "the plan needs"),
        ({"b": b.T}, "the plan needs"),
        ({"a": a.half()}, "the plan needs"),
        ({"a": a.cpu()}, "a is on cpu"),
        ({"a": integers(4097).narrow(0, 1, 4096).view(64, 64)}, "multiple of 16"),
        ({"c": a}, "made without c"),
        ({"a": integers(64, 64), "out": integers(8, 8)}, "the plan needs"),
    ]
    for changes, says in bad:
        with pytest.raises(OperandError, match=says):
            launch.rebind(**changes)
    launch()
    torch.cuda.synchronize()
    assert torch.equal(launch.out, (a.float() @ b.float()).to(a.dtype))
