"""``gemmill oracle``: the digest of D, operands in files, and what it refuses."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from tests.cli.test_cli import gemmill, ok

SPLIT_K = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x128x64_1x1_cooperative_s6_m8_splitk_linear"
SIZE = ("--mnkl", "8,12,640")
DIGEST = "fbf83852cd35bb702a58c1452f7771e3ef93f535dd1a8268cefc7c588e26aa80"
"""Of D for bf16 and seed 0; tests/gpu/test_oracle.py compares it with that of a GPU."""


def digest(*arguments: str | Path) -> str:
    return str(json.loads(ok("oracle", *SIZE, *arguments, "--json"))["sha256"])


def test_the_digest_is_that_of_d_and_the_same_everywhere(tmp_path: Path) -> None:
    ok("oracle", *SIZE, "-o", tmp_path / "d.npy")
    d = np.load(tmp_path / "d.npy")
    assert (d.shape, d.dtype) == ((8, 12), np.uint16)
    shown = digest()
    assert shown == hashlib.sha256(d.tobytes()).hexdigest()
    assert shown == DIGEST
    assert digest("--seed", "1") != shown


def test_operands_are_read_back_from_the_file_that_was_written(tmp_path: Path) -> None:
    options = ("--a-dtype", "e4m3", "--b-dtype", "e5m2", "--c-dtype", "bf16", "--alpha", "0.3", "--beta", "-2")
    ok("oracle", *SIZE, *options, "-o", tmp_path / "all.npz")
    with np.load(tmp_path / "all.npz") as file:
        assert sorted(file) == ["a", "b", "c", "d"]
        d = file["d"]
    shown = digest(*options, "--operands", tmp_path / "all.npz")
    assert shown == hashlib.sha256(d.tobytes()).hexdigest()
    assert shown != digest(*options, "--seed", "1")
    refused = gemmill("oracle", "--mnkl", "8,12,320", *options, "--operands", tmp_path / "all.npz")
    assert refused.exit_code == 2
    assert "a in" in refused.stderr
    assert "is (8, 640); the problem needs (8, 320)" in refused.stderr


@pytest.mark.parametrize("content", [b"", b"text", b"PK\3\4cut", b"damaged"])
def test_a_file_that_is_not_whole_is_refused(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "operands.npz"
    if content == b"damaged":
        ok("oracle", *SIZE, "-o", path)
        content = path.read_bytes()
        content = content[:2000] + b"damaged" + content[2007:]
    path.write_bytes(content)
    refused = gemmill("oracle", *SIZE, "--operands", path)
    assert refused.exit_code == 2
    assert "must be an .npz file with a, b:" in " ".join(refused.stderr.split())


def test_operands_of_the_other_byte_order_have_the_same_values(tmp_path: Path) -> None:
    ok("oracle", *SIZE, "-o", tmp_path / "all.npz")
    with np.load(tmp_path / "all.npz") as file:
        swapped = {name: x.astype(x.dtype.newbyteorder(">")) for name, x in file.items()}
    np.savez(tmp_path / "swapped.npz", **swapped)
    assert digest("--operands", tmp_path / "swapped.npz") == DIGEST


def test_an_epilogue_takes_operands_by_name_from_a_file(tmp_path: Path) -> None:
    options = ("--epilogue", "d = relu(up) * s[m] + gate + bias.bf16[n]", "--d-dtype", "f32")
    ok("oracle", *SIZE, *options, "-o", tmp_path / "all.npz")
    with np.load(tmp_path / "all.npz") as file:
        arrays = dict(file)
    assert {name: x.shape for name, x in arrays.items() if name not in "ab"} == {"s": (8,), "bias": (6,), "d": (8, 6)}
    shown = digest(*options, "--operands", tmp_path / "all.npz")
    assert shown == hashlib.sha256(arrays["d"].tobytes()).hexdigest()
    arrays["bias"] = arrays["bias"][::-1]
    np.savez(tmp_path / "other.npz", **arrays)
    assert shown != digest(*options, "--operands", tmp_path / "other.npz")


def test_the_arithmetic_is_that_of_a_kernel_or_of_bits() -> None:
    wide = ("--d-dtype", "f32")
    whole, sliced = digest(*wide), digest(*wide, "--kernel", SPLIT_K, "--slices", "4")
    assert digest(*wide, "--bits", "k16") == digest(*wide, "--bits", "cublas") == whole
    assert digest(*wide, "--bits", "k16/4") == sliced != whole
    assert "4 slices of whole 128s" in ok("oracle", *SIZE, "--bits", "k16/4")


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--kernel", SPLIT_K), "k16/S, where S is the launch's number; pass --slices S"),
        (("--slices", "2"), "--slices needs a split-K kernel"),
        (("--bits", "k16", "--kernel", SPLIT_K), "both --bits and --kernel"),
        (("--bits", "any"), "names no arithmetic"),
        (("--bits", "fast"), "bits is 'fast'"),
        (("--bits", "k8"), "bf16 by bf16 in k8, which multiplies tf32, f32"),
        (("--epilogue", "d = gelu(acc) + 1"), "does not support gelu in an epilogue: kernels approximate it"),
        (("--epilogue", "d = acc; top = max(acc)"), "does not support outputs other than D, such as top"),
        (("--epilogue", "d = acc * s.ue8m0[m]"), "does not support operands of the epilogue in ue8m0"),
        (("--accumulator", "f16", "--a-dtype", "f16"), "k16f16: how it adds the products of a step was not measured"),
        (("--block-scaled", "--a-dtype", "e4m3"), "does not support scales of A or B"),
        (("--b-dtype", "s8"), "s8"),
        (("--a-dtype", "s8", "--d-dtype", "s32", "--alpha", "nan"), "alpha is nan"),
        (("--operands", "absent.npz"), "No such file"),
        (("-o", "d.txt"), "must end in .npy or .npz"),
    ],
)
def test_what_it_cannot_compute_is_refused(options: tuple[str, ...], says: str) -> None:
    result = gemmill("oracle", *SIZE, *options)
    assert result.exit_code != 0
    assert says in " ".join(result.stderr.split())
    assert not result.stdout
