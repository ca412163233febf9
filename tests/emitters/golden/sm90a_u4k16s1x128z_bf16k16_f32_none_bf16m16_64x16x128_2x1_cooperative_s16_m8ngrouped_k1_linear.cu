#include <gemmill/kernel/tma_wgmma.cuh>

// bf16 D = u4 A x bf16 B, accumulated in f32
struct Atom {
  using Register = float;
  static constexpr int kRegisters = 8;
  static constexpr int kK = 16;

  __device__ static void multiply(uint32_t const (&a)[4], uint64_t b, Register (&d)[kRegisters], bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %13, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n16k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7}, "
        "{%8, %9, %10, %11}, %12, p, 1, 1, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)));
  }
};

struct Config {
  using A = gemmill::u4;
  using B = gemmill::bf16;
  using C = gemmill::None;
  using D = gemmill::bf16;
  using Scale = gemmill::None;
  static constexpr gemmill::MajorIn kMajorA = gemmill::MajorIn::K;
  static constexpr gemmill::MajorIn kMajorB = gemmill::MajorIn::K;
  static constexpr gemmill::MajorOut kMajorC = gemmill::MajorOut::M;
  static constexpr gemmill::MajorOut kMajorD = gemmill::MajorOut::M;

  static constexpr int kTileM = 64, kTileN = 16, kTileK = 128;
  static constexpr int kClusterM = 2, kClusterN = 1;
  static constexpr gemmill::Schedule kSchedule = gemmill::Schedule::Cooperative;
  static constexpr int kConsumers = 4;
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 104;
  static constexpr bool kPromote = false;
  static constexpr int kGroup = 128;
  static constexpr bool kZeros = true;
  static constexpr int kStages = 16, kSubtileN = 16, kBuffersC = 0, kBuffersD = 2;

  static constexpr gemmill::Raster kRaster = gemmill::Raster::M;
  static constexpr int kSwizzle = 8;
  template <class Order, int TileK>
  using Scheduler = gemmill::GroupScheduler<gemmill::BatchMode::GroupedN, Order, TileK, false>;

  using Atom = ::Atom;
  using Terms = gemmill::OneTerm;
  using Epilogue = gemmill::LinearEpilogue;
};

using Kernel = gemmill::TmaWgmmaGemm<Config>;

extern "C" __constant__ gemmill::KernelSpec gemmill_sm90a_u4k16s1x128z_bf16k16_f32_none_bf16m16_64x16x128_2x1_cooperative_s16_m8ngrouped_k1_linear_spec = Kernel::spec();

extern "C" __global__ void __launch_bounds__(Kernel::kThreads, 1) __cluster_dims__(Kernel::kClusterSize)
gemmill_sm90a_u4k16s1x128z_bf16k16_f32_none_bf16m16_64x16x128_2x1_cooperative_s16_m8ngrouped_k1_linear(__grid_constant__ Kernel::Params const params) {
  Kernel::run(params);
}
