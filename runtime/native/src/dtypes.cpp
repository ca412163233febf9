#include "dtypes.h"

#include "gemmill/gemmill.h"

namespace gemmill {
namespace {

constexpr int kNone = -1;
constexpr Dtype kDtypes[] = {
    {"bf16", 16, 9, kDLBfloat},
    {"f16", 16, 6, kDLFloat},
    {"f32", 32, 7, kDLFloat},
    {"tf32", 32, 11, kNone},
    {"f64", 64, 8, kDLFloat},
    {"e4m3", 8, 0, kDLFloat8_e4m3fn, false, true},
    {"e5m2", 8, 0, kDLFloat8_e5m2, false, true},
    {"s8", 8, 0, kDLInt, true},
    {"u8", 8, 0, kDLUInt, true},
    {"s32", 32, 3, kDLInt, true},
    {"bf16x9", 32, 7, kNone},
    {"bf16x6", 32, 7, kNone},
    {"bf16x3", 32, 7, kNone},
    {"f16x3", 32, 7, kNone},
    {"ue8m0", 8, 0, kDLFloat8_e8m0fnu},
    {"s4", 4, 0, kNone, true},
    {"u4", 4, 0, kNone, true},
    {"e2m1", 4, 0, kDLFloat4_e2m1fn},
};

}  // namespace

const Dtype* dtype_named(std::string_view name) {
  for (const Dtype& dtype : kDtypes) {
    if (name == dtype.name) return &dtype;
  }
  return nullptr;
}

const Dtype* dtype_of_dlpack(int code, int bits) {
  for (const Dtype& dtype : kDtypes) {
    if (dtype.dlpack == code && dtype.bits == bits) return &dtype;
  }
  return nullptr;
}

}  // namespace gemmill
