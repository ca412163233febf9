"""vLLM's tables of weight shapes, and the configs of its fused mixture of experts.

Neither has all of a problem: weights have no M, which is how many tokens come at once, and configs no K, the hidden
size of the model. The caller gives those.
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
"""What tables have for a part of a weight, as in ``14336 // 2``."""
_MOST_CHARACTERS = 1 << 20
_DEEPEST = 10
_OF_EXPERTS = re.compile(r"E=(\d{1,9}),N=(\d{1,9})(?:,|\.json)")
_OF_GROUPS = "weights of experts are taken as listed, K x N each, and tokens as spread evenly over them"
_MAX_GIVEN = 10_000


def read_shapes(file: TextFile) -> Imported | None:
    """Problems of each weight with each M; lists of four are weights of experts. None where a text assigns no
    such table."""
    text = file.text
    if _ASSIGNED.search(text) is None:
        return None
    into = Collector(file.path, "a table of vLLM's weight shapes")
    line, last, end = 1, 0, 0
    for found in _ASSIGNED.finditer(text):
        if found.start() < end:
            continue
        line, last = line + text.count("\n", last, found.start()), found.start()
        end = _end(into, text, found.end())
        for place, name, weight in _weights(into, text[found.end() : end], line):
            with into.at(place):
                for fields in _of_weight(name, weight, file.m):
                    into.add(fields, place)
                    if "groups" in fields:
                        into.note(place, _OF_GROUPS)
    return into.result()


def _end(into: Collector, text: str, start: int) -> int:
    """Where the literal that starts here ends; an error if it is more than one, or too large."""
    depth, place = 0, start
    while found := _TOKEN.match(text, place):
        place = found.end()
        depth += (found[0] in ("[", "{", "(")) - (found[0] in ("]", "}", ")"))
        if depth == 0:
            return place
        if depth > _DEEPEST or place - start > _MOST_CHARACTERS:
            break
    line = text.count("\n", 0, place) + 1
    raise into.error(line, "the table is not closed, too large, or has more than names, lists and numbers")


def _weights(into: Collector, literal: str, line: int) -> Iterator[tuple[int, object, object]]:
    """Line, model and weight of what a literal lists, which is evaluated, not run."""
    try:
        plain = _QUOTIENT.sub(lambda found: str(int(found[1]) // int(found[2])), literal)
        table = ast.parse(plain, mode="eval").body
        if not isinstance(table, ast.Dict):
            raise ValueError("no dict")
        for key, value in zip(table.keys, table.values, strict=True):
            for item in value.elts if isinstance(value, ast.List | ast.Tuple) else [value]:
                yield line + item.lineno - 1, ast.literal_eval(key) if key else None, ast.literal_eval(item)
    except (ValueError, TypeError, ArithmeticError, SyntaxError, MemoryError, RecursionError):
        raise into.error(line, "the table is no dict of names, lists and numbers; write it as one") from None


def _of_weight(name: object, weight: object, m: Sequence[int]) -> Iterator[Fields]:
    numbers = (
        weight[0] if isinstance(weight, list | tuple) and weight and isinstance(weight[0], list | tuple) else weight
    )
    if not isinstance(numbers, list | tuple) or any(whole(number) is None for number in numbers):
        raise LeftOut(f"{shown(name)}: {shown(weight)} is no weight; one is ([K, N], dimension)")
    if len(numbers) not in (2, 4):
        raise LeftOut(f"{shown(name)}: a list of {len(numbers)}; a weight is [K, N] or [experts, top-k, K, N]")
    if not m:
        raise LeftOut("the table has weights, [K, N]; M, the tokens, is for you to say")
    *experts, k, n = numbers
    for rows in m[:_MAX_GIVEN]:
        if experts:
            yield {"m": rows * experts[1], "n": n, "k": k, "batching": "grouped", "groups": experts[0]}
        else:
            yield {"m": rows, "n": n, "k": k}


def read_experts(file: TextFile) -> Imported | None:
    """The two products of the experts for each number of tokens: up to 2 N, with the gate, and down from N to K.

    None for what is no config: by tokens, what tiles to take."""
    path, k = file.path, file.k
    if '"BLOCK_SIZE_M"' not in file.text or len(file.text) > MAX_JSON:
        return None
    into = Collector(path, "a config of vLLM's fused mixture of experts")
    try:
        value = strict_json.parse(file.text.encode())
    except ValueError as error:
        raise into.error(getattr(error, "lineno", 1), f"no JSON: {error}") from None
    tiles = [config for key, config in value.items() if key.isdigit()] if isinstance(value, dict) else []
    if not tiles or not all(isinstance(config, dict) and "BLOCK_SIZE_M" in config for config in tiles):
        return None
    with into.at(1):
        if (found := _OF_EXPERTS.match(path.name)) is None:
            raise LeftOut("E and N stand in the file's name alone, as in E=8,N=7168,device_name=...; it has another")
        if not k:
            raise LeftOut("the config has E, N and tokens; K, the hidden size, is for you to say")
        experts, n = int(found[1]), int(found[2])
        common = {"batching": "grouped", "groups": experts, "a_major": "k", "b_major": "k", **_formats(path.name)}
        into.note(1, "rows are taken to be the tokens, each sent to one expert: top-k is not in the file")
        into.note(1, "the sizes of groups are not in the file; they count as equal")
        for tokens in (key for key in value if key.isdigit()):
            for hidden in k[:_MAX_GIVEN]:
                with into.at(1):
                    if (rows := whole(tokens)) is None:
                        raise LeftOut(f"{shown(tokens)} tokens")
                    into.add({"m": rows, "n": 2 * n, "k": hidden, **common}, 1)
                    into.add({"m": rows, "n": hidden, "k": n, **common}, 1)
    return into.result()


def _formats(name: str) -> dict[str, int | str]:
    """Dtypes and block scales that a file's name says; LeftOut where they are none of those here."""
    found = re.search(r"dtype=(\w+?)_w(\d+)a(\d+)", name)
    fields: dict[str, int | str] = {}
    if found and found[2] == found[3]:
        fields = {"a": dtype(found[1], "A"), "b": dtype(found[1], "B")}
    elif found:
        fields = {"b": dtype(found[1], "B")}
    if block := re.search(r"block_shape=\[(\d+), ?(\d+)\]", name):
        if block.groups() != ("128", "128"):
            raise LeftOut(f"blocks of {block[1]}x{block[2]}; those here are 128x128")
        fields |= {"a_scale": "1x128", "b_scale": "128x128"}
    return fields
