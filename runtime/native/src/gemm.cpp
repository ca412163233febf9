#include "gemm.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <utility>

#include "error.h"
#include "tensor_map.h"

namespace gemmill {
namespace {

constexpr double kMaxFloat32 = 3.4028234663852886e38;
constexpr int64_t kScaleBlock = 128;

[[noreturn]] void refuse(const std::string& message) { throw Error(GEMMILL_OPERAND, message); }

int64_t blocks_of(int64_t extent) { return (extent + kScaleBlock - 1) / kScaleBlock; }

void check_tensors(const Call& call) {
  const Tensor& a = call.get(kA);
  for (const Tensor* tensor : call.all()) {
    if (tensor->device != a.device) {
      refuse(tensor->name + " is on GPU " + std::to_string(tensor->device) + " and a is on GPU " +
             std::to_string(a.device) + "; all must be on one GPU");
    }
  }
  for (const Place place : {kA, kB, kD}) {
    const Tensor& tensor = call.get(place);
    if (tensor.shape.size() < 2) {
      refuse(tensor.name + " has shape " + text_of(tensor.shape) + "; libgemmill takes matrices: add an extent of 1");
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

/// The offsets or counts of a call; null where its matrices lie at strides.
const Tensor* groups_of(const Call& call) {
  if (call.find(kOffsets) != nullptr && call.find(kCounts) != nullptr) {
    refuse("offsets and counts are both passed: pass offsets for consecutive groups, counts for masked ones");
  }
  return call.find(kOffsets) != nullptr ? call.find(kOffsets) : call.find(kCounts);
}

/// The shape of D for groups: (M, N), or (groups, capacity, N).
std::vector<int64_t> grouped_shape(const Call& call, const Tensor& groups) {
  const auto& a = call.get(kA).shape;
  const auto& b = call.get(kB).shape;
  const bool has_offsets = groups.place == kOffsets;
  if (groups.dtype != dtype_named("s32") || groups.shape.size() != 1) {
    refuse(groups.name + " is " + groups.dtype->name + " " + text_of(groups.shape) + "; it must be s32 (groups,)");
  }
  if (const int64_t stride = groups.given_strides[0]; stride != static_cast<int32_t>(stride)) {
    refuse(groups.name + " has stride " + std::to_string(stride) + "; it must be below 2^31: pass consecutive values");
  }
  const int64_t count = groups.shape[0];
  if (b.size() != 3 || b[0] != count || a.size() != (has_offsets ? 2 : 3) || (!has_offsets && a[0] != count)) {
    if (has_offsets && a.size() == 2 && b.size() == 2) {
      throw Error(GEMMILL_UNSUPPORTED,
                  "groups along K (b of two extents with offsets) are not supported by libgemmill: "
                  "use gemmill from Python");
    }
    refuse("a has shape " + text_of(a) + " and b has shape " + text_of(b) + "; with " + groups.name + " of " +
           std::to_string(count) + " groups, a must be " + (has_offsets ? "(M, K)" : "(groups, capacity, K)") +
           " and b (groups, K, N)");
  }
  return product_shape(call.get(kA), call.get(kB));
}

std::string number_text(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%g", value);
  return text;
}

/// Refuses factors and C that an epilogue does not read, or lacks.
void check_epilogue(const Call& call) {
  const Epilogue& epilogue = *call.epilogue;
  const bool has_c = call.find(kC) != nullptr;
  const std::string name = "the epilogue '" + epilogue.text() + "'";
  if (epilogue.reads("c") != has_c) {
    refuse(has_c ? "c is passed, but " + name + " does not read it: leave out c" : name + " reads c: pass c");
  }
  if (call.alpha != 1 && !epilogue.reads("alpha")) {
    refuse("alpha is " + number_text(call.alpha) + ", but " + name + " does not read it: set alpha to 1");
  }
  if (call.alpha == 0) {
    throw Error(GEMMILL_UNSUPPORTED, "alpha is 0 with " + name + ", which libgemmill does not support");
  }
  if (call.beta != 0 && !epilogue.reads("beta")) {
    refuse("beta is " + number_text(call.beta) + ", but " + name + " does not read it: set beta to 0");
  }
}

void check_whole(const std::string& name, double value) {
  if (std::floor(value) == value && std::fabs(value) < 2147483648.0) return;
  refuse(name + " is " + number_text(value) + "; for an s32 D it must be a whole number below 2^31: use an f32 D");
}

void check_factors(const Call& call) {
  if (call.epilogue && !call.epilogue->is_linear()) {
    check_epilogue(call);
  } else if (call.beta != 0 && call.find(kC) == nullptr) {
    refuse("beta is " + number_text(call.beta) + ", but there is no c to scale: pass c, or set beta to 0");
  }
  const bool is_s32 = call.get(kD).dtype == dtype_named("s32");
  const bool takes_doubles = call.get(kA).dtype->bits == 64 || call.get(kB).dtype->bits == 64;
  for (const auto& [name, value] : {std::make_pair("alpha", call.alpha), std::make_pair("beta", call.beta)}) {
    if (!takes_doubles && std::isfinite(value) && std::fabs(value) > kMaxFloat32) {
      refuse(std::string(name) + " is " + number_text(value) + "; it must fit in a float32, at most 3.403e+38");
    }
    if (is_s32) check_whole(name, value);
  }
  for (const Argument& argument : call.arguments) {
    if (is_s32 && !argument.tensor) check_whole(argument.name, argument.value);
  }
}

const Dtype* wider(const Call& call) {
  const Dtype* a = call.get(kA).dtype;
  const Dtype* b = call.get(kB).dtype;
  return b->bits > a->bits ? b : a;
}

/// The operand that a kernel upconverts to the type of the other; null for most products.
const Tensor* narrow_of(const Call& call) {
  const Tensor& a = call.get(kA);
  const Tensor& b = call.get(kB);
  const Tensor& narrow = a.dtype->bits < b.dtype->bits ? a : b;
  if (narrow.dtype->bits > 8 || wider(call)->bits != 16) return nullptr;
  if (narrow.dtype == dtype_named("e2m1")) return &narrow;
  throw Error(GEMMILL_UNSUPPORTED, std::string("a is ") + a.dtype->name + " and b is " + b.dtype->name +
                                       "; libgemmill upconverts only e2m1: use gemmill from Python, or pass operands "
                                       "of one width");
}

/// The call as a kernel reads it. With alpha = 0 it reads no element of A and B, so that NaN there does not reach D.
Call as_read(Call call) {
  if (call.alpha != 0) return call;
  const Dtype* dtype = wider(call);
  const bool is_mixed = narrow_of(call) != nullptr;
  for (const Place place : {kA, kB}) {
    Tensor& tensor = *call.tensors[place];
    tensor.shape[tensor.shape.size() - (place == kA ? 1 : 2)] = 0;
    if (is_mixed) tensor.dtype = dtype;
  }
  call.tensors[kAScale].reset();
  call.tensors[kBScale].reset();
  return call;
}

/// The matrices of a call, and what is read beside them.
struct Parts {
  int64_t m;
  int64_t n;
  int64_t k;
  int64_t batch;
  Matrices a;
  Matrices b;
  std::optional<Matrices> c;
  Matrices d;
  std::optional<BlockScale> a_scale;
  std::optional<BlockScale> b_scale;
  std::optional<Operand> scale;
  std::vector<Argument> arguments;
};

void read_scales(Parts& parts, const Call& call, const Tensor* groups) {
  const Tensor* narrow = narrow_of(call);
  const bool is_a = narrow != nullptr && narrow->place == kA;
  const Tensor* of_a = call.find(kAScale);
  const Tensor* of_b = call.find(kBScale);
  if (narrow != nullptr) {
    if (const Tensor* other = is_a ? of_b : of_a; other != nullptr) {
      refuse(other->name + " is passed for the wider operand; only " + narrow->name + " has scales: leave it out");
    }
    if (is_a && groups != nullptr) {
      refuse("a is e2m1; upconverting a is not supported with " + groups->name + ": pass the weights as b");
    }
    const int64_t rows = is_a ? parts.m : parts.n;
    parts.scale = group_scale(is_a ? of_a : of_b, is_a ? parts.a : parts.b, rows, parts.k, parts.batch);
    return;
  }
  if ((of_a == nullptr) != (of_b == nullptr)) {
    refuse(std::string(of_a ? "a_scale" : "b_scale") + " is passed without " + (of_a ? "b_scale" : "a_scale") +
           "; block scales need both");
  }
  if (of_a == nullptr) return;
  const bool shares_a = groups != nullptr && groups->place == kOffsets;
  parts.a_scale = block_scale(*of_a, parts.m, blocks_of(parts.k), shares_a ? 1 : parts.batch, 1);
  parts.b_scale = block_scale(*of_b, blocks_of(parts.k), blocks_of(parts.n), parts.batch, 0);
}

/// Makes a batch that shares B one matrix, where the strides of all else allow it.
void stack(Parts& parts, const Epilogue& epilogue) {
  Parts flat = parts;
  if (parts.batch <= 1 || parts.batch > kMaxExtent / std::max<int64_t>(parts.m, 1) || parts.b.batch_stride != 0) return;
  if (!stacks(parts.a) || (parts.c && !stacks(*parts.c)) || !stacks(parts.d)) return;
  if (parts.scale && parts.scale->place == kAScale) return;
  if (parts.a_scale && !stack_scales(*flat.a_scale, *flat.b_scale, parts.m)) return;
  const auto arguments = stacked(epilogue, parts.arguments, parts.m, parts.batch);
  if (!arguments) return;
  flat.arguments = *arguments;
  flat.m = parts.m * parts.batch;
  flat.batch = 1;
  flat.a = stacked(parts.a, flat.m);
  flat.d = stacked(parts.d, flat.m);
  if (parts.c) flat.c = stacked(*parts.c, flat.m);
  parts = std::move(flat);
}

/// The dtypes of A and B in the product, and its accumulation.
void set_arithmetic(Gemm& gemm, const Call& call) {
  for (Operand* x : {&gemm.a, &gemm.b}) {
    if (call.has_tf32 && x->dtype == dtype_named("f32")) x->dtype = dtype_named("tf32");
  }
  const Dtype* dtype = wider(call);
  gemm.accumulator = dtype_named(dtype->is_integer ? "s32" : dtype->bits == 64 ? "f64" : "f32");
  const bool is_precise = gemm.a.dtype->is_fp8 && gemm.b.dtype->is_fp8 && !call.has_fast_accumulation;
  gemm.promote = is_precise || gemm.a_scale ? 4 : 0;
}

Gemm assembled(const Parts& parts, const Call& call, const Tensor* groups) {
  const Operand d = operand(parts.d, parts.batch, "n", "m", "n");
  refuse_overlap(parts.d, groups != nullptr && groups->place == kOffsets ? 1 : parts.batch);
  std::optional<Operand> c;
  if (parts.c) c = operand(*parts.c, parts.batch, "n", "m", d.major);
  Gemm gemm{parts.m,
            parts.n,
            parts.k,
            parts.batch,
            operand(parts.a, parts.batch, "k", "mn", "k"),
            operand(parts.b, parts.batch, "mn", "k", "k"),
            c,
            d};
  gemm.alpha = call.alpha;
  gemm.beta = call.beta;
  gemm.a_scale = parts.a_scale;
  gemm.b_scale = parts.b_scale;
  gemm.scale = parts.scale;
  if (parts.a_scale) {
    gemm.a_scaling = "1x128";
    gemm.b_scaling = "128x128";
  }
  if (parts.scale) (parts.scale->place == kAScale ? gemm.a_scaling : gemm.b_scaling) = "1x32e8";
  if (groups != nullptr) {
    gemm.batching = groups->place == kOffsets ? "grouped" : "masked";
    gemm.groups = Groups{groups->place, groups->address, groups->given_strides[0]};
    gemm.expected_rows = call.expected_rows;
  }
  set_arithmetic(gemm, call);
  return gemm;
}

void check_expected_rows(const Call& call, const Tensor* groups, int64_t capacity) {
  const bool is_masked = groups != nullptr && groups->place == kCounts;
  if (call.expected_rows == 0 || (is_masked && 0 < call.expected_rows && call.expected_rows <= capacity)) return;
  refuse("expected_rows is " + std::to_string(call.expected_rows) +
         "; it must be 0, or with counts from 1 to the capacity of a group");
}

}  // namespace

std::vector<const Tensor*> Call::all() const {
  std::vector<const Tensor*> result;
  for (const auto& tensor : tensors) {
    if (tensor) result.push_back(&*tensor);
  }
  for (const Argument& argument : arguments) {
    if (argument.tensor) result.push_back(&*argument.tensor);
  }
  return result;
}

Addresses Call::addresses() const {
  Addresses addresses{};
  for (const Tensor* tensor : all()) addresses[tensor->place] = tensor->address;
  return addresses;
}

Gemm Gemm::of(const Call& given) {
  check_tensors(given);
  check_factors(given);
  const Tensor* groups = groups_of(given);
  const Tensor& d = given.get(kD);
  const std::vector<int64_t> whole =
      groups != nullptr ? grouped_shape(given, *groups) : product_shape(given.get(kA), given.get(kB));
  const bool is_flat = groups != nullptr && groups->place == kOffsets;  // groups of rows share D
  const std::vector<int64_t> shape(whole.begin() + (is_flat ? 1 : 0), whole.end());
  if (d.shape != shape) {
    refuse("d has shape " + text_of(d.shape) + "; a " + text_of(given.get(kA).shape) + " @ b " +
           text_of(given.get(kB).shape) + " has shape " + text_of(shape) + ": pass a d of that shape");
  }
  const Call call = as_read(given);
  const int64_t m = shape[shape.size() - 2];
  const int64_t n = shape.back();
  const int64_t k = call.get(kA).shape.back();
  check_expected_rows(call, groups, m);
  std::optional<Tensor> c;
  if (call.find(kC) != nullptr) c = broadcast(call.get(kC), shape);
  Epilogue epilogue = call.epilogue.value_or(Epilogue());
  Parts parts{m,
              n,
              k,
              whole.size() > 2 ? whole[0] : 1,
              matrices(call.get(kA), m, k),
              matrices(call.get(kB), k, n),
              {},
              matrices(d, m, n),
              {},
              {},
              {},
              matched(epilogue, call.arguments)};
  if (c) parts.c = matrices(*c, m, n);
  read_scales(parts, call, groups);
  if (groups == nullptr) stack(parts, epilogue);
  Gemm gemm = assembled(parts, call, groups);
  const bool has_batch = groups == nullptr ? shape.size() > 2 && parts.m == m : !is_flat;
  gemm.arguments = bound(epilogue, parts.arguments, {parts.m, parts.n, parts.batch, has_batch, is_flat});
  gemm.epilogue = std::move(epilogue);
  return parts.scale && parts.scale->place == kBScale ? gemm.transposed() : gemm;
}

Gemm Gemm::transposed() const {
  static constexpr std::pair<const char*, const char*> kBatchings[] = {
      {"grouped", "ngrouped"}, {"ngrouped", "grouped"}, {"masked", "nmasked"}, {"nmasked", "masked"}};
  Gemm result = *this;
  std::swap(result.m, result.n);
  result.a = b.transposed();
  result.b = a.transposed();
  if (c) result.c = c->transposed();
  result.d = d.transposed();
  std::swap(result.a_scaling, result.b_scaling);
  for (const auto& [from, to] : kBatchings) {
    if (batching == from) result.batching = to;
  }
  result.epilogue = epilogue.transposed();
  result.is_transposed = !is_transposed;
  return result;
}

std::string Gemm::extents() const {
  const std::string text = std::to_string(m) + "x" + std::to_string(n) + "x" + std::to_string(k);
  return batch == 1 ? text : text + "x" + std::to_string(batch);
}

}  // namespace gemmill
