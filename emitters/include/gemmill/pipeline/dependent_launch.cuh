/// Programmatic dependent launch (PTX ISA, "griddepcontrol"). Both functions do nothing before sm_90, or if the launch
/// does not have the attribute.
#pragma once

namespace gemmill {

/// Blocks the thread until all earlier kernels of the stream have finished and their writes are visible.
__device__ inline void wait_for_prerequisites() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

/// Allows the next kernel of the stream to start its prologue.
__device__ inline void launch_dependents() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace gemmill
