"""Compiles emitted kernels with NVRTC, in process, and refuses every cubin that does not pass its checks.

NVRTC is called through cuda.bindings, because cuda.core's ``Program`` cannot report whether a precompiled header was
created or used. Neither a GPU nor a driver is needed.
"""

from __future__ import annotations

import errno
import logging
import os
import re
import threading
import time
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, Literal, NamedTuple

from gemmill.emitters import include_path
from gemmill.emitters.emit import DEFINES, SOURCE_FILE, EmittedSource
from gemmill.library.config.model import GemmConfig
from gemmill.library.errors import CompileError, GemmillError, ToolchainError
from gemmill.library.files import digest_of
from gemmill.library.version import __version__
from gemmill.runtime.compile import limits, pch
from gemmill.runtime.compile.headers import toolkit_digest
from gemmill.runtime.compile.nvrtc_log import cited_errors
from gemmill.runtime.compile.patch.sass import chain_multiply_adds
from gemmill.runtime.compile.patch.strip import stripped
from gemmill.runtime.compile.toolchain import Toolchain, damaged_wheels
from gemmill.runtime.compile.toolchain_pieces import OPTIONS, UNRECORDED_OPTIONS
from gemmill.runtime.storage.artifact import SCHEMA_VERSION, Artifact, Provenance, Resources, artifact_key
from gemmill.runtime.storage.cubin import Cubin
from gemmill.runtime.storage.store import Store
from gemmill.runtime.storage.verification import check_facts, verify

PchOutcome = Literal["created", "used", "heap exhausted", "none"]
"""State of the precompiled header. ``heap exhausted`` and ``none`` only cost time."""

_OPTIONS = (*OPTIONS, *(f"-D{macro}" for macro in DEFINES))
_SERIALISED = re.compile(r"^.*(?:Potential Performance Loss|\bC75\d\d\b|setmaxnreg).*$", re.MULTILINE)
_CATASTROPHE = re.compile(r"(?i)catastrophic error: .*|NVRTC: NVRTC_ERROR_\w+")
_FRAME = re.compile(r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads")

_lock = threading.RLock()  # NVRTC gains nothing from threads, and precompiled headers are per process
# A process forked while NVRTC compiles would find NVRTC's own locks held forever.
os.register_at_fork(before=_lock.acquire, after_in_parent=_lock.release, after_in_child=_lock.release)


@dataclass(frozen=True, slots=True)
class CompileStats:
    """Statistics of one compilation."""

    seconds: float
    """Wall time of the NVRTC call, in seconds."""
    pch: PchOutcome
    """State of the precompiled header."""
    log: str
    """Log of NVRTC and ptxas."""


class _Code(NamedTuple):
    """The cubin and PTX of a source, and statistics of the compilation."""

    cubin: bytes
    ptx: str
    stats: CompileStats


class Compiler:
    """NVRTC with one toolchain.

    Args:
        toolchain: NVRTC and headers; by default those of this process.
        store: caches the digest of the headers, which are read again otherwise.

    Raises:
        ToolchainError: NVRTC or headers are missing or conflict.
    """

    def __init__(self, toolchain: Toolchain | None = None, store: Store | None = None) -> None:
        self.toolchain = toolchain or Toolchain.find()
        self._store = store
        self.stats: CompileStats | None = None
        """Statistics of the last compilation."""

    def provenance(self, source: EmittedSource, config: GemmConfig, lineinfo: bool = False) -> Provenance:
        """Return the provenance of the cubin that a source will give."""
        return Provenance(
            source_digest=source.digest,
            headers_digest=source.headers_digest,
            toolkit_digest=self.toolkit_digest,
            options=(
                *_options(config, lineinfo),
                f"strip={_patch_digest('strip')}",
                *([f"chain={source.chain}:{_patch_digest('sass')}"] if source.chain else []),
            ),
            **{f"{piece}_version": version for piece, version in self.toolchain.versions.items()},
            schema_version=SCHEMA_VERSION,
            gemmill_version=__version__,
        )

    @cached_property
    def toolkit_digest(self) -> str:
        """SHA-256 of the CUTLASS, CCCL and CUDA headers, at the time of the first access."""
        return toolkit_digest(include_path(), self.toolchain.include_dirs, self._store)

    def key(self, source: EmittedSource, config: GemmConfig) -> str:
        """Return the key of a source's artifact in a store."""
        return artifact_key(config, source.launch, self.provenance(source, config), source.is_edited)

    def compile(self, source: EmittedSource, config: GemmConfig, lineinfo: bool = False) -> Artifact:
        """Compile one kernel. ``lineinfo`` adds source lines for profilers and disassemblers.

        Raises:
            ToolchainError: this NVRTC does not support the config's target.
            CompileError: NVRTC refused the source, registers spilled, WGMMAs were serialised, or a constant that the
                kernel exports differs from its LaunchSpec; for an edited source also where threads, parameters or
                shared memory differ. The message ends with the log.
        """
        output = self._code(source, config, lineinfo)
        cubin = _stripped_cubin(source, output)
        parsed = Cubin(cubin)
        try:
            code = parsed.code(source.entry)
        except CompileError:
            raise CompileError(
                f'{source.name}: its source does not define an extern "C" kernel {source.entry}'
            ) from None
        if source.chain:
            cubin = chain_multiply_adds(cubin, code, source.chain)
        provenance = self.provenance(source, config, lineinfo)
        resources = _resources(source, parsed, output.stats.log)
        artifact = Artifact(config, source.launch, cubin, resources, provenance, source.is_edited)
        if source.is_edited:  # tests verify emitted kernels
            try:
                verify(artifact)
            except ValueError as error:
                raise CompileError(f"{source.name}: {error}") from None
        return artifact

    def ptx(self, source: EmittedSource, config: GemmConfig, lineinfo: bool = False) -> str:
        """Return the PTX of a source without checking it; errors are those of :meth:`compile`."""
        return self._code(source, config, lineinfo).ptx

    def _code(self, source: EmittedSource, config: GemmConfig, lineinfo: bool) -> _Code:
        """Compile a source, and set :attr:`stats`."""
        self.toolchain.check_target(config.target)
        includes = [f"-I{path}" for path in (include_path(), *self.toolchain.include_dirs)]
        with _lock:
            try:
                options = [*_options(config, lineinfo), *UNRECORDED_OPTIONS, *includes]
                output = _compiled(source, config, options)
            except CompileError as error:
                raise self._explained_error(error) from None
        self.stats = output.stats
        return output

    def _explained_error(self, error: CompileError) -> GemmillError:
        """Return NVRTC's error, preceded by what is wrong with the headers, if anything."""
        if os.strerror(errno.EMFILE) in str(error):  # then nothing else can be opened either
            return CompileError(f"{limits.too_few_files()}\n{error}")
        if any(piece.via == "GEMMILL_INCLUDE" for piece in self.toolchain.pieces.values()):
            folders = ", ".join(map(str, self.toolchain.include_dirs))
            return CompileError(f"{error}\nThe headers come from GEMMILL_INCLUDE ({folders}): unset it to use others")
        culprits = [fault.says for fault in damaged_wheels()]
        return ToolchainError("\n".join([*culprits, str(error)])) if culprits else error


@cache
def _patch_digest(name: str) -> str:
    """Return the SHA-256 of the code that makes one kind of change to cubins."""
    return digest_of(Path(__file__).parent / "patch", f"{name}.py")


def _stripped_cubin(source: EmittedSource, output: _Code) -> bytes:
    """Return a cubin without variables that no code reads. Where they must stay, which is no error, the cubin is
    unchanged."""
    try:
        return stripped(output.cubin, output.ptx)
    except CompileError as error:
        logging.getLogger(__name__).info("%s: unused variables stay in its cubin: %s", source.name, error)
        return output.cubin


def _options(config: GemmConfig, lineinfo: bool) -> tuple[str, ...]:
    return (f"--gpu-architecture={config.target.nvrtc}", *_OPTIONS, *(["-lineinfo"] if lineinfo else []))


def _compiled(source: EmittedSource, config: GemmConfig, options: list[str]) -> _Code:
    """Compile with a precompiled header, or without one where that is not possible."""
    if (folder := pch.folder(config.target.nvrtc, source.text)) is not None:
        try:
            _set_heap()
            return _nvrtc(source, [*options, "-pch", f"-pch-dir={folder}"])
        except CompileError as error:
            # Memory that cannot be mapped, or a header that cannot be written.
            if (why := _CATASTROPHE.search(str(error))) is None:
                raise
            code = _nvrtc(source, options)  # raises if the precompiled header is not at fault
            pch.give_up(why[0])
            return code
    return _nvrtc(source, options)


def _set_heap() -> None:
    from cuda.bindings import nvrtc

    global _heap_is_set
    if not _heap_is_set:
        _checked(nvrtc.nvrtcSetPCHHeapSize(pch.HEAP_BYTES))
        _heap_is_set = True


def _nvrtc(source: EmittedSource, options: list[str]) -> _Code:
    from cuda.bindings import nvrtc

    program = _checked(nvrtc.nvrtcCreateProgram(source.text.encode(), SOURCE_FILE.encode(), 0, [], []))
    try:
        start = time.perf_counter()
        (status,) = nvrtc.nvrtcCompileProgram(program, len(options), [os.fsencode(option) for option in options])
        seconds = time.perf_counter() - start
        output = _output(program, nvrtc.nvrtcGetProgramLogSize, nvrtc.nvrtcGetProgramLog)
        log = output.rstrip(b"\0").decode(errors="replace")  # it names folders, which need not be UTF-8
        if status != nvrtc.nvrtcResult.NVRTC_SUCCESS:
            folders = [option.removeprefix("-I") for option in options if option.startswith("-I")]
            errors = "\n".join(cited_errors(log, SOURCE_FILE, folders)) or f"{status.name}\n{log}"
            raise CompileError(errors if source.is_edited else f"{source.name}: {errors}")
        stats = CompileStats(seconds, _pch_outcome(nvrtc.nvrtcGetPCHCreateStatus(program)[0], log), log)
        cubin = _output(program, nvrtc.nvrtcGetCUBINSize, nvrtc.nvrtcGetCUBIN)
        ptx = _output(program, nvrtc.nvrtcGetPTXSize, nvrtc.nvrtcGetPTX)
        return _Code(cubin, ptx.rstrip(b"\0").decode(), stats)
    finally:
        nvrtc.nvrtcDestroyProgram(program)


_heap_is_set = False


def _checked(result: Any) -> Any:
    """Return the value of an NVRTC call that should not fail."""
    if result[0].value != 0:
        raise CompileError(f"NVRTC: {result[0].name}")
    return result[1] if len(result) == 2 else None


def _output(program: Any, size_of: Any, get: Any) -> bytes:
    buffer = bytes(_checked(size_of(program)))
    if len(buffer) > 1:  # shorter bytes are shared by the whole interpreter and must not be overwritten
        _checked(get(program, buffer))
    return buffer


def _pch_outcome(status: Any, log: str) -> PchOutcome:
    """Return the state of the precompiled header. Only the log distinguishes a compilation that used one from one
    without."""
    if "using precompiled header file" in log:
        return "used"
    if status.name == "NVRTC_SUCCESS":
        return "created"
    return "heap exhausted" if status.name == "NVRTC_ERROR_PCH_CREATE_HEAP_EXHAUSTED" else "none"


def _resources(source: EmittedSource, cubin: Cubin, log: str) -> Resources:
    """Return the resources of a cubin, after all checks."""
    if serialised := _SERIALISED.search(log):
        raise CompileError(f"{source.name}: ptxas reports: {serialised[0].strip()}\n{log}")
    frames = [tuple(map(int, frame)) for frame in _FRAME.findall(log)]
    if not frames:
        raise CompileError(f"{source.name}: the log of ptxas has no registers and spills\n{log}")
    stack, stores, loads = (sum(column) for column in zip(*frames, strict=True))
    if stack or stores or loads:
        raise CompileError(
            f"{source.name}: {stack} bytes of stack frame, {stores} bytes of spill stores and {loads} bytes of spill "
            f"loads per thread; registers must not spill: use a smaller tile\n{log}"
        )
    check_facts(cubin, source.entry, source.constants)
    return Resources(
        registers=cubin.registers(source.entry),
        spill_stores=stores,
        spill_loads=loads,
        stack_bytes=stack,
        static_shared_bytes=cubin.static_shared_bytes(source.entry),
        dynamic_shared_bytes=source.launch.shared_bytes,
    )
