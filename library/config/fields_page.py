"""Pages of docs about fields and names, generated from the table of fields.

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
from gemmill.library.legality.search import any_legal

DOCS = Path(__file__).resolve().parents[2] / "docs"
BEGIN, END = "<!-- fields: made by python -m gemmill.library.config.fields_page -->\n", "<!-- end of fields -->\n"
"""The lines before and after the table of keys in ``docs/manifests.md``."""
UNUSUAL = {
    "Block scales, two-level accumulation, groups": "sm90a_e4m3k16s1x128_e4m3k16s128x128_f32p4_none_bf16n16"
    "_128x128x128_1x2_pingpong_s4_m8grouped_k1_linear",
    "Split-K, C, an epilogue": "sm90a_bf16k16_bf16mn16_f32_bf16n16_bf16n16_128x256x64_2x1_cooperative_s4_n4_splitk"
    "_xdEreluPaccAbiasDbf16BnJAcQ",
}
"""Further names that the page explains, by heading."""


def usual() -> str:
    """The name of a kernel without C that has the example value of each field."""
    fields = {row.name: row.example if row.absent is None else row.absent for row in TABLE.values()}
    return kernel_name(config_of(fields))


def names_page() -> str:
    """The text of ``docs/names.md``."""
    lines = [
        "# How to read a kernel's name",
        "",
        "This page is for readers of kernel names: in `--why`, in records and in packs. A name contains everything",
        "that determines the kernel. Each config has exactly one name, and gemmill parses it back to that config.",
        "Names are C identifiers. [Manifests](manifests.md#keys) lists the fields and their values. The tables come",
        "from the table of fields (`python -m gemmill.library.config.fields_page`).",
        "",
        f"A name has {len(PARTS)} parts, separated by underscores. Each part is a sequence of tokens, one per field.",
        "Tokens in brackets are left out if the field has its default. The further tables list only differences",
        "from the typical name.",
        "",
        *_table(
            ("part", "tokens", "example"), ((part.name, _tokens(part.rows), f"`{part.example}`") for part in PARTS)
        ),
        "",
        *_read("A typical name", usual(), {}),
        *(line for title, name in UNUSUAL.items() for line in _read(title, name, fields_of(parse_name(usual())))),
        "## Epilogues",
        "",
        "An epilogue other than `linear` follows an `x`, without optional spaces. A capital letter replaces each",
        "character that is not a letter or digit:",
        "",
        *_table(("", *(_code(character) for character in CAPITALS)), [("in the name", *CAPITALS.values())]),
    ]
    return "\n".join(lines) + "\n"


def keys_table() -> str:
    """The table of a set's keys in ``docs/manifests.md``."""
    return "\n".join(_fields(("key", "values", "default", "meaning"))) + "\n"


def _read(title: str, name: str, typical_fields: Fields) -> Iterator[str]:
    """A table of the tokens of a name, without those that it shares with the usual one."""
    yield from (f"## {title}", "", f"    {name}", "")
    values = fields_of(parse_name(name))
    rows = []
    for part in PARTS:
        tokens = {
            row.name: token
            for row in part.rows
            if typical_fields.get(row.name) != values[row.name] and (token := _token(row, values[row.name]))
        }
        if tokens:
            fields = ", ".join(f"`{name}: {values[name]}`" for name in tokens)
            rows.append((part.name, " ".join(f"`{token}`" for token in tokens.values()), fields))
    yield from _table(("part", "tokens", "fields"), rows)
    yield ""


def _token(row: Row, value: Value) -> str:
    if value == row.absent:
        return str(value) if row == GROUPS[row.group][0] else ""
    return token_of(row, value)


def _tokens(rows: Iterable[Row]) -> str:
    """The tokens of a part, with field names in place of values."""
    tokens = [(row, row.field.token.format(f"<{row.leaf or row.name}>")) for row in rows]
    text = "".join(f"[{token}]" if row.field.unsaid else token for row, token in tokens)
    return f"`{text}`" + (" or `none`" if any(row.absent is not None for row, _ in tokens) else "")


def _fields(heads: tuple[str, ...]) -> Iterator[str]:
    """One row per field. Equal fields, such as those of A and B, share a row."""
    names_by_cells: dict[tuple[str, ...], list[str]] = {}
    for row in TABLE.values():
        values = row.values
        if row.name == "accumulator":  # rules reject most types
            values = tuple(value for value in values if any_legal({row.name: value}) is not None)
        holds = "a text" if row.is_open else ", ".join(f"`{value}`" for value in values) or "a number"
        default = "auto" if row.field.auto else row.default
        words = "".join(f" <br>`{word}`: {meaning}." for word, meaning in row.field.means.items())
        cells = holds, "required" if default is None else f"`{default}`", row.field.doc + words
        names_by_cells.setdefault(cells, []).append(f"`{row.name}`")
    order = {f"`{row.name}`": place for place, row in enumerate(TABLE.values())}
    rows = sorted(names_by_cells.items(), key=lambda item: order[item[1][0]])
    return _table(heads, ((", ".join(names), *cells) for cells, names in rows))


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
    """The text of ``docs/manifests.md``, with an up-to-date table of keys."""
    head, rest = (DOCS / "manifests.md").read_text(encoding="utf-8").split(BEGIN)
    return f"{head}{BEGIN}\n{keys_table()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    (DOCS / "names.md").write_text(names_page(), encoding="utf-8")
    (DOCS / "manifests.md").write_text(manifests_page(), encoding="utf-8")
