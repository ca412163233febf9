"""Packs that a server builds, and models of what it was sent."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from tests.library.test_records import MEASURED
from tests.service.running import Running, serving

from gemmill.library.config.names import kernel_name
from gemmill.library.problem import GemmProblem
from gemmill.runtime.pack_choice import REGRET, Conditions, kernels_for, supported
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.pack import Pack
from gemmill.runtime.storage.trust.signatures import SigningKey, TrustedKeys, open_sealed
from gemmill.runtime.storage.trust.signed_packs import PackIndex, check_signature
from gemmill.service.fleet_models import Records
from gemmill.service.refusal import Refusal

pytestmark = pytest.mark.slow
READ, MAKE, WRITE, ADMIN = (f"secret-of-{name}" for name in ("reader", "maker", "writer", "boss"))


def test_a_pack_is_built_signed_listed_and_fetched(tmp_path: Path) -> None:
    key = SigningKey.new()
    key.save(tmp_path / "key")
    trusted = TrustedKeys((key.public,))
    problem = "64x64x64 f64 tn"
    with serving(tmp_path / "server", "--sign", str(tmp_path / "key")) as server:
        assert not PackIndex.open(server.ask("GET", "/v1/packs").body, trusted).packs
        assert server.ask("POST", "/v1/packs", {"name": "small.pack", "problems": [problem]}).status == 202
        assert server.ask("POST", "/v1/packs", {"name": "small.pack", "problems": [problem]}).code == "building"
        while (pack := server.ask("GET", "/v1/packs/small.pack")).status != 200:
            assert pack.code == "building", pack.json
            time.sleep(0.2)
        (tmp_path / "small.pack").write_bytes(pack.body)
        (tmp_path / "small.pack.sig").write_bytes(server.ask("GET", "/v1/packs/small.pack.sig").body)
        opened = Pack.open(tmp_path / "small.pack")
        check_signature(opened, trusted)
        assert not opened.verify()
        chosen = server.ask("POST", "/v1/select", {"problem": problem}).json["kernel"]
        assert opened.names() == [chosen]
        PackIndex.open(server.ask("GET", "/v1/packs").body, trusted).check(opened, trusted)
        few = [f"{m}x4544x4544 bf16 tn" for m in (8, 32)]
        body = {"name": "cublas.pack", "problems": few, "bits": "cublas"}
        assert server.ask("POST", "/v1/packs", body).status == 202
        while (pack := server.ask("GET", "/v1/packs/cublas.pack")).status != 200:
            assert pack.code == "building", pack.json
            time.sleep(0.2)
        (tmp_path / "cublas.pack").write_bytes(pack.body)
        problems = [*map(GemmProblem.from_text, few)]
        under = Conditions(Registry(packs=(), gpu="H200"), "sustained", REGRET, "cublas")
        names = map(kernel_name, kernels_for(supported(problems, under), dict.fromkeys(problems, 1), under).configs)
        assert {*Pack.open(tmp_path / "cublas.pack").names()} == {*names}, "also for the sizes between"
        choice = Registry(packs=[tmp_path / "cublas.pack"], gpu="H200").select(problems[0], bits="cublas")
        assert (str(choice.arithmetic), choice.source) == ("k16", "table")
        served = Registry(packs=[opened], gpu="H200").select(GemmProblem.from_text("1000x64x64 f64 tn"))
        assert (served.name, served.source) == (chosen, "table"), "also with other numbers of rows"
        assert server.ask("GET", "/v1/packs/small.pack", Range="bytes=0-7").body == pack.body[:8]


def test_a_pack_that_cannot_be_built_says_why(server: Running) -> None:
    assert server.ask("POST", "/v1/packs", {"name": "odd.pack", "problems": ["1x2"]}, MAKE).status == 202
    while (found := server.ask("GET", "/v1/packs/odd.pack", token=MAKE)).code == "building":
        time.sleep(0.05)
    assert (found.status, found.code) == (422, "problem")
    for body in ({"name": "../odd.pack"}, {"name": "odd.pack"}, {"name": "odd.pack", "suite": "nonsense"}):
        assert server.ask("POST", "/v1/packs", body, MAKE).code == "malformed"
    assert server.ask("GET", "/v1/packs/..%2Ftokens", token=MAKE).status in (404, 422)


def test_records_are_kept_once_by_source(tmp_path: Path) -> None:
    records, line = Records(tmp_path), MEASURED.model_dump_json().encode() + b"\n"
    assert [records.take("lab", line * 2) for _ in range(2)] == [(2, True), (2, False)]
    for odd in (b"nonsense\n", line[:-20], json.dumps({"kernel": "x"}).encode()):
        with pytest.raises(Refusal) as refused:
            records.take("lab", odd)
        assert (refused.value.status, refused.value.code) == (422, "record")
    assert [(path.parent.name, path.read_bytes()) for path in (tmp_path / "records").rglob("*.*")] == [
        ("lab", line * 2)
    ]


def test_models_go_out_signed_and_come_of_records_alone(server: Running) -> None:
    model = server.ask("GET", "/v1/models/h200", token=READ)
    content = json.loads(open_sealed(model.body, "gemmill.model/1", None))
    assert (content["gpu"], content["number"]) == ("NVIDIA H200", 0)
    assert [*content["files"]] == ["nvidia-h200.json"]
    assert server.ask("GET", "/v1/models/nonsense", token=READ).code == "malformed"
    assert server.ask("POST", "/v1/models/h200", token=WRITE).code == "scope"
    assert server.ask("POST", "/v1/models/h200", token=ADMIN).code == "record"
