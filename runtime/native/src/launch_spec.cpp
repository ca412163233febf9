#include "launch_spec.h"

#include "error.h"
#include "strict_json.h"

namespace gemmill {
namespace {

constexpr int64_t kMaxThreads = 1024;
constexpr int64_t kMaxCluster = 16;
constexpr int64_t kMaxSharedBytes = 1 << 20;
constexpr int64_t kMaxTile = 1 << 16;
constexpr int64_t kMaxBox = 256;
constexpr int64_t kMaxTileBytes = int64_t{1} << 30;
constexpr size_t kMaxBoxes = 64;
constexpr size_t kMaxOffsets = 4096;

Box read_box(const Row& row) {
  const auto extents = row.pair("box", 1, kMaxBox);
  const Dtype* dtype = dtype_named(row.text("dtype"));
  if (dtype == nullptr) throw Invalid(row.place("dtype") + " is " + row.text("dtype") + ", which is not a dtype");
  const int64_t swizzle = row.whole("swizzle");
  if (swizzle != 16 && swizzle != 32 && swizzle != 64 && swizzle != 128) {
    throw Invalid(row.place("swizzle") + " is " + std::to_string(swizzle) + "; it must be 16, 32, 64 or 128");
  }
  const bool is_elsewhere = row.flag("anywhere");
  const bool has_halves = row.flag("halves");
  const bool is_packed = dtype->bits < 8 && dtype != dtype_named("e2m1");
  return {row.text("operand"),
          dtype,
          row.word("contiguous", {"m", "n", "k"})[0],
          row.word("strided", {"m", "n", "k"})[0],
          static_cast<uint32_t>(extents.first),
          static_cast<uint32_t>(extents.second),
          static_cast<int>(swizzle),
          row.whole("offset"),
          row.word("part", {"", "whole", "tail"}),
          row.whole("group", 1, kMaxBox),
          row.whole("window", 0, kMaxBox),
          !(is_elsewhere || has_halves || is_packed)};
}

std::optional<KDecomposition> read_k_decomposition(const Row& launch) {
  if (launch.is_null("k_decomposition")) return std::nullopt;
  const Row row = launch.row("k_decomposition", {"name", "splits", "tile_k", "tile_bytes", "tile_flags", "reduction"});
  KDecomposition shared{row.word("name", {"splitk", "stream", "cluster", "serial", "tree"}),
                        row.whole("tile_k", 1, kMaxTile), row.whole("tile_bytes", 0, kMaxTileBytes),
                        row.whole("tile_flags", 0, kMaxTile), std::nullopt};
  row.whole("splits");
  if (!row.is_null("reduction")) {
    const Row second = row.row("reduction", {"entry", "threads", "vectors"});
    second.whole("vectors");
    shared.reduction = Reduction{second.text("entry"), second.whole("threads", 1, kMaxThreads)};
  }
  if (shared.reduction.has_value() != (shared.name == "splitk" || shared.name == "tree")) {
    throw Invalid(row.place("reduction") + " does not fit the decomposition " + shared.name);
  }
  return shared;
}

void check_places(const LaunchSpec& spec, const std::string& place) {
  for (const auto& [name, offset] : spec.offsets) {
    if (offset > spec.params_bytes) {
      throw Invalid(place + ".offsets." + name + " is " + std::to_string(offset) + ", beyond the " +
                    std::to_string(spec.params_bytes) + " bytes of the parameters");
    }
  }
  for (const Box& box : spec.boxes) {
    if (box.offset % kDescriptorAlignment != 0 || box.offset > spec.params_bytes - kDescriptorBytes) {
      throw Invalid(place + ".boxes: the descriptor of " + box.operand + " has offset " + std::to_string(box.offset) +
                    "; it must be a multiple of 64 within the " + std::to_string(spec.params_bytes) +
                    " bytes of the parameters");
    }
  }
  if (spec.has_workspace() && (!spec.k_decomposition || spec.offsets.count("flags") == 0)) {
    throw Invalid(place + " has partial sums, but neither flags nor a decomposition of K for them");
  }
}

}  // namespace

int64_t Box::rows_of(int64_t strided_extent) const {
  if (part.empty()) return rows;
  if (part == "whole") return strided_extent >= rows ? rows : 0;
  return strided_extent % rows;
}

LaunchSpec LaunchSpec::read(const Row& row) {
  const auto cluster = row.pair("cluster", 1, kMaxCluster);
  const auto tile = row.pair("tile", 1, kMaxTile);
  LaunchSpec spec{row.text("entry"),
                  row.whole("threads", 1, kMaxThreads),
                  cluster.first,
                  cluster.second,
                  row.whole("cluster_k", 1, kMaxCluster),
                  row.whole("shared_bytes", 0, kMaxSharedBytes),
                  tile.first,
                  tile.second,
                  read_k_decomposition(row),
                  {},
                  row.whole("params_bytes", 1, kMaxParameterBytes),
                  row.numbers("offsets", kMaxOffsets)};
  if (spec.cluster_ctas() > kMaxCluster) throw Invalid(row.place("cluster") + " has more than 16 CTAs");
  const auto boxes = row.rows("boxes", kMaxBoxes,
                              {"operand", "dtype", "contiguous", "strided", "box", "swizzle", "offset", "group",
                               "window", "part", "anywhere", "halves"});
  for (const Row& box : boxes) spec.boxes.push_back(read_box(box));
  check_places(spec, "launch");
  return spec;
}

}  // namespace gemmill
