#include <gemmill/kernel/mma_sync.cuh>

// bf16 D = s8 A x u8 B, accumulated in s32
struct Atom {
  using Word = uint32_t;
  __device__ static void multiply(uint32_t const (&a)[4], uint32_t b0, uint32_t b1, int32_t (&d)[4]) {
    asm volatile(
        "mma.sync.aligned.m16n8k32.row.col.s32.s8.u8.s32 "
        "{%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
  }
};

struct Config {
  using A = int8_t;
  using B = uint8_t;
  using C = gemmill::bf16;
  using D = gemmill::bf16;
  using Accumulator = int32_t;
  static constexpr gemmill::MajorIn kMajorA = gemmill::MajorIn::K;
  static constexpr gemmill::MajorIn kMajorB = gemmill::MajorIn::MN;
  static constexpr gemmill::MajorOut kMajorC = gemmill::MajorOut::N;
  static constexpr gemmill::MajorOut kMajorD = gemmill::MajorOut::N;
  static constexpr int kAlignA = 16, kAlignB = 4, kAlignC = 2, kAlignD = 2;

  static constexpr int kTileM = 128, kTileN = 64, kTileK = 64;
  static constexpr int kStages = 4;

  static constexpr gemmill::Raster kRaster = gemmill::Raster::N;
  static constexpr int kSwizzle = 4;

  using Atom = ::Atom;
  using Epilogue = gemmill::Linear<float>;
};

using Kernel = gemmill::MmaSyncGemm<Config>;

extern "C" __constant__ gemmill::DirectSpec gemmill_sm80_s8k16_u8mn4_s32_bf16n2_bf16n2_128x64x64_1x1_multistage_s4_n4_k1_linear_spec = gemmill::direct_spec<Kernel>();

extern "C" __global__ void __launch_bounds__(Kernel::kThreads, Kernel::kBlocks)
gemmill_sm80_s8k16_u8mn4_s32_bf16n2_bf16n2_128x64x64_1x1_multistage_s4_n4_k1_linear(__grid_constant__ gemmill::DirectParams const params) {
  Kernel::run(params);
}
