#include "support.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <vector>

#include "error.h"

namespace gemmill {
namespace {

/// Rows in use of a masked group that choices assume (library/problem.py).
constexpr int64_t kAssumedRows = 128;

std::string joined(const std::vector<std::string>& parts) {
  std::string text;
  for (const std::string& part : parts) text += (text.empty() ? "" : " and ") + part;
  return text;
}

/// The least alignments of A, B, C and D in bytes (library/legality/aligns.py): one element where gemmill copies
/// unaligned operands, and for a D that threads can store.
std::array<int64_t, 4> least_aligns(const Config& config) {
  const bool realigned =
      config.uses_tma() && config.batching == "strided" && config.a.dtype->bits == config.b.dtype->bits;
  const bool has_second_kernel = config.decomposition == "splitk" || config.decomposition == "tree";
  const auto bytes = [](const OperandConfig& x) { return std::max<int64_t>(x.dtype->bits / 8, 1); };
  return {realigned ? bytes(config.a) : config.a.align, realigned ? bytes(config.b) : config.b.align,
          !config.c                         ? 0
          : realigned && !has_second_kernel ? bytes(*config.c)
                                            : config.c->align,
          config.uses_tma() ? bytes(config.d) : config.d.align};
}

constexpr const char* kWords[] = {"A's dtype",   "A's major", "A's scale", "B's dtype", "B's major", "B's scale",
                                  "accumulator", "promote",   "C's dtype", "C's major", "D's dtype", "D's major",
                                  "symmetry",    "rows",      "batching",  "epilogue"};
using Formats = std::array<std::string, std::size(kWords)>;

Formats formats_of(const Config& config) {
  const auto& c = config.c;
  return {config.a.dtype->name,
          config.a.major,
          config.a.scale,
          config.b.dtype->name,
          config.b.major,
          config.b.scale,
          config.accumulator->name,
          std::to_string(config.promote),
          c ? c->dtype->name : "none",
          c ? c->major : "none",
          config.d.dtype->name,
          config.d.major,
          config.symmetry,
          config.rows,
          config.batching,
          config.epilogue};
}

Formats formats_of(const Gemm& gemm) {
  const auto& c = gemm.c;
  return {gemm.a.dtype->name,
          gemm.a.major,
          gemm.a_scaling,
          gemm.b.dtype->name,
          gemm.b.major,
          gemm.b_scaling,
          gemm.accumulator->name,
          std::to_string(gemm.promote),
          c ? c->dtype->name : "none",
          c ? c->major : "none",
          gemm.d.dtype->name,
          gemm.d.major,
          "general",
          "stored",
          gemm.batching,
          gemm.epilogue.text()};
}

std::array<int64_t, 4> aligns_of(const Gemm& gemm) {
  return {gemm.a.align, gemm.b.align, gemm.c ? gemm.c->align : 16, gemm.d.align};
}

/// What a kernel needs and a product does not have; empty where it supports the product.
std::string faults(const Config& config, const Gemm& gemm) {
  std::vector<std::string> needs;
  const Formats required = formats_of(config);
  const Formats has = formats_of(gemm);
  for (size_t i = 0; i < required.size(); ++i) {
    const bool takes_any = required[i] == "any" && has[i] != "none";
    if (has[i] != required[i] && !takes_any) {
      needs.push_back(std::string(kWords[i]) + " " + required[i] + " (the problem has " + has[i] + ")");
    }
  }
  const auto least = least_aligns(config);
  const auto actual = aligns_of(gemm);
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
  if (!direct.empty() && (!gemm.can_transpose() || !faults(artifact.config, transposed).empty())) {
    throw Error(GEMMILL_UNSUPPORTED, artifact.name + " does not support " + gemm.extents() + ": it needs " + direct);
  }
  const Gemm& chosen = direct.empty() ? gemm : transposed;
  refuse_unaligned(chosen, artifact);
  return chosen;
}

TableProblem table_problem(const Gemm& gemm) {
  TableProblem problem{"", {gemm.m, gemm.n, gemm.k, gemm.batch}, aligns_of(gemm), {gemm.m, gemm.n, gemm.k}};
  if (gemm.batching == "masked" || gemm.batching == "nmasked") {
    int64_t& rows = problem.values[gemm.batching == "masked" ? 0 : 1];
    rows = gemm.expected_rows != 0 ? gemm.expected_rows : std::min(rows, kAssumedRows);
  }
  for (const std::string& value : formats_of(gemm)) problem.word += (problem.word.empty() ? "" : " ") + value;
  return problem;
}

Gemm as_chosen(const Gemm& gemm, const Artifact& artifact, bool swap_ab, const std::string& pack) {
  if (swap_ab && !gemm.can_transpose()) {
    throw Error(GEMMILL_PACK,
                pack + ": the choice table transposes " + gemm.extents() + ", which cannot be transposed");
  }
  Gemm product = swap_ab ? gemm.transposed() : gemm;
  // A kernel that never promotes sums in f32, which is more precise than two-level accumulation.
  if (artifact.config.promote == 0) product.promote = 0;
  if (const std::string needs = faults(artifact.config, product); !needs.empty()) {
    throw Error(GEMMILL_PACK, pack + ": the choice table names " + artifact.name + " for " + gemm.extents() +
                                  ", but it needs " + needs);
  }
  refuse_unaligned(product, artifact);
  return product;
}

}  // namespace gemmill
