"""What the docs say of fields and names, made from the table that names are parsed by.

``python -m gemmill.library.config.fields_page`` writes ``docs/names.md``, and the table of keys in
``docs/manifests.md``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from gemmill.library.config.field import Value
from gemmill.library.config.field_table import GROUPS, TABLE, Row
from gemmill.library.config.fields import Fields, config_of, fields_of
from gemmill.library.config.names import PARTS, kernel_name, parse_name, token_of
from gemmill.library.epilogues.parse import CAPITALS

DOCS = Path(__file__).resolve().parents[2] / "docs"
BEGIN, END = "<!-- fields: made by python -m gemmill.library.config.fields_page -->\n", "<!-- end of fields -->\n"
"""What stands around the table of keys in ``docs/manifests.md``."""
UNUSUAL = {
    "Block scales, two-level accumulation, groups": "sm90a_e4m3k16s1x128_e4m3k16s128x128_f32p4_none_bf16n16"
    "_128x128x128_1x2_pingpong_s4_m8grouped_k1_linear",
    "Split-K, C, an epilogue": "sm90a_bf16k16_bf16mn16_f32_bf16n16_bf16n16_128x256x64_2x1_cooperative_s4_n4_splitk"
    "_xdEreluPaccAbiasDbf16BnJAcQ",
}
"""Names that the page reads beside the usual one, by what is unusual."""


def usual() -> str:
    """The name of a kernel with the examples of the table of fields, without C."""
    fields = {row.name: row.example if row.absent is None else row.absent for row in TABLE.values()}
    return kernel_name(config_of(fields))


def names_page() -> str:
    """What ``docs/names.md`` must hold."""
    lines = [
        "# How a kernel's name is read",
        "",
        "Made from the table of fields by `python -m gemmill.library.config.fields_page`: names are written and",
        "parsed by that table. A name says everything that determines the kernel: each config has one, which parses",
        "back to that config. Records, packs and `gemmill explain` go by names, which are C identifiers.",
        "[Manifests](manifests.md#keys) has what each field is and can hold.",
        "",
        f"A name has {len(PARTS)} parts between underscores, each the tokens of some fields, one behind the other.",
        "In brackets: left out where the field has its default.",
        "",
        *_table(
            ("part", "tokens", "example"), ((part.name, _tokens(part.rows), f"`{part.example}`") for part in PARTS)
        ),
        "",
        *_read("A usual name", usual(), {}),
        *(line for title, name in UNUSUAL.items() for line in _read(title, name, fields_of(parse_name(usual())))),
        "## Epilogues",
        "",
        "An epilogue that is not `linear` is spelled out behind an `x`, without spaces but those between words. What",
        "is no letter or digit is a capital letter:",
        "",
        *_table(("", *(_code(character) for character in CAPITALS)), [("in names", *CAPITALS.values())]),
    ]
    return "\n".join(lines) + "\n"


def keys_table() -> str:
    """The table of a set's keys in ``docs/manifests.md``."""
    return "\n".join(_fields(("key", "holds", "default", "is"))) + "\n"


def _read(title: str, name: str, usual: Fields) -> Iterator[str]:
    """A name read token by token, but for what it has in common with the usual one."""
    yield from (f"## {title}", "", f"    {name}", "")
    values = fields_of(parse_name(name))
    rows = ((part.name, row, _token(row, values[row.name])) for part in PARTS for row in part.rows)
    yield from _table(
        ("part", "token", "says"),
        (
            (part, f"`{token}`", f"`{row.name}` is `{values[row.name]}`")
            for part, row, token in rows
            if token and usual.get(row.name) != values[row.name]
        ),
    )
    yield ""


def _token(row: Row, value: Value) -> str:
    if value == row.absent:
        return str(value) if row == GROUPS[row.group][0] else ""
    return token_of(row, value)


def _tokens(rows: Iterable[Row]) -> str:
    """The tokens of a part, with the names of fields for their values."""
    tokens = [(row, row.field.token.format(f"<{row.leaf or row.name}>")) for row in rows]
    text = "".join(f"[{token}]" if row.field.unsaid else token for row, token in tokens)
    return f"`{text}`" + (" or `none`" if any(row.absent is not None for row, _ in tokens) else "")


def _fields(heads: tuple[str, ...]) -> Iterator[str]:
    """A row for each field; fields that are alike, as those of A and B are, share one."""
    alike: dict[tuple[str, ...], list[str]] = {}
    for row in TABLE.values():
        holds = "a text" if row.is_open else ", ".join(f"`{value}`" for value in row.values) or "a number"
        default = "auto" if row.field.auto else row.default
        words = "".join(f"<br>`{word}`: {meaning}" for word, meaning in row.field.means.items())
        says = holds, "" if default is None else f"`{default}`", row.field.doc + words
        alike.setdefault(says, []).append(f"`{row.name}`")
    order = {f"`{row.name}`": place for place, row in enumerate(TABLE.values())}
    found = sorted(alike.items(), key=lambda item: order[item[1][0]])
    return _table(heads, ((", ".join(names), *says) for says, names in found))


def _table(heads: Iterable[str], rows: Iterable[tuple[str, ...]]) -> Iterator[str]:
    heads = tuple(heads)
    yield _line(heads)
    yield "|" + "---|" * len(heads)
    yield from map(_line, rows)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _code(character: str) -> str:
    return "space" if character == " " else f"`{character}`"


def manifests_page() -> str:
    """What ``docs/manifests.md`` must hold: the page as it is, with the table of keys as it should be."""
    before, rest = (DOCS / "manifests.md").read_text(encoding="utf-8").split(BEGIN)
    return f"{before}{BEGIN}\n{keys_table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    (DOCS / "names.md").write_text(names_page(), encoding="utf-8")
    (DOCS / "manifests.md").write_text(manifests_page(), encoding="utf-8")
