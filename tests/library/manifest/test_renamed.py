"""Former names of fields are still read, with a warning that says the present one and where the other stands."""

import warnings
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml
from tests.cases.manifests import shipped_set
from tests.library.manifest.test_manifest import GOOD
from tests.library.manifest.test_shipped import VALIDATOR

from gemmill.library.config.fields import made_of
from gemmill.library.config.model import GemmConfig
from gemmill.library.errors import ManifestError, RenamedWarning
from gemmill.library.manifest.load import load_manifest

PRESENT = (
    GOOD.replace("sets:", "  scheduler: {swizzle_size: 8}\nsets:")
    + """    scheduler: {raster: m, swizzle_size: [2, 4]}
presets: {some: {match: [{scheduler: {swizzle_size: 2}}], where: scheduler.swizzle_size < 9}}
"""
)
FORMER = PRESENT.replace("swizzle_size", "swizzle")


def write(folder: Path, text: str) -> Path:
    path = folder / "x.yaml"
    path.write_text(text)
    return path


def test_former_keys_mean_what_the_present_ones_mean(tmp_path: Path) -> None:
    present = load_manifest(write(tmp_path, PRESENT))
    with pytest.warns(RenamedWarning) as warned:
        former = load_manifest(write(tmp_path, FORMER))
    assert [*former.expand()] == [*present.expand()]
    assert [*former.expand("some")] == [*present.expand("some")]
    line = 1 + FORMER[: FORMER.index("swizzle")].count("\n")
    now, still = "is now called scheduler.swizzle_size", "the former name is still accepted"
    says = [str(warning.message) for warning in warned]
    assert says == [
        f"{tmp_path / 'x.yaml'}:{line}:15: scheduler.swizzle {now} (and in 2 other places); {still}",
        f"scheduler.swizzle in 'scheduler.swizzle < 9' {now}; {still}",
    ]


def test_present_keys_warn_of_nothing(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        load_manifest(write(tmp_path, PRESENT))


def test_faults_of_a_former_key_are_where_it_stands(tmp_path: Path) -> None:
    path = write(tmp_path, FORMER.replace("[2, 4]", "[2, deep]"))
    with pytest.warns(RenamedWarning), pytest.raises(ManifestError) as refused:
        load_manifest(path)
    line = 1 + FORMER[: FORMER.index("raster")].count("\n")
    assert f"{path}:{line}:41: sets[0].scheduler.swizzle_size[1]: is 'deep'; it must be an integer" in str(
        refused.value
    )


def test_a_field_has_one_name_at_a_time(tmp_path: Path) -> None:
    path = write(tmp_path, PRESENT.replace("swizzle_size: 8", "swizzle: 4, swizzle_size: 8"))
    says = "defaults.scheduler.swizzle: is the former name of swizzle_size, which is also set here; remove it"
    with pytest.warns(RenamedWarning), pytest.raises(ManifestError, match=says):
        load_manifest(path)


def test_editors_accept_former_keys() -> None:
    VALIDATOR.validate(yaml.safe_load(FORMER))


def test_configs_that_were_stored_under_former_names_are_read() -> None:
    config = next(shipped_set("bf16").expand())
    stored = asdict(config)
    stored["scheduler"]["swizzle"] = stored["scheduler"].pop("swizzle_size")
    assert GemmConfig(**made_of(stored)) == config


@pytest.mark.parametrize("former", ["{decomposition: split, splits: [2, 4]}", "{decomposition: anysplit}"])
def test_former_words_mean_the_kernels_that_replaced_theirs(tmp_path: Path, former: str) -> None:
    def declared(scheduler: str) -> list[GemmConfig]:
        return [*load_manifest(write(tmp_path, GOOD + f"    scheduler: {scheduler}\n")).expand()]

    with pytest.warns(RenamedWarning, match=r"x.yaml:\d+:\d+: scheduler.decomposition \w+ is replaced by splitk"):
        assert declared(former) == declared("{decomposition: splitk}")
