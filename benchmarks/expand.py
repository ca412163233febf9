"""What counting and filtering a kernel set of two million candidates costs, without a GPU or a toolchain.

The set is a manifest that multiplies out every axis; CUTLASS's generator takes 48 s to construct as many kernels.

Reproduces docs/performance/host.md, "Expanding". Takes 7 s.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

MANIFEST = """\
name: two-million
sets:
  - arch: sm90a
    a: {dtype: [bf16, f16], major: [k, mn]}
    b: {dtype: [bf16, f16], major: [k, mn]}
    accumulator: [f32, f16]
    c: none
    d: {dtype: [bf16, f16, f32], major: [n, m]}
    tile:
      m: [64, 128, 192, 256]
      n: [16, 32, 48, 64, 80, 96, 112, 128, 144, 160, 176, 192, 208, 224, 240, 256]
      k: [32, 64, 96, 128]
    cluster: ["1x1", "2x1", "1x2", "2x2"]
    schedule: [cooperative, pingpong]
    stages: auto
    scheduler: {raster: [m, n], swizzle_size: [1, 4, 8]}
"""
FILTER = "tile.n >= 128 and schedule == 'pingpong'"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    parser.add_argument("--repeats", type=int, default=3, help="times each step is measured (%(default)s)")
    arguments = parser.parse_args()

    from gemmill.library.manifest.load import load_manifest

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "two-million.yaml"
        path.write_text(MANIFEST)
        times: dict[str, float] = {}

        def timed(step: str, work: Callable[[], Any]) -> Any:
            seconds = []
            for _ in range(arguments.repeats):
                start = time.perf_counter()
                result = work()
                seconds.append(time.perf_counter() - start)
            times[step] = round(median(seconds), 3)
            return result

        # Each repeat loads the manifest anew: a kernel set keeps the tables of its rules.
        count = timed("count", lambda: load_manifest(path).count())
        filtered = timed("count filtered", lambda: load_manifest(path).count(where=FILTER))
        first = timed("first 1,000 configs", lambda: _take(load_manifest(path).expand(), 1000))
    assert first == 1000
    if arguments.json:
        counts = {"candidates": count.candidates, "legal": count.legal, "legal_filtered": filtered.legal}
        print(json.dumps(counts | {"seconds": times}, indent=2))
        return
    print(f"{count.candidates:,} candidates, {count.legal:,} legal, {filtered.legal:,} of them where {FILTER}")
    for step, seconds in times.items():
        print(f"{step:24}{seconds:>8} s")


def _take(configs: Any, number: int) -> int:
    return sum(1 for _, _config in zip(range(number), configs, strict=False))


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))
    main()
