/// From a product of C to a launcher.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <unordered_map>

#include "launcher.h"
#include "pack.h"

namespace gemmill {

/// A product that is ready to launch. Where D is empty it has no launcher.
struct Plan {
  Call call;
  std::unique_ptr<Launcher> launcher;

  void launch(Stream stream, uint64_t lent, const Addresses& addresses);
};

/// Reads the tensors and factors of a product. Error: one is missing or not supported.
Call read_call(const gemmill_gemm& gemm);

/// Addresses of the tensors of a product.
Addresses addresses_of(const gemmill_gemm& gemm);

/// Makes a plan with a kernel of a pack.
Plan make_plan(const Pack& pack, const gemmill_gemm& gemm);

/// Plans by everything that they depend on.
class PlanCache {
 public:
  std::shared_ptr<Plan> find(const Pack& pack, const gemmill_gemm& gemm);

 private:
  std::mutex mutex_;
  std::unordered_map<std::string, std::shared_ptr<Plan>> plans_;
};

}  // namespace gemmill
