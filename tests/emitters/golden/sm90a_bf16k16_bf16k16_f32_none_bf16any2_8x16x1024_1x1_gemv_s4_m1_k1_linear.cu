#include <gemmill/kernel/gemv.cuh>

// bf16 D = bf16 A x bf16 B, accumulated in f32
struct Atom {
  using Word = uint32_t;
  __device__ static void multiply(uint32_t const (&a)[4], uint32_t b0, uint32_t b1, float (&d)[4]) {
    asm volatile(
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

struct Config {
  using A = gemmill::bf16;
  using B = gemmill::bf16;
  using C = gemmill::None;
  using D = gemmill::bf16;
  using Accumulator = float;
  static constexpr gemmill::MajorIn kMajorA = gemmill::MajorIn::K;
  static constexpr gemmill::MajorIn kMajorB = gemmill::MajorIn::K;
  static constexpr gemmill::MajorOut kMajorC = gemmill::MajorOut::ANY;
  static constexpr gemmill::MajorOut kMajorD = gemmill::MajorOut::ANY;
  static constexpr int kAlignA = 16, kAlignB = 16, kAlignC = 2, kAlignD = 2;

  static constexpr int kTileM = 8, kTileN = 16, kTileK = 1024;
  static constexpr int kStages = 4;

  static constexpr gemmill::Raster kRaster = gemmill::Raster::M;
  static constexpr int kSwizzle = 1;

  using Atom = ::Atom;
  static constexpr int kBlocks = 2;
  using Epilogue = gemmill::Linear<float>;
};

using Kernel = gemmill::Gemv<Config>;

extern "C" __constant__ gemmill::DirectSpec gemmill_sm90a_bf16k16_bf16k16_f32_none_bf16any2_8x16x1024_1x1_gemv_s4_m1_k1_linear_spec = gemmill::direct_spec<Kernel>();

extern "C" __global__ void __launch_bounds__(Kernel::kThreads, Kernel::kBlocks)
gemmill_sm90a_bf16k16_bf16k16_f32_none_bf16any2_8x16x1024_1x1_gemv_s4_m1_k1_linear(__grid_constant__ gemmill::DirectParams const params) {
  Kernel::run(params);
}
