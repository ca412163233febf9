"""layout: evaluate an expression of CuTe's layout algebra."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from gemmill.cli import output
from gemmill.cli.app import app
from gemmill.cli.options import output_file
from gemmill.cli.output import UsageError
from gemmill.library.drawing.cells import Grid, as_text
from gemmill.library.drawing.latex import as_latex
from gemmill.library.drawing.svg import as_svg
from gemmill.library.errors import LayoutError
from gemmill.library.files import ending, publish
from gemmill.library.layouts import picture
from gemmill.library.layouts.evaluate import evaluate
from gemmill.library.layouts.layout import Composed, Layout
from gemmill.library.layouts.values import Value
from gemmill.library.wording import one_of

Form = Literal["text", "latex", "svg", "json"]

_ENDINGS: dict[str, Form] = {".txt": "text", ".tex": "latex", ".svg": "svg", ".json": "json"}


@app.command()
def layout(
    text: Annotated[str, typer.Argument(metavar="TEXT", help="Expression, in quotes: '(4,(2,2)):(1,(4,8))'.")],
    form: Annotated[
        Form | None,
        typer.Option("--format", help="Output format. Default: that of the ending of FILE, else text."),
    ] = None,
    to: Annotated[
        Path | None,
        output_file("Write the output to this .txt, .tex, .svg or .json file."),
    ] = None,
    brief: Annotated[
        bool, typer.Option("--brief", help="Print only the value, as text or JSON, without tables.")
    ] = False,
) -> None:
    """Evaluate an expression of CuTe's layout algebra.

    A layout is written as SHAPE:STRIDE, as CuTe prints it. `A o B` composes two layouts. L(3) and L(1,2) evaluate a
    layout at a coordinate, and L(_,2) is a slice. Functions and atoms have the same names as in CUTLASS, and
    docs/layouts.md lists them. A layout prints as a table of indices, as print_layout does. An MMA or copy atom prints
    as tables of the threads (T) and the values (V) that they hold.

    \b
    Examples:
      gemmill layout '(8,(2,2)):(2,(1,16))'
      gemmill layout 'get_hier_coord((3,(2,3)):(3,(12,1)), 17)'
      gemmill layout 'zipped_divide((8,8):(8,1), (4,2))' --brief
      gemmill layout 'tile_to_shape(Layout_K_SW128_Atom<half_t>, (8,64))' -o shared.svg
      gemmill layout 'make_tiled_mma(SM80_16x8x16_F32F16F16F32_TN, (2,2))' --format latex
    """
    printed, written = _forms(form, to, brief)
    try:
        value = evaluate(text)
        # Raises for values without a picture before anything is printed or written.
        shown = {which: _shown(value, which, brief) for which in (printed, written) if which}
    except LayoutError as error:
        raise UsageError(_pointed(text, error)) from None
    if to is not None and written:
        publish(to, [shown[written].encode()])
    if printed == "json":
        output.print_json("layout", _facts(value, brief))
    elif printed:
        typer.echo(shown[printed], nl=False)


def _forms(form: Form | None, to: Path | None, brief: bool) -> tuple[Form | None, Form | None]:
    """The format to print, and the format to write to a file; None for neither."""
    is_json = output.is_json()
    if to is None:
        if is_json and form not in (None, "json"):
            raise UsageError(
                f"--json and --format {form} conflict; write {form} to a file with -o FILE, or omit one of them"
            )
        forms: tuple[Form | None, Form | None] = ("json" if is_json else form or "text", None)
    else:
        named = _ENDINGS.get(ending(to))
        if form is None and named is None:
            raise UsageError(f"the file name {to} must end in {one_of([*_ENDINGS])}; or pass --format")
        forms = ("json" if is_json else None, form or named)
    for which in forms:
        if brief and which in ("svg", "latex"):
            raise UsageError(f"--brief omits the tables, which are all that {which} shows; omit one of them")
    return forms


def _shown(value: Value, form: Form, brief: bool) -> str:
    """A value in a format."""
    if form == "svg":
        return as_svg(picture.picture(value))
    if form == "latex":
        return as_latex(picture.picture(value))
    if form == "json":
        return output.as_json("layout", _facts(value, brief)) + "\n"
    note = "" if brief else picture.swizzle_note(value)
    lines = [picture.title(value), *filter(None, [note])]
    for grid in _grids(value, brief):
        lines += [*([grid.title] if grid.title else []), as_text(grid)]
    return "\n".join(lines) + "\n"


def _facts(value: Value, brief: bool) -> dict[str, Any]:
    number = int if isinstance(value, Layout | Composed) else str
    tables = [
        {"title": grid.title, "rows": [[*map(number, row)] for row in grid.cells]} for grid in _grids(value, brief)
    ]
    return {**picture.facts(value), **({} if brief else {"tables": tables})}


def _grids(value: Value, brief: bool) -> list[Grid]:
    return picture.grids(value) if picture.has_picture(value) and not brief else []


def _pointed(text: str, error: LayoutError) -> str:
    """An error message with the wrong line of a text and a mark below the wrong column."""
    column = error.column or 0
    start = text.rfind("\n", 0, column) + 1
    line = text[start:].partition("\n")[0]
    return f"column {column + 1} of the layout\n  {line}\n  {' ' * (column - start)}^\n{error}"
