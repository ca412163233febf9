/// libgemmill for callers with TVM-FFI's ABI: tensors arrive by DLPack, and launches run on the caller's stream.
///
/// `pack` is the path of a pack, which is opened once. A failed call raises ValueError with libgemmill's sentence.
#include <tvm/ffi/extra/c_env_api.h>
#include <tvm/ffi/tvm_ffi.h>

#include <map>
#include <mutex>
#include <string>

#include "gemmill/gemmill.h"

namespace {

using tvm::ffi::Optional;
using tvm::ffi::String;

void check(gemmill_status status) {
  if (status != GEMMILL_OK) TVM_FFI_THROW(ValueError) << gemmill_last_error();
}

/// The pack at a path; it stays open for the life of the process, since CUDA graphs may refer to its kernels.
gemmill_pack* pack_at(const std::string& path) {
  static std::mutex mutex;
  static std::map<std::string, gemmill_pack*> packs;
  const std::lock_guard<std::mutex> lock(mutex);
  gemmill_pack*& pack = packs[path];
  if (pack == nullptr) check(gemmill_pack_open(path.c_str(), nullptr, &pack));
  return pack;
}

void launch(const String& pack, const gemmill_gemm& gemm) {
  const DLDevice device = gemm.d->device;
  check(gemmill_matmul(pack_at(pack), &gemm, TVMFFIEnvGetStream(device.device_type, device.device_id)));
}

gemmill_gemm product(DLTensor* a, DLTensor* b, DLTensor* d) {
  gemmill_gemm gemm{};
  gemm.a = a;
  gemm.b = b;
  gemm.d = d;
  gemm.alpha = 1;
  gemm.flags = GEMMILL_FAST_ACCUMULATION;
  return gemm;
}

/// D = alpha A B + beta C.
void matmul(const String& pack, DLTensor* a, DLTensor* b, DLTensor* d, double alpha, Optional<DLTensor*> c,
            double beta) {
  gemmill_gemm gemm = product(a, b, d);
  gemm.c = c.value_or(nullptr);
  gemm.alpha = alpha;
  gemm.beta = beta;
  launch(pack, gemm);
}

/// D = A B of fp8 with f32 scales of 1x128 and 128x128 blocks.
void scaled_matmul(const String& pack, DLTensor* a, DLTensor* b, DLTensor* a_scale, DLTensor* b_scale, DLTensor* d) {
  gemmill_gemm gemm = product(a, b, d);
  gemm.a_scale = a_scale;
  gemm.b_scale = b_scale;
  launch(pack, gemm);
}

/// D = A B for each group of rows; `offsets` says where each ends.
void grouped_matmul(const String& pack, DLTensor* a, DLTensor* b, DLTensor* offsets, DLTensor* d) {
  gemmill_gemm gemm = product(a, b, d);
  gemm.offsets = offsets;
  launch(pack, gemm);
}

}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(matmul, matmul)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(scaled_matmul, scaled_matmul)
TVM_FFI_DLL_EXPORT_TYPED_FUNC(grouped_matmul, grouped_matmul)
