#include "gemm.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <utility>
#include <vector>

#include "error.h"

namespace gemmill {
namespace {

constexpr int64_t kTmaMaxStride = int64_t{1} << 40;
constexpr int64_t kTmaAlign = 16;
/// No GPU memory has a lower address.
constexpr uint64_t kLeastAddress = uint64_t{1} << 32;
constexpr double kMaxFloat32 = 3.4028234663852886e38;

[[noreturn]] void refuse(const std::string& message) { throw Error(GEMMILL_OPERAND, message); }

/// A tensor as a batch of matrices, rows x columns; strides in elements.
struct Matrices {
  const Tensor* tensor;
  int64_t rows;
  int64_t columns;
  int64_t row_stride;
  int64_t column_stride;
  /// 0 where the whole batch shares one.
  int64_t batch_stride;
};

Matrices matrices(const Tensor& tensor, int64_t rows, int64_t columns) {
  const auto& strides = tensor.strides;
  const size_t rank = strides.size();
  return {&tensor, rows, columns, strides[rank - 2], strides[rank - 1], rank > 2 ? strides[0] : 0};
}

/// Whether the rows of the whole batch lie at one stride and are contiguous along one extent.
bool stacks(const Matrices& x) {
  if (x.rows > 1) return x.batch_stride != 0 && x.batch_stride == static_cast<Wide>(x.rows) * x.row_stride;
  return x.batch_stride == 1 || (x.batch_stride != 0 && (x.columns == 1 || x.column_stride == 1));
}

Matrices stacked(Matrices x, int64_t rows) {
  x.row_stride = x.rows == 1 ? x.batch_stride : x.row_stride;
  x.rows = rows;
  x.batch_stride = 0;
  return x;
}

/// One way to see an operand: with a contiguous extent, or none.
Operand described(const Matrices& x, const std::string& major, int64_t stride, int64_t other_stride) {
  const int64_t bytes = x.tensor->dtype->bits / 8;
  // Powers of two divide a negative number as they divide its two's complement.
  const uint64_t steps = static_cast<uint64_t>(stride * bytes) | static_cast<uint64_t>(other_stride * bytes) |
                         static_cast<uint64_t>(x.batch_stride * bytes);
  const uint64_t aligned = x.tensor->address | uint64_t{kTmaAlign} | steps;
  return {x.tensor->place,
          x.tensor->address,
          x.tensor->dtype,
          x.tensor->dtype,
          major,
          major == "any" ? 0 : stride,
          x.batch_stride,
          static_cast<int64_t>(aligned & (~aligned + 1)),
          x.rows > 1 ? x.row_stride : 0,
          x.columns > 1 ? x.column_stride : 0};
}

/// Finds the contiguous extent of an operand: where both could be, the better aligned, and on a tie `first`.
Operand operand(const Matrices& x, int64_t batch, const char* of_columns, const char* of_rows,
                const std::string& first) {
  const int64_t bits = x.tensor->dtype->bits;
  if (x.rows == 0 || x.columns == 0 || batch == 0) {  // a kernel reads nothing here
    return {
        x.tensor->place, x.tensor->address, x.tensor->dtype, x.tensor->dtype, first, 128 / bits, 0, kTmaAlign, 0, 0};
  }
  const auto fits_tma = [&](int64_t stride) { return stride * bits < 8 * kTmaMaxStride; };
  const bool movable = x.batch_stride >= 0 && fits_tma(x.batch_stride);
  std::optional<Operand> best;
  const auto consider = [&](const char* major, int64_t inner, int64_t inner_stride, int64_t outer, int64_t stride) {
    const bool is_regular = outer == 1 || (stride > 0 && fits_tma(stride));
    if (!(inner == 1 || inner_stride == 1) || !is_regular || !movable) return;
    const Operand layout = described(x, major, outer > 1 ? stride : 0, 0);
    const bool is_better = !best || std::make_pair(layout.align, layout.major == first) >
                                        std::make_pair(best->align, best->major == first);
    if (is_better) best = layout;
  };
  consider(of_columns, x.columns, x.column_stride, x.rows, x.row_stride);
  consider(of_rows, x.rows, x.row_stride, x.columns, x.column_stride);
  if (best) return *best;
  return described(x, "any", x.rows > 1 ? x.row_stride : 0, x.columns > 1 ? x.column_stride : 0);
}

/// Refuses an output with elements that share an address: several CTAs would write them.
void refuse_overlap(const Matrices& x, int64_t batch) {
  if (x.rows == 0 || x.columns == 0 || batch == 0) return;
  std::vector<std::pair<int64_t, int64_t>> axes{{std::llabs(x.row_stride), x.rows},
                                                {std::llabs(x.column_stride), x.columns},
                                                {std::llabs(x.batch_stride), batch}};
  std::sort(axes.begin(), axes.end());
  Wide reach = 0;
  for (const auto& [stride, extent] : axes) {
    if (extent <= 1) continue;
    if (stride <= reach) {
      refuse("d has strides " + text_of(x.tensor->strides) + " for shape " + text_of(x.tensor->shape) +
             ", so its elements overlap: pass memory with a place for each element");
    }
    reach += static_cast<Wide>(extent - 1) * stride;
  }
}

void check_tensors(const Call& call) {
  for (const auto& tensor : {call.b, call.c, call.d}) {
    if (tensor && tensor->device != call.a->device) {
      refuse(std::string(name_of(tensor->place)) + " is on GPU " + std::to_string(tensor->device) +
             " and a is on GPU " + std::to_string(call.a->device) + "; all must be on one GPU");
    }
  }
  for (const auto& tensor : {call.a, call.b, call.d}) {
    if (tensor->shape.size() < 2) {
      refuse(std::string(name_of(tensor->place)) + " has shape " + text_of(tensor->shape) +
             "; libgemmill takes matrices: add an extent of 1");
    }
  }
}

/// The shape of A @ B, with the extent of a batch where either has one.
std::vector<int64_t> product_shape(const Tensor& a, const Tensor& b) {
  const auto& x = a.shape;
  const auto& y = b.shape;
  const std::string both = "a " + text_of(x) + " @ b " + text_of(y);
  if (x.back() != y[y.size() - 2]) {
    refuse(both + ": a has K = " + std::to_string(x.back()) + " columns, b has K = " + std::to_string(y[y.size() - 2]) +
           " rows; they must be equal");
  }
  std::vector<int64_t> shape{x[x.size() - 2], y.back()};
  if (x.size() == 2 && y.size() == 2) return shape;
  const int64_t of_a = x.size() > 2 ? x[0] : 1;
  const int64_t of_b = y.size() > 2 ? y[0] : 1;
  if (of_a != of_b && of_a != 1 && of_b != 1) {
    refuse(both + ": batch extents [" + std::to_string(std::min(of_a, of_b)) + ", " +
           std::to_string(std::max(of_a, of_b)) + "] do not broadcast; they must be equal or 1");
  }
  shape.insert(shape.begin(), of_a == 1 ? of_b : of_a);
  return shape;
}

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

void check_factors(const Call& call) {
  if (call.beta != 0 && !call.c) {
    refuse("beta is " + number_text(call.beta) + ", but there is no c to scale: pass c, or set beta to 0");
  }
  const bool takes_doubles = call.a->dtype->bits == 64 || call.b->dtype->bits == 64;
  for (const auto& [name, value] : {std::make_pair("alpha", call.alpha), std::make_pair("beta", call.beta)}) {
    if (!takes_doubles && std::isfinite(value) && std::fabs(value) > kMaxFloat32) {
      refuse(std::string(name) + " is " + number_text(value) + "; it must fit in a float32, at most 3.403e+38");
    }
    const bool is_s32 = call.d->dtype == dtype_named("s32");
    if (is_s32 && (std::floor(value) != value || std::fabs(value) >= 2147483648.0)) {
      refuse(std::string(name) + " is " + number_text(value) +
             "; for an s32 D it must be a whole number below 2^31: use an f32 D");
    }
  }
}

/// The dtypes of A and B in the product, and its accumulation.
void set_arithmetic(Gemm& gemm, const Call& call) {
  const Dtype* f32 = dtype_named("f32");
  for (Operand* x : {&gemm.a, &gemm.b}) {
    if (call.has_tf32 && x->dtype == f32) x->dtype = dtype_named("tf32");
  }
  const int bits_a = gemm.a.dtype->bits;
  const int bits_b = gemm.b.dtype->bits;
  if ((bits_a <= 8 && bits_b == 16) || (bits_b <= 8 && bits_a == 16)) {
    throw Error(GEMMILL_UNSUPPORTED, std::string("a is ") + gemm.a.dtype->name + " and b is " + gemm.b.dtype->name +
                                         "; libgemmill does not upconvert: use gemmill from Python, or pass operands "
                                         "of one width");
  }
  const Dtype* wider = bits_b > bits_a ? gemm.b.dtype : gemm.a.dtype;
  gemm.accumulator = dtype_named(wider->is_integer ? "s32" : wider->bits == 64 ? "f64" : "f32");
  gemm.promote = gemm.a.dtype->is_fp8 && gemm.b.dtype->is_fp8 && !call.has_fast_accumulation ? 4 : 0;
}

}  // namespace

Operand Operand::transposed() const {
  Operand result = *this;
  if (major == "n" || major == "m") result.major = major == "n" ? "m" : "n";
  std::swap(result.row_stride, result.column_stride);
  return result;
}

Addresses Call::addresses() const { return {a->address, b->address, c ? c->address : 0, d->address}; }

Gemm Gemm::of(const Call& call) {
  check_tensors(call);
  check_factors(call);
  const std::vector<int64_t> shape = product_shape(*call.a, *call.b);
  if (call.d->shape != shape) {
    refuse("d has shape " + text_of(call.d->shape) + "; a " + text_of(call.a->shape) + " @ b " +
           text_of(call.b->shape) + " has shape " + text_of(shape) + ": pass a d of that shape");
  }
  int64_t m = shape[shape.size() - 2];
  const int64_t n = shape.back();
  // With alpha = 0 the kernel reads no element of A and B, so that NaN there does not reach D.
  const int64_t k = call.alpha == 0 ? 0 : call.a->shape.back();
  int64_t batch = shape.size() > 2 ? shape[0] : 1;
  std::optional<Tensor> broadcast_c;
  if (call.c) broadcast_c = broadcast(*call.c, shape);
  Matrices a = matrices(*call.a, m, k);
  const Matrices b = matrices(*call.b, k, n);
  std::optional<Matrices> c;
  if (call.c) c = matrices(*broadcast_c, m, n);
  Matrices d = matrices(*call.d, m, n);
  const bool fits = 1 < batch && batch <= kMaxExtent / std::max<int64_t>(m, 1) && b.batch_stride == 0;
  if (fits && stacks(a) && (!c || stacks(*c)) && stacks(d)) {
    // A batch that shares B is one matrix.
    m *= batch;
    batch = 1;
    a = stacked(a, m);
    d = stacked(d, m);
    if (c) c = stacked(*c, m);
  }
  const Operand of_d = operand(d, batch, "n", "m", "n");
  refuse_overlap(d, batch);
  Gemm gemm{m,
            n,
            k,
            batch,
            operand(a, batch, "k", "mn", "k"),
            operand(b, batch, "mn", "k", "k"),
            c ? std::optional<Operand>(operand(*c, batch, "n", "m", of_d.major)) : std::nullopt,
            of_d,
            nullptr,
            0,
            call.alpha,
            call.beta};
  set_arithmetic(gemm, call);
  return gemm;
}

Gemm Gemm::transposed() const {
  Gemm result = *this;
  std::swap(result.m, result.n);
  result.a = b.transposed();
  result.b = a.transposed();
  if (c) result.c = c->transposed();
  result.d = d.transposed();
  result.is_transposed = !is_transposed;
  return result;
}

std::string Gemm::extents() const {
  const std::string text = std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k);
  return batch == 1 ? text : text + "x" + std::to_string(batch);
}

void check_memory(const Call& call, const Addresses& addresses) {
  if (call.d->is_empty()) return;
  for (const auto* x : {&call.a, &call.b, &call.c, &call.d}) {
    const auto& tensor = *x;
    if (!tensor || tensor->is_empty()) continue;
    if (addresses[tensor->place] < kLeastAddress) {
      refuse(std::string(name_of(tensor->place)) + " has no memory: its address is " +
             hex_address(addresses[tensor->place]) + ": pass a tensor whose elements are in GPU memory");
    }
  }
  const bool c_may_be_d =
      call.c && call.c->shape == call.d->shape && call.c->strides == call.d->strides && call.c->dtype == call.d->dtype;
  for (const auto* x : {&call.a, &call.b, &call.c}) {
    const auto& tensor = *x;
    if (!tensor || tensor->is_empty()) continue;
    const uint64_t other = addresses[tensor->place];
    if (tensor->place == kC && c_may_be_d && other == addresses[kD]) continue;
    if (shares_memory(*call.d, addresses[kD], *tensor, other)) {
      const std::string name = name_of(tensor->place);
      refuse("d and " + name + " overlap in memory (at " + hex_address(addresses[kD]) + " and " + hex_address(other) +
             "), and d is written while " + name + " is read: pass other memory for d");
    }
  }
}

}  // namespace gemmill
