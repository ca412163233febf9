/// Arguments of an epilogue, bound to their places in memory (runtime/operands/bound_arguments.py).
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "epilogue.h"
#include "tensors.h"

namespace gemmill {

/// A tensor or number that a call passes.
struct Argument {
  std::string name;
  std::optional<Tensor> tensor;
  double value;
};

/// An operand of an epilogue as the launcher writes it.
struct BoundArgument {
  std::string name;
  size_t place;
  /// 0 for a number.
  uint64_t address;
  double value;
  /// Whether it is a scalar, which has no stride along the batch.
  bool is_scalar;
  /// In elements.
  int64_t batch_stride;
};

/// What the matrices of D are to an operand.
struct Places {
  int64_t m;
  int64_t n;
  int64_t batch;
  /// Whether D has an extent of the batch, along which rows and columns may have their own values.
  bool has_batch;
  /// Whether groups of rows share D: columns have values for each group, rows do not.
  bool has_groups_of_rows;
};

/// Checks that the arguments are those of an epilogue, in its order, and sets the types of tensors there.
std::vector<Argument> matched(Epilogue& epilogue, const std::vector<Argument>& arguments);

/// The arguments of a batch as those of one matrix of `m * batch` rows; nothing where their strides do not allow it.
std::optional<std::vector<Argument>> stacked(const Epilogue& epilogue, const std::vector<Argument>& arguments,
                                             int64_t m, int64_t batch);

/// Binds arguments in the order of an epilogue.
std::vector<BoundArgument> bound(const Epilogue& epilogue, const std::vector<Argument>& arguments, const Places& d);

}  // namespace gemmill
