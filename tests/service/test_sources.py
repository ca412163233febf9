"""Source that clients send: compiled in confinement, whatever it tries, and never taken for what a config emits."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli.test_cli import gemmill
from tests.service.running import KERNEL, Running, serving, tokens_file

from gemmill.emitters.edited_page import edited
from gemmill.emitters.emit import emit
from gemmill.library.config.names import parse_name
from gemmill.library.errors import SettingError
from gemmill.runtime.compile.compiler import Compiler
from gemmill.runtime.storage.artifact import Artifact
from gemmill.runtime.storage.store import Store
from gemmill.runtime.storage.trust.signatures import SigningKey
from gemmill.service.compiling.resolver import KeyedKernel
from gemmill.service.compiling.sent_sources import SourceCompiler

pytestmark = pytest.mark.slow
CONFIG = parse_name(KERNEL)
PAGE = emit(CONFIG).text
SECRET = "what_nobody_may_learn"


@pytest.fixture(scope="module", autouse=True)
def confinement(tmp_path_factory: pytest.TempPathFactory) -> None:
    try:
        SourceCompiler(Store(), tmp_path_factory.mktemp("confinement")).check()
    except SettingError as error:
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def secrets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, str]]:
    path = tmp_path_factory.mktemp("tokens") / "tokens"
    return path, tokens_file(path, editor="read,compile,source", maker="read,compile")


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory, secrets: tuple[Path, dict[str, str]]) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("sources")
    SigningKey.new().save(folder / "key")
    options = ("--tokens", str(secrets[0]), "--sign", str(folder / "key"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("A_SECRET", SECRET)
        with serving(folder, "--accept-source", *options) as running:
            yield running


@pytest.fixture
def leak(tmp_path: Path) -> Path:
    """A file that anybody may read, and nobody may learn of through the server."""
    path = tmp_path / "leak"
    path.write_text(f"int {SECRET} = @;\n")
    tmp_path.chmod(0o755)
    return path


def sent(server: Running, source: str, name: str = KERNEL, **more: object) -> list[dict[str, Any]]:
    """What becomes of a source."""
    body = {"sources": [{"kernel": name, "source": source}], **more}
    answer = server.ask("POST", "/v1/instantiate", body, "secret-of-editor")
    assert answer.status == 200, answer
    return answer.events


def test_an_edited_page_is_a_kernel_of_its_own(server: Running) -> None:
    source = edited(CONFIG, f"{PAGE}// mine\n")
    events = sent(server, source.text)
    ready, done = events[-2:]
    assert (ready["event"], ready["kernel"], done["ready"]) == ("ready", source.name, 1)
    assert len(ready["manifest"]["signatures"]) == 1
    manifest = server.manifest(ready["key"], "secret-of-maker")
    assert (manifest["kernel"], manifest["provenance"]["source_digest"]) == (source.name, source.digest)
    blob = server.ask("GET", f"/v1/blobs/{manifest['digest']}", token="secret-of-maker").body
    assert Artifact.from_bytes(blob).is_edited
    assert ready["key"] == Compiler().key(source, CONFIG)
    assert [event["event"] for event in sent(server, source.text)] == ["resolved", "ready", "done"], "it is there now"
    own = server.instantiate(KERNEL, token="secret-of-maker").events
    assert own[-2]["key"] not in (ready["key"], Compiler().key(edited(CONFIG, PAGE), CONFIG))
    assert server.instantiate(source.name, token="secret-of-maker").events[0]["error"]["code"] == "source"


PTX = 'extern "C" __global__ void more() {{ asm volatile("PTX"); }}\n'
ATTEMPTS = {
    "an include": '#include "{leak}"\n',
    "an include behind a comment": '/**/#include "{leak}"\n',
    "an include over two lines": '#inc\\\nlude "{leak}"\n',
    "an include of a digraph": '%:include "{leak}"\n',
    "an include out of the headers": "#include <gemmill/../../../../../../../../../..{leak}>\n",
    "an include of a macro": '#define F "{leak}"\n#define I include\n%:include F\n',
    "its environment": '%:include "/proc/self/environ"\n',
    "an embedded file": 'constexpr unsigned char x[] = {{\n%:embed "{leak}"\n}};\nstatic_assert(x[0] == 1, "no");\n',
    "what can be read": '#if __has_include("{leak}")\n#error it is seen\n#endif\nnonsense;\n',
    "PTX that includes": PTX.replace("PTX", '.include \\"{leak}\\"'),
}


@pytest.mark.parametrize("attempt", ATTEMPTS.values(), ids=ATTEMPTS)
def test_no_file_is_read(server: Running, leak: Path, attempt: str) -> None:
    failed, done = sent(server, PAGE + attempt.format(leak=leak))[-2:]
    assert (failed["error"]["code"], done["failed"]) == ("compile", 1)
    assert SECRET not in str(failed)
    assert "it is seen" not in str(failed)


def test_what_failed_is_shown(server: Running) -> None:
    sent(server, f"{PAGE}<script>\n")
    page = server.ask("GET", "/queue", token="secret-of-editor").body.decode()
    assert "&lt;script&gt;" in page
    assert "<script" not in page


ENDLESS = "\n".join(("#define A0 1 +", *(f"#define A{i} {f'A{i - 1} ' * 64}" for i in range(1, 8)), "int bomb = A7 1;"))
"""Four trillion terms."""
BOMBS = {
    "a large kernel": "__device__ int large[1 << 24] = {1};\n__global__ void reads(int* o) { *o = large[*o]; }\n",
    "a very large one": "__device__ int large[1 << 28] = {1};\n",
    "many errors": "@\n" * 200_000,
    "templates without end": "template<int N> struct Bomb { Bomb<N + 1> x; };\nBomb<0> bomb;\n",
}


@pytest.mark.parametrize(
    "bomb",
    [
        pytest.param(text, id=name, marks=[pytest.mark.heavy] * (index > 0))
        for index, (name, text) in enumerate(BOMBS.items())
    ],
)
def test_what_takes_too_much_is_ended(server: Running, bomb: str) -> None:
    failed, _ = sent(server, PAGE + bomb, wait=300)[-2:]
    assert failed["error"]["code"] == "compile"
    assert len(str(failed)) < 20_000


@pytest.mark.heavy
def test_memory_is_bounded(server: Running) -> None:
    failed, _ = sent(server, PAGE + ENDLESS, wait=300)[-2:]
    assert re.search("out of memory|more than 2,048 MiB|was stopped|died", failed["error"]["message"])


def test_the_server_goes_on(server: Running) -> None:
    assert sent(server, f"{PAGE}// {time.time()}\n")[-1]["ready"] == 1
    assert server.ask("GET", "/readyz").status == 200


def test_who_may_send_source(server: Running) -> None:
    body = {"sources": [{"kernel": KERNEL, "source": PAGE}]}
    assert server.ask("POST", "/v1/instantiate", body, "secret-of-maker").code == "scope"
    for wrong in (
        [1],
        [{"kernel": KERNEL}],
        [{"kernel": KERNEL, "source": PAGE, "more": ""}],
        [{"kernel": 1, "source": ""}],
    ):
        answer = server.ask("POST", "/v1/instantiate", {"sources": wrong}, "secret-of-editor")
        assert answer.code == "malformed"
    half = b'{"sources": [{"kernel": "x", "source": "\\ud800"}]}'
    assert server.ask("POST", "/v1/instantiate", half, "secret-of-editor").code == "malformed"


@pytest.mark.parametrize(
    ("options", "says"), [((), "--tokens"), (("--tokens", "{}", "--scheduler", "tls://x:1"), "--scheduler")]
)
def test_options_that_do_not_go_with_it(
    secrets: tuple[Path, dict[str, str]], options: tuple[str, ...], says: str
) -> None:
    refused = gemmill("serve", "--accept-source", *(option.format(secrets[0]) for option in options))
    assert refused.exit_code == 2
    assert says in refused.stderr


def test_no_process_outlives_its_time_or_its_server(tmp_path: Path) -> None:
    source = edited(CONFIG, PAGE + ENDLESS)
    kernel = KeyedKernel(source.name, CONFIG, Compiler().key(source, CONFIG), source.text)
    compiler = SourceCompiler(Store(tmp_path / "store"), tmp_path / "empty", seconds=2)
    compiler.check()
    outcome = compiler.compile(kernel)
    assert re.search(r"the compile process (died \(SIG|took longer than 2 s and was stopped)", str(outcome.error))
    assert outcome.seconds < 30
    assert not [*(tmp_path / "empty").iterdir()]
    compiler.close()
    assert "the worker pool is closed" in str(compiler.compile(kernel).error)
