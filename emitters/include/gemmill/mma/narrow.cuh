/// A narrow A (weights) as WGMMA's operand from registers: read as it lies in shared memory, upconverted, scaled by group.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include <gemmill/copy/layout.cuh>
#include <gemmill/kernel/params.cuh>
#include <gemmill/mma/wgmma.cuh>
#include <gemmill/mma/upconvert.cuh>
#include <gemmill/pipeline/named_barrier.cuh>

namespace gemmill {

/// Scales, and zero points, of one stage: for each group of `Group` elements along K (0: there are none) one of each row.
template <class Wide, int Group, bool Zeros, int TileM, int TileK>
struct GroupLayout {
  static constexpr int kGroup = Group;
  static constexpr bool kHasZeros = Zeros;
  static constexpr int kGroups = Group == 0 ? 0 : max_of(1, TileK / max_of(1, Group));
  /// Of the scales; the zero points follow, as many.
  static constexpr int kScaleBytes = kGroups * TileM * int(sizeof(Wide));
  static constexpr int kBytes = kScaleBytes * (Zeros ? 2 : 1);

  /// One thread: loads the groups of a stage; `full` counts kBytes.
  template <class Params>
  __device__ static void load(Params const& params, uint64_t& full, char* stage, int m, int k, int batch) {
    constexpr uint64_t hint = static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_NORMAL);
    cute::SM90_TMA_LOAD_3D::copy(&params.scale, &full, hint, stage, m, k / Group, batch);
    if constexpr (Zeros) cute::SM90_TMA_LOAD_3D::copy(&params.zero, &full, hint, stage + kScaleBytes, m, k / Group, batch);
  }

  /// Twice the value of a group and a row.
  __device__ static uint32_t pair(char const* values, int group, int row) {
    return *reinterpret_cast<uint16_t const*>(values + (group * TileM + row) * int(sizeof(Wide))) * 0x10001u;
  }
};

/// Where one thread finds its part of every stage. `Layout` is A's in bytes, one panel; `K` what a warpgroup multiplies of
/// a stage, which may be a slice of it.
///
/// A lane needs elements 2 * quad and 2 * quad + 1 of every eight along K, of two rows (PTX ISA, "Register fragments for
/// wgmma.mma_async.m64nNk16", A). The four lanes of a quad read the same 16 bytes of a row, which is one conflict-free
/// access of the warp whatever the swizzle, and each keeps its elements: the round trip through shared memory that a
/// upconverted tile would take costs eight times the bytes of a 4-bit one.
template <class Narrow, class Wide, class Layout, class Groups, int Blocks, int K>
struct NarrowOperand {
  static constexpr int kBits = bits_of<Narrow>;
  static constexpr int kChunkK = 128 / kBits;
  static constexpr int kEightWords = kBits / 4;
  static_assert(Layout::kPanels == 1, "a row of narrow A must lie within one swizzle span");
  static_assert(K % kChunkK == 0, "a warpgroup reads chunks of 16 bytes along K");
  using Fragment = RegisterFragments<Blocks, K / 16>;

  char const* rows;
  char const* groups;
  int row;
  int first_group;
  uint32_t swizzle;
  uint32_t select;

  /// `m` is the first row of the warpgroup in the tile, `k` its first element along K.
  __device__ NarrowOperand(char const* stages, char const* group_stages, int m, int k)
      : groups(group_stages), row(m + threadIdx.x / 32 % 4 * 16 + threadIdx.x % 32 / 4) {
    int const byte = row * Layout::kSpan;
    rows = stages + byte;
    // Rows 8 apart are swizzled alike, and a slice of K starts at a power of two that no chunk of it reaches.
    swizzle = (swizzled<Layout::kSpan>(byte) ^ byte) ^ (k * kBits / 8);
    first_group = k / max_of(1, Groups::kGroup);
    select = Upconvert<Narrow, Wide>::select(threadIdx.x % 4);
  }

  __device__ void load(Fragment& fragment, int stage) const {
    char const* const values = groups + stage * Groups::kBytes;
#pragma unroll
    for (int block = 0; block < Blocks; ++block) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        int const below = block * 64 + half * 8;
        uint32_t scale = 0, zero = 0;
#pragma unroll
        for (int chunk = 0; chunk < K / kChunkK; ++chunk) {
          uint4 const packed = *reinterpret_cast<uint4 const*>(rows + stage * Layout::kBytes + below * Layout::kSpan +
                                                               (chunk * 16 ^ swizzle));
          uint32_t const words[5] = {packed.x, packed.y, packed.z, packed.w, 0};
#pragma unroll
          for (int eight = 0; eight < kChunkK / 8; ++eight) {
            int const k = chunk * kChunkK + eight * 8;
            if constexpr (Groups::kGroup > 0) {
              if (k % Groups::kGroup == 0) {
                scale = Groups::pair(values, first_group + k / Groups::kGroup, row + below);
                if (Groups::kHasZeros)
                  zero = Groups::pair(values + Groups::kScaleBytes, first_group + k / Groups::kGroup, row + below);
              }
            }
            uint32_t pair = Upconvert<Narrow, Wide>::pair(words[eight * kEightWords], words[eight * kEightWords + 1], select);
            if constexpr (Groups::kHasZeros) pair = sub_pair(Wide{}, pair, zero);
            if constexpr (Groups::kGroup > 0) pair = mul_pair(Wide{}, pair, scale);
            fragment.values[block][k / 16][k % 16 / 8 * 2 + half] = pair;
          }
        }
      }
    }
  }
};

/// Adds up what `Slices` warpgroups summed over their slices of K, always in the same order; the first holds the result.
///
/// `scratch` holds an accumulator tile of each but the first. All of the warpgroups call it.
template <int Slices, class Accumulators>
__device__ void reduce_slices(Accumulators& accumulators, char* scratch, int warpgroup, int barrier) {
  constexpr int kValues = sizeof(accumulators.values) / sizeof(float);
  auto* const values = reinterpret_cast<float*>(scratch) + threadIdx.x % 128;
  auto& sums = reinterpret_cast<float(&)[kValues]>(accumulators.values);
  // The first warpgroup has read the tile before.
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
