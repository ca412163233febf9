/// A product of PyTorch's tensors.
#pragma once

#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/tensor.h>

#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace gemmill_torch {

using torch::headeronly::ScalarType;
using torch::stable::Tensor;

/// A call of an operator. A, B and D are as in gemmill_gemm, but for any number of batch extents.
struct Product {
  const char* name;
  Tensor a;
  Tensor b;
  std::optional<ScalarType> out_dtype;
  /// Options as text.
  std::string options;
  double alpha = 1;
  /// Empty: 1 with C.
  std::optional<double> beta = std::nullopt;
  /// Empty: alpha * a @ b + beta * c.
  std::string expression = "";
  /// Other operands by the names of the arguments of gemmill.matmul and gemmill.grouped_matmul.
  std::vector<std::pair<std::string, Tensor>> tensors = {};
  /// Operands of the expression that are numbers.
  std::vector<std::pair<std::string, double>> numbers = {};
};

/// D in a new tensor, on the current stream of the GPU of A. Throws std::runtime_error, whose message starts with the
/// name of the operator.
Tensor multiply(const Product& product);

}  // namespace gemmill_torch
