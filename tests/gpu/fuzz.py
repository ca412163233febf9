"""Configs drawn at random from the legal space, each of which must compile, and from just outside, which none may.

    python -m tests.gpu.fuzz --legal 500 --outside 500 --seed 1
    python -m tests.gpu.fuzz --cells --legal 0 --outside 0 --arch sm90a --run

Formats are drawn evenly, then the rest (:func:`gemmill.library.legality.search.draw_legal`); of the configs beside, as
many as ``--expressions`` says, each has an expression for its epilogue. With ``--cells`` there is also one for every
cell of the coverage table that has kernels. With ``--run`` each kernel solves a problem of odd extents on the
GPU as well. Prints every fault with the kernel's name; exits with 1 if there is one.
"""

from __future__ import annotations

import argparse
import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import islice

from pydantic import ValidationError

from gemmill.emitters.emit import emit
from gemmill.library.arch import ARCHS
from gemmill.library.config.fields import FIELD_NAMES, Value, config_of, fields_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.epilogues.parse import canonical
from gemmill.library.errors import ConfigError, GemmillError
from gemmill.library.legality import coverage
from gemmill.library.legality.rules import DOMAINS, legal
from gemmill.library.legality.search import Constraints, any_legal, draw_legal
from gemmill.library.problem import is_mixed
from gemmill.runtime.compile.pool import compile_many
from gemmill.runtime.compile.toolchain import Toolchain
from gemmill.runtime.operands.matrices import GROUP_SIZES
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.store import Store

MOST_K = {"f16": 2048}
"""Least K that no kernel is run on, by accumulator, where it is not 4096: sums of longer ones would not be exact."""


EXPRESSIONS = (
    "d = relu(acc)",
    "d = gelu(acc + bias[n])",
    "d = silu(alpha * acc * per_row[m] * columns[n] + bias[n])",
    "d = gelu_tanh(acc * columns[n] + bias[n])",
    "d = gelu(alpha * acc * per_row[m] * columns[n] + bias[n])",
    "d = acc * per_row[m] * columns[n] + bias[n]; amax = max(abs(d))",
    "d = acc + bias[n]; sums[m] = sum(d)",
    "d = acc; top[n] = max(acc)",
    "d = acc / s",
    "d = tanh(acc) + r[m, n]; aux = acc",
    "d = acc + r.bf16.n[m, n]; aux.bf16.n = gelu(acc)",
    "d = gelu(x[m, n] + y.bf16[m, n]) * acc; aux = acc",
    "d = acc * (s[n] + t[n] + u[n] + v[n]) + x[m, n] + y[m, n]",
    "d = acc * (c0[n] + c1[n] + c2[n] + c3[n] + c4[n] + c5[n]) + c6[n] + c7[n] + c8[n] + c9[n] + c10[n] * c11[n]",
    "d = silu(gate) * up",
    "d = relu(acc + beta * c)",
    "d = e4m3(acc * s)",
)


def expressive_configs(generator: random.Random, fixed: Constraints | None = None) -> Iterator[GemmConfig]:
    """Different legal configs at random, without end, each with one of :data:`EXPRESSIONS` for its epilogue."""
    for config in legal_configs(generator, fixed):
        changed = replace(config, epilogue=canonical(generator.choice(EXPRESSIONS)))
        if legal(changed):
            yield changed


def legal_configs(generator: random.Random, fixed: Constraints | None = None) -> Iterator[GemmConfig]:
    """Different legal configs at random, without end."""
    seen: set[GemmConfig] = set()
    while True:
        fields = draw_legal(generator, fixed or {})
        if fields is not None and (config := config_of(fields)) not in seen:
            seen.add(config)
            yield config


def outside(generator: random.Random) -> Iterator[dict[str, Value]]:
    """Fields that differ from a legal config's in one and break a rule, without end."""
    for config in legal_configs(generator):
        fields = fields_of(config)
        changes = []
        for name in FIELD_NAMES:
            value = fields[name]
            near = {value - 1, value + 1, value + 8, value * 2, value // 2} if isinstance(value, int) else set()
            if not (name.startswith("c.") and config.c is None):
                changes += [(name, other) for other in {*DOMAINS[name], *near} - {value}]
        changes.sort(key=str)
        generator.shuffle(changes)
        for name, other in changes:
            changed = {**fields, name: other}
            if not legal(changed):
                yield changed
                break


def accepted(fields: dict[str, Value]) -> bool:
    """Whether a kernel is emitted for these fields."""
    try:
        emit(config_of(fields))
    except (ConfigError, ValidationError):
        return False
    return True


def compile_all(configs: Sequence[GemmConfig], jobs: int | None, store: Store | None) -> list[str]:
    """Compile kernels; what is wrong with those that fail or spill, a line each."""
    done = 0

    def tell(outcome: object) -> None:
        nonlocal done
        done += 1
        if done % 50 == 0:
            print(f"{done} of {len(configs)} compiled", file=sys.stderr, flush=True)

    outcomes = compile_many(configs, jobs=jobs, store=store, on_done=tell)
    return [f"{outcome.name}: {str(outcome.error).partition('; choose')[0]}" for outcome in outcomes if outcome.error]


def cell_configs(generator: random.Random, arch: str) -> Iterator[GemmConfig]:
    """A random config of every cell of the coverage table for which there is one for a target."""
    for table in coverage.tables():
        for row in table.rows:
            # Kernels for any strides serve operands of a major too.
            served: dict[str, Value | tuple[Value, ...]] = {
                name: (value, "any") if name in ("a.major", "b.major") else value for name, value in row.given.items()
            }
            for schedule in (schedule for schedule, cell in row.cells.items() if cell == coverage.OK):
                if served.get("arch", arch) == arch:
                    given = {**served, "schedule": schedule, "arch": arch}
                    fields = draw_legal(generator, given) or any_legal(given)
                    assert fields is not None or any_legal({**given, "arch": tuple(ARCHS)}), f"no kernel for {given}"
                    if fields is not None:
                        yield config_of(fields)


def has_scaled_groups(config: GemmConfig) -> bool:
    """Whether it takes groups whose operands have block scales, which the harness does not make."""
    return config.scheduler.batching != "strided" and (config.a.scale, config.b.scale) != ("none", "none")


def run_all(configs: Sequence[GemmConfig], generator: random.Random, registry: Registry) -> list[str]:
    """Run each kernel on a problem of odd extents, half of them aligned no better than kernels must have it; what is
    wrong, a line each."""
    from tests.gpu.groups import check_groups  # torch, which compiling needs not
    from tests.gpu.harness import check, least_aligns
    from tests.gpu.weights import check as check_mixed

    faults = []
    for config in configs:
        tile, cluster = config.tile, config.cluster
        m = generator.randrange(1, 3 * tile.m * cluster.m)
        n = generator.randrange(1, 3 * tile.n * cluster.n)
        # The size of groups of scales is that of K over their number: one group could be of any size.
        least = max(GROUP_SIZES) + 1 if is_mixed(config.a.dtype, config.b.dtype) else 1
        most = min(2 * tile.k * config.stages, MOST_K.get(config.accumulator, 4096))
        k = generator.randrange(least, max(most, 2 * least))
        try:
            if config.scheduler.batching != "strided":
                check_groups(config, registry)
            elif config.family == "wgmma" and is_mixed(config.a.dtype, config.b.dtype):
                check_mixed(config, n, m, k, registry, exact=True)
            else:
                # Of a single row or column either extent is contiguous, and the better aligned one counts.
                slightly = min(m, n, k) > 1 and generator.random() < 0.5
                aligns = least_aligns(config) if slightly else {}
                check(config, m, n, k, registry, seed=generator.randrange(1000), aligns=aligns, offset=int(slightly))
        except (AssertionError, GemmillError) as error:
            faults.append(f"{kernel_name(config)}: {m}x{n}x{k}: {str(error).partition(chr(10))[0]}")
        except RuntimeError as error:  # of CUDA, after which nothing runs in this process
            raise RuntimeError(f"{kernel_name(config)}: {m}x{n}x{k}") from error
    return faults


def main() -> int:
    """Draw, compile and run."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--legal", type=int, default=500, help="configs drawn from the legal space (%(default)s)")
    parser.add_argument("--expressions", type=int, default=200, help="others, with an expression each (%(default)s)")
    parser.add_argument("--cells", action="store_true", help="a config for every cell of the coverage table as well")
    parser.add_argument("--outside", type=int, default=500, help="configs drawn from just outside (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, help="seed of the draws (%(default)s)")
    parser.add_argument("--jobs", type=int, help="processes that compile; default: one a core")
    parser.add_argument("--arch", help="only configs for this target; --run needs the GPU's")
    parser.add_argument("--schedule", help="only configs with this schedule")
    parser.add_argument("--run", action="store_true", help="run every kernel on the GPU as well")
    arguments = parser.parse_args()

    toolchain = Toolchain.find()
    targets = tuple(name for name, arch in ARCHS.items() if toolchain.compiles_for(arch))
    if dropped := ", ".join(name for name in ARCHS if name not in targets):
        print(f"none for {dropped}: NVRTC {toolchain.versions['nvrtc']} does not support it")
    fixed: dict[str, Value | tuple[Value, ...]] = {"arch": arguments.arch or targets}
    if arguments.schedule:
        fixed["schedule"] = arguments.schedule
    generator = random.Random(arguments.seed)
    drawn = legal_configs(generator, fixed)
    configs = [next(drawn) for _ in range(arguments.legal)]
    expressive = list(islice(expressive_configs(generator, fixed), arguments.expressions))
    if arguments.cells:
        cells = list(cell_configs(generator, arguments.arch or "sm90a"))
        configs = list(dict.fromkeys(configs + cells))
        print(f"{len(cells)} cells", flush=True)
    registry = Registry()
    faults = compile_all([*configs, *expressive], arguments.jobs, registry.store)
    tried = f"{len(configs)} legal configs, and {len(expressive)} with expressions"
    print("\n".join([*faults, f"{tried}: {len(faults)} do not compile or spill"]), flush=True)
    if arguments.run:
        failed = {fault.partition(":")[0] for fault in faults}
        sound = [c for c in configs if kernel_name(c) not in failed and not has_scaled_groups(c)]
        left = len(configs) - len(failed) - len(sound)
        print(f"{left} kernels for groups of scaled blocks are not run here: tests/gpu/test_groups.py has them")
        wrong = run_all(sound, generator, registry)
        print(f"{len(sound)} kernels run: {len(wrong)} are wrong")
        print("\n".join(wrong))
        faults += wrong
    drawn_outside = outside(random.Random(arguments.seed))
    taken = [fields for _, fields in zip(range(arguments.outside), drawn_outside, strict=False) if accepted(fields)]
    print(f"{arguments.outside} illegal configs: {len(taken)} accepted")
    accepted_names = [f"{kernel_name(config_of(fields))}: accepted" for fields in taken]
    print("\n".join(accepted_names))
    faults += accepted_names
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
