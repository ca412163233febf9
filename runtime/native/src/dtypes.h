/// The table of dtypes that tensors and descriptors have (library/dtypes.py).
#pragma once

#include <string>
#include <string_view>

namespace gemmill {

struct Dtype {
  const char* name;
  int bits;
  /// CUtensorMapDataType.
  int tma;
  /// DLPack type code; -1 for types that no tensor has.
  int dlpack;
  bool is_integer = false;
  bool is_fp8 = false;
};

/// The dtype with a name; null if there is none.
const Dtype* dtype_named(std::string_view name);

/// The dtype of a DLPack code and bits; null if there is none.
const Dtype* dtype_of_dlpack(int code, int bits);

}  // namespace gemmill
