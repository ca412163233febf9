"""A program that gets its kernels from a remote, over and over with an empty store: ``python pod.py ROUNDS KERNEL...``.

It prints a line of JSON for each kernel as soon as it has it.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
import tempfile
import time
import warnings
from pathlib import Path
from typing import Any

from gemmill.library.errors import RemoteWarning
from gemmill.runtime.compile.compiler import Compiler
from gemmill.runtime.registry import Registry
from gemmill.runtime.storage.remote.client import Remote
from gemmill.runtime.storage.trust.signatures import TrustedKeys

DEADLINE = 3.0


def main(rounds: int, names: list[str]) -> None:
    compile_, compiled = Compiler.compile, list[str]()

    def counted(self: Compiler, *arguments: Any, **more: Any) -> Any:
        compiled.append("")
        return compile_(self, *arguments, **more)

    Compiler.compile = counted  # type: ignore[method-assign]
    warnings.simplefilter("ignore", RemoteWarning)
    for _ in range(rounds):
        remote = Remote(
            os.environ["POD_REMOTE"],
            trusted=TrustedKeys.of_settings(),
            deadline=DEADLINE,
            token=os.environ["POD_TOKEN"],
        )
        with tempfile.TemporaryDirectory() as folder:
            registry = Registry(manifests=(), store=Path(folder), gpu="H200", remote=remote)
            for name in names:
                compiled.clear()
                before = remote.counters()
                artifact = registry.get(name)
                counters = {
                    what: change for what, n in remote.counters().items() if (change := n - before.get(what, 0))
                }
                digest = hashlib.sha256(artifact.to_bytes()).hexdigest()
                told = {"kernel": name, "digest": digest, "compiled": len(compiled), "time": time.time(), **counters}
                print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
