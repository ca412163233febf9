/// The products of an MLP block, h = x W_up^T and y = h W_down^T, in bf16 on device buffers. Weights are (output,
/// input), as in PyTorch. The activation between them would be a kernel of the engine.
///
/// Arguments: a pack, tokens, hidden size, intermediate size, and the names of two kernels of the pack; without names,
/// the choice table of the pack picks them.
#include <cuda.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>
#include <string>

#include "gemmill/gemmill.h"

namespace {

void check(CUresult status, const char* what) {
  if (status != CUDA_SUCCESS) throw std::runtime_error(std::string(what) + ": driver status " + std::to_string(status));
}

void check(gemmill_status status) {
  if (status != GEMMILL_OK) throw std::runtime_error(gemmill_last_error());
}

/// A bf16 matrix in device memory, with contiguous rows.
class Matrix {
 public:
  Matrix(int64_t rows, int64_t columns, CUstream stream) : shape_{rows, columns, rows}, strides_{columns, 1, columns} {
    const size_t bytes = static_cast<size_t>(rows * columns) * 2;
    check(cuMemAlloc(&address_, bytes), "allocating a matrix");
    check(cuMemsetD32Async(address_, 0x3f803f80, bytes / 4, stream), "filling a matrix with ones");
  }
  ~Matrix() { cuMemFree(address_); }
  Matrix(const Matrix&) = delete;
  Matrix& operator=(const Matrix&) = delete;

  DLTensor tensor() { return view(0); }
  /// The same memory with rows and columns exchanged.
  DLTensor transposed() { return view(1); }
  void* data() const { return reinterpret_cast<void*>(address_); }

 private:
  DLTensor view(size_t first) {
    return {data(), {kDLCUDA, 0}, 2, {kDLBfloat, 16, 1}, &shape_[first], &strides_[first], 0};
  }

  CUdeviceptr address_ = 0;
  std::array<int64_t, 3> shape_;  // rows, columns, rows: from the second on, those of the transpose
  std::array<int64_t, 3> strides_;
};

/// A linear layer that is launched at each step: D = A W^T.
class Linear {
 public:
  Linear(const gemmill_pack* pack, const char* kernel, Matrix& a, Matrix& w, Matrix& d) : a_(a), w_(w), d_(d) {
    const DLTensor of_a = a.tensor();
    const DLTensor of_w = w.transposed();
    const DLTensor of_d = d.tensor();
    gemmill_gemm gemm{};
    gemm.a = &of_a;
    gemm.b = &of_w;
    gemm.d = &of_d;
    gemm.alpha = 1;
    gemm.kernel = kernel;
    check(gemmill_plan_create(pack, &gemm, &plan_));
    std::printf("%s\n", gemmill_plan_kernel(plan_));
  }
  ~Linear() { gemmill_plan_destroy(plan_); }
  Linear(const Linear&) = delete;
  Linear& operator=(const Linear&) = delete;

  void launch(CUstream stream) const {
    check(gemmill_plan_launch(plan_, stream, nullptr, a_.data(), w_.data(), nullptr, d_.data()));
  }

 private:
  const Matrix& a_;
  const Matrix& w_;
  const Matrix& d_;
  gemmill_plan* plan_ = nullptr;
};

/// Runs the block some times on a stream.
void forward(const gemmill_pack* pack, int64_t tokens, int64_t hidden, int64_t intermediate, const char* up,
             const char* down, CUstream stream) {
  Matrix x(tokens, hidden, stream);
  Matrix w_up(intermediate, hidden, stream);
  Matrix h(tokens, intermediate, stream);
  Matrix w_down(hidden, intermediate, stream);
  Matrix y(tokens, hidden, stream);
  const Linear expand(pack, up, x, w_up, h);
  const Linear contract(pack, down, h, w_down, y);
  for (int step = 0; step < 3; ++step) {
    expand.launch(stream);
    contract.launch(stream);
  }
  check(cuStreamSynchronize(stream), "waiting for the launches");
}

void run(int count, char** arguments) {
  if (count != 5 && count != 7) throw std::runtime_error("usage: engine PACK TOKENS HIDDEN INTERMEDIATE [UP DOWN]");
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUstream stream = nullptr;
  check(cuInit(0), "initialising the driver");
  check(cuDeviceGet(&device, 0), "opening GPU 0");
  check(cuDevicePrimaryCtxRetain(&context, device), "retaining its context");
  check(cuCtxSetCurrent(context), "entering its context");
  check(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "creating a stream");
  gemmill_pack* pack = nullptr;
  check(gemmill_pack_open(arguments[1], nullptr, &pack));
  forward(pack, std::atoll(arguments[2]), std::atoll(arguments[3]), std::atoll(arguments[4]),
          count == 7 ? arguments[5] : nullptr, count == 7 ? arguments[6] : nullptr, stream);
  gemmill_pack_close(pack);
}

}  // namespace

int main(int count, char** arguments) {
  try {
    run(count, arguments);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
