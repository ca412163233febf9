/// Registers gemmill's operators of plain products (runtime/torch/operators.py) for programs without Python.
#include "product.h"

namespace {

using gemmill_torch::multiply;
using gemmill_torch::ScalarType;
using torch::stable::Tensor;
using Dtype = std::optional<ScalarType>;

Tensor mm(const Tensor& a, const Tensor& b, double alpha, Dtype out_dtype, const std::string& options) {
  return multiply("mm", a, b, nullptr, alpha, 0, out_dtype, options);
}

Tensor addmm(const Tensor& c, const Tensor& a, const Tensor& b, double alpha, double beta, Dtype out_dtype,
             const std::string& options) {
  return multiply("addmm", a, b, &c, alpha, beta, out_dtype, options);
}

Tensor bmm(const Tensor& a, const Tensor& b, double alpha, Dtype out_dtype, const std::string& options) {
  return multiply("bmm", a, b, nullptr, alpha, 0, out_dtype, options);
}

Tensor baddbmm(const Tensor& c, const Tensor& a, const Tensor& b, double alpha, double beta, Dtype out_dtype,
               const std::string& options) {
  return multiply("baddbmm", a, b, &c, alpha, beta, out_dtype, options);
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
}

// For all devices, so that tensors in host memory are refused by name.
STABLE_TORCH_LIBRARY_IMPL(gemmill, CompositeExplicitAutograd, m) {
  m.impl("mm", TORCH_BOX(&mm));
  m.impl("addmm", TORCH_BOX(&addmm));
  m.impl("bmm", TORCH_BOX(&bmm));
  m.impl("baddbmm", TORCH_BOX(&baddbmm));
}
