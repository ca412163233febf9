/// The second kernel of split-K: it adds the slices and applies the epilogue.
#pragma once

#include <gemmill/epilogue/linear.cuh>
#include <gemmill/kernel/params.cuh>
#include <gemmill/pipeline/dependent_launch.cuh>
#include <gemmill/types.cuh>

namespace gemmill {

/// Takes the place of Reduction for kernels that have no second kernel.
struct NoReduction {
  static constexpr int kThreads = 0, kVectors = 0;
};

/// Adds partial sums of all slices, applies the epilogue and stores D.
///
/// Partial sums are matrices with D's majorness, one after the other: [slice][batch][strided][contiguous]. The
/// contiguous extent is padded to whole vectors of four. One thread adds the slices of a vector, in order. With more
/// than 8, 16 or 32 slices, two, four or eight threads share a vector. The order of summation depends only on the number
/// of slices.
///
/// `Tree`: the slices, a power of two up to 8, are added in pairs, then the sums of pairs in pairs, and so on.
template <class Config, bool Tree = false>
struct Reduction {
  using D = typename Config::D;
  using Partial = typename Config::Partial;
  using Operation = typename Config::Epilogue;
  using Compute = typename Operation::Compute;
  static constexpr int kThreads = 256;
  /// Vectors that a CTA computes when threads do not share vectors.
  static constexpr int kVectors = kThreads;
  /// The most sums that threads pass to others through shared memory: with eight threads for each vector.
  static constexpr int kLeft = kThreads - kThreads / 8;
  /// Slices that a thread loads at the same time.
  static constexpr int kLoadsInFlight = 8;
  static constexpr bool kRows = Config::kMajorD == MajorOut::N;

  struct alignas(16) Vector {
    Partial values[4];
  };

  /// Extents of a matrix of partial sums; `vectors` is the contiguous extent in vectors.
  struct Extents {
    uint32_t contiguous, strided, vectors;

    __device__ explicit Extents(GemmParams const& params)
        : contiguous(kRows ? params.n : params.m),
          strided(kRows ? params.m : params.n),
          vectors((contiguous + 3) / 4) {}
  };

  template <class Params>
  __device__ static void run(Params const& params) {
    launch_dependents();
    wait_for_prerequisites();
    Extents const extents(params);
    uint32_t const plane = extents.vectors * extents.strided * params.batch;
    if constexpr (Tree) {
      uint32_t const index = blockIdx.x * kThreads + threadIdx.x;
      if (index < plane) store(params, tree(params, plane, index), extents, index);
      return;
    }
    int const splits = params.splits;
    int const groups = splits <= 8 ? 1 : splits <= 16 ? 2 : splits <= 32 ? 4 : 8;
    int const group_splits = (splits + groups - 1) / groups;
    uint32_t const width = kThreads / groups;
    uint32_t const group = threadIdx.x / width;
    uint32_t const place = threadIdx.x - group * width;
    uint32_t const index = blockIdx.x * width + place;

    Vector sum{};
    if (index < plane) {
      auto const* const source = reinterpret_cast<uint4 const*>(params.partials) + index;
      int const end = min(int(group + 1) * group_splits, splits);
      for (int split = group * group_splits; split < end; split += kLoadsInFlight) {
        uint4 bits[kLoadsInFlight];
#pragma unroll
        for (int i = 0; i < kLoadsInFlight; ++i)
          if (split + i < end) bits[i] = __ldcg(source + int64_t(split + i) * plane);
#pragma unroll
        for (int i = 0; i < kLoadsInFlight; ++i)
          if (split + i < end) add(sum, reinterpret_cast<Vector const&>(bits[i]));
      }
    }
    __shared__ Vector sums[kLeft];
    if (groups > 1) {
      if (group > 0) sums[threadIdx.x - width] = sum;
      __syncthreads();
      if (group > 0) return;
      for (int i = 0; i < groups - 1; ++i) add(sum, sums[i * width + place]);
    }
    if (index >= plane) return;
    store(params, sum, extents, index);
  }

 private:
  /// The sum of vector `index` over a tree of slices.
  template <class Params>
  __device__ static Vector tree(Params const& params, uint32_t plane, uint32_t index) {
    auto const* const source = reinterpret_cast<uint4 const*>(params.partials) + index;
    uint4 bits[kLoadsInFlight] = {};
#pragma unroll
    for (int i = 0; i < kLoadsInFlight; ++i)
      if (i < params.splits) bits[i] = __ldcg(source + int64_t(i) * plane);
#pragma unroll
    for (int distance = 1; distance < kLoadsInFlight; distance *= 2)
#pragma unroll
      for (int i = 0; i < kLoadsInFlight; i += 2 * distance)
        if (i + distance < params.splits)
          add(reinterpret_cast<Vector&>(bits[i]), reinterpret_cast<Vector const&>(bits[i + distance]));
    return reinterpret_cast<Vector const&>(bits[0]);
  }

  /// Applies the epilogue to a vector, four adjacent elements along D's contiguous extent, and stores those inside D.
  template <class Params>
  __device__ static void store(Params const& params, Vector const& sum, Extents const& extents, uint32_t index) {
    uint32_t const row = index / extents.vectors;
    int const batch = row / extents.strided;
    int const along = int(index - row * extents.vectors) * 4, across = row - batch * extents.strided;
    int const contiguous = extents.contiguous;
    Operation const operation(params.epilogue);
    int const inside = min(4, contiguous - along);
    Compute results[4];
    union alignas(4 * sizeof(D)) {
      D elements[4];
      cute::conditional_t<sizeof(D) == 1, uint16_t, uint32_t> pairs[2];
    } out;
    Compute c[4] = {};
    bool needs_c = false;
    if constexpr (size_of<typename Config::C> > 0) {
      needs_c = operation.needs_c();
      if (needs_c) load_c(params, along, across, batch, inside, c);
    }
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      Compute const accumulator = to_compute(Compute{}, sum.values[j]);
      if constexpr (!Operation::kIsExpression) {
        results[j] = needs_c ? operation(accumulator, c[j]) : operation(accumulator);
      } else if (j < inside) {
        results[j] = operation(accumulator, c[j], kRows ? across : along + j, kRows ? along + j : across, batch);
      }
    }
    if constexpr (sizeof(D) < 4) {
      out.pairs[0] = pack(D{}, results[0], results[1]);
      out.pairs[1] = pack(D{}, results[2], results[3]);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) out.elements[j] = results[j];
    }
    D* const d = reinterpret_cast<D*>(params.d_pointer) + batch * params.d_batch_stride +
                 across * params.d_stride + along;
    // A D with less alignment than the kernel's is written element by element.
    if (params.batched & kUnalignedD)
      copy<int(sizeof(D))>(d, out.elements, inside);
    else
      copy<Config::kAlignD>(d, out.elements, inside);
  }

  __device__ static void load_c(PartialParams const& params, int along, int across, int batch, int inside,
                                Compute (&values)[4]) {
    using C = typename Config::C;
    C const* c = reinterpret_cast<C const*>(params.c_pointer) + (params.batched & 4 ? batch : 0) * params.c_batch_stride;
    if constexpr (Config::kMajorC == Config::kMajorD) {
      alignas(16) C elements[4] = {};
      copy<Config::kAlignC>(elements, c + across * params.c_stride + along, inside);
#pragma unroll
      for (int j = 0; j < 4; ++j) values[j] = to_compute(Compute{}, elements[j]);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (j < inside) values[j] = to_compute(Compute{}, c[(along + j) * params.c_stride + across]);
    }
  }

  /// Copies the first `inside` of four elements: all four `Align` bytes at a time, fewer one by one.
  template <int Align, class Element>
  __device__ static void copy(Element* to, Element const* from, int inside) {
    constexpr int kBytes = min_of(Align, 4 * int(sizeof(Element)));
    struct alignas(kBytes) Piece {
      Element elements[kBytes / sizeof(Element)];
    };
    if (inside == 4) {
#pragma unroll
      for (int i = 0; i < 4 * int(sizeof(Element)) / kBytes; ++i)
        reinterpret_cast<Piece*>(to)[i] = reinterpret_cast<Piece const*>(from)[i];
    } else {
#pragma unroll
      for (int i = 0; i < 3; ++i)
        if (i < inside) to[i] = from[i];
    }
  }

  __device__ static void add(Vector& sum, Vector const& more) {
#pragma unroll
    for (int j = 0; j < 4; ++j) sum.values[j] += more.values[j];
  }
};

}  // namespace gemmill
