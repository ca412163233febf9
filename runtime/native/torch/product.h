/// A product of PyTorch's tensors.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>

namespace gemmill_torch {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

/// alpha * a @ b + beta * c in a new tensor, on the current stream of the GPU of `a`. Batch extents broadcast. Throws
/// std::runtime_error, whose message starts with the name of the operator.
Tensor multiply(const char* name, const Tensor& a, const Tensor& b, const Tensor* c, double alpha, double beta,
                std::optional<ScalarType> out_dtype, const std::string& options);

}  // namespace gemmill_torch
