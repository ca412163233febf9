/// The text of an epilogue: its operands, and its spelling in the names and tables of kernels (library/epilogues/).
#pragma once

#include <string>
#include <vector>

#include "dtypes.h"

namespace gemmill {

/// For what an operand has one value.
enum class Kind { kScalar, kRow, kColumn, kBatch };

/// An operand as the text names it.
struct EpilogueOperand {
  std::string name;
  Kind kind;
  const Dtype* dtype;
};

/// An expression in the canonical spelling, which Python writes; kernels are compared by it. The default is D = alpha
/// A B + beta C.
class Epilogue {
 public:
  Epilogue() = default;
  /// Reads an expression. Error: it has outputs besides d, gates, matrices or an unknown type.
  explicit Epilogue(const std::string& text);

  bool is_linear() const { return pieces_.empty(); }
  /// Whether the expression reads c, alpha or beta.
  bool reads(const std::string& name) const;
  /// The operands that a call passes, in the order of first use.
  const std::vector<EpilogueOperand>& operands() const { return operands_; }
  /// Sets the type of an operand, which its tensor has.
  void set_dtype(size_t operand, const Dtype* dtype) { operands_[operand].dtype = dtype; }
  /// The expression with rows and columns exchanged.
  Epilogue transposed() const;
  std::string text() const;

 private:
  /// Text, and the operand that follows it; -1 for none.
  struct Piece {
    std::string text;
    int operand;
  };
  size_t operand_of(const std::string& name, Kind kind, const Dtype* dtype);

  std::vector<Piece> pieces_;
  std::vector<EpilogueOperand> operands_;
  std::vector<std::string> given_;
};

}  // namespace gemmill
