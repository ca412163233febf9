"""Mistakes on the command line: each is answered by what is wrong and the way out, never by a traceback."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from tests.cli.test_cli import gemmill

SELECT = ("select", "--mnkl", "64,64,64")
PROBLEM = ("select", "--problem")
KERNEL = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x32x64_1x1_pingpong_s4_m1_k1_linear"
MISTAKES: dict[str, list[tuple[tuple[str, ...], str]]] = {
    "dtype": [
        ((*SELECT, "--a-dtype", "bf61"), "a is 'bf61', did you mean bf16"),
        ((*SELECT, "--a", "float8"), "a is 'float8'; it must be bf16, f16"),
        ((*SELECT, "--c", "bf1"), "c is 'bf1', did you mean bf16"),
        ((*SELECT, "--d-dtype", "int16"), "d is 'int16'; it must be bf16, f16"),
        ((*SELECT, "--accumulator", "f46"), "accumulator is 'f46', did you mean f64"),
        ((*PROBLEM, "64x64x64 bf61"), "'bf61', did you mean bf16. it must be a type such as bf16 or s4.bf16"),
        ((*PROBLEM, "64x64x64 bf16*fp61"), "'bf16.fp61'.* it must be a type such as bf16 or s4.bf16"),
        ((*SELECT, "--manifest", "bf16", "--a", "f64"), "no kernel supports 64x64x64 f64.*, needs A's dtype bf16"),
        (("emit", KERNEL.replace("bf16k16", "bf61k16", 1)), "A is 'bf61k16'; it must look like bf16k16"),
        (("list", "bf16", "--where", "a.dtype == 'bf61'"), "a.dtype is never 'bf61', did you mean bf16"),
    ],
    "shape": [
        (("select",), "no problem is given; pass --mnkl M,N,K.,L. or --problem TEXT"),
        (("select", "--mnkl", "64,64"), "--mnkl is '64,64'; it must be M,N,K or M,N,K,L, such as 4096,4096,4096,1"),
        (("select", "--mnkl", "64x64"), "--mnkl is '64x64'; it must be M,N,K or M,N,K,L, such as .* 4096x4096x4096"),
        (("select", "--mnkl", "64x,64,64"), "--mnkl is '64x,64,64'; it must be M,N,K"),
        (("select", "--mnkl", "64,64,-1"), "--mnkl is '64,64,-1'; it must be M,N,K or M,N,K,L, such as"),
        (("select", "--mnkl", "64,64,1.5"), "--mnkl is '64,64,1.5'; it must be M,N,K or M,N,K,L, such as"),
        (
            ("select", "--mnkl", "64,64,99999999999"),
            "has 99999999999; an extent must be at most 2,147,479,552; split",
        ),
        (
            (*PROBLEM, "64,64,64 bf16"),
            "the extents are '64,64,64'; write MxNxK or MxNxKxBATCH, for example 4096x4096x4096",
        ),
        ((*SELECT, "--groups", "4"), "groups is 4; it replaces batch only if batching is grouped, masked"),
        (("select", "--manifest", "bf16", "--mnkl", "64,63,64", "--epilogue", "d = gate * up"), "n is 63; .* even"),
        (("bench", "--kernel", KERNEL, "--mnkl", "1,2"), "--mnkl is '1,2'; it must be M,N,K or M,N,K,L, such as"),
    ],
    "scale": [
        ((*SELECT, "--a-scale", "128x1"), "a_scale is '128x1', did you mean 128x128"),
        ((*SELECT, "--a-scale", "64"), "a_scale is '64', did you mean 1x64"),
        ((*SELECT, "--b-scale", "block"), "b_scale is 'block'; it must be none, 1x128, 128x128"),
        ((*SELECT, "--b-scale", ""), "b_scale is ''; it must be none, 1x128"),
        ((*SELECT, "--b", "u4", "--b-zero"), "--b-zero needs --b-scale"),
        ((*PROBLEM, "64x64x64 e4m3 a_scael=1x128"), "unknown name in 'a_scael=1x128', did you mean a_scale"),
        ((*PROBLEM, "64x64x64 e4m3 b_scale=1X128"), "b_scale is '1X128', did you mean 1x128"),
        ((*PROBLEM, "64x64x64 e4m3 promote=3"), "promote is 3; it must be 0 or 4"),
        ((*PROBLEM, "64x64x64 e4m3 a_scale=1x128 a_scale=1x128"), "sets a_scale a second time"),
        (
            (*PROBLEM, "64x64x64 bf16 a_scale=1x128 b_scale=128x128", "--manifest", "fp8"),
            "no kernel supports 64x64x64 bf16 .*, needs A's dtype e4m3",
        ),
    ],
    "keyword": [
        (("selct", "--mnkl", "64,64,64"), "No such command 'selct'. Did you mean 'select'"),
        (("store", "lst"), "No such command 'lst'. Did you mean 'list'"),
        (("select", "--mnk", "64,64,64"), r"No such option.*--mnk\W.*--mnkl"),
        ((*SELECT, "--wy"), r"No such option.*--wy\W.*--why"),
        ((*SELECT, "--gpu", "H2000"), "'H2000' is none of NVIDIA H200"),
        ((*SELECT, "--b-major", "kn"), "'--b-major': .*'kn' is not one of 'k', 'mn'"),
        ((*SELECT, "--batching", "groupd"), "'--batching': .*'groupd' is not one of 'strided'.*'grouped'"),
        ((*SELECT, "--top", "many"), "'--top': .*valid integer"),
        ((*SELECT, "--epilogue", "d = sliu(acc)"), "unknown function 'sliu', did you mean silu"),
        ((*PROBLEM, "64x64x64 bf16 gruoped=4"), "unknown name in 'gruoped=4', did you mean grouped"),
        (("explain", "sm90a_foo"), "'sm90a_foo' is not a kernel name: .* a kernel name has 13: arch, A, B"),
    ],
    "file": [
        (
            (*SELECT, "--manifest", "none.yaml"),
            "'none.yaml' is neither a file nor a shipped manifest; shipped manifests: bf16, ",
        ),
        ((*SELECT, "--manifest", "typo.yaml"), "typo.yaml:2:1: stes: unknown field, did you mean sets"),
        ((*SELECT, "--pack", "none.pack"), "(?i)file 'none.pack' does not exist"),
        (
            (*SELECT, "--pack", "bad.pack"),
            "bad.pack is a text file; it must be a pack, from `gemmill pack`",
        ),
        ((*SELECT, "--records", "none.jsonl"), "(?i)file 'none.jsonl' does not exist"),
        ((*SELECT, "--records", "bad.jsonl"), "bad.jsonl:1:1: kernel: Input should be a valid string"),
        ((*SELECT, "--model", "none"), "(?i)dir(?:ectory)? 'none' does not exist"),
        (
            ("select", "--shapes", "none.yaml"),
            "'none.yaml' is neither a file nor a shipped suite; shipped suites: attention, ",
        ),
        (("select", "--shapes", "short.yaml"), r"short.yaml:1:10: shapes.0.: a shape must be \[m, n, k\]"),
        (("select", "--shapes", "typo.yaml"), "typo.yaml:2:1: stes: unknown key; allowed: name, defaults, shapes"),
        (
            ("model", "Qwen3-8B"),
            "'Qwen3-8B' does not exist; `hf download ORGANISATION/Qwen3-8B config.json --local-dir",
        ),
        (("select", "--shapes", "."), "no file of the folder is in a format of another tool"),
        (("validate", "typo.yaml"), "typo.yaml:2:1: stes: unknown field, did you mean sets"),
    ],
}
TABLE = [pytest.param(*row, id=f"{kind}-{i}") for kind, rows in MISTAKES.items() for i, row in enumerate(rows)]


@pytest.mark.parametrize(("arguments", "says"), TABLE)
def test_a_mistake_is_named_with_the_way_out(
    arguments: tuple[str, ...], says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.pack").write_text("no pack")
    Path("bad.jsonl").write_text('{"kernel": 1}\n')
    Path("typo.yaml").write_text("name: x\nstes: []\n")
    Path("short.yaml").write_text("shapes: [[1, 2]]\n")
    result = gemmill(*arguments)
    assert result.exit_code in (1, 2)
    assert not result.stdout or arguments[0] == "validate"
    assert re.search(says, result.output, re.DOTALL), result.output
    assert "Traceback" not in result.output


def test_there_are_ten_of_each_kind() -> None:
    assert min(map(len, MISTAKES.values())) >= 10
