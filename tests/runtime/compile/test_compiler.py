"""The compiler with real NVRTC, and the pool with real processes that really die."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from zlib import crc32

import pytest
from tests.runtime.compile.processes import processes_of, python

from gemmill.emitters.emit import EmittedSource, emit
from gemmill.library.config.model import GemmConfig
from gemmill.library.config.names import kernel_name
from gemmill.library.errors import CompileError
from gemmill.runtime.compile.compiler import Compiler
from gemmill.runtime.compile.pool import Outcome, compile_many
from gemmill.runtime.compile.toolchain import Toolchain
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.cubin import Cubin
from gemmill.runtime.storage.store import Store

pytestmark = pytest.mark.slow

SPEC = f"""#define spec kernel_spec
extern "C" __constant__ unsigned spec[] = {{{crc32(b"threads")}u, 128u, {crc32(b"stages")}u, 7u}};
"""
STACK = """extern "C" __global__ void kernel(float* o, int n) {
  float x[64];
  for (int i = 0; i < 64; ++i) x[i] = o[i];
  for (int i = 0; i < n; ++i) x[i * 7 % 64] += x[i * 5 % 64];
  o[0] = x[n % 64] + spec[n % 2];
}"""
SPILL = """extern "C" __global__ void __launch_bounds__(1024, 2) kernel(float* o) {
  float x[64];
#pragma unroll
  for (int i = 0; i < 64; ++i) x[i] = o[i * threadIdx.x];
  __syncthreads();
#pragma unroll
  for (int i = 0; i < 64; ++i) o[i * threadIdx.x + 1] = x[63 - i] * x[i] + spec[i % 2];
}"""
SERIALISED = """__noinline__ __device__ float twice(float x) { return x * 2.f; }
extern "C" __global__ void kernel(float* o, unsigned long long a, unsigned long long b) {
  float d0 = o[0], d1 = o[1], d2 = o[2], d3 = o[3];
  asm volatile("wgmma.fence.sync.aligned;");
  asm volatile("{ .reg .pred p; setp.ne.b32 p, 1, 0;"
               "wgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0,%1,%2,%3}, %4, %5, p, 1, 1, 0, 0; }"
               : "+f"(d0), "+f"(d1), "+f"(d2), "+f"(d3) : "l"(a), "l"(b));
  d0 = twice(d0);
  asm volatile("wgmma.commit_group.sync.aligned;");
  asm volatile("wgmma.wait_group.sync.aligned 0;");
  o[threadIdx.x] = d0 + d1 + d2 + d3 + spec[0];
}"""
PLAIN = 'extern "C" __global__ void kernel(float* o) { o[0] = spec[threadIdx.x]; }'


@pytest.fixture(scope="module")
def config(configs: tuple[GemmConfig, ...]) -> GemmConfig:
    return configs[0]


@pytest.fixture(scope="module")
def source(config: GemmConfig) -> EmittedSource:
    return emit(config)


@pytest.fixture(scope="module")
def written(source: EmittedSource) -> Callable[[str], EmittedSource]:
    """A source of one's own text, exporting ``threads`` and ``stages``."""
    constants = {"threads": 128, "stages": 7}
    return lambda text: replace(source, text=SPEC + text, entry="kernel", constants=constants)


COMPILE = """
import sys
from gemmill.emitters.emit import emit
from gemmill.library.config.names import parse_name
from gemmill.runtime.compile.compiler import Compiler
compiler = Compiler()
def compiled(name):
    config = parse_name(name)
    artifact = compiler.compile(emit(config), config)
    print(artifact.digest, compiler.stats.pch, flush=True)
"""


def test_resources_are_read_from_the_cubin(artifact: Artifact, source: EmittedSource) -> None:
    resources = artifact.resources
    assert 24 <= resources.registers <= 168, "384 threads share 65,536 registers"
    assert (resources.spill_stores, resources.spill_loads, resources.stack_bytes) == (0, 0, 0)
    assert resources.dynamic_shared_bytes == source.launch.shared_bytes
    exported = Cubin(artifact.cubin).facts(f"{source.entry}_spec")
    assert exported == {crc32(name.encode()): value for name, value in source.constants.items()}


def test_provenance_names_no_place(artifact: Artifact) -> None:
    assert not [option for option in artifact.provenance.options if "/" in option]
    assert "--gpu-architecture=sm_90a" in artifact.provenance.options
    assert b"/work" not in artifact.cubin
    assert str(Path.home()).encode() not in artifact.cubin


def test_the_second_kernel_uses_the_precompiled_header_of_the_first(
    configs: tuple[GemmConfig, ...], artifacts: tuple[Artifact, ...], tmp_path: Path
) -> None:
    names = [kernel_name(config) for config in configs]
    done = python(COMPILE + "for name in sys.argv[1:]: compiled(name)", *names, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    digests, outcomes = zip(*(line.split() for line in done.stdout.splitlines()), strict=True)
    assert outcomes == ("created", "used")
    assert digests == tuple(artifact.digest for artifact in artifacts), "another process, the same cubin"
    assert not list(tmp_path.iterdir()), "nothing stays behind"


@pytest.mark.heavy
def test_kernels_of_other_families_do_not_push_a_precompiled_header_out(
    configs: tuple[GemmConfig, ...], tmp_path: Path
) -> None:
    other = "sm90_f32any4_f32any4_f32_none_f32any4_32x32x8_1x1_simt_s2_m1_k1_linear"
    names = [kernel_name(configs[0]), other, kernel_name(configs[1]), other]
    code = COMPILE + "for name in sys.argv[1:]: compiled(name)"
    outcomes = [line.split()[1] for line in python(code, *names, TMPDIR=str(tmp_path)).stdout.splitlines()]
    assert outcomes == ["created", "created", "used", "used"]


def test_no_more_precompiled_headers_are_kept_than_are_wanted() -> None:
    code = "from gemmill.runtime.compile import pch; print(*(pch.folder(f'sm_{i}', '').is_dir() for i in range(9)))\n"
    code += (
        "print(sum(path.is_dir() for path in pch.directory().iterdir()) == pch.KEPT, pch.folder('sm_8', '').is_dir())"
    )
    assert python(code).stdout.split() == ["True"] * 11


def test_a_heap_too_small_costs_no_kernel(configs: tuple[GemmConfig, ...], artifact: Artifact, tmp_path: Path) -> None:
    shrink = "from gemmill.runtime.compile import pch; pch.HEAP_BYTES = 1 << 20\n"
    done = python(shrink + COMPILE + "compiled(sys.argv[1])", kernel_name(configs[0]), TMPDIR=str(tmp_path))
    assert done.stdout.split() == [artifact.digest, "heap", "exhausted"], done.stderr


@pytest.mark.heavy
def test_precompiled_headers_go_with_an_exception_and_after_a_kill(
    configs: tuple[GemmConfig, ...], tmp_path: Path
) -> None:
    name = kernel_name(configs[0])
    assert python(COMPILE + "compiled(sys.argv[1]); raise ValueError", name, TMPDIR=str(tmp_path)).returncode == 1
    assert not list(tmp_path.iterdir())

    kill = COMPILE + "compiled(sys.argv[1]); import os, signal; os.kill(os.getpid(), signal.SIGKILL)"
    assert python(kill, name, TMPDIR=str(tmp_path)).returncode == -signal.SIGKILL
    (left,) = tmp_path.iterdir()
    hour_ago = time.time() - 3600
    os.utime(left, (hour_ago, hour_ago))
    assert python(COMPILE + "compiled(sys.argv[1])", name, TMPDIR=str(tmp_path)).returncode == 0
    assert not list(tmp_path.iterdir()), "the next process cleans up"


def test_what_a_killed_pool_leaves_is_removed_by_its_workers_and_no_living_one_is_swept(tmp_path: Path) -> None:
    environment = {**os.environ, "TMPDIR": str(tmp_path), "GEMMILL_STORE": str(tmp_path / "store")}
    sweep = "from gemmill.runtime.compile import temporary; temporary.sweep()"
    with subprocess.Popen(
        [sys.executable, "-m", "gemmill", "build", "bf16", "--jobs", "1"],
        env=environment,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        while not (found := list(tmp_path.glob("gemmill-pool-*/gemmill-pch-*"))):
            time.sleep(0.05)
        pool = found[0].parent
        os.utime(pool, (0, 0))
        assert python(sweep, TMPDIR=str(tmp_path)).returncode == 0
        assert found[0].is_dir()
        process.kill()
    deadline = time.monotonic() + 60
    while pool.exists():  # its worker notices and removes it
        assert time.monotonic() < deadline
        time.sleep(0.05)


def test_precompiled_headers_of_a_living_process_are_left_alone(tmp_path: Path) -> None:
    hold = "from gemmill.runtime.compile import pch; print(pch.directory(), flush=True); input()"
    with subprocess.Popen(
        [sys.executable, "-c", hold],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        held = Path(process.stdout.readline().strip())
        os.utime(held, (0, 0))
        sweep = "from gemmill.runtime.compile import pch; pch.directory()"
        assert python(sweep, TMPDIR=str(tmp_path)).returncode == 0
        assert held.is_dir()
        process.communicate("\n")
    assert not held.exists()


def test_a_forked_process_shares_no_precompiled_header(tmp_path: Path) -> None:
    fork = """
import os
from gemmill.runtime.compile import pch
print(pch.directory(), flush=True)
if os.fork() == 0:
    print(pch.directory(), flush=True)
    raise SystemExit
os.wait()
assert pch.directory().is_dir()
"""
    done = python(fork, TMPDIR=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert len(set(done.stdout.split())) == 2
    assert not list(tmp_path.iterdir())


def test_a_source_that_does_not_compile_leaves_the_compiler_usable(
    written: Callable[[str], EmittedSource], config: GemmConfig
) -> None:
    compiler = Compiler()
    with pytest.raises(CompileError, match=r'(?s)gemmill\.cu:3: identifier "nonsense" is undefined'):
        compiler.compile(written('extern "C" __global__ void kernel() { nonsense; }'), config)
    assert compiler.compile(written(PLAIN), config).resources.registers > 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (STACK, "256 bytes of stack frame"),
        (SPILL, r"[1-9]\d* bytes of spill stores and [1-9]\d* bytes of spill loads"),
        (SERIALISED, r"ptxas reports: .*C75\d\d"),
    ],
)
def test_slow_code_is_an_error(
    text: str, says: str, written: Callable[[str], EmittedSource], config: GemmConfig
) -> None:
    with pytest.raises(CompileError, match=f"{kernel_name(config)}.*{says}"):
        Compiler().compile(written(text), config)


def test_a_constant_that_differs_is_named(written: Callable[[str], EmittedSource], config: GemmConfig) -> None:
    wrong = replace(written(PLAIN), constants={"threads": 128, "stages": 8})
    with pytest.raises(CompileError, match=r"the kernel computes stages = 7, but its LaunchSpec has 8"):
        Compiler().compile(wrong, config)
    short = replace(written(PLAIN), constants={"threads": 128})
    with pytest.raises(CompileError, match="exports 1 facts that are not in its LaunchSpec"):
        Compiler().compile(short, config)
    renamed = replace(written(PLAIN), constants={"threads": 128, "steps": 7})
    with pytest.raises(CompileError, match="does not export steps, which is in its LaunchSpec"):
        Compiler().compile(renamed, config)
    missing = replace(written(PLAIN), entry="other")
    with pytest.raises(CompileError, match='does not define an extern "C" kernel other'):
        Compiler().compile(missing, config)


def test_facts_may_stand_in_any_order(written: Callable[[str], EmittedSource], config: GemmConfig) -> None:
    Compiler().compile(replace(written(PLAIN), constants={"stages": 7, "threads": 128}), config)


def test_the_key_changes_with_everything_that_decides_the_cubin(source: EmittedSource, config: GemmConfig) -> None:
    compiler = Compiler()
    key = compiler.key(source, config)
    assert key == Compiler().key(emit(config), config)
    assert key != compiler.key(replace(source, text=source.text + "\n"), config)
    assert key != compiler.key(replace(source, headers_digest="0" * 64), config), "an edited header"
    launch = replace(source.launch, shared_bytes=1)
    assert key != compiler.key(replace(source, launch=launch), config)
    for piece in ("nvrtc", "cutlass", "cccl", "cudart"):
        pieces = compiler.toolchain.pieces
        others = {**pieces, piece: pieces[piece]._replace(version="0.0.1")}
        other = Compiler(replace(compiler.toolchain, pieces=others))
        assert key != other.key(source, config), piece


def test_the_key_is_that_of_the_content_of_headers_wherever_they_are(
    source: EmittedSource, config: GemmConfig, tmp_path: Path
) -> None:
    """An edit of a header of CUTLASS, CUDA or CCCL that kernels include, with the versions as they are."""
    store, found = Store(tmp_path / "store"), Toolchain.find()
    folders = tuple(tmp_path / str(index) for index in range(len(found.include_dirs)))
    for folder, copy in zip(found.include_dirs, folders, strict=True):
        shutil.copytree(folder, copy)
        for path in copy.rglob("*"):
            os.utime(path, (0, 0))

    def key() -> str:
        return Compiler(replace(found, include_dirs=folders), store).key(source, config)

    before = Compiler(found).key(source, config)
    assert key() == before, "places decide nothing"
    assert len([*store.path.glob("headers/*")]) == 1
    assert key() == before, "nor whether the digest is remembered"
    header = next(copy / "cute/config.hpp" for copy in folders if (copy / "cute/config.hpp").is_file())
    text = header.read_text()
    header.write_text(text + "// edited\n")
    assert (edited := key()) != before
    header.write_text(text)
    os.utime(header, (0, 0))
    assert key() == before
    if header.parents[1] != folders[0]:
        pytest.fail("CUTLASS is searched first")
    shadow = folders[0] / "cuda/std/cstdint"
    shadow.parent.mkdir(parents=True)
    shadow.write_text("#error another one is found first\n")
    assert key() not in (before, edited)
    (folders[0] / "cute/nobody_includes_this.hpp").write_text("")
    shutil.rmtree(folders[0] / "cuda")
    assert key() == before


def test_the_key_is_that_of_the_code_that_rewrites_machine_code(
    source: EmittedSource, config: GemmConfig, monkeypatch: pytest.MonkeyPatch
) -> None:
    chained = replace(source, chain=4)
    key = Compiler().key(chained, config)
    assert key != Compiler().key(source, config)
    for patch, rewritten in (("sass", chained), ("strip", source)):
        key = Compiler().key(rewritten, config)
        with monkeypatch.context() as context:
            context.setattr("gemmill.runtime.compile.compiler._patch_digest", lambda name, its=patch: name != its)
            assert key != Compiler().key(rewritten, config)


def test_compile_and_key_agree(artifact: Artifact, source: EmittedSource, config: GemmConfig) -> None:
    assert artifact.key == Compiler().key(source, config)


# The pool.


def illegal(config: GemmConfig) -> GemmConfig:
    return replace(config, stages=50)


def children() -> set[int]:
    """Compiling processes that this one started."""
    body = b"compile.compile_worker"
    return {pid for pid in processes_of(os.getpid()) if body in Path(f"/proc/{pid}/cmdline").read_bytes()}


def test_a_kernel_that_fails_costs_no_other(configs: tuple[GemmConfig, ...], tmp_path: Path) -> None:
    asked = [configs[0], illegal(configs[0]), configs[1]]
    seen: list[Outcome] = []
    outcomes = compile_many(asked, jobs=1, store=Store(tmp_path), on_done=seen.append)
    assert [outcome.config for outcome in outcomes] == asked
    assert sorted(outcome.name for outcome in seen) == sorted(outcome.name for outcome in outcomes)
    good, bad, other = outcomes
    assert isinstance(bad.error, CompileError)
    assert bad.name in str(bad.error)
    assert bad.artifact is None
    assert good.artifact is not None
    assert other.artifact is not None
    assert (good.pch, other.pch) == ("created", "used")
    assert not children()
    again = compile_many([configs[0], configs[1]], jobs=2, store=Store(tmp_path))
    assert [outcome.cached for outcome in again] == [True, True], "the second build compiles nothing"
    assert [outcome.artifact for outcome in again] == [good.artifact, other.artifact]


def test_nothing_to_compile() -> None:
    assert compile_many([]) == []


@pytest.mark.parametrize(
    ("number", "times", "says"),
    [
        (signal.SIGKILL, 1, ""),
        (signal.SIGKILL, 2, r"failed twice: each time its compile worker died \(SIGKILL\).*memory runs out"),
        (signal.SIGSTOP, 2, "failed twice: each time compiling took longer than 3 s and was stopped"),
    ],
)
def test_a_kernel_whose_process_dies_or_hangs_is_tried_once_more(
    number: signal.Signals, times: int, says: str, configs: tuple[GemmConfig, ...]
) -> None:
    struck: set[int] = set()
    done = threading.Event()

    def strike() -> None:
        while not done.is_set():
            with suppress(FileNotFoundError, ProcessLookupError):
                for pid in children() - struck if len(struck) < times else ():
                    os.kill(pid, number)
                    struck.add(pid)

    thread = threading.Thread(target=strike)
    thread.start()
    try:
        [outcome] = compile_many(configs[:1], jobs=1, seconds=3 if number == signal.SIGSTOP else 300)
    finally:
        done.set()
        thread.join()
    assert len(struck) == times
    assert outcome.lost == bool(says) == (outcome.artifact is None)
    if says:
        assert re.search(f"{outcome.name}: {says}", str(outcome.error))
    assert not children()


def test_a_worker_that_raises_tells_how_it_ended(configs: tuple[GemmConfig, ...]) -> None:
    # The worker's interpreter loses the one function that makes its replies.
    done = python(
        "import sys\n"
        "from gemmill.library.config.names import parse_name\n"
        "from gemmill.runtime import workers\n"
        "from gemmill.runtime.compile import pool\n"
        "call = 'importlib.import_module(module)'\n"
        "workers._BODY = workers._BODY.replace(call, f'del {call}._compiled; {call}')\n"
        "[outcome] = pool.compile_many([parse_name(sys.argv[1])], jobs=1)\n"
        "print(outcome.error)\n",
        kernel_name(configs[0]),
    )
    assert "died (exit status 1)" in done.stdout
    assert "NameError" in done.stderr, "its traceback is not lost"


@pytest.mark.parametrize("jobs", [0, -1])
def test_no_worker_at_all_is_refused(jobs: int, configs: tuple[GemmConfig, ...]) -> None:
    with pytest.raises(ValueError, match=f"jobs={jobs}.*at least 1"):
        compile_many(configs, jobs=jobs)


LEFT_ALONE = (signal.SIGTERM, signal.SIGHUP)
"""Signals that end a process which does not ask for them, before it can do anything."""
BUILD = """
import sys
from dataclasses import replace
from gemmill.library.config.names import parse_name
from gemmill.runtime.compile.pool import compile_many
from gemmill.runtime.storage.store import Store
configs = [replace(parse_name(sys.argv[2]), stages=stages) for stages in range(2, 12)]
done = compile_many(configs, jobs=2, store=Store(sys.argv[1]), on_done=lambda outcome: print(outcome.name, flush=True))
"""


@pytest.mark.parametrize(
    "signal_", [signal.SIGKILL, *(pytest.param(s, marks=pytest.mark.heavy) for s in (signal.SIGINT, *LEFT_ALONE))]
)
def test_an_interrupted_build_leaves_a_sound_store_and_no_process(
    signal_: signal.Signals, configs: tuple[GemmConfig, ...], tmp_path: Path
) -> None:
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    with subprocess.Popen(
        [sys.executable, "-c", BUILD, str(tmp_path / "store"), kernel_name(configs[0])],
        env={**os.environ, "TMPDIR": str(temporary)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        # Where tests run in the background of a shell, Ctrl-C is ignored, and children inherit that.
        preexec_fn=partial(signal.signal, signal_ if signal_ != signal.SIGKILL else signal.SIGINT, signal.SIG_DFL),
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        workers = processes_of(process.pid)
        process.send_signal(signal_)
        process.communicate()
    assert len(workers) == 2
    if signal_ == signal.SIGINT:
        assert not list(temporary.iterdir())
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in workers):  # orphans notice in a moment
        assert time.monotonic() < deadline
        time.sleep(0.1)
    assert not list(temporary.iterdir())
    store = Store(tmp_path / "store")
    assert store.list()
    assert store.verify() == {}


def test_a_script_without_a_main_guard_runs_once(configs: tuple[GemmConfig, ...], tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    # What the rules refuse starts a process that compiles, and soon fails.
    script.write_text(f'print("begin", flush=True)\n{BUILD.replace("range(2, 12)", "[50]")}')
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "store"), kernel_name(configs[0])],
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stdout.splitlines() == ["begin", kernel_name(illegal(configs[0]))]
