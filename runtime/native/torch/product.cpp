#include "product.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <array>
#include <stdexcept>
#include <vector>

#include "gemmill/gemmill.h"
#include "options.h"
#include "pack.h"

/// Part of PyTorch with CUDA. Without it there are no tensors on GPUs, and nothing calls it.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device, void** stream);

namespace gemmill_torch {
namespace {

/// A dtype of both libraries, and the default dtype of D for operands of it, as in library/dtypes.py.
struct Dtype {
  ScalarType torch;
  DLDataType dlpack;
  ScalarType output;
};

constexpr Dtype kDtypes[] = {
    {ScalarType::BFloat16, {kDLBfloat, 16, 1}, ScalarType::BFloat16},
    {ScalarType::Half, {kDLFloat, 16, 1}, ScalarType::Half},
    {ScalarType::Float, {kDLFloat, 32, 1}, ScalarType::Float},
    {ScalarType::Double, {kDLFloat, 64, 1}, ScalarType::Double},
    {ScalarType::Float8_e4m3fn, {kDLFloat8_e4m3fn, 8, 1}, ScalarType::BFloat16},
    {ScalarType::Float8_e5m2, {kDLFloat8_e5m2, 8, 1}, ScalarType::BFloat16},
    {ScalarType::Char, {kDLInt, 8, 1}, ScalarType::Int},
    {ScalarType::Byte, {kDLUInt, 8, 1}, ScalarType::Int},
    {ScalarType::Int, {kDLInt, 32, 1}, ScalarType::Int},
};

const Dtype& dtype_of(const Tensor& tensor, const char* argument) {
  const ScalarType dtype = tensor.scalar_type();
  const auto row = std::find_if(std::begin(kDtypes), std::end(kDtypes), [&](const Dtype& x) { return x.torch == dtype; });
  if (row == std::end(kDtypes)) {
    throw std::runtime_error(std::string(argument) + " is " + torch::headeronly::toString(dtype) +
                             "; libgemmill supports bf16, f16, f32, f64, e4m3, e5m2, s8, u8 and s32: convert it first");
  }
  return *row;
}

/// A view of a tensor, which must outlive it.
DLTensor view(const Tensor& tensor, const char* argument) {
  if (!tensor.is_cuda()) {
    throw std::runtime_error(std::string(argument) + " is not in GPU memory: move it to the GPU");
  }
  const auto rank = static_cast<int32_t>(tensor.dim());
  // Not written to: the members of DLTensor lack a const.
  auto* sizes = const_cast<int64_t*>(tensor.sizes().data());
  auto* strides = const_cast<int64_t*>(tensor.strides().data());
  return {tensor.data_ptr(),
          {kDLCUDA, tensor.get_device_index()},
          rank,
          dtype_of(tensor, argument).dlpack,
          sizes,
          strides,
          0};
}

/// The shape of a @ b. libgemmill checks whether K is the same, and broadcasts batch extents.
std::vector<int64_t> shape_of_d(const Tensor& a, const Tensor& b) {
  if (a.dim() < 2 || b.dim() < 2) throw std::runtime_error("a and b must be matrices or batches of matrices");
  const Tensor& longer = a.dim() < b.dim() ? b : a;
  const Tensor& shorter = a.dim() < b.dim() ? a : b;
  std::vector<int64_t> shape(longer.sizes().begin(), longer.sizes().end());
  for (int64_t from_end = 3; from_end <= shorter.dim(); ++from_end) {
    int64_t& extent = shape[shape.size() - from_end];
    if (extent == 1) extent = shorter.size(shorter.dim() - from_end);
  }
  shape[shape.size() - 2] = a.size(a.dim() - 2);
  shape.back() = b.size(b.dim() - 1);
  return shape;
}

void* current_stream(const Tensor& tensor) {
  void* stream = nullptr;
  TORCH_ERROR_CODE_CHECK(aoti_torch_get_current_cuda_stream(tensor.get_device_index(), &stream));
  return stream;
}

Tensor launched(const Tensor& a, const Tensor& b, const Tensor* c, double alpha, double beta,
                std::optional<ScalarType> out_dtype, const std::string& text) {
  const Options options = read_options(text);
  gemmill_pack* const pack = the_pack();
  const DLTensor of_a = view(a, "a");
  const DLTensor of_b = view(b, "b");
  const ScalarType default_dtype = dtype_of(of_a.dtype.bits < of_b.dtype.bits ? b : a, "a").output;
  const Tensor d = torch::stable::new_empty(a, shape_of_d(a, b), out_dtype.value_or(default_dtype));
  const DLTensor of_d = view(d, "d");
  DLTensor of_c{};
  if (c != nullptr) of_c = view(*c, "c");
  gemmill_gemm gemm{};
  gemm.a = &of_a;
  gemm.b = &of_b;
  gemm.c = c == nullptr ? nullptr : &of_c;
  gemm.d = &of_d;
  gemm.alpha = alpha;
  gemm.beta = beta;
  gemm.flags = options.flags;
  gemm.slices = options.slices;
  gemm.kernel = options.kernel.empty() ? nullptr : options.kernel.c_str();
  if (gemmill_matmul(pack, &gemm, current_stream(a)) != GEMMILL_OK) throw std::runtime_error(gemmill_last_error());
  return d;
}

}  // namespace

Tensor multiply(const char* name, const Tensor& a, const Tensor& b, const Tensor* c, double alpha, double beta,
                std::optional<ScalarType> out_dtype, const std::string& options) {
  try {
    return launched(a, b, c, alpha, beta, out_dtype, options);
  } catch (const std::exception& error) {
    throw std::runtime_error(std::string("gemmill::") + name + ": " + error.what());
  }
}

}  // namespace gemmill_torch
