"""Targets and GPUs by name: what is meant by those that do not exist."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cases.manifests import ONE

from gemmill.library.arch import ARCHS, GPUS, gpu_name, serving, unknown
from gemmill.library.config.names import parse_name
from gemmill.library.errors import ConfigError, DeviceError, ManifestError
from gemmill.library.manifest.load import load_manifest

MANIFEST = f"{ONE}    arch: "
UNKNOWN = [
    ("sm_121", "sm120"),
    ("sm121a", "sm120"),
    ("sm_87", "sm86"),
    ("sm_75", "sm70"),
    ("sm_90a", "sm90a"),
    ("sm_90", "sm90"),
    ("compute_80", "sm80"),
    ("sm90b", "sm90"),
]
"""Names that no target has, and the target whose kernels run on such GPUs, or whose name is near."""


@pytest.mark.parametrize(("name", "meant"), UNKNOWN)
def test_an_unknown_target_is_answered_by_one_whose_kernels_run_there(name: str, meant: str) -> None:
    assert f"did you mean {meant}?" in unknown(name)


@pytest.mark.parametrize("name", ["sm_103", "sm_110", "sm100a", "sm60"])
def test_no_target_is_suggested_for_gpus_that_none_runs_on(name: str) -> None:
    assert "no target supports GPUs of compute capability" in unknown(name)
    assert not any(arch in unknown(name) for arch in ARCHS)


def test_manifests_filters_and_names_say_so(tmp_path: Path) -> None:
    path = tmp_path / "x.yaml"
    for text in ("sm_87", "sm90a\n    where: arch == 'sm_87'"):
        path.write_text(MANIFEST + text)
        with pytest.raises(ManifestError, match=r"'sm_87', did you mean sm86\? Its kernels run on GPUs of .*8\.7"):
            load_manifest(path)
    with pytest.raises(ConfigError, match="arch is 'sm121', did you mean sm120"):
        parse_name("sm121_bf16k16_bf16k16_f32_none_bf16n16_128x128x64_1x1_pingpong_s6_m1_k1_linear")


def test_gpus_are_served_by_their_own_targets_or_the_nearest_below() -> None:
    for arch in ARCHS.values():
        assert arch in serving(arch.capability)
        assert {own.capability for own in serving(arch.capability)} == {arch.capability}
    assert [arch.name for arch in serving((12, 1))] == ["sm120"]
    assert [arch.name for arch in serving((8, 7))] == ["sm86"]
    assert [arch.name for arch in serving((9, 1))] == ["sm90"], "sm90a's run on 9.0 alone"
    assert not serving((10, 3))


def test_gpus_are_called_by_their_whole_names() -> None:
    for name in GPUS:
        for text in (name, name.lower(), name.removeprefix("NVIDIA "), f" {name} "):
            assert gpu_name(text) == name
    for text in ("H100", "nvidia-h100", "H100 SXM", "H100-SXM5"):
        assert gpu_name(text) == "NVIDIA H100 80GB HBM3", "as people say it"
    assert gpu_name("h20", ["NVIDIA H20"]) == "NVIDIA H20"
    for text in ("", "A100", "NVIDIA H200 NVL", "80GB"):
        with pytest.raises(DeviceError, match=r"is none of NVIDIA H200, NVIDIA H100 80GB HBM3 .H100., "):
            gpu_name(text)
