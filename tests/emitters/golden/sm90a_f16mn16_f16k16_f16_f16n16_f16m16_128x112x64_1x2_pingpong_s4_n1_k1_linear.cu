#include <gemmill/kernel/tma_wgmma.cuh>

// f16 D = f16 A x f16 B, accumulated in f16
struct Config {
  using A = gemmill::f16;
  using B = gemmill::f16;
  using C = gemmill::f16;
  using D = gemmill::f16;
  static constexpr gemmill::MajorIn kMajorA = gemmill::MajorIn::MN;
  static constexpr gemmill::MajorIn kMajorB = gemmill::MajorIn::K;
  static constexpr gemmill::MajorOut kMajorC = gemmill::MajorOut::N;
  static constexpr gemmill::MajorOut kMajorD = gemmill::MajorOut::M;

  static constexpr int kTileM = 128, kTileN = 112, kTileK = 64;
  static constexpr int kClusterM = 1, kClusterN = 2;
  static constexpr gemmill::Schedule kSchedule = gemmill::Schedule::Pingpong;
  static constexpr int kConsumers = 2;
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;
  static constexpr int kStages = 4, kBuffersC = 2, kBuffersD = 4;

  static constexpr gemmill::Raster kRaster = gemmill::Raster::N;
  static constexpr int kSwizzle = 1;

  using Atom = cute::SM90::GMMA::MMA_64x112x16_F16F16F16_SS<cute::SM90::GMMA::Major::MN, cute::SM90::GMMA::Major::K>;
  using Epilogue = gemmill::LinearEpilogue;
};

using Kernel = gemmill::TmaWgmmaGemm<Config>;

extern "C" __constant__ gemmill::KernelSpec gemmill_sm90a_f16mn16_f16k16_f16_f16n16_f16m16_128x112x64_1x2_pingpong_s4_n1_k1_linear_spec = Kernel::spec();

extern "C" __global__ void __launch_bounds__(Kernel::kThreads, 1) __cluster_dims__(Kernel::kClusterSize)
gemmill_sm90a_f16mn16_f16k16_f16_f16n16_f16m16_128x112x64_1x2_pingpong_s4_n1_k1_linear(__grid_constant__ gemmill::GemmParams const params) {
  Kernel::run(params);
}
