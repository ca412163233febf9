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

/// What the pairs of a group are multiplied by in two rows: the scales, or 2^6 times them if pairs are down. Those from
/// 2^122 on then are infinite.
template <class Narrow, class Wide>
__device__ inline void factors(Wide (&result)[2], Wide first, Wide second) {
  result[0] = first, result[1] = second;
  if constexpr (kIsDown<Narrow, Wide>) result[0] = times(first, kUp), result[1] = times(second, kUp);
}
/// For e2m1: the factors by which its pairs are multiplied (Upconvert<e2m1, Wide>), as exact as `Wide` is. From 2^2 on
/// they are infinite.
template <class, class Wide>
__device__ inline void factors(Wide (&result)[2], ue8m0 first, ue8m0 second) {
  uint32_t const scales = first.bits + second.bits * 0x10000u;
  uint32_t both;
  if constexpr (cute::is_same_v<Wide, bf16>)
    both = __viaddmin_s16x2(scales, 0x007e007e, 0x00ff00ff) << 7;
  else
    both = __viaddmin_s16x2_relu(scales, 0xff9eff9e, 0x001f001f) << 10;
  asm("mov.b32 {%0, %1}, %2;" : "=h"(result[0].bits), "=h"(result[1].bits) : "r"(both));
}

/// Scales and zero points of one stage: for each group of `Group` elements along K, one value for each row. Group 0:
/// there are none.
template <class Scale, int Group, bool Zeros, int TileM, int TileK>
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
  /// The value of a group; `values` are a row's.
  __device__ static Scale value(char const* values, int group) {
    return *reinterpret_cast<Scale const*>(values + place(group * TileM));
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

  /// Whether the lanes of a quad, which need the same scales, each load some of a stage's and have the rest from the
  /// others.
  static constexpr bool kShares = Groups::kGroups > 0 && Groups::kGroups % 4 == 0 && !Groups::kHasZeros;

  /// What the pairs of rows 8 apart are multiplied by, and their zero points, in the group that was reached last. If
  /// lanes share loads, `own` has the factors of both rows in groups quad, quad + 4, ... of the stage.
  struct Scales {
    Wide factors[Blocks][2], zeros[Blocks][2];
    uint32_t own[Blocks][max_of(1, Groups::kGroups / 4)];
  };

  __device__ void load(Fragment& fragment, int stage) const {
    Scales scales;
    load(fragment, scales, stage, 0);
  }

  /// Loads one of the steps of a stage, which must come in order.
  __device__ void load(Fragment& fragment, Scales& scales, int stage, int step) const {
    char const* const values = groups + stage * Groups::kBytes;
    uint32_t const first = opaque(rows + stage * Layout::kBytes);
#pragma unroll
    for (int block = 0; block < Blocks; ++block) {
      char const* const of_block = values + Groups::place(block * 64);
      if (kShares && step == 0) load_own(scales.own[block], of_block);
#pragma unroll
      for (int chunk = 0; chunk < K / kChunkK; ++chunk) {
        uint32_t const place = (first ^ (step * (K / kChunkK) + chunk) * 16) + block * 64 * Layout::kSpan;
        Chunk<Narrow> const packed[2] = {Chunk<Narrow>(place), Chunk<Narrow>(place + 8 * Layout::kSpan)};
#pragma unroll
        for (int eight = 0; eight < kChunkK / 8; ++eight) {
          int const k = chunk * kChunkK + eight * 8;
          reach(scales, block, of_block, step * K + k);
#pragma unroll
          for (int half = 0; half < 2; ++half)
            fragment.values[block][k / 16][k % 16 / 8 * 2 + half] =
                pair(packed[half], eight, scales.factors[block][half], scales.zeros[block][half]);
        }
      }
    }
  }

 private:
  /// The pair of eight adjacent elements of a chunk, scaled.
  __device__ uint32_t pair(Chunk<Narrow> const& packed, int eight, Wide factor, Wide zero) const {
    uint32_t values;
    if constexpr (Groups::kHasZeros) {
      values = packed.template pair<Wide>(eight, select, zero);
    } else {
      values = packed.template pair<Wide>(eight, select);
    }
    if constexpr (Groups::kGroup > 0 || kIsDown<Narrow, Wide>) values = mul_pair(Wide{}, values, both(factor));
    return values;
  }

  /// Element `k` of the stage is reached: if it begins a group, its values replace those of the group before.
  __device__ static void reach(Scales& scales, int block, char const* values, int k) {
    if constexpr (Groups::kGroup == 0) {
      if constexpr (kIsDown<Narrow, Wide>) scales.factors[block][0] = scales.factors[block][1] = kUp;
    } else if (k % Groups::kGroup == 0) {
      int const group = k / Groups::kGroup;
      if constexpr (kShares) {
        uint32_t const both_rows = __shfl_sync(~0u, scales.own[block][group / 4], group % 4, 4);
        asm("mov.b32 {%0, %1}, %2;"
            : "=h"(scales.factors[block][0].bits), "=h"(scales.factors[block][1].bits)
            : "r"(both_rows));
      } else {
        load_factors(scales.factors[block], values, group);
      }
      if constexpr (Groups::kHasZeros) load_zeros(scales.zeros[block], values + Groups::kScaleBytes, group);
    }
  }

  __device__ static void load_own(uint32_t (&own)[max_of(1, Groups::kGroups / 4)], char const* values) {
#pragma unroll
    for (int i = 0; i < Groups::kGroups / 4; ++i) {
      Wide of_rows[2];
      load_factors(of_rows, values, 4 * i + threadIdx.x % 4);
      asm("mov.b32 %0, {%1, %2};" : "=r"(own[i]) : "h"(of_rows[0].bits), "h"(of_rows[1].bits));
    }
  }

  /// The factors of a group in rows 8 apart.
  __device__ static void load_factors(Wide (&result)[2], char const* values, int group) {
    factors<Narrow>(result, Groups::value(values, group), Groups::value(values + Groups::place(8), group));
  }

  __device__ static void load_zeros(Wide (&result)[2], char const* values, int group) {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      result[half] = Groups::value(values + Groups::place(8 * half), group);
      if constexpr (kIsDown<Narrow, Wide>) result[half] = times(result[half], kDown);
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
        factors.values[block][half] = Groups::value(groups + stage * Groups::kBytes + Groups::place(below), 0);
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
