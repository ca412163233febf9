"""An edited kernel: emitted, changed in a line, compiled and checked, and run by its own name.

    python examples/short/edit_a_kernel.py          # no GPU: builds and checks it
    python examples/short/edit_a_kernel.py --run    # on a GPU, with PyTorch: beside what it was

docs/editing.md has the same by commands. The idea tried here: tiles that follow each other along N, not along M. Who
computes which tile decides nothing about its sums, so that D must have the same bits.
"""

from __future__ import annotations

import argparse
from difflib import unified_diff

import gemmill
from gemmill.emitters.emit import emit
from gemmill.library.config.names import parse_name

KERNEL = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x128x64_1x1_pingpong_s6_m4_k1_linear"

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--run", action="store_true", help="launch both: needs a GPU and PyTorch")
arguments = parser.parse_args()

page = emit(parse_name(KERNEL)).text
changed = page.replace("Raster::M", "Raster::N")
print("\n".join(unified_diff(page.splitlines(), changed.splitlines(), "emitted", "edited", n=1, lineterm="")))

registry = gemmill.Registry(manifests=[])
edited = registry.add_source(KERNEL, changed)
before, after = registry.get(KERNEL).resources, edited.resources
print(f"{edited.name}\n{after.registers} registers, {before.registers} before; {after.spill_stores} bytes spilled")
assert edited.name.startswith(f"{KERNEL}+src.")
assert edited.digest != registry.get(KERNEL).digest

# What a launch rests on may not change: the compiled kernel says that it is another, and is refused.
try:
    registry.add_source(KERNEL, page.replace("kStages = 6,", "kStages = 5,"))
except gemmill.CompileError as refusal:
    print(f"refused: {str(refusal).splitlines()[0]}")
else:
    raise SystemExit("another number of stages was taken")

if arguments.run:
    import torch

    a, w = (torch.randn(rows, 1024, device="cuda", dtype=torch.bfloat16) for rows in (2048, 4096))
    d = gemmill.matmul(a, w.T, kernel=edited.name, registry=registry)
    same = torch.equal(d, gemmill.matmul(a, w.T, kernel=KERNEL, registry=registry))
    error = float((d.double() - a.double() @ w.double().T).norm() / d.double().norm())
    print(f"{error:.1e} from float64; {'the same bits as before' if same else 'other bits than before'}")
    assert same
    assert error < 2**-8
