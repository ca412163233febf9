"""vLLM's tables of weight shapes, and its configs of fused experts and of block-scaled products.

Some lack an extent that the caller must pass: weight shapes have no M (the number of tokens), and configs of experts
have no K (the hidden size of the model).
"""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Iterator, Sequence

from gemmill.library.input import strict_json
from gemmill.profiler.imports.blas import dtype
from gemmill.profiler.imports.collector import (
    MAX_JSON,
    Collector,
    Entry,
    Fields,
    Imported,
    LeftOut,
    TextFile,
    shown,
    whole,
)

_ASSIGNED = re.compile(r"^\w{0,60}?SHAPES\w{0,60}[ \t]*(?::[^={}\n]{0,200})?=[ \t]*(?=\{)", re.MULTILINE)
_TOKEN = re.compile(r"""\s+|\#[^\n]*|"[^"\\\n]*"|'[^'\\\n]*'|[0-9][0-9_]{0,18}(?![\w.])|[\[{(]|[\]})]|[,:]|//""")
_QUOTIENT = re.compile(r"\b(\d{1,18})[ \t]*//[ \t]*(\d{1,18})\b")
"""A quotient in a table, such as ``14336 // 2`` for part of a weight."""
_MOST_CHARACTERS = 1 << 20
_DEEPEST = 10
_OF_EXPERTS = re.compile(r"E=(\d{1,9}),N=(\d{1,9})(?:,|\.json)")
_OF_BLOCKS = re.compile(r"N=(\d{1,9}),K=(\d{1,9})(?:,|\.json)")
_EQUAL = "the sizes of groups are not in the file; assuming equal sizes"
_MAX_GIVEN = 10_000


def read_shapes(file: TextFile) -> Imported | None:
    """Problems of each weight with each M; lists of four numbers are weights of experts. None for other texts."""
    text = file.text
    if _ASSIGNED.search(text) is None:
        return None
    into = Collector(file.path)
    line, last, end = 1, 0, 0
    for match in _ASSIGNED.finditer(text):
        if match.start() < end:
            continue
        line, last = line + text.count("\n", last, match.start()), match.start()
        end = _end(into, text, match.end())
        for place, name, weight in _weights(into, text[match.end() : end], line):
            with into.at(place) as entry:
                for fields in _of_weight(name, weight, file.m):
                    entry.add(fields)
                    if "groups" in fields:
                        entry.assume(_EQUAL)
                if isinstance(weight, tuple):
                    entry.assume(
                        "the whole weight is on one GPU; the table names the dimension that tensor parallelism splits"
                    )
    return into.result()


def _end(into: Collector, text: str, start: int) -> int:
    """The end of the literal that starts at ``start``; an error if it is not a plain literal, or too large."""
    depth, place = 0, start
    while match := _TOKEN.match(text, place):
        place = match.end()
        depth += (match[0] in ("[", "{", "(")) - (match[0] in ("]", "}", ")"))
        if depth == 0:
            return place
        if depth > _DEEPEST or place - start > _MOST_CHARACTERS:
            break
    line = text.count("\n", 0, place) + 1
    raise into.error(line, "the table is not closed, too large, or contains more than names, lists and numbers")


def _weights(into: Collector, literal: str, line: int) -> Iterator[tuple[int, object, object]]:
    """Line, model and weight of each entry of a literal, which is parsed but not executed."""
    try:
        plain = _QUOTIENT.sub(lambda match: str(int(match[1]) // int(match[2])), literal)
        table = ast.parse(plain, mode="eval").body
        if not isinstance(table, ast.Dict):
            raise ValueError("no dict")
        for key, value in zip(table.keys, table.values, strict=True):
            for item in value.elts if isinstance(value, ast.List | ast.Tuple) else [value]:
                yield line + item.lineno - 1, ast.literal_eval(key) if key else None, ast.literal_eval(item)
    except (ValueError, TypeError, ArithmeticError, SyntaxError, MemoryError, RecursionError):
        raise into.error(line, "the table must be a dict of names, lists and numbers") from None


def _of_weight(name: object, weight: object, m: Sequence[int]) -> Iterator[Fields]:
    numbers = (
        weight[0] if isinstance(weight, list | tuple) and weight and isinstance(weight[0], list | tuple) else weight
    )
    if not isinstance(numbers, list | tuple) or any(whole(number) is None for number in numbers):
        raise LeftOut(f"{shown(name)}: invalid weight {shown(weight)}; it must be ([K, N], dimension)")
    if len(numbers) not in (2, 4):
        raise LeftOut(f"{shown(name)}: {len(numbers)} numbers; a weight must be [K, N] or [experts, top-k, K, N]")
    if not m:
        raise LeftOut("missing M: the table has only K and N of the weights; pass --m TOKENS,... to gemmill shapes")
    *experts, k, n = numbers
    for rows in m[:_MAX_GIVEN]:
        if experts:
            yield {"m": rows * experts[1], "n": n, "k": k, "batching": "grouped", "groups": experts[0]}
        else:
            yield {"m": rows, "n": n, "k": k}


def read_experts(file: TextFile) -> Imported | None:
    """The two products of the experts for each number of tokens: the gated one to 2 N, and the one from N to K. None
    for other texts."""
    into, path = Collector(file.path), file.path
    if not (tokens := _tokens(into, file)):
        return None
    with into.at(1) as entry:
        if (match := _OF_EXPERTS.match(path.name)) is None:
            raise LeftOut("E and N are read from the name of the file, which must be E=8,N=7168,device_name=...")
        if not file.k:
            raise LeftOut("missing K: the config has E, N and tokens only; pass --k HIDDEN_SIZE to gemmill shapes")
        experts, n = int(match[1]), int(match[2])
        if (top_k := file.top_k or 1) > experts:
            raise LeftOut(f"--top-k is {top_k}; the config has only {experts} experts")
        if file.top_k is None:
            entry.assume("top-k is not in the file; assuming that each token uses one expert; --top-k sets it")
        entry.assume(_EQUAL)
        formats = {"batching": "grouped", "groups": experts, **_formats(entry, path.name)}
        for rows, hidden in itertools.product(tokens, file.k[:_MAX_GIVEN]):
            with into.at(1) as entry:
                entry.add({"m": rows * top_k, "n": 2 * n, "k": hidden, **formats})
                entry.add({"m": rows * top_k, "n": hidden, "k": n, **formats})
    return into.result()


def read_blocks(file: TextFile) -> Imported | None:
    """The block-scaled product for each number of tokens. None for other texts."""
    into, path = Collector(file.path), file.path
    if (match := _OF_BLOCKS.match(path.name)) is None or not (tokens := _tokens(into, file)):
        return None
    with into.at(1) as entry:
        formats = _formats(entry, path.name)
        for rows in tokens:
            with into.at(1) as entry:
                entry.add({"m": rows, "n": int(match[1]), "k": int(match[2]), **formats})
    return into.result()


def _tokens(into: Collector, file: TextFile) -> list[int]:
    """The numbers of tokens of a config, which is a mapping from them to tiles; empty for other texts."""
    if '"BLOCK_SIZE_M"' not in file.text or len(file.text) > MAX_JSON:
        return []
    try:
        value = strict_json.parse(file.text.encode())
    except ValueError as error:
        raise into.error(getattr(error, "lineno", 1), f"invalid JSON: {error}") from None
    if not isinstance(value, dict):
        return []
    tiles = {key: tile for key, tile in value.items() if key.isdigit()}
    if not all(isinstance(tile, dict) and "BLOCK_SIZE_M" in tile for tile in tiles.values()):
        return []
    tokens = []
    for key in tiles:
        with into.at(1):
            if (rows := whole(key)) is None:
                raise LeftOut(f"the number of tokens {shown(key)} is too large")
            tokens.append(rows)
    return tokens


def _formats(entry: Entry, name: str) -> dict[str, int | str]:
    """Majors, dtypes and block scales in the name of a file; LeftOut if they are not supported."""
    match = re.search(r"dtype=(\w+?)_w(\d+)a(\d+)", name)
    fields: dict[str, int | str] = {"a_major": "k", "b_major": "k"}
    if match:  # for example int4_w4a16, in which A is not int4
        fields["b"] = dtype(match[1], "B")
    if match and match[2] == match[3]:
        fields["a"] = fields["b"]
    if block := re.search(r"block_shape=\[(\d+), ?(\d+)\]", name):
        if block.groups() != ("128", "128"):
            raise LeftOut(f"blocks of {block[1]}x{block[2]} are not supported; only 128x128 are")
        fields |= {"a_scale": "1x128", "b_scale": "128x128"}
    elif match and match[2] == match[3]:
        entry.assume("the name of the config does not say how operands are scaled; assuming no scales")
    return fields
