"""vLLM's tables of weight shapes, and the configs of its fused mixture of experts.

Both lack an extent that the caller must pass: weight shapes have no M (the number of tokens), and configs have no K
(the hidden size of the model).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Sequence

from gemmill.library.input import strict_json
from gemmill.profiler.imports.blas import dtype
from gemmill.profiler.imports.collector import MAX_JSON, Collector, Fields, Imported, LeftOut, TextFile, shown, whole

_ASSIGNED = re.compile(r"^\w{0,60}?SHAPES\w{0,60}[ \t]*(?::[^={}\n]{0,200})?=[ \t]*(?=\{)", re.MULTILINE)
_TOKEN = re.compile(r"""\s+|\#[^\n]*|"[^"\\\n]*"|'[^'\\\n]*'|[0-9][0-9_]{0,18}(?![\w.])|[\[{(]|[\]})]|[,:]|//""")
_QUOTIENT = re.compile(r"\b(\d{1,18})[ \t]*//[ \t]*(\d{1,18})\b")
"""A quotient in a table, such as ``14336 // 2`` for part of a weight."""
_MOST_CHARACTERS = 1 << 20
_DEEPEST = 10
_OF_EXPERTS = re.compile(r"E=(\d{1,9}),N=(\d{1,9})(?:,|\.json)")
_OF_GROUPS = "assuming K x N weights for each expert, and tokens spread evenly over the experts"
_MAX_GIVEN = 10_000


def read_shapes(file: TextFile) -> Imported | None:
    """Problems of each weight with each M; lists of four numbers are weights of experts. None for other texts."""
    text = file.text
    if _ASSIGNED.search(text) is None:
        return None
    into = Collector(file.path, "a table of vLLM's weight shapes")
    line, last, end = 1, 0, 0
    for match in _ASSIGNED.finditer(text):
        if match.start() < end:
            continue
        line, last = line + text.count("\n", last, match.start()), match.start()
        end = _end(into, text, match.end())
        for place, name, weight in _weights(into, text[match.end() : end], line):
            with into.at(place):
                for fields in _of_weight(name, weight, file.m):
                    into.add(fields, place)
                    if "groups" in fields:
                        into.note(place, _OF_GROUPS)
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
        raise LeftOut("missing M: the table has only K and N of the weights; use gemmill shapes with --m")
    *experts, k, n = numbers
    for rows in m[:_MAX_GIVEN]:
        if experts:
            yield {"m": rows * experts[1], "n": n, "k": k, "batching": "grouped", "groups": experts[0]}
        else:
            yield {"m": rows, "n": n, "k": k}


def read_experts(file: TextFile) -> Imported | None:
    """The two products of the experts for each number of tokens: the gated one to 2 N, and the one from N to K.

    None for other texts. A config is a mapping from numbers of tokens to tiles."""
    path, k = file.path, file.k
    if '"BLOCK_SIZE_M"' not in file.text or len(file.text) > MAX_JSON:
        return None
    into = Collector(path, "a config of vLLM's fused mixture of experts")
    try:
        value = strict_json.parse(file.text.encode())
    except ValueError as error:
        raise into.error(getattr(error, "lineno", 1), f"invalid JSON: {error}") from None
    tiles = [config for key, config in value.items() if key.isdigit()] if isinstance(value, dict) else []
    if not tiles or not all(isinstance(config, dict) and "BLOCK_SIZE_M" in config for config in tiles):
        return None
    with into.at(1):
        if (match := _OF_EXPERTS.match(path.name)) is None:
            raise LeftOut("E and N are read from the name of the file, which must be E=8,N=7168,device_name=...")
        if not k:
            raise LeftOut("missing K: the config has E, N and tokens only; use gemmill shapes with --k")
        experts, n = int(match[1]), int(match[2])
        common = {"batching": "grouped", "groups": experts, "a_major": "k", "b_major": "k", **_formats(path.name)}
        into.note(1, "top-k is not in the file; assuming that each token uses one expert")
        into.note(1, "the sizes of groups are not in the file; assuming equal sizes")
        for tokens in (key for key in value if key.isdigit()):
            for hidden in k[:_MAX_GIVEN]:
                with into.at(1):
                    if (rows := whole(tokens)) is None:
                        raise LeftOut(f"the number of tokens {shown(tokens)} is too large")
                    into.add({"m": rows, "n": 2 * n, "k": hidden, **common}, 1)
                    into.add({"m": rows, "n": hidden, "k": n, **common}, 1)
    return into.result()


def _formats(name: str) -> dict[str, int | str]:
    """Dtypes and block scales in the name of a file; LeftOut if they are not supported."""
    match = re.search(r"dtype=(\w+?)_w(\d+)a(\d+)", name)
    fields: dict[str, int | str] = {}
    if match and match[2] == match[3]:
        fields = {"a": dtype(match[1], "A"), "b": dtype(match[1], "B")}
    elif match:
        fields = {"b": dtype(match[1], "B")}
    if block := re.search(r"block_shape=\[(\d+), ?(\d+)\]", name):
        if block.groups() != ("128", "128"):
            raise LeftOut(f"blocks of {block[1]}x{block[2]} are not supported; only 128x128 are")
        fields |= {"a_scale": "1x128", "b_scale": "128x128"}
    return fields
