"""The explorer: a config becomes a link to its problems, and each page says what the other commands and pages say."""

from __future__ import annotations

import csv
import html
import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlencode, urlsplit

import pytest
from tests.cases.browser import Browser
from tests.cases.models import CONFIGS
from tests.service.running import Answer, Running, serving

from gemmill.library.models.fields import Notes
from gemmill.library.models.problems import Deployment, problems_of
from gemmill.service.pages.problem_lists import ProblemList

pytestmark = pytest.mark.slow

H100 = {"name": "NVIDIA H100 80GB HBM3"}
LLAMA = CONFIGS["Llama-3.1-8B"]
PROBLEMS = """
16x6144x4096 bf16 tn count=32 # qkv_proj
64x64x64 e2m1 tn # nothing
4096x4096x4096 bf16 tn count=2 # <script>alert(1)</script>
64x64x64 f64*f32 # slow
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    with serving(tmp_path_factory.mktemp("explorer"), "--allow-host", "kernels.test") as running:
        yield running


def posted(server: Running, **fields: str) -> Answer:
    """The answer to a form."""
    parts = [f'--x\r\nContent-Disposition: form-data; name="{k}"\r\n\r\n{v}\r\n' for k, v in fields.items()]
    body = "".join([*parts, "--x--\r\n"]).encode()
    return server.ask("POST", "/explorer", body, Content_Type="multipart/form-data; boundary=x")


def link(problems: str, path: str = "/explorer", **parameters: object) -> str:
    return f"{path}?{urlencode({'problems': problems, 'gpu': 'H100', **parameters})}"


def page(server: Running, address: str) -> str:
    answer = server.ask("GET", address)
    assert answer.status == 200
    return answer.body.decode()


def cells(text: str, label: str) -> list[str]:
    """The texts of a column, top to bottom."""
    return [re.sub("<[^>]*>", "", cell) for cell in re.findall(rf'<td[^>]*data-label="{label}">(.*?)</td>', text)]


def table(server: Running, address: str) -> list[dict[str, str]]:
    answer = server.ask("GET", address)
    assert answer.headers["content-disposition"].startswith("attachment; filename=")
    return [*csv.DictReader(io.StringIO(answer.body.decode()))]


def test_a_config_leads_to_a_link_with_its_problems_and_nothing_else(server: Running) -> None:
    config = json.dumps({**LLAMA, "_name_or_path": "secret-model"})
    answer = posted(server, config=config, tokens="16,2048", tp="2", ep="1", quantization="fp8", dtype="")
    assert answer.status == 303
    address = answer.headers["location"]
    listed = ProblemList.from_parameters({k: v[0] for k, v in parse_qs(urlsplit(address).query).items()})
    assert "secret" not in str(listed)
    expected = problems_of(LLAMA, Deployment(tokens=(16, 2048), tp=2, quantization="fp8"), Notes())
    assert {str(e.problem) for each in listed.passes for e in each.entries} == {str(e.problem) for e in expected}
    text = page(server, address)
    assert "llama, --tp 2 --ep 1 --quantization fp8" in text
    assert cells(text, "M") == ["16"] * 5
    assert cells(page(server, f"{address}&pass=2"), "M") == ["2048"] * 5


def test_kernels_times_and_rates_are_those_of_the_selector(server: Running) -> None:
    rows = {row["layer"]: row for row in table(server, link(PROBLEMS, "/explorer.csv"))}
    selected = server.ask("POST", "/v1/select", {"problem": "16x6144x4096 bf16 tn", "gpu": H100}).json
    row = rows["qkv_proj"]
    us = float(row["us"])
    assert (row["kernel"], us, row["why"]) == (selected["kernel"], selected["us"], selected["why"])
    moved = 2 * (16 * 4096 + 4096 * 6144 + 16 * 6144)
    assert float(row["gbps"]) == pytest.approx(moved / us / 1e3)
    assert float(row["tflops"]) == pytest.approx(2 * 16 * 4096 * 6144 / us / 1e6)
    assert row["bound"] == "DRAM"
    assert float(row["of_roofline"]) == pytest.approx(moved / 2750 / 1e3 / us)
    times = [float(row["us"]) * int(row["count"]) for row in rows.values() if row["us"]]
    assert float(row["of_time"]) == pytest.approx(32 * us / sum(times))
    assert "no kernel supports 64x64x64 e2m1 tn" in rows["nothing"]["error"]
    text = page(server, link(PROBLEMS))
    assert "No kernel for 1 problem; the total leaves it out.</span>\nShare" in text
    assert f"35 launches of 3 kernels take {sum(times):,.0f} µs on NVIDIA H100 80GB HBM3" in text
    assert "slow path: predicted " in text
    assert text.count("<circle ") == 3


def test_a_spreadsheet_runs_no_name_of_a_link(server: Running) -> None:
    [row] = table(server, link("[=1+1]\n16x16x16 # @SUM(1)", "/explorer.csv"))
    assert (row["pass"], row["layer"]) == ("'=1+1", "'@SUM(1)")


def test_objective_and_bits_are_passed_on(server: Running) -> None:
    def first(**parameters: str) -> dict[str, str]:
        return table(server, link("8192x8192x8192 bf16 tn", "/explorer.csv", gpu="H200", **parameters))[0]

    assert "under sustained load" in first()["why"]
    assert "under sustained load" not in first(objective="burst")["why"]
    assert first(bits="k16/2")["arithmetic"] == "k16/2"


def test_rows_are_sorted_by_each_column_in_both_directions(server: Running) -> None:
    for word, label in (("m", "M"), ("tflops", "TFLOP/s"), ("us", "µs")):
        found = [float(x.replace(",", "")) for x in cells(page(server, link(PROBLEMS, sort=word)), label)[:-1]]
        assert found[:3] == sorted(found[:3]), "a problem without kernel comes last"
        turned = [float(x.replace(",", "")) for x in cells(page(server, link(PROBLEMS, sort=f"-{word}")), label)[:-1]]
        assert turned[:3] == sorted(turned[:3], reverse=True)
    assert 'aria-sort="descending"' in page(server, link(PROBLEMS, sort="-us"))


def test_a_problem_is_explained_drawn_and_printed(server: Running) -> None:
    selected = server.ask("POST", "/v1/select", {"problem": "4096x4096x4096 bf16 tn", "gpu": H100}).json
    text = page(server, link(PROBLEMS, show=3))
    section = html.unescape(text.partition('<section id="problem"')[2])
    assert selected["why"] in section
    for runner_up in selected["runners_up"]:
        assert runner_up["kernel"] in section
    assert "#include <gemmill/" in section
    assert "bytes of shared memory" in section
    [drawing] = re.findall(r'<img class="sheet" src="([^"]+)"', section)
    drawn = server.ask("GET", html.unescape(drawing))
    assert drawn.headers["content-type"].startswith("image/svg+xml")
    assert b"The raster over 4096x4096x4096 bf16 tn" in drawn.body
    assert "no kernel supports 64x64x64 e2m1 tn" in page(server, link(PROBLEMS, show=2)).partition('id="problem"')[2]
    assert "<script" not in text
    assert "&lt;script&gt;" in text


def test_links_of_a_page_keep_its_state(server: Running) -> None:
    address = link("[a]\n16x16x16\n[b]\n32x32x32 f16\n64x64x64", objective="burst", bits="k16")
    text = page(server, address + "&pass=2&sort=-m&show=1")
    links = {html.unescape(found) for found in re.findall(r'href="(/explorer[?.][^"#]*)', text)}
    assert len(links) > 15
    for found in links:
        query = parse_qs(urlsplit(found).query)
        assert query["gpu"] == ["NVIDIA H100 80GB HBM3"]
        assert (query["objective"], query["bits"]) == (["burst"], ["k16"])
        assert server.ask("GET", found).status == 200


WRONG: dict[str, tuple[dict[str, str], str]] = {
    "JSON": ({"config": '{"model_type": "llama",\n'}, "config.json:2: invalid JSON"),
    "mapping": ({"config": "[]"}, "config.json: the JSON is no mapping; pass the config.json of a model"),
    "type": ({"config": '{"model_type": "lama"}'}, "model_type is 'lama', did you mean llama? gemmill reads "),
    "field": ({"config": '{"model_type": "llama"}'}, "the config has no hidden_size"),
    "surrogate": ({"config": '{"model_type": "\\ud800", "dtype": "\\ud800"}'}, "model_type is '\\ud800'"),
    "tokens": ({"config": "{}", "tokens": "1,x"}, "'1,x' must be a list of numbers such as 1,16,2048"),
    "many tokens": ({"config": json.dumps(dict(LLAMA)), "tokens": ",".join(map(str, range(1, 40)))}, "at most 32"),
    "tp": ({"config": "{}", "tp": "0"}, "--tp is '0'; it must be a whole number from 1 to 1024"),
    "ep": ({"config": json.dumps(dict(LLAMA)), "ep": "2"}, "--ep is 2, but the model has no experts; omit it"),
    "quantization": ({"config": "{}", "quantization": "fp9"}, "--quantization is 'fp9'; it must be config, none"),
    "line": ({"problems": "16x16x16\n16x16"}, "line 2: the extents are '16x16'; write MxNxK"),
    "problems": ({"problems": "16x16x16\n" * 501}, "there are 501 problems; a page can have at most 500"),
    "text": (
        {"problems": "16x16x16 # " + "a" * 4000 + ("\n16x16x16 # " + "é" * 4000) * 40},
        "it can have at most 262,144",
    ),
    "link": (
        {"problems": "\n".join(f"16x16x16 # {i * 7919**20:x}" for i in range(500))},
        "the link to these problems has ",
    ),
    "GPU": ({"problems": "16x16x16", "gpu": "H9"}, "'H9' is none of NVIDIA H200"),
    "objective": ({"problems": "16x16x16", "objective": "x"}, "objective is 'x'; it must be 'sustained' or 'burst'"),
    "bits": ({"problems": "16x16x16", "bits": "fast"}, "bits is 'fast'; it must be 'any'"),
}


@pytest.mark.parametrize(("fields", "says"), WRONG.values(), ids=WRONG)
def test_wrong_forms_say_what_is_wrong_and_keep_what_was_entered(
    server: Running, fields: dict[str, str], says: str
) -> None:
    answer = posted(server, **fields)
    text = html.unescape(answer.body.decode())
    assert answer.status == 422
    assert says in text.partition('role="alert"')[2].partition("</p>")[0]
    for entered in fields.values():
        assert entered.strip() in text.replace("\r\n", "\n")


@pytest.mark.parametrize(
    ("query", "says"),
    [
        ("packed=abc", "packed is damaged; copy the whole link"),
        ("suite=larg", "'larg' is no shipped suite, did you mean large? `gemmill shapes` lists them"),
        ("problems=16x16x16&gpu=x", "'x' is none of NVIDIA H200"),
        ("problems=16x16x16%20bf17", "'bf17', did you mean bf16?"),
    ],
)
def test_wrong_links_say_what_is_wrong(server: Running, query: str, says: str) -> None:
    answer = server.ask("GET", f"/explorer?{query}")
    assert (answer.status, says in html.unescape(answer.body.decode())) == (422, True)
    for path in ("/explorer.csv", "/explorer.yaml"):
        answer = server.ask("GET", f"{path}?{query}")
        assert (answer.status, says in answer.json["error"]["message"]) == (422, True)


def test_bodies_that_are_no_form_are_refused(server: Running) -> None:
    for kind, body in (("text/plain", b""), ("multipart/form-data; boundary=x", b"--x\r\n\r\n\r\n--x--")):
        assert server.ask("POST", "/explorer", body, Content_Type=kind).status == 422
    answer = posted(server, config="\udcff".encode(errors="surrogateescape").decode("latin-1"))
    assert answer.status == 422


def filled(eyes: Browser, name: str, value: str) -> None:
    """Enter text into the first field of a name, in an opened form."""
    field = f"document.querySelector({json.dumps(f'[name={name}]')})"
    eyes.value(f"{field}.closest('details').open = true; {field}.value = {json.dumps(value)}; {field}.focus(); 0")


def seen(eyes: Browser) -> Any:
    return eyes.value("document.querySelector('main').innerText")


@pytest.mark.browser
def test_a_person_explores_a_model_by_mouse_and_keyboard(eyes: Browser, server: Running, tmp_path: Path) -> None:
    """Also under a name without TLS, where browsers send no Sec-Fetch-Site."""
    del eyes.errors[:], eyes.fetched[:]
    eyes.show(1280)
    eyes.open(f"http://kernels.test:{server.port}/explorer")
    filled(eyes, "config", '{"model_type": "lama"}')
    eyes.follow("document.querySelector('[name=tokens]').form.requestSubmit()")
    assert "did you mean llama?" in eyes.value("document.querySelector('[role=alert]').innerText")
    assert eyes.value("document.querySelector('[name=config]').value") == '{"model_type": "lama"}'
    assert eyes.value("document.querySelector('[name=config]').checkVisibility()"), "to correct it"
    del eyes.errors[:]  # Chromium's line about status 422

    filled(eyes, "config", json.dumps(dict(LLAMA)))
    filled(eyes, "tokens", "16,2048")
    eyes.press_enter()
    assert eyes.value("document.querySelectorAll('tbody tr').length") == 5
    eyes.value("document.querySelector('th a[href*=\"sort=-us\"]').focus(); 0")
    eyes.press_enter()
    assert eyes.value("document.querySelector('[aria-sort=descending]').innerText").startswith("µs")
    assert eyes.value("document.querySelector('tbody td').innerText") == "lm_head"
    eyes.follow("document.querySelector('tbody a').click()")
    assert "arithmetic k16" in eyes.value("document.querySelector('#problem').innerText")
    eyes.value("document.querySelector('.sheet').scrollIntoView()")
    drawn = "document.querySelector('.sheet').decode().then(() => document.querySelector('.sheet').naturalWidth)"
    assert eyes.value(drawn) > 1000
    address, text = eyes.value("location.href"), seen(eyes)
    eyes.open("about:blank")
    eyes.open(address)
    assert seen(eyes) == text
    assert not eyes.errors
    assert all(f":{server.port}/" in url or url.startswith(("data:", "about:")) for url in eyes.fetched)


@pytest.mark.browser
def test_a_file_is_uploaded(eyes: Browser, server: Running, tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text(json.dumps(dict(CONFIGS["Qwen3-30B-A3B"])))
    eyes.open(f"http://127.0.0.1:{server.port}/explorer")
    [field] = [eyes.do("Runtime.evaluate", expression="document.querySelector('[type=file]')")["result"]["objectId"]]
    eyes.do("DOM.setFileInputFiles", files=[str(path)], objectId=field)
    eyes.follow("document.querySelector('[type=file]').form.requestSubmit()")
    assert "mlp.experts" in seen(eyes)
    assert "1 token" in seen(eyes)
