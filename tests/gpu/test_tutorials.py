"""README, tutorials and pages of the docs do what they show, from start to end."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cases.pages import PAGES, blocks, missing, missing_output, name, run_page

from gemmill.library.errors import ToolchainError
from gemmill.runtime.compile.disassembly import disassembler

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_a_page_works_from_start_to_end(page: Path, tmp_path: Path) -> None:
    texts = [text for _, _, text in blocks(page)]
    for module in ("torch", "jax", "kernels", "onnx", "tvm_ffi"):
        if any(re.search(rf"(^import |^from |\.){module}\b", text, re.MULTILINE) for text in texts):
            pytest.importorskip(module)
    if programs := missing(page):
        pytest.skip(f"needs {programs}")
    if any("pip install ./" in text for text in texts):
        pytest.skip("it builds a package, which tests/cli/test_tutorials.py does in a clean environment")
    if any(" --sass" in line.partition("#")[0] for text in texts for line in text.splitlines()):
        try:
            disassembler()
        except ToolchainError as error:
            pytest.skip(str(error))
    assert missing_output(page, "".join(run_page(page, tmp_path, gpu=True)), gpu=True) == []
