#include <gemmill/kernel/tma_wgmma.cuh>

// bf16 D = bf16 A x bf16 B, accumulated in f32
struct Atom {
  using Register = float;
  static constexpr int kRegisters = 32;
  static constexpr int kK = 16;

  __device__ static void multiply(uint32_t const (&a)[4], uint64_t b, Register (&d)[kRegisters], bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
        "%23, %24, %25, %26, %27, %28, %29, %30, %31}, "
        "{%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
        : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(int(accumulate)));
  }
};

struct Config {
  using A = gemmill::bf16;
  using B = gemmill::bf16;
  using C = gemmill::None;
  using D = float;
  using Scale = gemmill::None;
  static constexpr gemmill::MajorIn kMajorA = gemmill::MajorIn::MN;
  static constexpr gemmill::MajorIn kMajorB = gemmill::MajorIn::K;
  static constexpr gemmill::MajorOut kMajorC = gemmill::MajorOut::M;
  static constexpr gemmill::MajorOut kMajorD = gemmill::MajorOut::M;

  static constexpr int kTileM = 128, kTileN = 64, kTileK = 64;
  static constexpr int kClusterM = 1, kClusterN = 1;
  static constexpr gemmill::Schedule kSchedule = gemmill::Schedule::Cooperative;
  static constexpr int kConsumers = 2;
  static constexpr int kProducerRegisters = 72, kConsumerRegisters = 216;
  static constexpr bool kPromote = false;
  static constexpr int kGroup = 0;
  static constexpr bool kZeros = false;
  static constexpr int kStages = 7, kSubtileN = 32, kBuffersC = 0, kBuffersD = 2;

  static constexpr gemmill::Raster kRaster = gemmill::Raster::M;
  static constexpr int kSwizzle = 8;
  template <class Order, int TileK>
  using Scheduler = gemmill::OfUnaligned<gemmill::SplitKScheduler<Order, TileK, 2>>;

  using Atom = ::Atom;
  using Terms = gemmill::OneTerm;
  using Epilogue = gemmill::Raw<float, gemmill::LinearEpilogue>;
};

using Kernel = gemmill::TmaWgmmaGemm<Config>;

struct ReductionConfig {
  using C = gemmill::None;
  using D = gemmill::bf16;
  static constexpr gemmill::MajorOut kMajorC = gemmill::MajorOut::M;
  static constexpr gemmill::MajorOut kMajorD = gemmill::MajorOut::M;
  static constexpr int kAlignC = 16, kAlignD = 16;
  using Partial = float;
  using Epilogue = gemmill::LinearEpilogue;
};

using Reduction = gemmill::Reduction<ReductionConfig>;

extern "C" __global__ void __launch_bounds__(Reduction::kThreads)
gemmill_sm90a_bf16mn2_bf16k16_f32_none_bf16m16_128x64x64_1x1_cooperative_s7_m8_splitk_linear_reduction(__grid_constant__ Kernel::Params const params) {
  Reduction::run(params);
}

extern "C" __constant__ gemmill::UnalignedSpec<gemmill::SplitKSpec> gemmill_sm90a_bf16mn2_bf16k16_f32_none_bf16m16_128x64x64_1x1_cooperative_s7_m8_splitk_linear_spec = Kernel::unaligned_spec(Kernel::splitk_spec<Reduction>());

extern "C" __global__ void __launch_bounds__(Kernel::kThreads, 1) __cluster_dims__(Kernel::kClusterSize)
gemmill_sm90a_bf16mn2_bf16k16_f32_none_bf16m16_128x64x64_1x1_cooperative_s7_m8_splitk_linear(__grid_constant__ Kernel::Params const params) {
  Kernel::run(params);
}
