#include "support.h"

#include <vector>

#include "error.h"

namespace gemmill {
namespace {

/// A property of a product that a kernel must have too.
struct Field {
  std::string words;
  std::string required;
  std::string actual;
};

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : " and ") + part;
  return text;
}

/// The least alignments of A, B, C and D in bytes (library/legality/aligns.py): one element where gemmill copies
/// unaligned operands, and for a D that threads can store.
std::array<int64_t, kPlaces> least_aligns(const Config& config) {
  const bool realigned = config.uses_tma() && config.a.dtype->bits == config.b.dtype->bits;
  const bool has_second_kernel = config.decomposition == "splitk" || config.decomposition == "tree";
  const auto bytes = [](const OperandConfig& x) { return int64_t{x.dtype->bits} / 8; };
  return {realigned ? bytes(config.a) : config.a.align, realigned ? bytes(config.b) : config.b.align,
          !config.c                         ? 0
          : realigned && !has_second_kernel ? bytes(*config.c)
                                            : config.c->align,
          config.uses_tma() ? bytes(config.d) : config.d.align};
}

std::vector<Field> formats(const Config& config, const Gemm& gemm) {
  const auto c_of = [](const auto& c, auto read) { return c ? std::string(read(*c)) : std::string("none"); };
  const auto type = [](const auto& x) { return x.dtype->name; };
  const auto major = [](const auto& x) { return x.major; };
  return {{"A's dtype", config.a.dtype->name, gemm.a.dtype->name},
          {"A's major", config.a.major, gemm.a.major},
          {"A's scale", config.a.scale, "none"},
          {"B's dtype", config.b.dtype->name, gemm.b.dtype->name},
          {"B's major", config.b.major, gemm.b.major},
          {"B's scale", config.b.scale, "none"},
          {"accumulator", config.accumulator->name, gemm.accumulator->name},
          {"promote", std::to_string(config.promote), std::to_string(gemm.promote)},
          {"C's dtype", c_of(config.c, type), c_of(gemm.c, type)},
          {"C's major", c_of(config.c, major), c_of(gemm.c, major)},
          {"D's dtype", config.d.dtype->name, gemm.d.dtype->name},
          {"D's major", config.d.major, gemm.d.major},
          {"symmetry", config.symmetry, "general"},
          {"rows", config.rows, "stored"},
          {"batching", config.batching, "strided"},
          {"epilogue", config.epilogue, "linear"}};
}

/// What a kernel needs and a product does not have; empty where it supports the product.
std::string faults(const Config& config, const Gemm& gemm) {
  std::vector<std::string> needs;
  for (const Field& field : formats(config, gemm)) {
    const bool takes_any = field.required == "any" && field.actual != "none";
    if (field.actual != field.required && !takes_any) {
      needs.push_back(field.words + " " + field.required + " (the problem has " + field.actual + ")");
    }
  }
  const auto least = least_aligns(config);
  const std::array<int64_t, kPlaces> actual{gemm.a.align, gemm.b.align, gemm.c ? gemm.c->align : 16, gemm.d.align};
  for (size_t i = 0; i < least.size(); ++i) {
    if (actual[i] < least[i]) {
      needs.push_back(std::string(1, "ABCD"[i]) + "'s alignment of at least " + std::to_string(least[i]) +
                      " bytes (the problem has " + std::to_string(actual[i]) + ")");
    }
  }
  return joined(needs);
}

/// Refuses operands that gemmill would copy into aligned memory before the launch.
void refuse_unaligned(const Gemm& gemm, const Artifact& artifact) {
  const Config& config = artifact.config;
  std::vector<std::string> copied;
  const auto consider = [&](const Operand& x, const OperandConfig& required) {
    if (x.align < required.align) copied.push_back(name_of(x.place));
  };
  consider(gemm.a, config.a);
  consider(gemm.b, config.b);
  if (gemm.c && config.c) consider(*gemm.c, *config.c);
  if (!copied.empty()) {
    throw Error(GEMMILL_UNSUPPORTED, artifact.name + " needs " + joined(copied) +
                                         " aligned to 16 bytes, and libgemmill does not copy operands: pad the "
                                         "contiguous extents, or name a kernel with a smaller alignment");
  }
}

}  // namespace

Gemm as_kernel_runs(const Gemm& gemm, const Artifact& artifact) {
  const std::string direct = faults(artifact.config, gemm);
  const Gemm transposed = gemm.transposed();
  if (!direct.empty() && !faults(artifact.config, transposed).empty()) {
    throw Error(GEMMILL_UNSUPPORTED, artifact.name + " does not support " + gemm.extents() + ": it needs " + direct);
  }
  const Gemm& chosen = direct.empty() ? gemm : transposed;
  refuse_unaligned(chosen, artifact);
  return chosen;
}

std::string formats_of(const Gemm& gemm) {
  std::string text;
  for (const Field& field : formats(Config{}, gemm)) text += (text.empty() ? "" : " ") + field.actual;
  return text;
}

}  // namespace gemmill
