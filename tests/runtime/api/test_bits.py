"""``bits=``: kernels of one arithmetic, chosen by types, N, K, batching and epilogue alone; and what it refuses."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cases.manifests import shipped_kernels
from tests.cases.plain import bound
from tests.runtime.operands.test_groups import bound as bound_groups
from tests.runtime.operands.test_groups import tensor as packed
from tests.runtime.operands.test_mixed_operands import tensor as narrow

from gemmill.library.arch import GPUS
from gemmill.library.arithmetic import parse_arithmetic
from gemmill.library.bits import required_arithmetic
from gemmill.library.config.names import parse_name
from gemmill.library.errors import OperandError, UnsupportedProblemError
from gemmill.library.problem import GemmProblem
from gemmill.runtime.api.choose import choose
from gemmill.runtime.api.matmul import matmul, plan
from gemmill.runtime.operands.call_keywords import Options
from gemmill.runtime.registry import Registry
from gemmill.runtime.select.selector import Selector

H200 = GPUS["NVIDIA H200"]
SPLIT_K = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x128x64_1x1_pingpong_s8_m8_splitk_linear"


@pytest.fixture(scope="module")
def selector() -> Selector:
    return Selector(shipped_kernels("bf16", "f16", "mma", "simt", "tf32"), H200, varies=True)


@pytest.fixture(scope="module")
def registry() -> Registry:
    return Registry(gpu="H200")


# Selection.

extents = st.integers(1, 20_000)
_ALIGNS = st.sampled_from([4, 16])


@st.composite
def alike(draw: st.DrawFn) -> list[tuple[GemmProblem, int | None, Any]]:
    """Problems that differ only in what must not count, each with a bound on SMs and an objective."""
    n, k, a, d = draw(extents), draw(st.integers(0, 20_000)), draw(st.sampled_from(["bf16", "f16", "tf32"])), "f32"
    epilogue = draw(st.sampled_from(["d = alpha * acc + beta * c", "d = silu(acc + x[n])", "d = silu(gate) * up"]))
    n += n % 2  # gated epilogues pair columns

    def one() -> tuple[GemmProblem, int | None, Any]:
        # Kernels with slices of K need a D that is contiguous, and copies of unaligned operands, which use all SMs.
        sm_count = draw(st.sampled_from([None, 20]))
        aligns = _ALIGNS if sm_count is None else st.just(16)
        problem = GemmProblem(
            draw(extents),
            n,
            k,
            a=a,
            d=d,
            batch=draw(st.sampled_from([1, 64])),
            a_major=draw(st.sampled_from(["k", "mn"])),
            b_major=draw(st.sampled_from(["k", "mn"])),
            d_major=draw(st.sampled_from(["n", "m"])),
            epilogue=epilogue,
            a_align=draw(aligns),
            b_align=draw(aligns),
        )
        return problem, sm_count, draw(st.sampled_from(["sustained", "burst"]))

    return [one() for _ in range(draw(st.integers(2, 4)))]


@given(alike())
def test_one_arithmetic_whatever_m_the_batch_layouts_sms_and_objective(
    selector: Selector, cases: list[tuple[GemmProblem, int | None, Any]]
) -> None:
    required = {required_arithmetic("invariant", problem) for problem, _, _ in cases}
    assert len(required) == 1
    for problem, sm_count, objective in cases:
        choice = selector.select(problem, sm_count, *required, objective)
        assert {choice.arithmetic, choice.required} == required
        assert choice.reason.endswith(f"; arithmetic {choice.arithmetic}, as required")
        kernels = [choice.kernel, *(kernel for kernel, _ in choice.runners_up)]
        assert len({*kernels}) == len(kernels)


def test_slices_follow_from_n_and_k_of_the_call(registry: Registry, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gemmill.library.bits._SLICES", ((512, 8192, 4), (512, 4096, 2)))
    found = {
        (n, k): str(required_arithmetic("invariant", GemmProblem(m, n, k)))
        for m, n, k in product((1, 5000), (512, 513), (4088, 4089, 8184, 8192))
    }
    assert {key for key, name in found.items() if name == "k16"} == {(513, k) for _, k in found} | {(512, 4088)}
    assert [found[512, k] for k in (4089, 8184, 8192)] == ["k16/2", "k16/2", "k16/4"]
    assert str(required_arithmetic("invariant", GemmProblem(64, 512, 8192, a="e4m3"))) == "k32/4"
    tf32 = [str(required_arithmetic("invariant", GemmProblem(64, 512, k, a="tf32"))) for k in (2041, 4088, 4089)]
    assert tf32 == ["k8/2", "k8/2", "k8/4"]  # twice the K decides
    scaled = {"a": "e4m3", "d": "e4m3", "epilogue": "h = acc; s[m, n/128] = scale(h); d = h / s"}
    others: list[dict[str, Any]] = [{"groups": 4, "batching": "grouped"}, {"a": "s8"}, {"a": "f32"}, scaled]
    for words in (*others, {"a": "e4m3", "promote": 4}):
        whole = required_arithmetic("invariant", GemmProblem(64, 512, 8192, **words))
        assert whole is not None
        assert whole.slices == 1
    for m in (1, 64, 3000):
        assert str(registry.select(GemmProblem(m, 512, 8192), bits="invariant").arithmetic) == "k16/4"
        assert str(registry.select(GemmProblem(m, 512, 8192, **scaled), bits="invariant").arithmetic) == "k32"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({}, "k16"),
        ({"a": "f16", "acc": "f16"}, "k16f16"),
        ({"a": "tf32"}, "k8"),
        ({"a": "f32"}, "fma"),
        ({"a": "f64"}, "k4"),
        ({"a": "bf16", "b": "f16"}, "fma"),
        ({"a": "e4m3", "b": "e5m2"}, "k32"),
        ({"a": "e4m3", "promote": 4}, "k32p4"),
        ({"a": "e4m3", "a_scale": "1x128", "b_scale": "128x128", "promote": 4}, "k32p4"),
        ({"a": "s8"}, "exact"),
        ({"a": "s8", "b": "bf16"}, "k16w4@512"),
        ({"b": "u4", "b_scale": "1x128z"}, "k16w4@512"),
        ({"groups": 4, "batching": "grouped"}, "k16"),
        ({"groups": 4, "batching": "masked"}, "k16"),
        ({"groups": 4, "batching": "kgrouped", "a_major": "mn", "b_major": "mn"}, "k16"),
        ({"batch": 4, "batching": "array"}, "k16"),
    ],
    ids=str,
)
def test_the_arithmetic_of_invariant_and_kernels_that_have_it(
    registry: Registry, words: dict[str, Any], expected: str
) -> None:
    for m in (8 if "a_major" in words else 1, 16, 304, 5000):  # TMA moves the rows of groups along K
        problem = GemmProblem(**{"m": m, "n": 4096, "k": 4096} | words)
        choice = registry.select(problem, bits="invariant")
        assert str(choice.arithmetic) == str(choice.required) == expected
        assert registry.select(problem, bits=expected) == choice


@pytest.mark.parametrize(("name", "slices"), [("k16/4", 4), ("k16/5", 5), ("k16/2", 2), ("k16", 1)])
def test_a_named_arithmetic_has_its_kernels_with_its_number_of_slices(
    registry: Registry, name: str, slices: int
) -> None:
    for m in (1, 16, 300, 5000):
        choice = registry.select(GemmProblem(m, 4096, 4096), bits=name)
        assert str(choice.arithmetic) == name
        assert choice.slices in (1, slices)
        assert choice.config.scheduler.splits in (1, slices)
    candidates = registry.candidates(GemmProblem(16, 4096, 4096), 50, bits=name)
    assert len({candidate.kernel for candidate in candidates}) == len(candidates) > 1


def test_measurements_count_only_of_kernels_with_the_arithmetic(registry: Registry) -> None:
    problem = GemmProblem(1, 4096, 14336)
    free, kept = registry.select(problem), registry.select(problem, bits="k16")
    assert {free.source, kept.source} == {"measured"}
    assert str(free.arithmetic) != "k16"
    assert kept.predicted_us >= free.predicted_us
    assert registry.select(problem, bits=str(free.arithmetic)).kernel == free.kernel


def test_the_bits_of_cublas_where_they_are_known(registry: Registry) -> None:
    for words, expected in (({}, "k16"), ({"a": "tf32"}, "k8"), ({"a": "e4m3"}, "k32"), ({"a": "s8"}, "exact")):
        assert str(registry.select(GemmProblem(64, 512, 512, **words), bits="cublas").arithmetic) == expected
    with pytest.raises(UnsupportedProblemError, match=r"how cuBLAS sums is not known for .* need k32p4\. Pass bits="):
        registry.select(GemmProblem(64, 512, 512, a="e4m3", promote=4), bits="cublas")


def test_where_no_kernel_has_the_arithmetic_the_error_names_those_that_there_are(registry: Registry) -> None:
    says = "no kernel with arithmetic k16/4 supports 64x512x512 e4m3 tn; kernels that do have k32, .*: pass one of"
    with pytest.raises(UnsupportedProblemError, match=says):
        registry.select(GemmProblem(64, 512, 512, a="e4m3"), bits="k16/4")
    with pytest.raises(UnsupportedProblemError, match=r"on 20 SMs; kernels that do have fma, k16x2"):
        registry.select(GemmProblem(64, 512, 511, a="e4m3", a_align=1), 20, bits="k32")
    alone = Selector({SPLIT_K: parse_name(SPLIT_K)}, H200)
    assert str(alone.select(GemmProblem(64, 64, 64), None, parse_arithmetic("k16/2")).arithmetic) == "k16/2"
    with pytest.raises(UnsupportedProblemError, match="kernels that do have k16/2, k16/3"):
        alone.select(GemmProblem(64, 64, 64), None, parse_arithmetic("k16"))


@pytest.mark.parametrize(
    ("words", "sm_count", "way"),
    [
        ({"d_major": "any"}, None, "make out contiguous along N"),
        ({"d_major": "any", "c": "bf16", "c_major": "any"}, None, "make c and out contiguous along N"),
        ({"a_align": 2}, 100, "leave out sm_count"),
        ({"a_align": 2, "d_major": "any"}, 100, r"align a to 16 bytes .*; make out contiguous along N"),
        ({"b": "s8", "d_major": "any"}, None, "make the narrow operand contiguous along K, others .*"),
        ({"b": "s8", "b_major": "mn"}, None, "make the narrow operand contiguous along K, others .*"),
    ],
    ids=str,
)
def test_the_error_says_what_to_change(
    registry: Registry, words: dict[str, Any], sm_count: int | None, way: str
) -> None:
    says = rf"have fma.*: {way}, or pass one of these as bits, or leave out bits$"
    with pytest.raises(UnsupportedProblemError, match=says):
        registry.select(GemmProblem(100, 512, 4096, **words), sm_count, bits="invariant")


def test_kernels_for_the_order_of_sums_are_chosen_only_for_it() -> None:
    words = "k1", "splitk", "serial", "tree"
    tile = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x192x64_2x1_cooperative_s4_m8_{}_linear"
    named = {word: tile.format(word) for word in words}
    selector = Selector({name: parse_name(name) for name in named.values()}, H200)

    def chosen(problem: GemmProblem, bits: str) -> tuple[str, int]:
        kernel = selector.select(problem, arithmetic=required_arithmetic(bits, problem)).kernel
        return next(word for word in words if named[word] == kernel.name), kernel.slices

    few, many = GemmProblem(64, 256, 16384), GemmProblem(8192, 2048, 16384)
    assert chosen(many, "any") == ("k1", 1)
    assert chosen(many, "k16") == ("k1", 1)
    assert chosen(few, "any")[0] == "splitk"
    assert chosen(few, "k16/4") == ("splitk", 4)
    assert chosen(many, "k16/4") == ("serial", 4)
    assert chosen(few, "k16/8t") == chosen(many, "k16/8t") == ("tree", 8)
    assert chosen(few, "k16/16@64") == ("splitk", 16)
    with pytest.raises(UnsupportedProblemError, match="no kernel with arithmetic k16/16t@64"):
        chosen(few, "k16/16t@64")


def test_on_other_targets_invariant_is_the_arithmetic_of_that_target() -> None:
    problem = GemmProblem(64, 512, 512)
    assert str(required_arithmetic("invariant", problem, arch="sm80")) == "k16.sm80"
    assert str(required_arithmetic("invariant", problem, arch="sm90")) == "k16"
    assert str(required_arithmetic("k16", problem, arch="sm80")) == "k16"


# Calls.


@pytest.mark.parametrize("bits", ["invariant", "k16"])
def test_a_call_chooses_kernels_of_the_arithmetic(registry: Registry, bits: str) -> None:
    for m in (1, 64, 3000):
        gemm = bound(packed(m, 1024), packed(1024, 512, transposed=True), packed(m, 512))
        choice = choose(gemm, Options(bits=bits), registry, None).choice
        assert choice is not None
        assert str(choice.required) == "k16"
    assert choose(gemm, Options(batch_invariant=True), registry, None).choice == choice


def test_a_kernel_that_the_call_names_must_have_the_arithmetic(registry: Registry) -> None:
    gemm = bound(packed(64, 64), packed(64, 64, transposed=True), packed(64, 64))

    def target(bits: str, slices: int | None = None) -> int:
        return choose(gemm, Options(kernel=SPLIT_K, slices=slices, bits=bits), registry, None).kernel.slices

    assert target("k16/4") == target("k16/4", 4) == 4
    assert target("k16", 1) == 1
    for bits, slices, own in (("invariant", None, "k16/S"), ("k16/4", 3, "k16/3"), ("k8", None, "k1")):
        with pytest.raises(UnsupportedProblemError, match=rf"splitk_linear has arithmetic {own}.* requires .*: name a"):
            target(bits, slices)


def test_the_arithmetic_of_an_edited_kernel_is_not_known(registry: Registry) -> None:
    gemm, edited = bound(packed(64, 64), packed(64, 64, transposed=True), packed(64, 64)), f"{SPLIT_K}+src.1a2b3c4d5e6f"
    assert choose(gemm, Options(kernel=edited, slices=4), registry, None).kernel.name == edited
    with pytest.raises(UnsupportedProblemError, match=r"1a2b3c4d5e6f is edited, .* leave out bits"):
        choose(gemm, Options(kernel=edited, slices=4, bits="k16/4"), registry, None)


def test_a_call_with_a_narrow_b_has_one_arithmetic_whatever_m(registry: Registry) -> None:
    for m in (1, 64, 3000):
        gemm = bound(narrow("bf16", m, 512), narrow("s8", 256, 512, t=True), narrow("bf16", m, 256))
        assert gemm.is_transposed
        choice = choose(gemm, Options(bits="invariant"), registry, None).choice
        assert choice is not None
        assert str(choice.arithmetic) == "k16w4@512"


def test_groups_along_k_have_the_arithmetic_of_one_matrix(registry: Registry) -> None:
    along_k = packed(64, 300, transposed=True), packed(300, 80), packed(4, 64, 80)
    gemm = bound_groups("offsets", 4, *along_k, bits="invariant")
    choice = choose(gemm, Options(bits="invariant"), registry, None).choice
    assert choice is not None
    assert str(choice.arithmetic) == "k16"


class Few:
    """A tensor of no elements, which needs no GPU."""

    def __init__(self, *shape: int, type: str = "<f2") -> None:  # noqa: A002
        self.__cuda_array_interface__ = {"shape": shape, "typestr": type, "data": (0, False), "version": 3}


OPERANDS = Few(0, 8), Few(8, 8)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"deterministic": True}, "deterministic"),
        ({"batch_invariant": True}, "bits='invariant'"),
        ({"bits": "k16"}, "bits='k16'"),
    ],
)
@pytest.mark.parametrize("call", [matmul, plan])
def test_sums_in_an_epilogue_are_refused(call: Any, options: dict[str, Any], says: str) -> None:
    arguments: dict[str, Any] = {"out": Few(0, 8), "per_row": Few(0, type="<f4"), **options}
    with pytest.raises(OperandError, match=rf"{says}: `per_row\[m\] = sum\(d\)` sums .* as in `per_row\[m, n\]"):
        call(*OPERANDS, epilogue="d = acc; per_row[m] = sum(d)", **arguments)


def test_maxima_and_minima_are_deterministic() -> None:
    top, low, d, aux = Few(0, type="<f4"), Few(0, type="<f4"), Few(0, 8), Few(0, 8)
    text = "d = acc; top[m] = max(d); low[m] = min(d); aux[m, n] = d"
    plan(*OPERANDS, out=d, epilogue=text, top=top, low=low, aux=aux, deterministic=True, bits="invariant")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"autotune": 0}, "autotune is 0; it must be a positive integer"),
        ({"autotune": True}, "autotune is True"),
        ({"autotune": 4, "deterministic": True}, "autotune and deterministic are both passed; .* kernels sum in"),
        ({"autotune": 4, "kernel": "x"}, "kernel and autotune are both passed; autotune searches for the fastest"),
    ],
)
def test_options_that_contradict_each_other_are_refused(options: dict[str, Any], says: str) -> None:
    with pytest.raises(OperandError, match=says):
        matmul(*OPERANDS, out=Few(0, 8), **options)
    with pytest.raises(OperandError, match=says):
        plan(*OPERANDS, out=Few(0, 8), **options)


def test_autotuning_keeps_the_arithmetic() -> None:
    plan(*OPERANDS, out=Few(0, 8), autotune=4, deterministic=True, bits="invariant")
    plan(*OPERANDS, out=Few(0, 8), autotune=4, batch_invariant=True)
    problem = GemmProblem(64, 512, 16384)
    free, kept = (Registry(gpu="H200").candidates(problem, 8, bits=bits) for bits in ("any", "k16/4"))
    assert {candidate.kernel.slices for candidate in kept} <= {1, 4}
    assert {candidate.kernel for candidate in kept} != {candidate.kernel for candidate in free}
