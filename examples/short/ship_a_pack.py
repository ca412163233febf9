"""Make and sign a pack on one machine, and load it on another one that compiles nothing and trusts one key.

    python examples/short/ship_a_pack.py

Needs no GPU. The second machine is a separate process with an empty store and its own settings.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

PROBLEMS = ("64x4096x4096 bf16 tn", "2048x4096x4096 bf16 tn")
THERE = """
import sys, gemmill
try:
    registry = gemmill.Registry(packs=["served.pack"], gpu="H200")
except gemmill.TrustError as error:
    sys.exit(f"rejected: {error}")
for text in sys.argv[1:]:
    choice = registry.select(gemmill.GemmProblem.from_text(text))
    artifact = registry.get(choice.name)  # on a GPU: gemmill.matmul(a, b, registry=registry)
    print(f"{text}: {len(artifact.cubin):,} bytes of {choice.name}")
try:
    registry.get("sm90_f32k16_f32k16_f32_none_f32n16_128x128x8_1x1_simt_s2_m8_k1_linear")
except gemmill.SettingError as error:
    print(f"not in the pack: {error}")
else:
    sys.exit("the process compiled a kernel that is not in the pack")
"""


def gemmill(folder: Path, *arguments: str) -> str:
    """Run a command; returns its output."""
    command = [sys.executable, "-m", "gemmill", *arguments]
    return subprocess.run(command, cwd=folder, check=True, text=True, stdout=subprocess.PIPE).stdout


def there(folder: Path, key: str) -> subprocess.CompletedProcess[str]:
    """Run the program of the second machine."""
    settings = {"GEMMILL_STORE": str(folder / "empty"), "GEMMILL_REMOTE_MODE": "only", "GEMMILL_TRUSTED_KEYS": key}
    command = [sys.executable, "-c", THERE, *PROBLEMS]
    return subprocess.run(command, cwd=folder, env=os.environ | settings, check=False, text=True, capture_output=True)


with TemporaryDirectory() as name:
    folder = Path(name)
    key = gemmill(folder, "key", "new", "release.pem").split()[0]
    problems = [word for text in PROBLEMS for word in ("--problem", text)]
    where = "a.major == 'k' and b.major == 'k' and c.dtype == 'none' and d.dtype == 'bf16'"
    options = ["--where", where, "--gpu", "H200", "--sign", "release.pem", "-o", "served.pack"]
    print(gemmill(folder, "pack", "bf16", *problems, *options))

    served = there(folder, key)
    print(served.stdout or served.stderr)
    assert served.returncode == 0
    assert served.stdout.count("bytes of sm90a") == len(PROBLEMS)

    stranger = gemmill(folder, "key", "new", "stranger.pem").split()[0]
    refused = there(folder, stranger)
    print(refused.stderr)
    assert refused.returncode == 1
    assert refused.stderr.startswith("rejected: ")
