#include <gemmill/kernel/simt.cuh>

// f32 D = f32 A x f32 B, accumulated in f32
struct Config {
  using A = float;
  using B = float;
  using C = gemmill::None;
  using D = float;
  using Accumulator = float;
  static constexpr gemmill::MajorIn kMajorA = gemmill::MajorIn::K;
  static constexpr gemmill::MajorIn kMajorB = gemmill::MajorIn::MN;
  static constexpr gemmill::MajorOut kMajorC = gemmill::MajorOut::ANY;
  static constexpr gemmill::MajorOut kMajorD = gemmill::MajorOut::ANY;
  static constexpr int kAlignA = 16, kAlignB = 16, kAlignC = 4, kAlignD = 4;

  static constexpr int kTileM = 128, kTileN = 128, kTileK = 8;
  static constexpr int kStages = 2;

  static constexpr gemmill::Raster kRaster = gemmill::Raster::M;
  static constexpr int kSwizzle = 8;

  static constexpr int kThreadsM = 8, kThreadsN = 16;
  using Epilogue = gemmill::Linear<float>;
};

using Kernel = gemmill::SimtGemm<Config>;

extern "C" __constant__ gemmill::DirectSpec gemmill_sm90_f32k16_f32mn16_f32_none_f32any4_128x128x8_1x1_simt_s2_m8_k1_linear_spec = gemmill::direct_spec<Kernel>();

extern "C" __global__ void __launch_bounds__(Kernel::kThreads, Kernel::kBlocks)
gemmill_sm90_f32k16_f32mn16_f32_none_f32any4_128x128x8_1x1_simt_s2_m8_k1_linear(__grid_constant__ gemmill::DirectParams const params) {
  Kernel::run(params);
}
