/// Programmatic dependent launch (PTX ISA, "griddepcontrol"): without it in the launch, and before sm_90, nothing happens.
#pragma once

namespace gemmill {

/// Holds a thread back until the kernels before this one in the stream are done and what they wrote can be seen.
__device__ inline void wait_for_prerequisites() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Lets the kernel after this one start its prologue.
__device__ inline void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace gemmill
