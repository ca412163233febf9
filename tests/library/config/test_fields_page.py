"""What the docs say of fields and names is what the table says that names are parsed by."""

from gemmill.library.config.field_table import TABLE
from gemmill.library.config.fields_page import DOCS, UNUSUAL, manifests_page, names_page, usual
from gemmill.library.config.names import kernel_name, parse_name
from gemmill.library.legality.rules import legal


def test_the_docs_are_current() -> None:
    again = "run: python -m gemmill.library.config.fields_page"
    assert (DOCS / "names.md").read_text(encoding="utf-8") == names_page(), again
    assert (DOCS / "manifests.md").read_text(encoding="utf-8") == manifests_page(), again


def test_every_field_is_in_the_pages() -> None:
    for name, row in TABLE.items():
        assert f"`{name}`" in manifests_page()
        assert f"<{row.leaf or name}>" in names_page()


def test_the_names_that_the_page_reads_are_legal_kernels() -> None:
    for name in (usual(), *UNUSUAL.values()):
        assert kernel_name(parse_name(name)) == name
        assert legal(parse_name(name))
