"""What a fleet measures comes in, and a model goes out: published, signed, if it is no worse than the one in force."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.service.running import Running, serving, tokens_file

from gemmill.library.arch import DEFAULT_GPU
from gemmill.library.errors import TrustError
from gemmill.library.problem import GemmProblem
from gemmill.library.records import Measurement, read_records
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.trust.signatures import SigningKey, TrustedKeys, open_sealed
from gemmill.service.fleet_models import MODEL

pytestmark = pytest.mark.heavy
RECORDS = Path(__file__).parents[1] / "cases" / "records" / "fp8-clusters-20261121T194000Z.jsonl.xz"
PROBLEM = "1000x1112x1224 e4m3 tn"
MODELS = "/v1/models/h200"


def body(measurements: list[Measurement]) -> bytes:
    """As `gemmill profile` writes them."""
    return "".join(f"{m.model_dump_json()}\n" for m in measurements).encode()


def inverted(m: Measurement) -> Measurement:
    """As of a machine on which what is fast here is slow."""
    us = None if m.us is None else 1e4 / m.us
    return m.model_copy(update={"us": us, "low_us": us, "high_us": us, "stage": "final" if us else m.stage})


def test_a_model_is_published_that_is_no_worse(tmp_path: Path) -> None:
    measured = [m for m in read_records(RECORDS) if m.problem.m <= 512]  # too few to be better than what ships
    key = SigningKey.new()
    key.save(tmp_path / "key")
    tokens = tokens_file(tmp_path / "tokens", one="read,write", two="write", boss="admin")
    options = ("--tokens", str(tmp_path / "tokens"), "--sign", str(tmp_path / "key"))

    def us(server: Running) -> float:
        asked = {"problem": PROBLEM, "gpu": {"name": DEFAULT_GPU.name}}
        return float(server.ask("POST", "/v1/select", asked, tokens["one"]).json["us"])

    with serving(tmp_path, *options) as server:
        shipped = us(server)
        half = [m for m in measured if m.problem.k % 1024]
        for name, own in (("one", half), ("two", [m for m in measured if m not in half])):
            answer = server.ask("POST", "/v1/records", body(own), tokens[name])
            assert (answer.status, answer.json) == (201, {"records": len(own), "new": True})
        assert server.ask("POST", "/v1/records", body(half), tokens["one"]).json["new"] is False
        kept = {path.parent.name: [*read_records(path)] for path in tmp_path.rglob("records/*/*.jsonl")}
        assert sorted(kept) == ["one", "two"]
        assert kept["one"] == half

        refused = server.ask("POST", MODELS, token=tokens["boss"]).json
        assert (refused["published"], refused["number"]) == (False, 0)
        assert 0.5 < refused["reaches"]["new"] < refused["reaches"]["before"] < 1
        assert refused["says"].startswith("not published: the kernels that it selects reach 0.")
        assert server.ask("GET", MODELS, token=tokens["one"]).headers["etag"] == '"0"'
        assert us(server) == shipped

        for path in tmp_path.rglob("records/*/*.jsonl"):
            path.unlink()
        assert server.ask("POST", "/v1/records", body([*map(inverted, measured)]), tokens["two"]).status == 201
        published = server.ask("POST", MODELS, token=tokens["boss"]).json
        assert (published["published"], published["number"]) == (True, 1), published
        assert published["reaches"]["new"] > published["reaches"]["before"]

        envelope = server.ask("GET", MODELS, token=tokens["one"])
        assert envelope.headers["etag"] == '"1"'
        with pytest.raises(TrustError):
            open_sealed(envelope.body, MODEL, TrustedKeys((SigningKey.new().public,)))
        model = json.loads(open_sealed(envelope.body, MODEL, TrustedKeys((key.public,))))
        folder = tmp_path / "model"
        folder.mkdir()
        for name, text in model["files"].items():
            (folder / name).write_text(text)
        choice = Registry(gpu=DEFAULT_GPU, model=folder).select(GemmProblem.from_text(PROBLEM))
        assert choice.predicted_us == us(server) != shipped
