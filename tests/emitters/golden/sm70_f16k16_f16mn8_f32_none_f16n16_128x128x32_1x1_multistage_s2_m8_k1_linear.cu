#include <gemmill/kernel/mma_sync.cuh>

// f16 D = f16 A x f16 B, accumulated in f32
struct Atom {
  using Word = uint32_t;
  __device__ static void multiply(uint32_t a0, uint32_t a1, uint32_t b0, uint32_t b1, float (&d)[4], float (&e)[4]) {
    asm volatile(
        "mma.sync.aligned.m8n8k4.row.row.f32.f16.f16.f32 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, {%8, %9}, {%10, %11}, {%0, %1, %2, %3, %4, %5, %6, %7};"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(e[0]), "+f"(e[1]), "+f"(e[2]), "+f"(e[3])
        : "r"(a0), "r"(a1), "r"(b0), "r"(b1));
  }
};

struct Config {
  using A = gemmill::f16;
  using B = gemmill::f16;
  using C = gemmill::None;
  using D = gemmill::f16;
  using Accumulator = float;
  static constexpr gemmill::MajorIn kMajorA = gemmill::MajorIn::K;
  static constexpr gemmill::MajorIn kMajorB = gemmill::MajorIn::MN;
  static constexpr gemmill::MajorOut kMajorC = gemmill::MajorOut::N;
  static constexpr gemmill::MajorOut kMajorD = gemmill::MajorOut::N;
  static constexpr int kAlignA = 16, kAlignB = 8, kAlignC = 16, kAlignD = 16;

  static constexpr int kTileM = 128, kTileN = 128, kTileK = 32;
  static constexpr int kStages = 2;

  static constexpr gemmill::Raster kRaster = gemmill::Raster::M;
  static constexpr int kSwizzle = 8;

  using Atom = ::Atom;
  using Epilogue = gemmill::Linear<float>;
};

using Kernel = gemmill::QuadpairGemm<Config>;

extern "C" __constant__ gemmill::DirectSpec gemmill_sm70_f16k16_f16mn8_f32_none_f16n16_128x128x32_1x1_multistage_s2_m8_k1_linear_spec = gemmill::direct_spec<Kernel>();

extern "C" __global__ void __launch_bounds__(Kernel::kThreads, Kernel::kBlocks)
gemmill_sm70_f16k16_f16mn8_f32_none_f16n16_128x128x32_1x1_multistage_s2_m8_k1_linear(__grid_constant__ gemmill::DirectParams const params) {
  Kernel::run(params);
}
