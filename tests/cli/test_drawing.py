"""``gemmill draw``: pages of kernels, and what they do in a browser."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
from tests.cases.browser import HARD_TO_READ, browser
from tests.cli.test_cli import gemmill, ok

from gemmill.cli.output import Status

KERNEL = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear"
PROBLEM = "4096x8192x4096 bf16 tn"


@pytest.mark.slow
def test_a_page_has_the_waves_of_its_problem(tmp_path: Path) -> None:
    assert ok("draw", KERNEL, "-o", tmp_path / "a.svg", "--problem", PROBLEM) == ""
    text = " ".join("".join(ElementTree.parse(tmp_path / "a.svg").getroot().itertext()).split())
    assert "16 x 32 cluster tiles of 256x256" in text
    assert "holds 66 clusters at a time" in text
    assert "512 units of work are 8 waves" in text
    assert ok("draw", KERNEL, "-o", tmp_path / "b.svg") == ""
    assert "waves" not in (tmp_path / "b.svg").read_text()
    assert ok("draw", KERNEL, "-o", tmp_path / "c.html", "--problem", PROBLEM, "--gpu", "H100-PCIe") == ""
    assert "holds 57 clusters" in (tmp_path / "c.html").read_text()


SIMT = "sm90_f16any2_f16any2_f32_none_f16any2_64x64x16_1x1_simt_s2_m8_k1_linear"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("include", "holds", "at_a_time"),
    [(None, "holds 4 CTAs of this kernel at a time: the limit is registers", 528), ("/nowhere", "assumed", 528)],
)
def test_ctas_of_an_sm_are_those_of_the_cubin_or_said_to_be_assumed(
    tmp_path: Path, include: str | None, holds: str, at_a_time: int
) -> None:
    page = tmp_path / "a.html"
    problem = "4096x4096x4096 f16 a_major=any b_major=any d_major=any"
    command = [sys.executable, "-m", "gemmill", "draw", SIMT, "--problem", problem, "-o", str(page)]
    environment = {**os.environ, "GEMMILL_STORE": str(tmp_path / "store")}
    environment |= {"GEMMILL_INCLUDE": include} if include else {}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert ("the kernel is not compiled" in done.stderr) == (include is not None)
    assert holds in page.read_text()
    assert f"holds {at_a_time} CTAs at a time" in page.read_text()


ROWS = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x128x64_1x1_cooperative_s6_m8{}_k1_linear"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "problem", "sizes", "says"),
    [
        (
            ROWS.format("grouped"),
            "1024x1024x1024 bf16 tn grouped=6",
            None,
            "6 groups, one after the other, of 96 tiles",
        ),
        (
            ROWS.format("grouped"),
            "300x1024x64 bf16 tn grouped=3",
            "129,0,171",
            "of 32 tiles .* group 1: 0 x 1,024, K 64",
        ),
        (
            ROWS.format("masked"),
            "256x1024x64 bf16 tn masked=3",
            "1,128,129",
            "of 32 tiles .* 32 units .* 1 wave. 75.8%",
        ),
        (
            ROWS.format("kgrouped").replace("bf16k16_bf16k16", "bf16mn16_bf16mn16"),
            "256x512x1024 bf16 nt kgrouped=2",
            "24,1000",
            "of 16 tiles .* group 1: 256 x 512, K 1,000 .* K has steps of 64; one",
        ),
    ],
)
def test_groups_are_drawn_one_after_the_other(
    tmp_path: Path, name: str, problem: str, sizes: str | None, says: str
) -> None:
    ok("draw", name, "-o", tmp_path / "a.svg", "--problem", problem, *(("--sizes", sizes) if sizes else ()))
    text = " ".join(" ".join(ElementTree.parse(tmp_path / "a.svg").getroot().itertext()).split())
    assert re.search(says, text), text[-2500:]


@pytest.mark.slow
def test_pages_of_the_same_kernel_are_the_same(tmp_path: Path) -> None:
    for name in ("a.html", "b.html"):
        ok("draw", KERNEL, "-o", tmp_path / name, "--problem", PROBLEM)
    assert (tmp_path / "a.html").read_bytes() == (tmp_path / "b.html").read_bytes()


PICTURES = {
    "kernel.svg": (KERNEL, "4096x4096x4096 bf16 tn"),
    "float32.svg": (
        "sm90a_bf16x6k16_bf16x6k16_f32p2_none_f32n16_128x256x32_2x1_cooperative_s3_m8_k1_linear",
        "4096x4096x4096 bf16x6 tn",
    ),
    "symmetric.svg": (
        "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x144x64_1x1_cooperative_s4_m8symmetric_k1_linear",
        "2048x2048x2048 bf16 tn symmetry=symmetric",
    ),
}
"""The kernels and problems of pictures of the docs."""


@pytest.mark.slow
@pytest.mark.parametrize("picture", PICTURES)
def test_the_pictures_of_the_docs_are_what_is_drawn(tmp_path: Path, picture: str) -> None:
    """After a change of pages: gemmill draw KERNEL --problem PROBLEM --gpu H200 -o FILE"""
    name, problem = PICTURES[picture]
    ok("draw", name, "-o", tmp_path / "a.svg", "--problem", problem, "--gpu", "H200")
    shown = Path(__file__).parents[2] / "docs" / "pictures" / picture
    assert (tmp_path / "a.svg").read_text() == shown.read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "says", "status"),
    [
        (("-o", "a.png"), "a.png must end in .svg or .html", Status.USAGE),
        (("-o", "a.svg", "--problem", "4096x bf16"), "write MxNxK or MxNxKxBATCH", Status.USAGE),
        (("-o", "a.svg", "--problem", "4096x4096x4096 e4m3 tn"), "does not support .* it needs", Status.WRONG),
    ],
)
def test_mistakes_are_answered(tmp_path: Path, arguments: tuple[str, ...], says: str, status: Status) -> None:
    done = gemmill("draw", KERNEL, *(tmp_path / each if each.startswith("a.") else each for each in arguments))
    assert done.exit_code == status
    assert not [*tmp_path.iterdir()]

    assert re.search(says, " ".join(done.stderr.split()))


@pytest.mark.browser
def test_the_slider_goes_through_the_raster_by_key(tmp_path: Path) -> None:
    page = tmp_path / "a.html"
    ok("draw", KERNEL, "-o", page, "--problem", PROBLEM)
    with browser(tmp_path / "profile") as seen:
        seen.open(page)
        assert seen.value("document.getElementById('said').textContent") == "512 of 512, wave 8 of 8"
        assert seen.value("document.querySelector('label').textContent").startswith("Cluster tiles of 2 tiles each")
        beside = "document.getElementById('control').nextElementSibling.querySelectorAll('svg [data-i]').length"
        assert seen.value(beside) == 512
        seen.value("document.getElementById('unit').focus()")
        for _ in range(2):
            for kind in ("keyDown", "keyUp"):
                seen.do(
                    "Input.dispatchKeyEvent", type=kind, key="ArrowLeft", code="ArrowLeft", windowsVirtualKeyCode=37
                )
        assert seen.value("document.getElementById('said').textContent") == "510 of 512, wave 8 of 8"
        assert seen.value("document.querySelectorAll('[data-i][style*=\"0.15\"]').length") == 2
        for width, dark in ((400, False), (400, True), (1200, False), (1200, True)):
            seen.show(width, dark=dark)
            assert seen.value("document.documentElement.scrollWidth") == width
            assert seen.value("document.querySelector('.shrinks').scrollWidth") < width
            assert seen.value(HARD_TO_READ) == []
            assert (
                seen.value("getComputedStyle(document.body.parentElement).backgroundColor === 'rgb(22, 24, 28)'")
                is dark
            )
            dark_ink = seen.value("getComputedStyle(document.querySelector('svg text')).fill === 'rgb(236, 236, 236)'")
            assert dark_ink is dark
        inside = "[...document.querySelectorAll('svg rect[data-i]')].every(r => r.getBoundingClientRect().width > 5)"
        assert seen.value(inside)
        overlapping = """(() => {
            const boxes = [...document.querySelectorAll('svg text')].flatMap(t => t.children.length ? [] : [t])
              .map(t => t.getBoundingClientRect()).filter(b => b.width);
            return boxes.filter((a, i) => boxes.slice(i + 1).some(b =>
              a.left < b.right - 1 && b.left < a.right - 1 && a.top < b.bottom - 3 && b.top < a.bottom - 3)).length;
        })()"""
        assert seen.value(overlapping) == 0
        assert not seen.errors
        assert [url for url in seen.fetched if not url.startswith("file:")] == []
