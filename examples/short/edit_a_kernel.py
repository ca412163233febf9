"""Edit a kernel: emit its source, change a line, compile and check it, and run it by its name.

    python examples/short/edit_a_kernel.py          # without a GPU: compiles and checks the kernel
    python examples/short/edit_a_kernel.py --run    # with a GPU and PyTorch: compares it with the original

docs/editing.md does the same with commands. The edit changes the raster order of tiles from M to N. The order of tiles
does not affect their sums, so D must be bitwise equal.
"""

from __future__ import annotations

import argparse
from difflib import unified_diff

import gemmill
from gemmill.emitters.emit import emit
from gemmill.library.config.names import parse_name

KERNEL = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_64x128x64_1x1_pingpong_s6_m4_k1_linear"

parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
parser.add_argument("--run", action="store_true", help="launch both kernels; needs a GPU and PyTorch")
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

# An edit must not change the launch: gemmill compares the compiled kernel with its config, and rejects differences.
try:
    registry.add_source(KERNEL, page.replace("kStages = 6,", "kStages = 5,"))
except gemmill.CompileError as refusal:
    print(f"rejected: {str(refusal).splitlines()[0]}")
else:
    raise SystemExit("another number of stages was accepted")

if arguments.run:
    import torch

    a, w = (torch.randn(rows, 1024, device="cuda", dtype=torch.bfloat16) for rows in (2048, 4096))
    d = gemmill.matmul(a, w.T, kernel=edited.name, registry=registry)
    same = torch.equal(d, gemmill.matmul(a, w.T, kernel=KERNEL, registry=registry))
    error = float((d.double() - a.double() @ w.double().T).norm() / d.double().norm())
    print(f"{error:.1e} from float64; bitwise {'equal' if same else 'different'}")
    assert same
    assert error < 2**-8
