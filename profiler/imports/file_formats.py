"""Read the problems of a file in any supported format, which is recognized by the content."""

from __future__ import annotations

import errno
import gzip
import io
import itertools
import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

from gemmill.library.errors import RecordError
from gemmill.library.files import ending, read_given
from gemmill.profiler.imports import (
    bench,
    csv_tables,
    cublas_log,
    lines,
    lists,
    model_config,
    torch_log,
    torch_trace,
    tunable_op,
    vllm,
)
from gemmill.profiler.imports.collector import Collector, Imported, Note, TextFile

MAX_BYTES = 64 << 20
"""Maximum size of a file."""
MAX_UNPACKED = 256 << 20
"""Maximum size of a compressed file after decompression."""
_GZIP = b"\x1f\x8b"
_MOST_LINES = 2_000_000
_MOST_FILES = 10_000
_LOGGED = re.compile(r'\s*\[[^\[\]{}",]{0,200}\]\s*[^\s,\]]')
"""The start of a log that is not JSON: a time or a number in brackets."""
Reader = Callable[[TextFile], Imported | None]
"""Reads the problems of a file; None if a text is in another format."""


class Format(NamedTuple):
    """A format of lists of problems."""

    name: str
    """What a file in this format is."""
    sign: str
    """What gemmill recognizes it by."""
    read: Reader
    is_json: bool | None = False
    """Whether texts in this format begin like JSON; None: either."""
    suffix: str = ""
    """The ending of the name of a file in this format, if it is no text; its reader opens the file."""


FORMATS: tuple[Format, ...] = (
    Format("a log of Inductor's autotuning", "AUTOTUNE mm(...)", torch_log.read_autotune, is_json=None),
    Format("a trace of PyTorch's profiler", '"traceEvents"', torch_trace.read, is_json=True),
    Format(
        "a config of vLLM's block-scaled products",
        '"BLOCK_SIZE_M" in N=1536,K=7168,...json',
        vllm.read_blocks,
        is_json=True,
    ),
    Format(
        "a config of vLLM's fused mixture of experts",
        '"BLOCK_SIZE_M" in E=8,N=7168,...json; pass --k HIDDEN_SIZE and --top-k',
        vllm.read_experts,
        is_json=True,
    ),
    Format("a config of a model on Hugging Face", '"model_type" (--m TOKENS,...)', model_config.read, is_json=True),
    Format("an ONNX graph", ".onnx (--m TOKENS,...)", model_config.read_file, suffix=".onnx"),
    Format("a GGUF file", ".gguf (--m TOKENS,...)", model_config.read_file, suffix=".gguf"),
    Format("a JSON list", '[m, n, k], {"m": 64, ...} or "64x128x64 bf16 tn"', lists.read_json, is_json=True),
    Format("JSON Lines", "the same, one in each line", lists.read_json_lines, is_json=True),
    Format("a log of cuBLASLt or hipBLASLt", "Adesc=[type=... in a Matmul line", cublas_log.read_lt),
    Format("a log of cuBLAS", "I! cuBLAS (v", cublas_log.read_cublas),
    Format("a file of PyTorch's TunableOp", "GemmTunableOp_..., untuned or results", tunable_op.read),
    Format("a log of PyTorch's operators", "Operator: aten.mm.default", torch_log.read_operators),
    Format("a DeepBench header", "std::make_tuple(m, n, k, ...)", bench.read_header),
    Format("a table of vLLM's weight shapes", "WEIGHT_SHAPES = {...} (--m)", vllm.read_shapes),
    Format("a table of CUTLASS's profiler", "columns Operation and Provider", csv_tables.read_cutlass),
    Format("a table of hipblaslt-bench or rocblas-bench", "columns transA and transB", csv_tables.read_bench),
    Format("a table", "columns m, n and k, between commas, semicolons, tabs or spaces", csv_tables.read),
    Format("command lines of hipblaslt-bench or rocblas-bench", "hipblaslt-bench -m", bench.read_commands),
    Format("YAML of hipblaslt-bench or rocblas-bench", "rocblas_function or matrix_size", bench.read_yaml),
    Format("a YAML list", "the items of a JSON list", lists.read_yaml, is_json=None),
    Format("a list of lines", "64 128 64, 64,128,64, 64x128x64 or 64x128x64 bf16 tn", lines.read),
)
"""Every format; the first whose reader accepts a text reads it."""


@dataclass(frozen=True, slots=True)
class Given:
    """What the caller passes for formats that lack it."""

    m: Sequence[int] = ()
    """Values of M."""
    k: Sequence[int] = ()
    """Values of K."""
    top_k: int | None = None
    """Experts of each token."""


NOTHING = Given()


def read_problems(path: Path, given: Given = NOTHING) -> Imported | None:
    """The problems of a file or of a folder of files; None if they are in none of :data:`FORMATS`.

    Args:
        path: a file, a pipe, which is read to its end, or a folder.
        given: what the formats may lack.

    Raises:
        RecordError: a file cannot be read, or is damaged.
    """
    if path.is_dir():
        return _of_folder(path, given)
    if form := format_named(path):
        imported = form.read(TextFile(path, "", given.m, given.k, given.top_k))
        return imported and replace(imported, format=form.name)
    try:
        content = read_given(path, MAX_BYTES)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
        if getattr(error, "errno", None) == errno.EFBIG:
            reason = f"{reason}; compress it with gzip, or split it"
        raise RecordError(f"{path}:1: cannot read the file: {reason}") from None
    return problems_of(content, path, given)


def format_named(path: Path) -> Format | None:
    """The format that is recognized by the name of a file; None for texts."""
    return next((form for form in FORMATS if form.suffix and form.suffix == ending(path)), None)


def problems_of(content: bytes, path: Path, given: Given = NOTHING) -> Imported | None:
    """Like :func:`read_problems`, for the content of a file. The path is used in messages, and by the format that has
    extents in the name of the file."""
    if content.startswith(_GZIP):
        content = _unpacked(path, content)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return None
    start = text.lstrip()[:1]
    if not start:
        return None
    is_json = start in "[{" and not _LOGGED.match(text)
    if not is_json and text.count("\n") > _MOST_LINES:
        raise RecordError(f"{path}:1: the file has more than {_MOST_LINES:,} lines; split it")
    file = TextFile(path, text, given.m, given.k, given.top_k)
    for form in FORMATS:
        if not form.suffix and form.is_json in (None, is_json) and (imported := form.read(file)) is not None:
            return replace(imported, format=form.name)
    return None


def _of_folder(path: Path, given: Given) -> Imported | None:
    """The problems of all files in a folder. What else is in it, and files in no format, are left out."""
    into, formats = Collector(path), set[str]()
    entries = sorted(entry for entry in path.iterdir() if not entry.name.startswith("."))
    for other in itertools.filterfalse(Path.is_file, entries):
        into.note(Note("only files in a folder are read, and this is none", False, str(other)))
    files = [*filter(Path.is_file, entries)]
    if len(files) > _MOST_FILES:
        raise RecordError(f"{path}: the folder has more than {_MOST_FILES:,} files; split it")
    for file in files:
        if (imported := read_problems(file, given)) is None:
            into.note(Note("the file is in no format of another tool", False, str(file)))
        else:
            into.merge(imported)
            formats.add(imported.format)
    form = f"a folder of {len(files)} files: {', '.join(sorted(formats))}"
    return replace(into.result(), format=form) if formats else None


def _unpacked(path: Path, content: bytes) -> bytes:
    """The decompressed content of a gzip file; RecordError if it is damaged or too large."""
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(content)) as file:
            unpacked = file.read(MAX_UNPACKED + 1)
    except (OSError, EOFError, zlib.error) as error:
        raise RecordError(f"{path}:1: cannot decompress the file: {error}; compress it again") from None
    if len(unpacked) > MAX_UNPACKED:
        raise RecordError(
            f"{path}:1: decompresses to more than {MAX_UNPACKED:,} bytes; record a shorter part of the run"
        )
    return unpacked
