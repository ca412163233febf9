"""Launch a kernel without gemmill's launcher, from its cubin and its LaunchSpec, as a compiler or runtime would.

    python examples/short/own_launcher.py

Needs a GPU and PyTorch for the matrices. `gemmill.Registry.get` compiles the kernel, which needs no GPU. The LaunchSpec
contains everything that a launch needs; library/launch.py documents it, and `asdict` converts it for JSON.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

import torch
from cuda.bindings import driver

import gemmill

KERNEL = "sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear"
M, N, K = 1000, 1536, 512
SWIZZLES = {16: 0, 32: 1, 64: 2, 128: 3}  # CUtensorMapSwizzle by bytes
BF16, L2_128B = 9, 2  # CUtensorMapDataType, CUtensorMapL2promotion


def check(answer: Any) -> Any:
    """The result of a driver call; RuntimeError if it failed."""
    status, *values = answer if isinstance(answer, tuple) else (answer,)
    if status:
        raise RuntimeError(f"driver error {status}")
    return values[0] if values else None


torch.manual_seed(0)
a, w = (torch.randn(rows, K, device="cuda", dtype=torch.bfloat16) for rows in (M, N))
d = torch.full((M, N), float("nan"), device="cuda", dtype=torch.bfloat16)
operands = {"a": a, "b": w, "d": d}

# Load the kernel.
artifact = gemmill.Registry(manifests=[]).get(KERNEL)
spec = artifact.launch
module = check(driver.cuModuleLoadData(artifact.cubin))
function = check(driver.cuModuleGetFunction(module, spec.entry.encode()))
most = driver.CUfunction_attribute.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
check(driver.cuFuncSetAttribute(function, most, spec.shared_bytes))

# The kernel has one parameter, a struct. First, encode its TMA descriptors in place, aligned to 64 bytes.
memory = ctypes.create_string_buffer(spec.params_bytes + 64)
parameters = -(-ctypes.addressof(memory) // 64) * 64
encode, u32, u64 = ctypes.CDLL("libcuda.so.1").cuTensorMapEncodeTiled, ctypes.c_uint32, ctypes.c_uint64
for box in spec.boxes:
    tensor = operands[box.operand]
    rows, columns = tensor.shape
    if height := box.rows(rows):  # 0: this box is not used for this number of rows
        pitch = tensor.stride(0) * tensor.element_size()
        place, address = ctypes.c_void_p(parameters + box.offset), ctypes.c_void_p(tensor.data_ptr())
        extents, strides = (u64 * 3)(columns, rows, 1), (u64 * 2)(pitch, pitch * rows)  # third extent: the batch
        shape, steps = (u32 * 3)(box.box[0], height, 1), (u32 * 3)(1, 1, 1)
        check(encode(place, BF16, 3, address, extents, strides, shape, steps, 0, SWIZZLES[box.swizzle], L2_128B, 0))

# Then write the scalars; all other bytes stay 0.
scalars = {"m": ("i", M), "n": ("i", N), "k": ("i", K), "batch": ("i", 1), "alpha": ("f", 1.0)}
scalars |= {"d_pointer": ("Q", d.data_ptr()), "d_stride": ("q", d.stride(0))}
for name, (layout, value) in scalars.items():
    ctypes.memmove(parameters + spec.offsets[name], struct.pack(layout, value), struct.calcsize(layout))

# The grid: one cluster per tile of clusters, but at most as many as the GPU runs at a time; each loops over tiles.
tiles = -(-M // (spec.tile[0] * spec.cluster[0])) * -(-N // (spec.tile[1] * spec.cluster[1]))
sms = torch.cuda.get_device_properties(0).multi_processor_count
ctas = min(tiles, sms // spec.cluster_ctas) * spec.cluster_ctas
pointer, stream = (ctypes.c_void_p * 1)(parameters), torch.cuda.current_stream().cuda_stream
grid = (ctas, 1, 1, spec.threads, 1, 1)
check(driver.cuLaunchKernel(function, *grid, spec.shared_bytes, stream, ctypes.addressof(pointer), 0))

error = float((d.double() - a.double() @ w.double().T).norm() / d.double().norm())
print(f"launched {ctas} CTAs of {KERNEL}: error {error:.1e} relative to float64")
assert error < 2**-8, "wrong result"
assert torch.equal(d, gemmill.matmul(a, w.T, kernel=KERNEL)), "gemmill's launch gives a different result"
