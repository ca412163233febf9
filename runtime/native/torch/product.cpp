#include "product.h"

#include <torch/csrc/stable/ops.h>

#include <algorithm>
#include <cctype>
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

/// The shape of D. libgemmill checks whether the operands fit each other.
std::vector<int64_t> shape_of_d(const Tensor& a, const Tensor& b, bool has_groups) {
  if (a.dim() < 2 || b.dim() < 2) throw std::runtime_error("a and b must be matrices or batches of matrices");
  const bool is_like_a = has_groups || a.dim() >= b.dim();
  const Tensor& longer = is_like_a ? a : b;
  const Tensor& shorter = is_like_a ? b : a;
  std::vector<int64_t> shape(longer.sizes().begin(), longer.sizes().end());
  for (int64_t from_end = 3; !has_groups && from_end <= shorter.dim(); ++from_end) {
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

/// Whether an expression has a name as a whole word.
bool has_name(const std::string& expression, const std::string& name) {
  const auto continues = [](unsigned char c) { return std::isalnum(c) != 0 || c == '_'; };
  for (size_t at = expression.find(name); at != std::string::npos; at = expression.find(name, at + 1)) {
    if ((at == 0 || !continues(expression[at - 1])) && !continues(expression[at + name.size()])) return true;
  }
  return false;
}

/// The member of gemmill_gemm for an operand besides A, B and D; NULL: it is an argument of the epilogue, as scales of
/// rows and columns are.
const DLTensor** member(gemmill_gemm& gemm, const std::string& name, const std::string& expression) {
  if (name == "c") return &gemm.c;
  if (has_name(expression, name)) return nullptr;
  if (name == "a_scale") return &gemm.a_scale;
  if (name == "b_scale") return &gemm.b_scale;
  if (name == "offsets") return &gemm.offsets;
  if (name == "counts") return &gemm.counts;
  return nullptr;
}

Tensor launched(const Product& product) {
  const Options options = read_options(product.options);
  gemmill_pack* const pack = the_pack();
  const DLTensor of_a = view(product.a, "a");
  const DLTensor of_b = view(product.b, "b");
  gemmill_gemm gemm{};
  std::vector<DLTensor> views;
  views.reserve(product.tensors.size());  // pointers to its elements stay valid
  std::vector<gemmill_argument> arguments;
  for (const auto& [name, tensor] : product.tensors) {
    views.push_back(view(tensor, name.c_str()));
    const DLTensor** place = member(gemm, name, product.expression);
    if (place == nullptr) {
      arguments.push_back({name.c_str(), &views.back(), 0});
    } else {
      *place = &views.back();
    }
  }
  for (const auto& [name, value] : product.numbers) arguments.push_back({name.c_str(), nullptr, value});
  const bool has_groups = gemm.offsets != nullptr || gemm.counts != nullptr;
  const ScalarType default_dtype = dtype_of(of_a.dtype.bits < of_b.dtype.bits ? product.b : product.a, "a").output;
  const Tensor d = torch::stable::new_empty(product.a, shape_of_d(product.a, product.b, has_groups),
                                            product.out_dtype.value_or(default_dtype));
  const DLTensor of_d = view(d, "d");
  gemm.a = &of_a;
  gemm.b = &of_b;
  gemm.d = &of_d;
  gemm.alpha = product.alpha;
  gemm.beta = product.beta.value_or(gemm.c != nullptr && product.expression.empty() ? 1 : 0);
  gemm.flags = options.flags;
  gemm.slices = options.slices;
  gemm.kernel = options.kernel.empty() ? nullptr : options.kernel.c_str();
  gemm.expected_rows = options.expected_rows;
  gemm.epilogue = product.expression.empty() ? nullptr : product.expression.c_str();
  gemm.arguments = arguments.data();
  gemm.argument_count = arguments.size();
  if (gemmill_matmul(pack, &gemm, current_stream(product.a)) != GEMMILL_OK) throw std::runtime_error(gemmill_last_error());
  return d;
}

}  // namespace

Tensor multiply(const Product& product) {
  try {
    return launched(product);
  } catch (const std::exception& error) {
    throw std::runtime_error(std::string("gemmill::") + product.name + ": " + error.what());
  }
}

}  // namespace gemmill_torch
