"""build FILE.cu: an edited page compiled, checked and packed, by its own name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.cli.test_cli import MANIFEST, SMALL, gemmill, ok

from gemmill.cli.output import Status
from gemmill.runtime.storage.pack import Pack


@pytest.fixture
def page(tmp_path: Path) -> Path:
    """The page of :data:`SMALL`, edited: tiles follow each other in another order."""
    path = tmp_path / "k.cu"
    ok("emit", SMALL, "-o", path)
    path.write_text(path.read_text().replace("Raster::M", "Raster::N"))
    return path


@pytest.mark.slow
def test_an_edited_page_is_built_and_packed_by_its_own_name(page: Path, tmp_path: Path) -> None:
    to = tmp_path / "k.pack"
    document = json.loads(ok("build", page, "-o", to, "--json"))
    assert document["schema"] == "gemmill.build/1"
    (item,) = document["items"]
    assert item["kernel"] == SMALL
    assert item["name"].startswith(f"{SMALL}+src.")
    assert Pack.open(to).names() == [item["name"]]
    assert f"{to}: 1 kernels, 0 damaged" in ok("pack", "verify", to)
    assert [kernel["name"] for kernel in json.loads(ok("pack", "inspect", to, "--json"))["kernels"]] == [item["name"]]
    assert item["name"] in ok("build", page)
    assert item["name"] in ok("build", page, "--kernel", SMALL)


def test_what_a_page_is_of_can_be_said_where_it_does_not_say_it(page: Path) -> None:
    page.write_text(page.read_text().replace(f"gemmill_{SMALL}", "ENTRY"))
    result = gemmill("build", page)
    assert result.exit_code == Status.WRONG
    assert "pass --kernel NAME" in result.stderr
    result = gemmill("build", page, "--kernel", SMALL.replace("_64x32x64_", "_64x32x63_"))
    assert result.exit_code == Status.WRONG


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("--preset", "quick"), "k.cu is one source file"),
        (("--mnkl", "64,64,64", "--problem", "64x64x64"), "pass only one"),
        (("--mnkl", "64,64"), "it must be M,N,K"),
        (("--problem", "64x64x"), "write MxNxK or MxNxKxBATCH"),
        (("-o", "k.cu"), "use another file name"),
    ],
)
def test_a_wrong_command_line_of_a_page_compiles_nothing(
    page: Path, arguments: tuple[str, ...], says: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(page.parent)
    result = gemmill("build", "k.cu", *arguments)
    assert result.exit_code == Status.USAGE
    assert says in result.stderr


def test_a_problem_that_the_kernel_does_not_serve_is_told_before_it_is_compiled(page: Path) -> None:
    result = gemmill("build", page, "--problem", "64x64x64 f16 tn")
    assert result.exit_code == Status.WRONG
    assert "it needs A's dtype bf16 (the problem has f16)" in result.stderr


def test_options_of_pages_are_refused_with_a_manifest(tmp_path: Path) -> None:
    (tmp_path / "small.yaml").write_text(MANIFEST)
    result = gemmill("build", tmp_path / "small.yaml", "-o", tmp_path / "k.pack")
    assert result.exit_code == Status.USAGE
    assert "use `gemmill pack`" in result.stderr


def test_a_page_that_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "binary.cu").write_bytes(b"// \xff")
    result = gemmill("build", tmp_path / "binary.cu")
    assert result.exit_code == Status.WRONG
    assert "byte 3 is not UTF-8" in result.stderr


@pytest.mark.slow
def test_errors_cite_the_file_and_its_line_the_first_one_first(page: Path) -> None:
    """The second error is in a header; the place is where the file instantiates it."""
    lines = page.read_text().replace("kSwizzle = 1;", "kSwizzle = nothing;").splitlines()
    use = next(i for i, line in enumerate(lines) if line.startswith("using Kernel"))
    lines.insert(use, "using Tile = gemmill::WgmmaTraits<int>;\nstatic_assert(sizeof(Tile) > 0);")
    page.write_text("\n".join(lines))
    wrong = next(i for i, line in enumerate(lines) if "nothing" in line)
    result = gemmill("build", page)
    assert result.exit_code == Status.WRONG
    first, code, *rest = result.stderr.splitlines()
    assert first == f'error: {page}:{wrong + 1}: identifier "nothing" is undefined'
    assert code.strip() == "static constexpr int kSwizzle = nothing;"
    in_header = [line for line in rest if line.startswith(f"{page}:{use + 2}: ")]
    assert in_header
    assert "(gemmill/kernel/wgmma/traits.cuh:" in in_header[0]
    assert not any(word in result.stderr for word in ("gemmill.cu", "/emitters/", "precompiled"))
    error = json.loads(gemmill("build", page, "--json").stdout)["error"]
    assert error["where"] == f"{page}:{wrong + 1}"


@pytest.mark.slow
def test_a_header_that_a_page_cannot_include_is_cited(page: Path) -> None:
    page.write_text(f"#include <gemmill/none.cuh>\n{page.read_text()}")
    result = gemmill("build", page)
    assert result.stderr.startswith(f'error: {page}:1: catastrophic error: cannot open source file "gemmill/none.cuh"')
    page.write_text(f'\n#include "mine.h"\n{page.read_text()}')
    for command in ("build", "emit"):
        assert f"error: {page}:2: '#include \"mine.h\"': an edited source can only" in gemmill(command, page).stderr
