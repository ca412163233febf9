/// Registers operators of runtime/torch/operators.py for programs without Python.
#include <stdexcept>

#include "product.h"

namespace {

using gemmill_torch::multiply;
using gemmill_torch::Product;
using gemmill_torch::ScalarType;
using torch::stable::Tensor;
using Dtype = std::optional<ScalarType>;
using OptionalTensor = std::optional<Tensor>;
using Text = std::optional<std::string>;

Tensor mm(const Tensor& a, const Tensor& b, double alpha, Dtype out_dtype, const std::string& options) {
  return multiply({"mm", a, b, out_dtype, options, alpha});
}

Tensor addmm(const Tensor& c, const Tensor& a, const Tensor& b, double alpha, double beta, Dtype out_dtype,
             const std::string& options) {
  return multiply({"addmm", a, b, out_dtype, options, alpha, beta, "", {{"c", c}}});
}

Tensor bmm(const Tensor& a, const Tensor& b, double alpha, Dtype out_dtype, const std::string& options) {
  return multiply({"bmm", a, b, out_dtype, options, alpha});
}

Tensor baddbmm(const Tensor& c, const Tensor& a, const Tensor& b, double alpha, double beta, Dtype out_dtype,
               const std::string& options) {
  return multiply({"baddbmm", a, b, out_dtype, options, alpha, beta, "", {{"c", c}}});
}

/// Adds operands to a product. Those of the second table are refused.
Tensor multiply_with(Product product, const std::vector<std::pair<const char*, OptionalTensor>>& tensors,
                     const std::vector<std::pair<const char*, bool>>& unsupported) {
  for (const auto& [name, is_given] : unsupported) {
    if (is_given) {
      throw std::runtime_error(std::string("gemmill::") + product.name + ": " + name +
                               " needs Python: compile the model without it");
    }
  }
  for (const auto& [name, tensor] : tensors) {
    if (tensor) product.tensors.emplace_back(name, *tensor);
  }
  return multiply(product);
}

Tensor scaled_mm(const Tensor& a, const Tensor& b, OptionalTensor a_scale, OptionalTensor b_scale, OptionalTensor c,
                 double alpha, std::optional<double> beta, Dtype out_dtype, const std::string& options) {
  return multiply_with({"scaled_mm", a, b, out_dtype, options, alpha, beta},
                       {{"a_scale", a_scale}, {"b_scale", b_scale}, {"c", c}}, {});
}

Tensor grouped_mm(const Tensor& a, const Tensor& b, OptionalTensor offsets, OptionalTensor counts,
                  OptionalTensor a_scale, OptionalTensor b_scale, OptionalTensor c, OptionalTensor rows,
                  OptionalTensor b_zero, double alpha, std::optional<double> beta, Text b_dtype, Dtype out_dtype,
                  const std::string& options) {
  return multiply_with(
      {"grouped_mm", a, b, out_dtype, options, alpha, beta},
      {{"offsets", offsets}, {"counts", counts}, {"a_scale", a_scale}, {"b_scale", b_scale}, {"c", c}},
      {{"rows", rows.has_value()}, {"b_zero", b_zero.has_value()}, {"b_dtype", b_dtype.has_value()}});
}

std::vector<Tensor> epilogue(const std::string& expression, const Tensor& a, const Tensor& b,
                             const std::vector<Tensor>& operands, const std::vector<std::string>& names,
                             const std::vector<double>& numbers, Text a_dtype, Text b_dtype, Dtype out_dtype,
                             const std::string& options) {
  Product product{"epilogue", a, b, out_dtype, options, 1, std::nullopt, expression};
  if (names.size() != operands.size() + numbers.size()) {
    throw std::runtime_error("gemmill::epilogue: names must have a name for each operand, then for each number");
  }
  for (size_t i = 0; i < operands.size(); ++i) product.tensors.emplace_back(names[i], operands[i]);
  for (size_t i = 0; i < numbers.size(); ++i) product.numbers.emplace_back(names[operands.size() + i], numbers[i]);
  return {multiply_with(product, {}, {{"a_dtype", a_dtype.has_value()}, {"b_dtype", b_dtype.has_value()}})};
}

}  // namespace

STABLE_TORCH_LIBRARY(gemmill, m) {
  m.def("mm(Tensor a, Tensor b, *, float alpha=1.0, ScalarType? out_dtype=None, str options='') -> Tensor");
  m.def(
      "addmm(Tensor c, Tensor a, Tensor b, *, float alpha=1.0, float beta=1.0, ScalarType? out_dtype=None, "
      "str options='') -> Tensor");
  m.def("bmm(Tensor a, Tensor b, *, float alpha=1.0, ScalarType? out_dtype=None, str options='') -> Tensor");
  m.def(
      "baddbmm(Tensor c, Tensor a, Tensor b, *, float alpha=1.0, float beta=1.0, ScalarType? out_dtype=None, "
      "str options='') -> Tensor");
  m.def(
      "scaled_mm(Tensor a, Tensor b, Tensor? a_scale=None, Tensor? b_scale=None, Tensor? c=None, *, "
      "float alpha=1.0, float? beta=None, ScalarType? out_dtype=None, str options='') -> Tensor");
  m.def(
      "grouped_mm(Tensor a, Tensor b, Tensor? offsets, Tensor? counts=None, Tensor? a_scale=None, "
      "Tensor? b_scale=None, Tensor? c=None, Tensor? rows=None, Tensor? b_zero=None, *, float alpha=1.0, "
      "float? beta=None, str? b_dtype=None, ScalarType? out_dtype=None, str options='') -> Tensor");
  m.def(
      "epilogue(str expression, Tensor a, Tensor b, Tensor[] operands, str[] names, *, float[] numbers=[], "
      "str? a_dtype=None, str? b_dtype=None, ScalarType? out_dtype=None, str options='') -> Tensor[]");
}

// For all devices, so that tensors in host memory are refused by name.
STABLE_TORCH_LIBRARY_IMPL(gemmill, CompositeExplicitAutograd, m) {
  m.impl("mm", TORCH_BOX(&mm));
  m.impl("addmm", TORCH_BOX(&addmm));
  m.impl("bmm", TORCH_BOX(&bmm));
  m.impl("baddbmm", TORCH_BOX(&baddbmm));
  m.impl("scaled_mm", TORCH_BOX(&scaled_mm));
  m.impl("grouped_mm", TORCH_BOX(&grouped_mm));
  m.impl("epilogue", TORCH_BOX(&epilogue));
}
