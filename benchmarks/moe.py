"""Layers of mixtures of experts: gemmill, PyTorch and a Triton baseline, in bursts and under sustained load.

A layer sorts tokens by expert, multiplies them by the gate and up weights (FC1), applies silu(gate) * up, multiplies by
the down weights (FC2), and combines the weighted rows of each token. PyTorch composes its operations as transformers
does. The Triton baseline works as vLLM's fused layer, with the fastest of several tiles.

Tokens choose experts uniformly, by Zipf's law (the probability of an expert is 1 / its rank), or all the same one.
Calls rotate over sets of tokens, so that the weights come from DRAM.

A burst is a CUDA graph of a millisecond, in interleaved rounds. Under sustained load, each side runs alone for a turn,
of which the second half is timed. "eager" compares calls of gemmill.moe and of PyTorch without a graph. The program
prints the times of the others divided by gemmill's, with quartiles over rounds or turns; the share of 4 TB/s that a
layer needs to read the weights in use and tokens, and to write results; the time of each part alone; and the norm of
the errors of sampled tokens, relative to float64. With 4-bit weights (``--formats u4_g128 mxfp4``), the baselines
have the bf16 weights that these stand for. Layers of e4m3 (``--formats e4m3``) begin with quantised tokens; they and
the weights have scales of blocks, but for PyTorch, which has scales of rows. Results are written as JSON. Needs an
NVIDIA GPU and PyTorch with Triton.
"""

from __future__ import annotations

import argparse
import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from gemmill.library.dtypes import DTypeName
    from gemmill.profiler.measure.graph_timing import Launch

OURS, TORCH, TRITON = "gemmill", "PyTorch", "Triton"
REGIMES = ("burst", "sustained")
DISTRIBUTIONS = ("uniform", "zipf", "one")
TOKENS = (64, 256, 1024, 4096, 16384)
SAMPLE = 16
"""Tokens whose results are compared with float64."""
MOST_ERROR = {"bf16": 2**-6, "e4m3": 2**-4}
"""Largest norm of the errors of the sample, relative to that of its results, by the dtype of tokens."""


class Layer(NamedTuple):
    """A layer; its experts have a gate, and F hidden columns."""

    hidden: int
    inner: int
    """F."""
    experts: int
    slots: int
    """Experts of a token."""


LAYERS = {
    "Qwen3-30B": Layer(2048, 768, 128, 8),
    "Qwen3-235B": Layer(4096, 1536, 128, 8),
    "gpt-oss-120b": Layer(2880, 2880, 128, 4),
    "DeepSeek-V3": Layer(7168, 2048, 256, 8),
}


class Format(NamedTuple):
    """How gemmill's weights are stored."""

    w_dtype: DTypeName | None
    """As for :func:`gemmill.moe`."""
    scale: str
    """Scales of the weights of a problem."""
    bits: float
    """Bits of a weight, with its share of scales and zero points."""
    dtype: DTypeName = "bf16"
    """Dtype of tokens."""
    activation: str = "silu"
    """As for :func:`gemmill.moe`."""

    @property
    def epilogue(self) -> str:
        """That of the first product."""
        from gemmill.runtime.api.expert_layer import epilogue_of, quantising

        epilogue = epilogue_of(self.activation)
        return quantising(epilogue) if self.dtype == "e4m3" else epilogue


FORMATS = {
    "bf16": Format(None, "none", 16),
    "e4m3": Format(None, "128x128", 8 + 32 / 128**2, "e4m3", "d = silu(gate_half) * up_half"),
    "u4_g128": Format("u4", "1x128z", 4.25),
    "mxfp4": Format("e2m1", "1x32e8", 4.25),
}
GROUP, MX_GROUP = 128, 32
"""Weights that share a scale: of u4, also a zero point, and of e2m1."""


def main() -> None:
    """Run the benchmark: write records, and print figures."""
    from benchmarks.common import Record, parser_of

    from gemmill.runtime.registry import Registry

    parser = parser_of(__doc__, rounds=9)
    parser.add_argument("--layers", nargs="+", choices=LAYERS, default=[*LAYERS], help="(all)")
    parser.add_argument("--tokens", nargs="+", type=int, default=TOKENS, help="(64 to 16384)")
    parser.add_argument("--distributions", nargs="+", choices=DISTRIBUTIONS, default=DISTRIBUTIONS, help="(all)")
    parser.add_argument("--formats", nargs="+", choices=FORMATS, default=["bf16"], help="of weights (bf16)")
    parser.add_argument("--regimes", nargs="+", choices=REGIMES, default=REGIMES, help="(both)")
    parser.add_argument("--turns", type=int, default=3, help="turns of each side under sustained load (%(default)s)")
    parser.add_argument("--seconds", type=float, default=0.4, help="length of a turn (%(default)s)")
    arguments = parser.parse_args()
    record = Record("moe", arguments, turns=arguments.turns, seconds=arguments.seconds)
    registry = Registry()
    forms = [FORMATS[form] for form in arguments.formats]
    warm([LAYERS[name] for name in arguments.layers], forms, arguments.tokens, registry)
    for name, form in product(arguments.layers, arguments.formats):
        weights = Weights(LAYERS[name], FORMATS[form])
        for tokens, distribution in product(arguments.tokens, arguments.distributions):
            case = {"layer": name, "format": form, "tokens": tokens, "distribution": distribution}
            for row in measure(case, weights, registry, arguments, record.telemetry):
                record.add(row)
                print(*lines(row), sep="\n", flush=True)
        del weights  # before those of the next layer are allocated
    print(f"records: {record.path}")


def problems(layer: Layer, tokens: int, form: Format = FORMATS["bf16"]) -> list[Any]:
    """The products of gemmill's layer."""
    from benchmarks.common import problem_of

    from gemmill.runtime.api.expert_layer import gathers_tokens

    hidden, inner, experts, slots = layer
    stored: dict[str, Any] = {"b_dtype": form.w_dtype, "b_scale": form.scale} if form.w_dtype else {}
    of_first: dict[str, Any] = {"epilogue": form.epilogue}
    if form.dtype == "e4m3":
        of_first["d_dtype"] = "e4m3"
    if gathers_tokens(form.dtype, "f32", form.w_dtype is not None, tokens * slots, experts):
        of_first["rows"] = "gathered"
    dtype = "e4m3-scaled" if form.dtype == "e4m3" else form.dtype
    products: tuple[tuple[int, int, dict[str, Any]], ...] = (
        (2 * inner, hidden, {**stored, **of_first}),
        (hidden, inner, stored),
    )
    return [
        problem_of(dtype, tokens * slots, n, k).but(batch=experts, batching="grouped", **further).with_narrow_a
        for n, k, further in products
    ]


def warm(layers: Sequence[Layer], forms: Sequence[Format], tokens: Sequence[int], registry: Any) -> None:
    """Compile gemmill's kernels in parallel. Errors occur again in the measurement, which reports them."""
    from gemmill.library.errors import UnsupportedProblemError

    names = set()
    for layer, form, count in product(layers, forms, tokens):
        for problem in problems(layer, count, form):
            with suppress(UnsupportedProblemError):
                names.add(registry.select(problem).name)
    registry.warm([*names])


class Weights:
    """Random weights of a layer, for the baselines and for gemmill."""

    def __init__(self, layer: Layer, form: Format) -> None:
        import torch

        import gemmill
        from gemmill.profiler.baselines.experts import Experts

        torch.cuda.empty_cache()  # free the weights of the previous layer
        self.layer, self.form = layer, form
        hidden, inner, experts, _ = layer
        torch.manual_seed(0)
        self.keywords: dict[str, Any]
        """Scales and zero points by the keywords of :func:`gemmill.moe`, and the dtype and activation."""
        if form.dtype == "e4m3":
            (self.w1, of_w1), (self.w2, of_w2) = (
                drawn_e4m3(experts, 2 * inner, hidden),
                drawn_e4m3(experts, hidden, inner),
            )
            self.plain = Experts(self.w1, self.w2, of_w1, of_w2)
            self.keywords = {"w1_scale": of_w1, "w2_scale": of_w2, "activation": form.activation}
            return
        drawn = {None: drawn_wide, "u4": drawn_u4, "e2m1": drawn_mxfp4}[form.w_dtype]
        (gate_up, of_gate_up), (down, of_down) = drawn(experts, 2 * inner, hidden), drawn(experts, hidden, inner)
        self.plain = Experts(gate_up, down)
        """As in checkpoints."""
        self.w1, self.w2 = gemmill.interleaved(of_gate_up.pop("")), of_down.pop("")
        """gemmill's weights; those of gate and up in its order."""
        self.keywords = {f"w1{name}": gemmill.interleaved(x, axis=2) for name, x in of_gate_up.items()}
        self.keywords |= {f"w2{name}": x for name, x in of_down.items()}
        self.keywords |= {"w_dtype": form.w_dtype} if form.w_dtype else {}


def drawn_wide(experts: int, rows: int, k: int) -> tuple[Any, dict[str, Any]]:
    """Random weights in bf16, and gemmill's."""
    import torch

    values = torch.empty(experts, rows, k, dtype=torch.bfloat16, device="cuda").normal_(std=k**-0.5)
    return values, {"": values}


def drawn_e4m3(experts: int, rows: int, k: int) -> tuple[Any, Any]:
    """Random e4m3 weights, and the scales of their blocks: powers of two."""
    import torch

    values = torch.empty(experts, rows, k, dtype=torch.float8_e4m3fn, device="cuda")
    for of_expert in values:
        of_expert.copy_(torch.randn(rows, k, device="cuda") * 64)
    exponents = torch.randint(-7, -4, (experts, rows // GROUP, k // GROUP), device="cuda")
    return values, (exponents - round(math.log2(k) / 2)).float().exp2()


def drawn_mxfp4(experts: int, rows: int, k: int) -> tuple[Any, dict[str, Any]]:
    """Random e2m1 weights as what they stand for in bf16, and in bytes with their scales."""
    import torch

    import gemmill.torch
    from gemmill.library.e2m1 import VALUES

    numbers = torch.tensor(VALUES, device="cuda")
    exponent = round(math.log2(k**-0.5 / float(numbers.square().mean().sqrt())))
    held = torch.empty(experts, rows, k // 2, dtype=torch.uint8, device="cuda")
    scale = torch.empty(experts, k // MX_GROUP, rows, dtype=torch.float8_e8m0fnu, device="cuda")
    values = torch.empty(experts, rows, k, dtype=torch.bfloat16, device="cuda")
    for expert, wide in enumerate(values):
        codes = torch.randint(0, 16, (rows, k), dtype=torch.uint8, device="cuda")
        bytes_of_scales = torch.randint(126, 129, (rows, k // MX_GROUP), dtype=torch.uint8, device="cuda") + exponent
        held[expert], scale[expert] = gemmill.torch.mxfp4(codes[:, 0::2] | codes[:, 1::2] << 4, bytes_of_scales)
        factors = (bytes_of_scales.float() - 127).exp2().repeat_interleave(MX_GROUP, 1)
        torch.mul(numbers[codes.int()], factors, out=wide)
    return values, {"": held, "_scale": scale}


def drawn_u4(experts: int, rows: int, k: int) -> tuple[Any, dict[str, Any]]:
    """Random u4 weights as what they stand for in bf16, and in bytes with their scales and zero points."""
    import torch

    held = torch.randint(0, 256, (experts, rows, k // 2), dtype=torch.uint8, device="cuda")
    groups = experts, -(-k // GROUP), rows
    scale = (torch.rand(groups, device="cuda") / 2 + 0.75).mul_(k**-0.5 / 4.6).bfloat16()  # 16 numbers deviate by 4.6
    zero = torch.randint(6, 10, groups, device="cuda").bfloat16()
    values = torch.empty(experts, rows, k, dtype=torch.bfloat16, device="cuda")
    for expert, wide in enumerate(values):
        wide[:, 0::2], wide[:, 1::2] = held[expert] & 15, held[expert] >> 4
        wide -= zero[expert].mT.repeat_interleave(GROUP, 1)[:, :k]
        wide *= scale[expert].mT.repeat_interleave(GROUP, 1)[:, :k]
    return values, {"": held, "_scale": scale, "_zero": zero}


def tokens_of(layer: Layer, count: int, distribution: str, sets: int, dtype: DTypeName = "bf16") -> list[Any]:
    """Random tokens for each operand set; each set has its own order of popular experts. E4m3 tokens have scales of
    blocks, powers of two."""
    import torch

    from gemmill.profiler.baselines.experts import Tokens

    device = "cuda" if torch.cuda.is_available() else "cpu"
    found = []
    for index in range(sets):
        torch.manual_seed(index)
        if distribution == "one":
            ids = torch.full((count, layer.slots), index % layer.experts)
        else:
            ranks = torch.randperm(layer.experts) + 1.0 if distribution == "zipf" else torch.ones(layer.experts)
            keys = torch.rand(count, layer.experts).log() * ranks  # the largest are drawn as 1 / ranks say
            ids = keys.topk(layer.slots).indices
        weights = torch.rand(count, layer.slots).softmax(-1).bfloat16().float()
        x, scale = torch.randn(count, layer.hidden, dtype=torch.bfloat16, device=device), None
        if dtype == "e4m3":
            x = (x * 64).to(torch.float8_e4m3fn)
            scale = torch.randint(-7, -4, (count, layer.hidden // GROUP), device=device).float().exp2()
        found.append(Tokens(x, ids.int().to(device), weights.to(device), scale))
    return found


class Side(NamedTuple):
    """One implementation of a layer."""

    launch: Launch
    """Launches on the operand set of an index."""
    outputs: list[Any]
    """The result of each operand set, after a launch."""
    facts: dict[str, Any]
    """What it chose."""
    eager: Launch | None = None
    """The same from the host, as programs call it."""
    parts: Mapping[str, Launch] = {}
    """Launches of its parts, in order."""


def ours(weights: Weights, tokens: Sequence[Any], registry: Any) -> Side:
    """gemmill's layer, and its parts. Parts read what others have left, which only their results depend on."""
    import torch

    import gemmill

    operands = [(own.x, weights.w1, weights.w2, own.ids, own.weights) for own in tokens]
    keywords = [
        {"registry": registry, **weights.keywords} | ({} if own.x_scale is None else {"x_scale": own.x_scale})
        for own in tokens
    ]
    plans: list[Any] = [gemmill.plan_moe(*own, **keywords[i]) for i, own in enumerate(operands)]
    routing = gemmill.route(tokens[0].ids, weights.layer.experts)
    y = torch.zeros(len(routing.rows), weights.layer.hidden, dtype=torch.bfloat16, device="cuda")

    def route(i: int) -> None:
        gemmill.route(tokens[i].ids, weights.layer.experts, out=routing)

    def combine(i: int) -> None:
        gemmill.combine(y, routing.places, tokens[i].weights, out=plans[i].out)

    def copy(i: int) -> None:
        for launch in plans[i].copies:
            launch.launch(torch.cuda.current_stream().cuda_stream)

    parts: dict[str, Launch] = {"route": route}
    if plans[0].copies:
        parts["copy"] = copy
    return Side(
        lambda i: plans[i](),
        [plan.out for plan in plans],
        {"kernels": {"FC1": plans[0].first.choice.name, "FC2": plans[0].second.choice.name}},
        lambda i: gemmill.moe(*operands[i], **keywords[i]),
        parts | {"FC1": lambda i: plans[i].first(), "FC2": lambda i: plans[i].second(), "combine": combine},
    )


def pytorch(weights: Weights, tokens: Sequence[Any]) -> Side:
    """PyTorch's layer."""
    from gemmill.profiler.baselines.experts import composed, scaled_by_rows

    experts = weights.plain
    if weights.form.dtype == "e4m3":
        experts, tokens = scaled_by_rows(experts, tokens)
    factors = [own.weights.bfloat16() for own in tokens]
    outputs: list[Any] = [None] * len(tokens)

    def launch(i: int) -> None:
        outputs[i] = composed(tokens[i], factors[i], experts)

    return Side(launch, outputs, {}, launch)


def triton(weights: Weights, tokens: Sequence[Any], stream: Any) -> Side:
    """The layer of the Triton baseline, with the fastest tile."""
    import torch

    from gemmill.profiler.baselines.triton_experts import tuned

    outputs = [torch.empty_like(own.x, dtype=torch.bfloat16) for own in tokens]
    layer = tuned(weights.plain, tokens, outputs, stream)
    return Side(layer, outputs, {"tile": layer.tile._asdict()})


class Repeated:
    """Launches from the host, timed in place of a graph.

    Args:
        launch: launches on the operand set of an index.
        sets: number of operand sets.
        count: number of launches of a replay.
    """

    def __init__(self, launch: Launch, sets: int, count: int) -> None:
        self._launch, self._sets, self._count = launch, sets, count

    def replay(self) -> None:
        """Launch all."""
        for index in range(self._count):
            self._launch(index % self._sets)


def measure(
    case: Mapping[str, Any], weights: Weights, registry: Any, arguments: argparse.Namespace, telemetry: Any
) -> Iterator[dict[str, Any]]:
    """A row for each regime; after an error, one row with the error instead of times."""
    from gemmill.library.errors import GemmillError

    try:
        measured = Measured(weights, case["tokens"], case["distribution"], registry)
        for regime in arguments.regimes:
            yield {**case, "regime": regime, **measured.run(regime, arguments, telemetry)}
    except (GemmillError, RuntimeError, AssertionError) as error:
        yield {**case, "error": f"{type(error).__name__}: {error}"}


class Measured:
    """Measures a layer on random tokens, with the same graphs for all regimes.

    Args:
        weights: the weights of the layer.
        count: the number of tokens.
        distribution: how tokens choose experts.
        registry: the kernels of gemmill.
    """

    def __init__(self, weights: Weights, count: int, distribution: str, registry: Any) -> None:
        import torch

        from gemmill.profiler.baselines.experts import reference
        from gemmill.profiler.measure.graph_timing import REPLAY_US, time_rounds

        torch.cuda.empty_cache()  # free the memory of the previous case
        self._sets, self._stream = max(2, min(8, TOKENS[-1] // count)), torch.cuda.Stream()
        self._weights = weights
        self._tokens = tokens_of(weights.layer, count, distribution, self._sets, weights.form.dtype)
        sample = torch.linspace(0, count - 1, SAMPLE).long()
        self._sample, self._wanted = sample, reference(self._tokens[0], weights.plain, sample)
        own = ours(weights, self._tokens, registry)
        us = min(time_rounds({OURS: self._capture(own.launch, self._sets)}, self._sets, 3)[OURS])
        self._launches = math.ceil(REPLAY_US / (us * self._sets)) * self._sets
        self._facts: dict[str, Any] = {"launches": self._launches, "errors": {}, "failed": {}}
        self._graphs: dict[str, Any] = {}
        self._eager: dict[str, Repeated] = {}
        self._add(OURS, own)
        self._parts = {name: self._capture(part, self._launches) for name, part in own.parts.items()}
        for name, make in ((TORCH, pytorch), (TRITON, partial(triton, stream=self._stream))):
            try:
                self._add(name, make(weights, self._tokens))
            except Exception as error:  # noqa: BLE001 - an error of a baseline is a result, and the others go on
                self._facts["failed"][name] = f"{type(error).__name__}: {error}"

    def _capture(self, launch: Launch, launches: int) -> Any:
        from gemmill.profiler.measure.graph_timing import capture

        return capture(launch, self._sets, launches, self._stream)

    def _add(self, name: str, side: Side) -> None:
        """Capture a side, and check its results of the sampled tokens."""
        graph = self._capture(side.launch, self._launches)
        error = float((side.outputs[0][self._sample].double() - self._wanted).norm() / self._wanted.norm())
        assert error <= MOST_ERROR[self._weights.form.dtype], (
            f"{name} is wrong: the error is {error:.1e} of the results"
        )
        self._graphs[name] = graph
        if side.eager is not None:
            self._eager[eager(name)] = Repeated(side.eager, self._sets, self._launches)
        self._facts["errors"][name] = error
        self._facts |= side.facts

    def run(self, regime: str, arguments: argparse.Namespace, telemetry: Any) -> dict[str, Any]:
        """Microseconds of a layer by round or turn, and what follows from them."""
        from benchmarks.common import ratios

        from gemmill.profiler.measure.graph_timing import time_rounds
        from gemmill.profiler.measure.sustained_load import time_turns

        state: dict[str, Any] = {}
        if regime == "burst":
            time_rounds(self._graphs, self._launches, 1)  # lets the clocks settle
            us = time_rounds({**self._graphs, **self._eager}, self._launches, arguments.rounds)
            alone = time_rounds(self._parts, self._launches, arguments.rounds)
            state["parts"] = {name: statistics.median(values) for name, values in alone.items()}
        else:
            every = frozenset(self._graphs)
            found = time_turns(self._graphs, self._launches, arguments.seconds, arguments.turns, telemetry, every)
            us = {name: values for name, (values, _) in found.items()}
            state["watts"] = {name: reading.watts for name, (_, reading) in found.items()}
            state["mhz"] = {name: reading.sm_mhz for name, (_, reading) in found.items()}
        pairs = {TORCH: OURS, TRITON: OURS, eager(TORCH): eager(OURS)}
        state["ratios"] = {theirs: ratios(us[theirs], us[own]) for theirs, own in pairs.items() if theirs in us}
        middle = statistics.median(us[OURS])
        return {
            **self._facts,
            "us": us,
            **state,
            **rates(self._weights.layer, self._tokens[0].ids, middle, self._weights.form),
        }


def eager(name: str) -> str:
    """The label of a side without a graph."""
    return f"{name}, eager"


def rates(layer: Layer, ids: Any, us: float, form: Format = FORMATS["bf16"]) -> dict[str, float]:
    """TFLOP/s, and the share of DRAM's rate of a layer that reads the weights in use and tokens, and writes results."""
    from gemmill.profiler.measure.graph_timing import PEAK_BYTES

    hidden, inner, _, _ = layer
    products = 3 * hidden * inner
    of_token = 2 + (1 + 4 / GROUP if form.dtype == "e4m3" else 2)
    moved = products * len(ids.unique()) * form.bits / 8 + of_token * len(ids) * hidden
    return {"tflops": 2 * products * ids.numel() / us / 1e6, "of_dram": moved / (us * 1e-6) / PEAK_BYTES}


def lines(row: Mapping[str, Any]) -> Iterator[str]:
    """The text of a row: times and ratios, then parts, errors and choices where they are new."""
    what = f"{row['layer']:12} {row['format']:7} {row['tokens']:6} tokens {row['distribution']:7}"
    if "error" in row:
        yield f"{what} failed: {row['error'].splitlines()[0]}"
        return
    us = {name: statistics.median(values) for name, values in row["us"].items()}
    without_graph = f" ({us[eager(OURS)]:.1f} eager)" if eager(OURS) in us else ""
    own = f"{OURS} {us[OURS]:8.1f} us{without_graph}, {row['tflops']:5.1f} TFLOP/s, {row['of_dram']:4.0%} of 4 TB/s"
    others = (
        f"{name} {us[name]:8.1f} us {middle:.3f} ({low:.3f} to {high:.3f})"
        for name, (middle, low, high) in row["ratios"].items()
    )
    yield "  ".join((f"{what} {row['regime']:9} {own}", *others))
    yield from (f"    {name} failed: {error.splitlines()[0]}" for name, error in row["failed"].items())
    if "parts" in row:
        yield "    " + ", ".join(f"{name} {part:.1f}" for name, part in row["parts"].items()) + " us alone"
        yield "    errors " + ", ".join(f"{name} {error:.1e}" for name, error in row["errors"].items())
        yield f"    {', '.join(row['kernels'].values())}; {TRITON} {[*row.get('tile', {}).values()]}"
