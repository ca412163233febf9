/// Subtiles of C, D and other matrices in shared memory: 64 rows by some columns, or 32 if the epilogue pairs rows,
/// between a warpgroup's fragments and TMA.
#pragma once

#include <cute/arch/copy_sm90_tma.hpp>

#include <gemmill/copy/layout.cuh>
#include <gemmill/copy/shared.cuh>
#include <gemmill/epilogue/linear.cuh>
#include <gemmill/kernel/params.cuh>

namespace gemmill {

/// The M of one WGMMA: rows of the sums of a subtile.
inline constexpr int kSubtileM = 64;

/// The layout of one subtile. n-major: rows of N elements. m-major: columns of at most 128 bytes, in one panel, or in two
/// for 64 rows of 32-bit elements.
template <class Element_, MajorOut Major, int N, int Rows>
struct Subtile {
  using Element = Element_;
  /// Rows of a warp, and a thread's elements of one fragment: two columns of its row, and of the row eight after it if
  /// there are 64.
  static constexpr int kWarpRows = Rows / 4, kValues = Rows / 16;
  static constexpr MajorOut kMajor = Major;
  static constexpr int kRowBytes = N * sizeof(Element);
  static constexpr int kColumnBytes = min_of(128, Rows * int(sizeof(Element)));
  static constexpr int kPanelRows = Major == MajorOut::N ? Rows : kColumnBytes / int(sizeof(Element));
  static constexpr int kPanels = Rows / kPanelRows;
  static constexpr int kPanelBytes = kPanelRows * N * int(sizeof(Element));
  static constexpr int kDataBytes = kPanels * kPanelBytes;
  static constexpr int kBytes = align_up(kDataBytes, 1024);
  static constexpr int kBoxContiguous = Major == MajorOut::N ? N : kPanelRows;
  static constexpr int kBoxStrided = Major == MajorOut::N ? kPanelRows : N;
  static constexpr int kSpan =
      Major == MajorOut::M ? kColumnBytes : kRowBytes == 128 || kRowBytes == 64 || kRowBytes == 32 ? kRowBytes : 16;

  __device__ static int offset(int row, int column) {
    if constexpr (Major == MajorOut::N) {
      return swizzled<kSpan>(row * kRowBytes + column * int(sizeof(Element)));
    } else {
      return row / kPanelRows * kPanelBytes +
             swizzled<kSpan>(column * kColumnBytes + row % kPanelRows * int(sizeof(Element)));
    }
  }

  /// Writes `Units` (1 or 2) adjacent fragments of a warp, of 16 rows or 8 by 8 columns. `values` are a thread's elements
  /// of each: two columns of its row, then two columns of row + 8 (PTX ISA, "Register fragments for
  /// wgmma.mma_async.m64nNk16").
  template <int Units, class Compute>
  __device__ static void write(char* subtile, int warp, int lane, int column, Compute const (&values)[kValues * Units]) {
    constexpr int kHalves = kValues / 2;
    if constexpr (sizeof(Element) == 2) {
      uint32_t packed[kHalves * Units];
#pragma unroll
      for (int i = 0; i < kHalves * Units; ++i) packed[i] = pack(Element{}, values[2 * i], values[2 * i + 1]);
      // Each lane passes the address of one row (n-major) or column (m-major) of one of stmatrix's 8 x 8 matrices.
      int const half = kHalves == 2 ? lane / 8 % 2 * 8 : 0;
      int const unit = Units == 1 ? 0 : kHalves == 2 ? lane / 16 * 8 : lane / 8 % 2 * 8;
      int const at = Major == MajorOut::N ? offset(warp * kWarpRows + half + lane % 8, column + unit)
                                          : offset(warp * kWarpRows + half, column + unit + lane % 8);
      store_matrices<Major == MajorOut::M>(subtile + at, packed);
    } else {
      int const row = warp * kWarpRows + lane / 4;
#pragma unroll
      for (int i = 0; i < kHalves * Units; ++i) {
        int const r = row + i % kHalves * 8;
        int const c = column + i / kHalves * 8 + lane % 4 * 2;
        Pair const pair = pair_of(values[2 * i], values[2 * i + 1]);
        if constexpr (Major == MajorOut::N) {
          *reinterpret_cast<Pair*>(subtile + offset(r, c)) = pair;
        } else {
          *reinterpret_cast<Element*>(subtile + offset(r, c)) = pair.elements[0];
          *reinterpret_cast<Element*>(subtile + offset(r, c + 1)) = pair.elements[1];
        }
      }
    }
  }

  /// Writes the same fragments straight to a matrix, without shared memory. The warpgroup's part begins at row m, the
  /// fragments at column n. Elements from `m_end` and `n_end` on are not written.
  template <int Units, class Compute>
  __device__ static void write_through(Element* matrix, int64_t stride, int warp, int lane, int m, int n, int m_end,
                                       int n_end, Compute const (&values)[kValues * Units]) {
    constexpr int kHalves = kValues / 2;
#pragma unroll
    for (int i = 0; i < kHalves * Units; ++i) {
      int const row = m + warp * kWarpRows + lane / 4 + i % kHalves * 8;
      int const column = n + i / kHalves * 8 + lane % 4 * 2;
      Pair const pair = pair_of(values[2 * i], values[2 * i + 1]);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        if (row >= m_end || column + j >= n_end) continue;
        matrix[Major == MajorOut::N ? row * stride + column + j : (column + j) * stride + row] = pair.elements[j];
      }
    }
  }

  /// Reads a thread's elements of one fragment, in the order of `write`. `first` and `second` are its
  /// columns; with `Neighbours` an even one and the next.
  template <bool Neighbours, class Compute>
  __device__ static void read(char const* subtile, int warp, int lane, int first, int second, Compute (&values)[kValues]) {
#pragma unroll
    for (int half = 0; half < kValues / 2; ++half) {
      int const row = warp * kWarpRows + lane / 4 + half * 8;
      Pair pair;
      if constexpr (Neighbours && Major == MajorOut::N) {
        pair = *reinterpret_cast<Pair const*>(subtile + offset(row, first));
      } else {
        pair.elements[0] = *reinterpret_cast<Element const*>(subtile + offset(row, first));
        pair.elements[1] = *reinterpret_cast<Element const*>(subtile + offset(row, second));
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) values[half * 2 + j] = to_compute(Compute{}, pair.elements[j]);
    }
  }

  /// Called by one thread: adds a subtile to global memory by TMA, each element with one rounding.
  template <class... Outer>
  __device__ static void add(cute::TmaDescriptor const& descriptor, char const* subtile, int m, int n, Outer... outer) {
    static_assert(kPanels == 1 && Major == MajorOut::N);
    cute::SM90_TMA_REDUCE_ADD::copy(&descriptor, subtile, n, m, outer...);
  }

  /// Called by one thread: copies a subtile to global memory by TMA, which clips what lies outside the tensor. `outer`
  /// are the coordinates of the matrix.
  template <class... Outer>
  __device__ static void store(cute::TmaDescriptor const& descriptor, char const* subtile, int m, int n, Outer... outer) {
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      int const row = m + panel * kPanelRows;
      cute::SM90_TMA_STORE::copy(&descriptor, subtile + panel * kPanelBytes, Major == MajorOut::N ? n : row,
                                 Major == MajorOut::N ? row : n, outer...);
    }
  }

  /// Called by one thread: the same, but writes no row from `end` on. D's descriptor has a window of a subtile's rows.
  __device__ static void store_rows(cute::TmaDescriptor const& descriptor, char const* subtile, int m, int n, int batch,
                                    int end) {
    static_assert(Major == MajorOut::N, "only a strided extent can be clipped at any row");
    int const rows = min(end - m, Rows);
    if (rows > 0) store(descriptor, subtile, Rows - rows, n, m + rows, batch);
  }

  /// Called by one thread: the same, but writes no column from `end` on. D's descriptor has a window of a subtile's
  /// columns.
  __device__ static void store_columns(cute::TmaDescriptor const& descriptor, char const* subtile, int m, int n,
                                       int batch, int end) {
    static_assert(Major == MajorOut::M, "only a strided extent can be clipped at any column");
    int const columns = min(end - n, N);
    if (columns > 0) store(descriptor, subtile, m, N - columns, n + columns, batch);
  }

  /// Whether a subtile reaches beyond a D whose contiguous extent TMA cannot clip. TMA clips to 16 bytes, so it would
  /// write zeros beside a D that ends within 16 bytes.
  __device__ static bool is_ragged(int m_end, int n_end, int m, int n) {
    int const extent = Major == MajorOut::N ? n_end : m_end;
    int const end = Major == MajorOut::N ? n + N : m + Rows;
    return end > extent && extent % (16 / int(sizeof(Element))) != 0;
  }

  /// Called by every thread of a warpgroup: copies the elements before `m_end` and `n_end` to the matrix D, one by one.
  /// A warp takes one line that is contiguous in memory at a time, or several short ones.
  __device__ static void store_elements(GemmParams const& params, char const* subtile, int m, int n, Element* d,
                                        int m_end, int n_end) {
    constexpr bool kRows = Major == MajorOut::N;
    constexpr int kLines = kRows ? Rows : N, kAlong = kRows ? N : Rows;
    constexpr int kLanes = min_of(kAlong, 32), kEach = ceil_div(kAlong, kLanes), kAtOnce = 4 * (32 / kLanes);
    int const lines = min(kRows ? m_end - m : n_end - n, kLines), along = min(kRows ? n_end - n : m_end - m, kAlong);
#pragma unroll 1
    for (int line = threadIdx.x / 32 % 4 * (32 / kLanes) + threadIdx.x % 32 / kLanes; line < lines; line += kAtOnce) {
      Element* const to = d + (line + (kRows ? m : n)) * params.d_stride + (kRows ? n : m);
      Element elements[kEach];
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        int const at = i * kLanes + threadIdx.x % 32 % kLanes;
        if (kAlong % kLanes == 0 || at < kAlong)
          elements[i] = *reinterpret_cast<Element const*>(subtile + (kRows ? offset(line, at) : offset(at, line)));
      }
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        int const at = i * kLanes + threadIdx.x % 32 % kLanes;
        if (at < along) to[at] = elements[i];
      }
    }
  }

  /// Called by one thread: starts the TMA load of a subtile; barrier `full` counts kDataBytes. Boxes beyond the last
  /// coordinates are moved back to them (BoxBounds::Shift in copy/tma.cuh).
  template <class... Outer>
  __device__ static void load(cute::TmaDescriptor const& descriptor, uint64_t& full, char* subtile, int m, int n,
                              int last_m, int last_n, Outer... outer) {
    n = min(n, last_n);
#pragma unroll
    for (int panel = 0; panel < kPanels; ++panel) {
      int const row = min(m + panel * kPanelRows, last_m);
      cute::SM90_TMA_LOAD::copy(&descriptor, &full, static_cast<uint64_t>(cute::TMA::CacheHintSm90::EVICT_FIRST),
                                subtile + panel * kPanelBytes, Major == MajorOut::N ? n : row,
                                Major == MajorOut::N ? row : n, outer...);
    }
  }

 private:
  /// Two elements that are adjacent along N, as fragments hold them.
  union alignas(2 * sizeof(Element)) Pair {
    Element elements[2];
    cute::conditional_t<sizeof(Element) == 1, uint16_t, uint32_t> bits;
  };

  template <class Compute>
  __device__ static Pair pair_of(Compute first, Compute second) {
    Pair pair;
    if constexpr (sizeof(Element) <= 2) {
      pair.bits = pack(Element{}, first, second);
    } else {
      pair.elements[0] = first;
      pair.elements[1] = second;
    }
    return pair;
  }
};

/// An absent C: no storage, and nothing to load.
template <MajorOut Major, int N, int Rows>
struct Subtile<None, Major, N, Rows> {
  static constexpr int kBytes = 0, kDataBytes = 0, kBoxContiguous = 0, kBoxStrided = 0, kSpan = 0;
};

/// One subtile of each of several matrices, one after the other.
template <class List, int N, int Rows>
struct Subtiles {
  static constexpr int kBytes = 0, kDataBytes = 0;

  template <int Index = 0, int Offset = 0, class Visitor>
  __device__ static void each(Visitor const&) {}
};
template <class First, class... Others, int N, int Rows>
struct Subtiles<Formats<First, Others...>, N, Rows> {
  using Own = Subtile<typename First::Element, First::kMajor, N, Rows>;
  using Rest = Subtiles<Formats<Others...>, N, Rows>;
  static constexpr int kBytes = Own::kBytes + Rest::kBytes;
  static constexpr int kDataBytes = Own::kDataBytes + Rest::kDataBytes;

  /// Calls `visit(subtile, index, offset)` for each matrix, with an object of its subtile type, its index in the list
  /// and its byte offset.
  template <int Index = 0, int Offset = 0, class Visitor>
  __device__ static void each(Visitor const& visit) {
    visit(Own{}, Index, Offset);
    Rest::template each<Index + 1, Offset + Own::kBytes>(visit);
  }
};

}  // namespace gemmill
