/// The parameters of a kernel in host memory (runtime/launch/parameters.py).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "gemm.h"
#include "kernel.h"

namespace gemmill {

/// A kernel's parameter struct, aligned for the descriptors in it.
class ParameterBlock {
 public:
  explicit ParameterBlock(int64_t bytes);

  void* address() { return memory_.get(); }
  /// Writes a value; Error where the launch facts put it outside.
  template <typename Value>
  void write(int64_t offset, Value value) {
    __builtin_memcpy(at(offset, sizeof value), &value, sizeof value);
  }
  void* at(int64_t offset, size_t bytes);

 private:
  struct Free {
    void operator()(std::byte* memory) const;
  };
  std::unique_ptr<std::byte[], Free> memory_;
  int64_t bytes_;
};

/// A place of the parameters that follows the address of an operand, from which it starts some bytes away.
struct Following {
  size_t place;
  void* at;
  int64_t shift;
};

/// Writes the scalars that do not depend on the launch.
void write_scalars(const Gemm& gemm, const LaunchSpec& spec, ParameterBlock& block);

/// Writes the arguments of the epilogue: an address, then a stride along the batch or the value of a scalar.
void write_arguments(const Gemm& gemm, const LaunchSpec& spec, ParameterBlock& block);

/// Where an argument of the epilogue begins. Error: the kernel has none of this name.
int64_t argument_offset(const LaunchSpec& spec, const std::string& name);

/// Writes the TMA descriptors of operands, and returns those that follow an operand's address.
std::vector<Following> encode_descriptors(const Gemm& gemm, const Kernel& kernel, ParameterBlock& block);

}  // namespace gemmill
