/// Which products a kernel supports: directly, or transposed (runtime/select/kernels/faults.py).
#pragma once

#include "artifact.h"
#include "choice_table.h"
#include "gemm.h"

namespace gemmill {

/// The product as a kernel runs it: transposed where the kernel supports only that. Error: it does not support it, or
/// only after copies that this library does not make.
Gemm as_kernel_runs(const Gemm& gemm, const Artifact& artifact);

/// A product as choice tables describe it.
TableProblem table_problem(const Gemm& gemm);

/// The product as a kernel of a choice table runs it. Error: the kernel does not support it, or only after copies.
Gemm as_chosen(const Gemm& gemm, const Artifact& artifact, bool swap_ab, const std::string& pack);

}  // namespace gemmill
