/// An A of any alignment for WGMMA: producer warps copy it in aligned chunks of 16 bytes, and consumers read it into
/// registers from where each row begins.
#pragma once

#include <gemmill/copy/gather.cuh>
#include <gemmill/mma/fragments.cuh>
#include <gemmill/mma/wgmma.cuh>

namespace gemmill {

/// A stage of A: rows along its contiguous extent, each from the 16-byte boundary at or before its beginning.
template <class Element_, MajorIn Major, int TileM, int TileK>
struct UnalignedStage {
  using Element = Element_;
  static constexpr bool kAlongK = Major == MajorIn::K;
  static constexpr int kSize = sizeof(Element), kTileM = TileM, kTileK = TileK;
  static constexpr int kRows = kAlongK ? TileM : TileK, kExtent = kAlongK ? TileK : TileM;
  using Layout = ShiftedLayout<Element, kSize, kRows, kExtent>;
  static constexpr int kPitch = Layout::kPitch;
  /// Whole periods of the swizzle of other regions.
  static constexpr int kBytes = ceil_div(Layout::kBytes, 1024) * 1024;
  static_assert(TileK * kSize % 16 == 0, "rows begin at the same place within 16 bytes in all K tiles");

  /// The first element of a tile in memory, at K = 0.
  template <class Params, class Work>
  __device__ static char const* tile(Params const& params, Work const& work) {
    int const batch = params.batched & 1 ? work.batch : 0;
    return params.a_rows.template at_batch<char const>(0) + batch * params.a_rows.batch_stride * kSize +
           work.m * (kAlongK ? stride(params) : kSize);
  }
  /// Bytes from a row to the next.
  template <class Params>
  __device__ static int64_t stride(Params const& params) {
    return (kAlongK ? params.a_rows.row_stride : params.a_rows.column_stride) * kSize;
  }
};

/// Copies the tiles of A, stage by stage. It has the interface of GatherLoad.
///
/// Threads take adjacent chunks of as many rows as there are threads for. Rows of a thread begin at the same place within
/// 16 bytes, so that a copy takes a few instructions. Each row has one more chunk, which another thread copies.
template <class Stage, class Params>
struct UnalignedLoad : CopyArrivals {
  static constexpr int kChunk = 16, kChunks = Stage::kExtent * Stage::kSize / kChunk;
  static constexpr int kStep = kGatherThreads / kChunks;
  static_assert(kStep * Stage::kSize % kChunk == 0 && Stage::kRows % kStep == 0, "rows of a thread begin alike");

  Params const& params;
  uint32_t stages;
  int64_t stride;
  /// The current K tile, this thread's first chunk of it, and its first last chunk of a row.
  char const *tile, *from, *from_last;
  int m, k;

  __device__ UnalignedLoad(char* stages_, Params const& params_)
      : params(params_), stages(shared_address(stages_)), stride(Stage::stride(params_)) {}

  template <class Work>
  __device__ void begin(Work const& work) {
    m = work.m;
    k = work.k_tile * Stage::kTileK;
    tile = Stage::tile(params, work) + k * (Stage::kAlongK ? Stage::kSize : stride);
    from = aligned(tile + row() * stride) + chunk() * kChunk;
    from_last = aligned(tile + threadIdx.x * stride) + kChunks * kChunk;
  }

  /// Starts to copy this thread's part of a stage; what lies outside A becomes 0. The next call is for the next K tile.
  __device__ void operator()(int stage, int) {
    uint32_t const target = stages + stage * Stage::kBytes;
    uint32_t const first = target + row() * Stage::kPitch + chunk() * kChunk;
    uint32_t const last = target + threadIdx.x * Stage::kPitch + kChunks * kChunk;
    int const m_left = params.m - m, k_left = params.k - k;
    int const rows = Stage::kAlongK ? m_left : k_left, extent = Stage::kAlongK ? k_left : m_left;
    // Of the last chunks, those that lie within A wholly are copied wholly.
    if (rows >= Stage::kRows && extent >= Stage::kExtent + kChunk / Stage::kSize) {
      char const* chunk = from;
      int64_t step = kStep * stride;
      asm volatile("" : "+l"(step));  // else the compiler holds all multiples in registers
#pragma unroll
      for (int i = 0; i < Stage::kRows / kStep; ++i, chunk += step) copy_chunk(first + i * kStep * Stage::kPitch, chunk);
#pragma unroll
      for (int i = 0; i < Stage::kRows; i += kGatherThreads)
        if (Stage::kRows % kGatherThreads == 0 || i + threadIdx.x < Stage::kRows)
          copy_chunk(last + i * Stage::kPitch, from_last + i * stride);
    } else {
#pragma unroll 1
      for (int i = row(); i < Stage::kRows; i += kStep) copy_part(target, i, chunk(), i < rows ? extent : 0);
#pragma unroll 1
      for (int i = threadIdx.x; i < Stage::kRows; i += kGatherThreads) copy_part(target, i, kChunks, i < rows ? extent : 0);
    }
    k += Stage::kTileK;
    int64_t const next = Stage::kAlongK ? Stage::kExtent * Stage::kSize : Stage::kRows * stride;
    tile += next;
    from += next;
    from_last += next;
  }

  /// Consumer: threads read the copies themselves, so no other proxy does.
  __device__ static void fence() {}

 private:
  __device__ static int row() { return threadIdx.x / kChunks; }
  __device__ static int chunk() { return threadIdx.x % kChunks; }
  __device__ static int place(char const* address) { return reinterpret_cast<uintptr_t>(address) % kChunk; }
  __device__ static char const* aligned(char const* address) { return address - place(address); }
  /// Copies a chunk of a row of the tile, which has `extent` elements.
  __device__ void copy_part(uint32_t target, int row, int chunk, int extent) const {
    char const* const begin = tile + row * stride;
    int const elements = min(extent, Stage::kExtent + kChunk / Stage::kSize);  // bytes fit in int
    int const bytes = extent > 0 ? elements * Stage::kSize + place(begin) - chunk * kChunk : 0;
    copy_chunk(target + row * Stage::kPitch + chunk * kChunk, aligned(begin) + chunk * kChunk, min(max(bytes, 0), kChunk));
  }
};

/// One thread's part of A in each stage, for WGMMAs that read A from registers.
///
/// A word holds elements that are adjacent along K. Unless it is one element, it is put together from two words of shared
/// memory in stages with rows along K, and from an element of each of several rows in others.
template <class Stage, int Blocks>
struct UnalignedOperand {
  using Element = typename Stage::Element;
  static constexpr int kSize = sizeof(Element), kPerWord = 4 / kSize, kStepK = 32 / kSize;
  using Fragment = RegisterFragments<Blocks, Stage::kTileK / kStepK>;

  /// Shared-memory address of the first stage.
  uint32_t stages;
  /// Offsets of this lane's first elements in a stage with rows along M, and its words of one with rows along K.
  struct Rows {
    int bases[kPerWord];

    __device__ Rows(int m, int k, char const* tile, int64_t stride) {
#pragma unroll
      for (int i = 0; i < kPerWord; ++i) {
        int const row = k + threadIdx.x % 4 * kPerWord + i;
        int const shift = reinterpret_cast<uintptr_t>(tile + row * stride) % 16;
        bases[i] = row * Stage::kPitch + shift + (m + threadIdx.x % 32 / 4) * kSize;
      }
    }

    __device__ void load(uint32_t stage, int k, uint32_t (&words)[1][4]) const {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        // Rows a half step apart, which has 16 bytes of a K-major A, begin at the same place within 16 bytes.
        int const group = FragmentOrder<Side::A, 2>::group_of(j), half = FragmentOrder<Side::A, 2>::half_of(j);
        uint32_t const at = stage + (k + half * kStepK / 2) * Stage::kPitch + group * 8 * kSize;
        uint32_t word = 0;
#pragma unroll
        for (int i = 0; i < kPerWord; ++i) word |= load_element(at + bases[i]) << 8 * kSize * i;
        words[0][j] = word;
      }
      round_words<Element>(words[0]);
    }
  };
  using Words = cute::conditional_t<
      Stage::kAlongK, Fragments<ShiftedLayout<Element, kSize, Stage::kTileM, Stage::kTileK>, uint32_t, Side::A>, Rows>;
  Words words;

  /// `m` is the warpgroup's first row within the tile.
  template <class Params, class Work>
  __device__ UnalignedOperand(char const* stages_, int m, Params const& params, Work const& work)
      : stages(shared_address(stages_)),
        words(m + threadIdx.x / 32 % 4 * 16, 0, Stage::tile(params, work), Stage::stride(params)) {}

  __device__ void load(Fragment& fragment, int stage) const {
    constexpr int kBlock = 64 * (Stage::kAlongK ? Stage::kPitch : kSize);
#pragma unroll
    for (int block = 0; block < Blocks; ++block)
#pragma unroll
      for (int step = 0; step < Stage::kTileK / kStepK; ++step) {
        uint32_t loaded[1][4];
        words.load(stages + stage * Stage::kBytes + block * kBlock, step * kStepK, loaded);
#pragma unroll
        for (int j = 0; j < 4; ++j) fragment.values[block][step][j] = loaded[0][j];
      }
  }

 private:
  __device__ static uint32_t load_element(uint32_t address) {
    uint32_t bits;
    if constexpr (kSize == 4)
      asm volatile("ld.shared.u32 %0, [%1];" : "=r"(bits) : "r"(address));
    else if constexpr (kSize == 2)
      asm volatile("ld.shared.u16 %0, [%1];" : "=r"(bits) : "r"(address));
    else
      asm volatile("ld.shared.u8 %0, [%1];" : "=r"(bits) : "r"(address));
    return bits;
  }
};

}  // namespace gemmill
