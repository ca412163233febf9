#include "choice_table.h"

#include <algorithm>
#include <set>
#include <tuple>

#include "error.h"
#include "strict_json.h"
#include "tensors.h"

namespace gemmill {
namespace {

constexpr const char* kExtents[] = {"m", "n", "k", "batch"};
constexpr size_t kVarying = 3;  // the first extents, one of which a layer leaves out
constexpr size_t kMostItems = 1 << 20;
constexpr size_t kFormats = 16;
constexpr int64_t kMaxSlices = 256;
constexpr double kMinUs = 1e-3;
constexpr double kMaxUs = 1e12;

template <size_t Count>
std::array<int64_t, Count> numbers(const Row& row, const char* name, int64_t least, int64_t most) {
  const std::vector<int64_t> values = row.wholes(name, least, most);
  if (values.size() != Count) throw Invalid(row.place(name) + " must have " + std::to_string(Count) + " numbers");
  std::array<int64_t, Count> result;
  std::copy(values.begin(), values.end(), result.begin());
  return result;
}

[[noreturn]] void refuse(const std::string& message) { throw Error(GEMMILL_UNSUPPORTED, message); }

std::string text_of(const std::array<int64_t, 4>& extents) {
  std::string text;
  for (size_t i = 0; i < kVarying; ++i) {
    text += (i == 0 ? "" : "x") + (extents[i] == 0 ? std::string(1, "MNK"[i]) : std::to_string(extents[i]));
  }
  return extents[3] == 1 ? text : text + "x" + std::to_string(extents[3]);
}

}  // namespace

ChoiceTable ChoiceTable::read(const Row& row, const std::function<bool(const std::string&)>& has) {
  ChoiceTable table;
  row.text("gpu");
  row.word("objective", {"sustained", "burst"});
  row.text("bits");
  for (const Row& x : row.rows("formats", kMostItems, {"word", "multiples"})) {
    const std::string& word = x.text("word");
    if (static_cast<size_t>(std::count(word.begin(), word.end(), ' ')) + 1 < kFormats) {
      throw Invalid(x.place("word") + " is '" + word.substr(0, 200) + "'; it must have 16 words");
    }
    table.formats_.push_back({word, numbers<3>(x, "multiples", 1, kMaxExtent)});
  }
  for (const Row& x : row.rows("kernels", kMostItems, {"name", "slices", "swap_ab", "aligns"})) {
    const std::string& name = x.text("name");
    if (!has(name)) throw Invalid(x.place("name") + " is '" + name.substr(0, 200) + "', which is not in the pack");
    if (name.find('+') != std::string::npos) {
      throw Invalid(x.place("name") + " is '" + name.substr(0, 200) +
                    "', an edited kernel, which the selector never picks");
    }
    table.kernels_.push_back(
        {name, x.whole("slices", 1, kMaxSlices), x.flag("swap_ab"), numbers<4>(x, "aligns", 0, 16)});
  }
  std::set<std::tuple<size_t, size_t, std::array<int64_t, 4>, std::array<int64_t, 4>>> problems;
  for (const Row& x :
       row.rows("layers", kMostItems,
                {"formats", "extent", "m", "n", "k", "batch", "aligns", "largest", "first", "kernel", "us"})) {
    Layer layer = read_layer(x, table.formats_.size(), table.kernels_.size());
    if (!problems.emplace(layer.formats, layer.extent, layer.extents, layer.aligns).second) {
      throw Invalid(x.place("formats") + ": another layer has the same problem");
    }
    table.layers_.push_back(std::move(layer));
  }
  return table;
}

ChoiceTable::Layer ChoiceTable::read_layer(const Row& row, size_t formats, size_t kernels) {
  const std::string& extent = row.word("extent", {"m", "n", "k"});
  Layer layer{static_cast<size_t>(row.whole("formats", 0, static_cast<int64_t>(formats) - 1)),
              extent == "m"   ? size_t{0}
              : extent == "n" ? size_t{1}
                              : size_t{2},
              {},
              numbers<4>(row, "aligns", 1, 16),
              row.wholes("first", 1, kMaxExtent),
              row.wholes("kernel", 0, static_cast<int64_t>(kernels) - 1)};
  for (size_t i = 0; i < layer.extents.size(); ++i) {
    const bool is_left_out = i == layer.extent;
    layer.extents[i] = row.whole(kExtents[i], is_left_out ? 0 : 1, is_left_out ? 0 : kMaxExtent);
  }
  const size_t count = layer.first.size();
  if (count == 0 || layer.kernel.size() != count || row.numbers_within("us", kMinUs, kMaxUs) != count) {
    throw Invalid(row.place("first") + ", kernel and us must have one item for each range");
  }
  const bool ascends =
      std::adjacent_find(layer.first.begin(), layer.first.end(), std::greater_equal<>()) == layer.first.end();
  if (layer.first[0] != 1 || !ascends) throw Invalid(row.place("first") + " must ascend from 1");
  row.whole("largest", layer.first.back(), kMaxExtent);
  return layer;
}

size_t ChoiceTable::Layer::range_of(const TableProblem& problem) const {
  const int64_t value = std::max<int64_t>(problem.values[extent], 1);
  return static_cast<size_t>(std::upper_bound(first.begin(), first.end(), value) - first.begin()) - 1;
}

// Without logarithms, every reader of a pack gets the same order.
double ChoiceTable::Layer::distance(const TableProblem& problem) const {
  double product = 1.0;
  for (size_t i = 0; i < extents.size(); ++i) {
    if (i == extent) continue;
    const int64_t other = std::max<int64_t>(problem.extents[i], 1);
    product *= static_cast<double>(std::max(extents[i], other)) / static_cast<double>(std::min(extents[i], other));
  }
  return product;
}

const TableKernel* ChoiceTable::kernel_of(const Layer& layer, size_t range, const TableProblem& problem) const {
  const TableKernel& kernel = kernels_[static_cast<size_t>(layer.kernel[range])];
  for (size_t i = 0; i < kernel.aligns.size(); ++i) {
    if (kernel.aligns[i] > problem.aligns[i]) return nullptr;
  }
  return &kernel;
}

std::vector<const ChoiceTable::Layer*> ChoiceTable::layers_of(const TableProblem& problem,
                                                              const std::string& pack) const {
  std::vector<const Layer*> layers;
  for (const Layer& layer : layers_) {
    if (formats_[layer.formats].word == problem.word) layers.push_back(&layer);
  }
  if (layers.empty()) {
    refuse("no kernel supports " + text_of(problem.extents) + ": the choice table of " + pack +
           " has no layer of its formats, " + problem.word +
           ". Make a pack for this problem (gemmill pack --problem), or name a kernel");
  }
  const auto& multiples = formats_[layers[0]->formats].multiples;
  for (size_t i = 0; i < multiples.size(); ++i) {
    if (problem.extents[i] % multiples[i] != 0) {
      refuse(std::string(kExtents[i]) + " is " + std::to_string(problem.extents[i]) +
             "; with these formats it must be a multiple of " + std::to_string(multiples[i]));
    }
  }
  return layers;
}

const TableKernel& ChoiceTable::choose(const TableProblem& problem, const std::string& pack) const {
  std::vector<const Layer*> layers = layers_of(problem, pack);
  for (size_t extent = 0; extent < kVarying; ++extent) {
    std::array<int64_t, 4> extents = problem.extents;
    extents[extent] = 0;
    for (const Layer* layer : layers) {
      if (layer->extent != extent || layer->extents != extents || layer->aligns != problem.aligns) continue;
      if (const TableKernel* kernel = kernel_of(*layer, layer->range_of(problem), problem)) return *kernel;
      break;
    }
  }
  std::stable_sort(layers.begin(), layers.end(), [&](const Layer* one, const Layer* other) {
    return one->distance(problem) < other->distance(problem);
  });
  for (const Layer* layer : layers) {
    const size_t start = layer->range_of(problem);
    if (const TableKernel* kernel = kernel_of(*layer, start, problem)) return *kernel;
    for (size_t step = 1; step < layer->first.size(); ++step) {
      if (step <= start) {
        if (const TableKernel* kernel = kernel_of(*layer, start - step, problem)) return *kernel;
      }
      if (start + step < layer->first.size()) {
        if (const TableKernel* kernel = kernel_of(*layer, start + step, problem)) return *kernel;
      }
    }
  }
  refuse("no kernel supports " + text_of(problem.extents) + ": the nearest layer in the choice table of " + pack +
         " is " + text_of(layers[0]->extents) +
         ", whose kernels need other alignments. Copy the operands into memory aligned to 16 bytes, or make a pack for "
         "this problem (gemmill pack --problem)");
}

}  // namespace gemmill
