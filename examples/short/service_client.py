"""A client of the service: a server compiles kernels, and the client accepts those that are signed with its key.

    python examples/short/service_client.py

Needs gemmill's extra `service`, but no GPU. The program starts a server on a free port, and ends it.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.request import Request, urlopen

import gemmill

KERNEL = "sm90_f32k16_f32k16_f32_none_f32n16_128x128x8_1x1_simt_s2_m8_k1_linear"  # compiles fast
PROBLEM = "4096x4096x4096 bf16 tn"


def events(url: str, **body: object) -> list[str]:
    """The events of a request for kernels."""
    request = Request(f"{url}/v1/instantiate", json.dumps(body).encode(), {"Content-Type": "application/json"})
    with urlopen(request, timeout=300) as answer:
        return [json.loads(line)["event"] for line in answer]


with TemporaryDirectory() as name:
    folder, command = Path(name), [sys.executable, "-m", "gemmill"]
    made = subprocess.run([*command, "key", "new", f"{folder}/key"], check=True, text=True, stdout=subprocess.PIPE)
    key = made.stdout.split()[0]
    options = ["--port", "0", "--store", f"{folder}/server", "--sign", f"{folder}/key"]
    server = subprocess.Popen([*command, "serve", *options], text=True, stdout=subprocess.PIPE)
    try:
        assert server.stdout is not None
        found = re.search(r"http://\S+", server.stdout.readline())
        assert found, "the server did not start"
        url = found[0]

        first, again = events(url, kernels=[KERNEL]), events(url, kernels=[KERNEL])
        print(f"first request: {', '.join(first)}\nsecond request: {', '.join(again)}")
        assert "compiling" in first
        assert again == ["resolved", "ready", "done"]

        # The environment of a client: the server, and the key that it trusts.
        os.environ |= {"GEMMILL_REMOTE": url, "GEMMILL_TRUSTED_KEYS": key, "GEMMILL_REMOTE_MODE": "only"}
        registry = gemmill.Registry(store=folder / "client", gpu="H200")
        artifact = registry.get(KERNEL)  # on a GPU: gemmill.matmul(a, b, registry=registry)
        print(f"{len(artifact.cubin):,} bytes, {registry.remote}")
        assert registry.remote is not None
        assert registry.remote.counters()["hits"] == 1

        asked = json.dumps({"problem": PROBLEM, "gpu": {"name": "NVIDIA H200"}}).encode()
        with urlopen(Request(f"{url}/v1/select", asked), timeout=60) as answer:
            chosen = json.load(answer)["kernel"]
        print(f"{PROBLEM}: {chosen}")
        assert chosen == registry.select(gemmill.GemmProblem.from_text(PROBLEM)).name
    finally:
        server.terminate()
        server.wait()
