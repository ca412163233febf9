/// Which products a kernel supports: directly, or transposed (runtime/select/kernels/faults.py).
#pragma once

#include "artifact.h"
#include "gemm.h"

namespace gemmill {

/// The product as a kernel runs it: transposed where the kernel supports only that. Error: it does not support it, or
/// only after copies that this library does not make.
Gemm as_kernel_runs(const Gemm& gemm, const Artifact& artifact);

/// The 16 formats of a product, as choice tables spell them.
std::string formats_of(const Gemm& gemm);

}  // namespace gemmill
