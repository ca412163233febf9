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
  explicit Case(const nlohmann::json& row) : row_(row), kernel_(row["kernel"]) {
    operands_.reserve(4);
    gemm_.a = add("a");
    gemm_.b = add("b");
    gemm_.c = add("c");
    gemm_.d = add("d");
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
      if (status == GEMMILL_OK) {
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
      size_t place = 0;
      for (Operand& operand : operands_) {
        place += place == 2 && gemm_.c == nullptr ? 1 : 0;
        operand.move(x[place++]);
      }
      if (status == GEMMILL_OK) status = gemmill_matmul(pack, &gemm_, Operand::address(row_["stream"]));
    }
    return status;
  }

 private:
  const DLTensor* add(const char* name) {
    if (row_[name].is_null()) return nullptr;
    operands_.emplace_back(row_[name]);
    return &operands_.back().tensor;
  }

  const nlohmann::json& row_;
  const std::string kernel_;
  std::vector<Operand> operands_;
  gemmill_gemm gemm_{};
};
