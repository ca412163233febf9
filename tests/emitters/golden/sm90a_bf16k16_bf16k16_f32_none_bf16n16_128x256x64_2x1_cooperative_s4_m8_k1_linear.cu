#include <gemmill/kernel/tma_wgmma.cuh>

// bf16 D = bf16 A x bf16 B, accumulated in f32
struct Config {
  using A = gemmill::bf16;
  using B = gemmill::bf16;
  using C = gemmill::None;
  using D = gemmill::bf16;
  static constexpr gemmill::MajorIn kMajorA = gemmill::MajorIn::K;
  static constexpr gemmill::MajorIn kMajorB = gemmill::MajorIn::K;
  static constexpr gemmill::MajorOut kMajorC = gemmill::MajorOut::N;
  static constexpr gemmill::MajorOut kMajorD = gemmill::MajorOut::N;

  static constexpr int kTileM = 128, kTileN = 256, kTileK = 64;
  static constexpr int kClusterM = 2, kClusterN = 1;
  static constexpr gemmill::Schedule kSchedule = gemmill::Schedule::Cooperative;
  static constexpr int kConsumers = 2;
  static constexpr int kProducerRegisters = 56, kConsumerRegisters = 224;
  static constexpr int kStages = 4, kBuffersC = 0, kBuffersD = 2;

  static constexpr gemmill::Raster kRaster = gemmill::Raster::M;
  static constexpr int kSwizzle = 8;

  using Atom = cute::SM90::GMMA::MMA_64x256x16_F32BF16BF16_SS<cute::SM90::GMMA::Major::K, cute::SM90::GMMA::Major::K>;
  using Epilogue = gemmill::LinearEpilogue;
};

using Kernel = gemmill::TmaWgmmaGemm<Config>;

extern "C" __constant__ gemmill::KernelSpec gemmill_sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear_spec = Kernel::spec();

extern "C" __global__ void __launch_bounds__(Kernel::kThreads, 1) __cluster_dims__(Kernel::kClusterSize)
gemmill_sm90a_bf16k16_bf16k16_f32_none_bf16n16_128x256x64_2x1_cooperative_s4_m8_k1_linear(__grid_constant__ gemmill::GemmParams const params) {
  Kernel::run(params);
}
