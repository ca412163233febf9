"""``gemmill layout``: what it prints and writes, and that its page shows just that."""

from __future__ import annotations

import json
import re
import shlex
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.cli.test_cli import gemmill, ok

from gemmill.cli.output import Status
from gemmill.library.layouts.atoms import COPY_NAMES, MMA_EXAMPLES
from gemmill.library.layouts.functions import FUNCTIONS

PAGE = Path(__file__).parents[2] / "docs" / "layouts.md"
LAYOUT = "(3,(2,3)):(3,(12,1))"


def test_the_page_shows_what_is_printed() -> None:
    blocks = re.findall(r"^```console\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    shown = [part for block in blocks for part in re.split(r"^\$ gemmill ", block, flags=re.MULTILINE) if part]
    assert len(shown) > 40
    for part in shown:
        line, _, expected = part.partition("\n")
        done = gemmill(*shlex.split(line))
        assert (done.stdout or done.stderr[done.stderr.index("Error:") :]).rstrip() == expected.rstrip(), line


def test_the_page_names_every_function() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert [row for row in re.findall(r"^\| `(\w+)\(", page, re.MULTILINE) if row in FUNCTIONS] == [*FUNCTIONS]
    assert all(f"| `{function.signature(name)}` | {function.says} |" in page for name, function in FUNCTIONS.items())


def test_each_form_holds_the_indices(tmp_path: Path) -> None:
    assert ok("layout", LAYOUT).splitlines()[-2].split("|")[1:-1] == [f" {6 + x:>2} " for x in (0, 12, 1, 13, 2, 14)]
    document = json.loads(ok("layout", LAYOUT, "--json"))
    assert document["tables"] == [{"title": "", "rows": [[3 * m + n for n in (0, 12, 1, 13, 2, 14)] for m in range(3)]}]
    assert (document["kind"], document["shape"], document["stride"]) == ("layout", [3, [2, 3]], [3, [12, 1]])
    for ending in ("txt", "tex", "svg", "json"):
        assert ok("layout", LAYOUT, "-o", tmp_path / f"a.{ending}") == ""
    assert (tmp_path / "a.txt").read_text() == ok("layout", LAYOUT)
    assert json.loads((tmp_path / "a.json").read_text()) == document
    assert (tmp_path / "a.tex").read_text() == ok("layout", LAYOUT, "--format", "latex")
    assert (tmp_path / "a.svg").read_text() == ok("layout", LAYOUT, "--format", "svg")
    assert ElementTree.parse(tmp_path / "a.svg").getroot().tag.endswith("svg")
    assert json.loads(ok("layout", LAYOUT, "-o", tmp_path / "b.svg", "--json")) == document, (
        "stdout is JSON all the same"
    )
    assert json.loads(ok("layout", LAYOUT, "--json", "--brief")) == {k: v for k, v in document.items() if k != "tables"}


@pytest.mark.parametrize(
    "name", [*MMA_EXAMPLES[:2], "SM80_16x8x16_F32F16F16F32_TN", *COPY_NAMES[-1:], "7", "Sw<3,4,3>"]
)
def test_whatever_has_a_value_has_its_json(name: str) -> None:
    document = json.loads(ok("layout", name, "--json"))
    assert document["text"]
    assert bool(document["tables"]) == (document["kind"] not in ("integer", "swizzle"))


def test_a_swizzle_is_also_given_in_bytes() -> None:
    atom = "Layout_K_SW128_Atom<half_t>"
    assert ok("layout", atom, "--brief").splitlines() == ["Sw<3,3,3> o 0 o (8,64):(64,1)"]
    assert "Sw<3,4,3> for 16-bit" in ok("layout", atom).splitlines()[1]
    assert json.loads(ok("layout", atom, "--json"))["swizzle_in_bytes"]["16"] == [3, 4, 3]
    assert "bytes" not in ok("layout", "(2,2):(1,2)(1,_)"), "the offset of a slice is no swizzle"
    assert "1-bit" not in ok("layout", "Sw<1,0,3>"), "it moves parts of bytes"


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("complement((4,2), 24)",), r"column 12 .*\n  complement\(\(4,2\), 24\)\n {13}\^\n.*did you mean make_layout"),
        (("(4,2):\n (1,2) x",), r"column 15 .*\n   \(1,2\) x\n {9}\^\n'x' follows"),
        (("17", "--format", "svg"), "17 has no picture"),
        (("Sw<3,4,3>", "--format", "svg"), "compose it with a layout"),
        (("make_layout((10000,1000))",), "10,000,000 cells; the limit is 32,768"),
        (("8:1", "-o", "a.png"), "a.png must end in .txt, .tex, .svg or .json"),
        (("8:1", "--brief", "--format", "svg"), "--brief omits the tables"),
        (("8:1", "--json", "--format", "latex"), "--json and --format latex conflict"),
        (("8:1", "--format", "png"), "is not one of"),
    ],
)
def test_mistakes_are_answered(arguments: tuple[str, ...], says: str, tmp_path: Path) -> None:
    done = gemmill("layout", *(str(tmp_path / each) if each.endswith(".png") else each for each in arguments))
    assert done.exit_code == Status.USAGE
    assert re.search(says, done.stderr), done.stderr
    assert not [*tmp_path.iterdir()]
