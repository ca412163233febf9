#include <gemmill/kernel/tma_wgmma.cuh>

// f16 D = f16 A x f16 B, accumulated in f16
struct Atom {
  using Register = uint32_t;
  static constexpr int kRegisters = 28;
  static constexpr int kK = 16;

  __device__ static void multiply(uint64_t a, uint64_t b, Register (&d)[kRegisters], bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %30, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n112k16.f16.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
        "%23, %24, %25, %26, %27}, "
        "%28, %29, p, 1, 1, 1, 0;\n}\n"
        : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3]), "+r"(d[4]), "+r"(d[5]), "+r"(d[6]), "+r"(d[7]),
        "+r"(d[8]), "+r"(d[9]), "+r"(d[10]), "+r"(d[11]), "+r"(d[12]), "+r"(d[13]), "+r"(d[14]), "+r"(d[15]),
        "+r"(d[16]), "+r"(d[17]), "+r"(d[18]), "+r"(d[19]), "+r"(d[20]), "+r"(d[21]), "+r"(d[22]), "+r"(d[23]),
        "+r"(d[24]), "+r"(d[25]), "+r"(d[26]), "+r"(d[27])
        : "l"(a), "l"(b), "r"(int(accumulate)));
  }
};

struct Config {
  using A = gemmill::f16;
  using B = gemmill::f16;
  using C = gemmill::f16;
  using D = gemmill::f16;
  using Scale = gemmill::None;
  static constexpr gemmill::MajorIn kMajorA = gemmill::MajorIn::MN;
  static constexpr gemmill::MajorIn kMajorB = gemmill::MajorIn::K;
  static constexpr gemmill::MajorOut kMajorC = gemmill::MajorOut::N;
  static constexpr gemmill::MajorOut kMajorD = gemmill::MajorOut::M;

  static constexpr int kTileM = 128, kTileN = 112, kTileK = 64;
  static constexpr int kClusterM = 1, kClusterN = 2;
  static constexpr gemmill::Schedule kSchedule = gemmill::Schedule::Pingpong;
  static constexpr int kConsumers = 2;
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;
  static constexpr bool kPromote = false;
  static constexpr int kGroup = 0;
  static constexpr bool kZeros = false;
  static constexpr int kStages = 4, kSubtileN = 56, kBuffersC = 2, kBuffersD = 4;

  static constexpr gemmill::Raster kRaster = gemmill::Raster::N;
  static constexpr int kSwizzle = 1;
  template <class Order, int TileK>
  using Scheduler = gemmill::PersistentScheduler<Order, TileK>;

  using Atom = ::Atom;
  using Terms = gemmill::OneTerm;
  using Epilogue = gemmill::LinearEpilogue;
};

using Kernel = gemmill::TmaWgmmaGemm<Config>;

extern "C" __constant__ gemmill::KernelSpec gemmill_sm90a_f16mn16_f16k16_f16_f16n16_f16m16_128x112x64_1x2_pingpong_s4_n1_k1_linear_spec = Kernel::spec();

extern "C" __global__ void __launch_bounds__(Kernel::kThreads, 1) __cluster_dims__(Kernel::kClusterSize)
gemmill_sm90a_f16mn16_f16k16_f16_f16n16_f16m16_128x112x64_1x2_pingpong_s4_n1_k1_linear(__grid_constant__ Kernel::Params const params) {
  Kernel::run(params);
}
