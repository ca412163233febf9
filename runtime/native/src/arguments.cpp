#include "arguments.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "error.h"

namespace gemmill {
namespace {

constexpr double kMaxFloat32 = 3.4028234663852886e38;

[[noreturn]] void refuse(const std::string& message) { throw Error(GEMMILL_OPERAND, message); }

int64_t elements_of(const Tensor& tensor) {
  return std::accumulate(tensor.shape.begin(), tensor.shape.end(), int64_t{1}, std::multiplies<>());
}

void check_number(const Argument& argument, Kind kind) {
  if (kind != Kind::kScalar) {
    refuse(argument.name + " is a number, but the epilogue has an index behind it: pass a tensor in GPU memory");
  }
  if (std::isfinite(argument.value) && std::fabs(argument.value) > kMaxFloat32) {
    refuse(argument.name + " must fit in a float32, at most 3.403e+38");
  }
}

BoundArgument bound_vector(const EpilogueOperand& operand, const Tensor& tensor, const Places& d) {
  const bool is_row = operand.kind == Kind::kRow;
  const bool has_tail = operand.kind != Kind::kBatch;
  const int64_t extent = is_row ? d.m : d.n;
  auto shape = tensor.shape;
  if (has_tail) {
    if (shape.empty() || shape.back() != extent) {
      refuse(operand.name + " has shape " + text_of(shape) + "; it must have one value for each of " +
             std::to_string(extent) + (is_row ? " rows" : " columns"));
    }
    if (extent > 1 && tensor.strides.back() != 1) {
      refuse(operand.name + " has stride " + std::to_string(tensor.strides.back()) + "; it must be contiguous");
    }
    shape.pop_back();
  }
  const bool has_outer = d.has_groups_of_rows ? !is_row : d.has_batch;
  const bool fits = shape.empty() || (has_outer && shape.size() == 1 && (shape[0] == 1 || shape[0] == d.batch));
  if (!fits) {
    refuse(operand.name + " has shape " + text_of(tensor.shape) + ", which does not broadcast to the batch of D");
  }
  const int64_t stride = !shape.empty() && shape[0] == d.batch ? tensor.strides[0] : 0;
  return {operand.name, tensor.place, tensor.address, 0, false, d.batch == 1 ? 0 : stride};
}

}  // namespace

std::vector<Argument> matched(Epilogue& epilogue, const std::vector<Argument>& arguments) {
  std::vector<Argument> result;
  for (size_t i = 0; i < epilogue.operands().size(); ++i) {
    const EpilogueOperand& operand = epilogue.operands()[i];
    const auto found =
        std::find_if(arguments.begin(), arguments.end(), [&](const Argument& x) { return x.name == operand.name; });
    if (found == arguments.end()) {
      refuse(operand.name + " is missing: the epilogue '" + epilogue.text() + "' needs an argument of this name");
    }
    if (!found->tensor) {
      check_number(*found, operand.kind);
    } else if (operand.dtype != found->tensor->dtype && operand.dtype != dtype_named("f32")) {
      refuse(operand.name + " is " + found->tensor->dtype->name + ", but the epilogue says " + operand.name + "." +
             operand.dtype->name + ": leave out the type there");
    } else {
      epilogue.set_dtype(i, found->tensor->dtype);
    }
    result.push_back(*found);
  }
  if (result.size() != arguments.size()) {
    refuse("the epilogue '" + epilogue.text() + "' has " + std::to_string(result.size()) + " operands, and " +
           std::to_string(arguments.size()) + " arguments are passed: pass each of them once");
  }
  return result;
}

std::optional<std::vector<Argument>> stacked(const Epilogue& epilogue, const std::vector<Argument>& arguments,
                                             int64_t m, int64_t batch) {
  std::vector<Argument> result = arguments;
  for (size_t i = 0; i < result.size(); ++i) {
    if (!result[i].tensor || epilogue.operands()[i].kind == Kind::kScalar) continue;
    Tensor& x = *result[i].tensor;
    const size_t rank = x.shape.size();
    if (epilogue.operands()[i].kind == Kind::kColumn && rank > 0 && elements_of(x) == x.shape.back()) {
      x.shape = {x.shape.back()};
      x.strides = {x.strides.back()};
      continue;
    }
    const bool is_row = epilogue.operands()[i].kind == Kind::kRow && rank == 2 && x.shape[0] == batch;
    if (!is_row || x.shape[1] != m || x.strides[0] != m || (m > 1 && x.strides[1] != 1)) return std::nullopt;
    x.shape = {m * batch};
    x.strides = {1};
  }
  return result;
}

std::vector<BoundArgument> bound(const Epilogue& epilogue, const std::vector<Argument>& arguments, const Places& d) {
  std::vector<BoundArgument> result;
  for (size_t i = 0; i < arguments.size(); ++i) {
    const Argument& argument = arguments[i];
    const EpilogueOperand& operand = epilogue.operands()[i];
    if (!argument.tensor) {
      result.push_back({argument.name, 0, 0, argument.value, true, 0});
    } else if (operand.kind != Kind::kScalar) {
      result.push_back(bound_vector(operand, *argument.tensor, d));
    } else if (elements_of(*argument.tensor) == 1) {
      result.push_back({argument.name, argument.tensor->place, argument.tensor->address, 0, true, 0});
    } else {
      refuse(argument.name + " has shape " + text_of(argument.tensor->shape) +
             "; without an index it must have one element: write " + argument.name + "[n] for a vector of N");
    }
  }
  return result;
}

}  // namespace gemmill
