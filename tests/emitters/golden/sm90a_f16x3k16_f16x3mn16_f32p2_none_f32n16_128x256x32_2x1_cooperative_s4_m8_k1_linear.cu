#include <gemmill/kernel/tma_wgmma.cuh>

// f32 D = f16x3 A x f16x3 B, accumulated in f32
struct Atom {
  using Register = float;
  static constexpr int kRegisters = 64;
  static constexpr int kK = 16;

  __device__ static void multiply(uint64_t a, uint64_t b, Register (&d)[kRegisters], bool accumulate) {
    asm volatile(
        "{\n.reg .pred p;\nsetp.ne.b32 p, %66, 0;\n"
        "wgmma.mma_async.sync.aligned.m64n128k16.f32.f16.f16 "
        "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, %18, %19, %20, %21, %22, "
        "%23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, "
        "%44, %45, %46, %47, %48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, "
        "%64, %65, p, 1, 1, 0, 1;\n}\n"
        : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
        : "l"(a), "l"(b), "r"(int(accumulate)));
  }
};

struct Config {
  using A = gemmill::f16;
  using B = gemmill::f16;
  using C = gemmill::None;
  using D = float;
  using Scale = gemmill::None;
  static constexpr gemmill::MajorIn kMajorA = gemmill::MajorIn::K;
  static constexpr gemmill::MajorIn kMajorB = gemmill::MajorIn::MN;
  static constexpr gemmill::MajorOut kMajorC = gemmill::MajorOut::N;
  static constexpr gemmill::MajorOut kMajorD = gemmill::MajorOut::N;

  static constexpr int kTileM = 128, kTileN = 256, kTileK = 32;
  static constexpr int kClusterM = 2, kClusterN = 1;
  static constexpr gemmill::Schedule kSchedule = gemmill::Schedule::Cooperative;
  static constexpr int kConsumers = 2;
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;
  static constexpr bool kPromote = true;
  static constexpr int kGroup = 0;
  static constexpr bool kZeros = false;
  static constexpr int kStages = 4, kSubtileN = 32, kBuffersC = 0, kBuffersD = 2;

  static constexpr gemmill::Raster kRaster = gemmill::Raster::M;
  static constexpr int kSwizzle = 8;
  template <class Order, int TileK>
  using Scheduler = gemmill::PersistentScheduler<Order, TileK>;

  using Atom = ::Atom;
  using Terms = gemmill::Terms<2, 3, 0x4, 0x1>;
  using Epilogue = gemmill::LinearEpilogue;
};

using Kernel = gemmill::TmaWgmmaGemm<Config>;

extern "C" __constant__ gemmill::KernelSpec gemmill_sm90a_f16x3k16_f16x3mn16_f32p2_none_f32n16_128x256x32_2x1_cooperative_s4_m8_k1_linear_spec = Kernel::spec();

extern "C" __global__ void __launch_bounds__(Kernel::kThreads, 1) __cluster_dims__(Kernel::kClusterSize)
gemmill_sm90a_f16x3k16_f16x3mn16_f32p2_none_f32n16_128x256x32_2x1_cooperative_s4_m8_k1_linear(__grid_constant__ Kernel::Params const params) {
  Kernel::run(params);
}
