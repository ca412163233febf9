#include <gemmill/kernel/tma_wgmma.cuh>

// f32 D = bf16 A x bf16 B, accumulated in f32
struct Config {
  using A = gemmill::bf16;
  using B = gemmill::bf16;
  using C = float;
  using D = float;
  static constexpr gemmill::MajorIn kMajorA = gemmill::MajorIn::K;
  static constexpr gemmill::MajorIn kMajorB = gemmill::MajorIn::MN;
  static constexpr gemmill::MajorOut kMajorC = gemmill::MajorOut::M;
  static constexpr gemmill::MajorOut kMajorD = gemmill::MajorOut::N;

  static constexpr int kTileM = 192, kTileN = 96, kTileK = 32;
  static constexpr int kClusterM = 2, kClusterN = 2;
  static constexpr gemmill::Schedule kSchedule = gemmill::Schedule::Cooperative;
  static constexpr int kConsumers = 3;
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 152;
  static constexpr int kStages = 4, kBuffersC = 2, kBuffersD = 3;

  static constexpr gemmill::Raster kRaster = gemmill::Raster::N;
  static constexpr int kSwizzle = 2;

  using Atom = cute::SM90::GMMA::MMA_64x96x16_F32BF16BF16_SS<cute::SM90::GMMA::Major::K, cute::SM90::GMMA::Major::MN>;
  using Epilogue = gemmill::LinearEpilogue;
};

using Kernel = gemmill::TmaWgmmaGemm<Config>;

extern "C" __constant__ gemmill::KernelSpec gemmill_sm90a_bf16k16_bf16mn16_f32_f32m16_f32n16_192x96x32_2x2_cooperative_s4_n2_k1_linear_spec = Kernel::spec();

extern "C" __global__ void __launch_bounds__(Kernel::kThreads, 1) __cluster_dims__(Kernel::kClusterSize)
gemmill_sm90a_bf16k16_bf16mn16_f32_f32m16_f32n16_192x96x32_2x2_cooperative_s4_n2_k1_linear(__grid_constant__ gemmill::GemmParams const params) {
  Kernel::run(params);
}
