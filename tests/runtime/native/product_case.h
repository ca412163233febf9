/// A row of the table of products (cases.py).
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "gemmill/gemmill.h"

/// A tensor of the table, and the memory of its extents.
struct Operand {
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  DLTensor tensor{};

  explicit Operand(const nlohmann::json& value) : shape(value["shape"]), strides(value["strides"]) {
    move(value["address"]);
    tensor.device = {kDLCUDA, 0};
    tensor.ndim = static_cast<int32_t>(shape.size());
    tensor.dtype = {value["code"], value["bits"], 1};
    tensor.shape = shape.data();
    tensor.strides = strides.data();
  }
  /// The first element lies behind the start of the memory.
  void move(const nlohmann::json& value) {
    tensor.byte_offset = 48;
    tensor.data = static_cast<char*>(address(value)) - tensor.byte_offset;
  }
  static void* address(const nlohmann::json& value) { return reinterpret_cast<void*>(value.get<uint64_t>()); }
};

class Case {
 public:
  explicit Case(const nlohmann::json& row) : row_(row), kernel_(row["kernel"]), epilogue_(row["epilogue"]) {
    operands_.reserve(16);
    const DLTensor** places[] = {&gemm_.a,       &gemm_.b,       &gemm_.c,       &gemm_.d,
                                 &gemm_.a_scale, &gemm_.b_scale, &gemm_.offsets, &gemm_.counts};
    const char* names[] = {"a", "b", "c", "d", "a_scale", "b_scale", "offsets", "counts"};
    for (size_t i = 0; i < 8; ++i) *places[i] = add(row[names[i]], i);
    has_others_ = operands_.size() > (gemm_.c == nullptr ? 3 : 4) || !row["arguments"].empty();
    for (const nlohmann::json& x : row["arguments"]) {
      const DLTensor* tensor = add(x["tensor"], 8 + arguments_.size());
      arguments_.push_back({x["name"].get_ref<const std::string&>().c_str(), tensor, x["value"]});
    }
    gemm_.arguments = arguments_.data();
    gemm_.argument_count = arguments_.size();
    gemm_.epilogue = epilogue_.empty() ? nullptr : epilogue_.c_str();
    gemm_.expected_rows = row["expected_rows"];
    gemm_.alpha = row["alpha"];
    gemm_.beta = row["beta"];
    gemm_.flags = row["flags"];
    gemm_.slices = row["slices"];
    gemm_.kernel = kernel_.empty() ? nullptr : kernel_.c_str();
  }

  /// What the last plan needed.
  size_t workspace_bytes = 0;

  Case(const Case&) = delete;
  Case& operator=(const Case&) = delete;

  /// Launches a plan at all addresses. `workspace`: the caller's; null for the library's.
  gemmill_status plan(const gemmill_pack* pack, void* workspace = nullptr) {
    gemmill_plan* plan = nullptr;
    gemmill_status status = gemmill_plan_create(pack, &gemm_, &plan);
    for (const nlohmann::json& x : row_["launches"]) {
      if (status == GEMMILL_OK && has_others_) {
        move(x);
        status = gemmill_plan_launch_gemm(plan, Operand::address(row_["stream"]), workspace, &gemm_);
      } else if (status == GEMMILL_OK) {
        status = gemmill_plan_launch(plan, Operand::address(row_["stream"]), workspace, Operand::address(x[0]),
                                     Operand::address(x[1]), Operand::address(x[2]), Operand::address(x[3]));
      }
    }
    workspace_bytes = gemmill_plan_workspace(plan);
    gemmill_plan_destroy(plan);
    return status;
  }

  /// Calls gemmill_matmul at all addresses.
  gemmill_status calls(gemmill_pack* pack) {
    gemmill_status status = GEMMILL_OK;
    for (const nlohmann::json& x : row_["launches"]) {
      move(x);
      if (status == GEMMILL_OK) status = gemmill_matmul(pack, &gemm_, Operand::address(row_["stream"]));
    }
    return status;
  }

 private:
  const DLTensor* add(const nlohmann::json& value, size_t place) {
    if (value.is_null()) return nullptr;
    operands_.emplace_back(value);
    places_.push_back(place);
    return &operands_.back().tensor;
  }

  /// Moves all tensors to the addresses of a launch.
  void move(const nlohmann::json& addresses) {
    for (size_t i = 0; i < operands_.size(); ++i) operands_[i].move(addresses[places_[i]]);
  }

  const nlohmann::json& row_;
  const std::string kernel_;
  const std::string epilogue_;
  std::vector<Operand> operands_;
  /// Their indices in the addresses of a launch.
  std::vector<size_t> places_;
  std::vector<gemmill_argument> arguments_;
  /// Whether it has more than A, B, C and D.
  bool has_others_ = false;
  gemmill_gemm gemm_{};
};
