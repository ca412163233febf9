/// A narrow A (weights), read into registers for WGMMA: it is loaded from the stage, upconverted and multiplied by its
/// group's scale.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include <gemmill/copy/layout.cuh>
#include <gemmill/copy/shared.cuh>
#include <gemmill/kernel/params.cuh>
#include <gemmill/mma/wgmma.cuh>
#include <gemmill/mma/upconvert.cuh>
#include <gemmill/pipeline/named_barrier.cuh>

namespace gemmill {

/// The scale of a group in both halves of a word.
template <class Wide>
__device__ inline uint32_t scale_pair(Wide, Wide scale) {
  return scale.bits * 0x10001u;
}
/// For e2m1: the factor by which its pairs are multiplied (Upconvert<e2m1, Wide>), as exact as `Wide` is. From 2^2 on it
/// is infinite.
__device__ inline uint32_t scale_pair(bf16, ue8m0 scale) { return __viaddmin_s32(scale.bits, 126, 255) * 0x00800080u; }
__device__ inline uint32_t scale_pair(f16, ue8m0 scale) { return __viaddmin_s32_relu(scale.bits, -98, 31) * 0x04000400u; }

/// Scales and zero points of one stage: for each group of `Group` elements along K, one value for each row. Group 0:
/// there are none.
template <class Scale, class Wide, int Group, bool Zeros, int TileM, int TileK>
struct GroupLayout {
  static constexpr int kGroup = Group;
  static constexpr bool kHasZeros = Zeros;
  static constexpr int kGroups = Group == 0 ? 0 : max_of(1, TileK / max_of(1, Group));
  /// Bytes of the scales. The zero points follow and take as many.
  static constexpr int kScaleBytes = kGroups * TileM * int(sizeof(Scale));
  static constexpr int kBytes = kScaleBytes * (Zeros ? 2 : 1);

  /// Called by one thread. Loads the groups of a stage; barrier `full` counts kBytes for them.
  template <class Params>
  __device__ static void load(Params const& params, uint64_t& full, char* stage, int m, int k, int batch) {
    constexpr uint64_t hint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    cute::SM90_TMA_LOAD_3D::copy(&params.scale, &full, hint, stage, m, k / Group, batch);
    if constexpr (Zeros) cute::SM90_TMA_LOAD_3D::copy(&params.zero, &full, hint, stage + kScaleBytes, m, k / Group, batch);
  }

  /// Where a row's values begin within a stage.
  static constexpr int place(int row) { return row * int(sizeof(Scale)); }
  /// The scale of a group; `values` are a row's.
  __device__ static Scale scale(char const* values, int group) {
    return *reinterpret_cast<Scale const*>(values + place(group * TileM));
  }
  /// The value of a group, in both halves of a word; `values` are a row's.
  __device__ static uint32_t pair(char const* values, int group) {
    return scale_pair(Wide{}, *reinterpret_cast<Scale const*>(values + place(group * TileM)));
  }
};

/// Finds one thread's elements of A in each stage. `Layout` is A's layout in bytes, one panel. `K` is the K of the
/// fragments that a warpgroup loads at a time: a stage's, or one of several steps of it.
///
/// A lane needs elements 2 * quad and 2 * quad + 1 of every eight along K, of two rows (PTX ISA, "Register fragments
/// for wgmma.mma_async.m64nNk16", A). The four lanes of a quad read the same 16 bytes of a row, and each keeps its own
/// elements; if elements are in the order of fragments, it reads only these. That is one access of the warp without
/// bank conflicts, whatever the swizzle. Writing an upconverted tile to shared memory and reading it back would move
/// eight times the bytes of a 4-bit tile.
template <class Narrow, class Wide, class Layout, class Groups, int Blocks, int K>
struct NarrowOperand {
  static constexpr int kBits = bits_of<Narrow>;
  static constexpr int kChunkK = 128 / kBits;
  static_assert(Layout::kPanels == 1, "a row of narrow A must lie within one swizzle span");
  static_assert(K % kChunkK == 0, "a warpgroup reads chunks of 16 bytes along K");
  using Fragment = RegisterFragments<Blocks, K / 16>;

  /// Where the lane's first row begins in the first stage, with the swizzle of its first chunk; it is that of rows 8
  /// apart, too. XOR with the place of another chunk gives that chunk.
  uint32_t rows;
  /// Its values of the first group.
  char const* groups;
  uint32_t select;

  /// `m` is the warpgroup's first row within the tile.
  __device__ NarrowOperand(char const* stages, char const* group_stages, int m) {
    int const row = m + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    rows = shared_address(stages) + swizzled<Layout::kSpan>(row * Layout::kSpan) + Chunk<Narrow>::offset(threadIdx.x % 4);
    groups = group_stages + Groups::place(row);
    select = Chunk<Narrow>::template select<Wide>(threadIdx.x % 4);
  }

  __device__ void load(Fragment& fragment, int stage, int step = 0) const {
    char const* const values = groups + stage * Groups::kBytes;
    uint32_t const first = opaque(rows + stage * Layout::kBytes);
#pragma unroll
    for (int block = 0; block < Blocks; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int const below = block * 64 + half * 8;
        uint32_t scale = 0, zero = 0;
#pragma unroll
        for (int chunk = 0; chunk < K / kChunkK; ++chunk) {
          Chunk<Narrow> const packed((first ^ (step * (K / kChunkK) + chunk) * 16) + below * Layout::kSpan);
#pragma unroll
          for (int eight = 0; eight < kChunkK / 8; ++eight) {
            int const k = chunk * kChunkK + eight * 8;
            if constexpr (Groups::kGroup > 0) {
              if (k % Groups::kGroup == 0) {
                int const group = (step * K + k) / Groups::kGroup;
                scale = Groups::pair(values + Groups::place(below), group);
                if (Groups::kHasZeros) zero = Groups::pair(values + Groups::place(below) + Groups::kScaleBytes, group);
              }
            }
            uint32_t pair = packed.template pair<Wide>(eight, select);
            if constexpr (Groups::kHasZeros) pair = sub_pair(Wide{}, pair, zero);
            if constexpr (Groups::kGroup > 0) pair = mul_pair(Wide{}, pair, scale);
            fragment.values[block][k / 16][k % 16 / 8 * 2 + half] = pair;
          }
        }
      }
    }
  }
};

/// The same for activations of e4m3. Elements become e4m3 without their scales, which multiply the sums of each stage in
/// f32 (two-level accumulation): a stage has the K of a group.
///
/// A lane needs elements 4 * quad to 4 * quad + 3 of every 16 along K (PTX ISA, "Register fragments for
/// wgmma.mma_async.m64nNk32", A).
template <class Narrow, class Layout, class Groups, int Blocks, int K>
struct NarrowOperand<Narrow, e4m3, Layout, Groups, Blocks, K> {
  static constexpr int kChunkK = 32;
  static_assert(Layout::kPanels == 1 && K == Groups::kGroup, "a stage is one swizzle span wide, and one group deep");
  using Fragment = RegisterFragments<Blocks, K / kChunkK>;
  /// The factors of a lane's sums: one for each of its rows.
  struct Factors {
    float values[Blocks][2];
  };

  uint32_t rows;
  char const* groups;
  UpconvertBytes<Narrow> upconvert;

  /// `m` is the warpgroup's first row within the tile.
  __device__ NarrowOperand(char const* stages, char const* group_stages, int m) : upconvert(threadIdx.x % 4) {
    int const row = m + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4;
    rows = shared_address(stages) + swizzled<Layout::kSpan>(row * Layout::kSpan);
    groups = group_stages + Groups::place(row);
  }

  /// Loads the elements of a stage, and returns the factors of its sums.
  __device__ Factors load(Fragment& fragment, int stage) const {
    uint32_t const first = opaque(rows + stage * Layout::kBytes);
    Factors factors;
#pragma unroll
    for (int block = 0; block < Blocks; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int const below = block * 64 + half * 8;
        factors.values[block][half] = Groups::scale(groups + stage * Groups::kBytes + Groups::place(below), 0);
#pragma unroll
        for (int chunk = 0; chunk < K / kChunkK; ++chunk) {
          uint4 const words = load_shared<uint4>((first ^ chunk * 16) + below * Layout::kSpan);
          fragment.values[block][chunk][half] = upconvert(words.x, words.y);
          fragment.values[block][chunk][2 + half] = upconvert(words.z, words.w);
        }
      }
    }
    return factors;
  }
};

/// Adds the sums that `Slices` warpgroups have for their stages, always in the same order. The result is in the
/// first warpgroup.
///
/// `scratch` holds an accumulator tile for each warpgroup but the first. All of these warpgroups must call it.
template <int Slices, class Accumulators>
__device__ void reduce_slices(Accumulators& accumulators, char* scratch, int warpgroup, int barrier) {
  constexpr int kValues = sizeof(accumulators.values) / sizeof(float);
  auto* const values = reinterpret_cast<float*>(scratch) + threadIdx.x % 128;
  auto& sums = reinterpret_cast<float(&)[kValues]>(accumulators.values);
  // Before this barrier the first warpgroup has read the previous tile's sums.
  named_barrier::sync(barrier, 128 * Slices);
  if (warpgroup > 0) {
#pragma unroll
    for (int i = 0; i < kValues; ++i) values[((warpgroup - 1) * kValues + i) * 128] = sums[i];
  }
  named_barrier::sync(barrier, 128 * Slices);
  if (warpgroup == 0) {
#pragma unroll
    for (int slice = 0; slice < Slices - 1; ++slice)
#pragma unroll
      for (int i = 0; i < kValues; ++i) sums[i] += values[(slice * kValues + i) * 128];
  }
}

}  // namespace gemmill
