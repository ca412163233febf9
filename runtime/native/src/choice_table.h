/// Choice tables: which kernel of a pack runs a product, computed when the pack was made
/// (runtime/select/choice_table.py and table_chooser.py).
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace gemmill {

class Row;

/// A product as a table describes it.
struct TableProblem {
  /// The values of its 16 formats, joined by spaces.
  std::string word;
  /// M, N, K and the batch.
  std::array<int64_t, 4> extents;
  /// Alignments of A, B, C and D in bytes; 16 for a missing C.
  std::array<int64_t, 4> aligns;
  /// M, N and K as ranges of layers count them: of masked groups the rows in use.
  std::array<int64_t, 3> values;
};

/// A kernel as a table names it.
struct TableKernel {
  std::string name;
  /// Slices of K of its launch.
  int64_t slices;
  /// Whether it runs the transposed product.
  bool swap_ab;
  /// Least alignments of A, B, C and D of the product, in bytes.
  std::array<int64_t, 4> aligns;
};

class ChoiceTable {
 public:
  /// Reads a table; `has` says whether the pack has a kernel. Invalid names the first value that is wrong.
  static ChoiceTable read(const Row& row, const std::function<bool(const std::string&)>& has);

  /// The kernel for a product: that of its layer, or else of the nearest one that has a kernel for it. Error: there is
  /// none. `pack`: the name of the pack, for errors.
  const TableKernel& choose(const TableProblem& problem, const std::string& pack) const;

 private:
  struct Formats {
    std::string word;
    std::array<int64_t, 3> multiples;
  };
  /// A problem without one extent, which is 0, and the kernel for each range of that extent.
  struct Layer {
    size_t formats;
    size_t extent;
    std::array<int64_t, 4> extents;
    std::array<int64_t, 4> aligns;
    std::vector<int64_t> first;
    std::vector<int64_t> kernel;

    size_t range_of(const TableProblem& problem) const;
    double distance(const TableProblem& problem) const;
  };

  static Layer read_layer(const Row& row, size_t formats, size_t kernels);
  const TableKernel* kernel_of(const Layer& layer, size_t range, const TableProblem& problem) const;
  std::vector<const Layer*> layers_of(const TableProblem& problem, const std::string& pack) const;

  std::vector<Formats> formats_;
  std::vector<TableKernel> kernels_;
  std::vector<Layer> layers_;
};

}  // namespace gemmill
