/// Chooses by a choice table for the products of a file (tests/cases/choices.json), and prints a list of kernels.
/// Argument: the file, whose cases have the `word`, `extents` and `aligns` of a product.
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "choice_table.h"
#include "error.h"
#include "strict_json.h"

int main(int, char** arguments) {
  using nlohmann::json;
  std::ostringstream text;
  text << std::ifstream(arguments[1]).rdbuf();
  const gemmill::Document document(text.str());
  const gemmill::Row table =
      document.row({"choices", "cases"}).row("choices", {"gpu", "objective", "bits", "formats", "kernels", "layers"});
  const auto choices = gemmill::ChoiceTable::read(table, [](const std::string&) { return true; });
  const json content = json::parse(text.str());
  json chosen = json::array();
  for (const json& row : content["cases"]) {
    try {
      const auto& kernel = choices.choose({row["word"], row["extents"], row["aligns"], row["values"]}, "cases.pack");
      chosen.push_back({{"kernel", kernel.name}, {"slices", kernel.slices}, {"swap_ab", kernel.swap_ab}});
    } catch (const gemmill::Error&) {
      chosen.push_back(nullptr);
    }
  }
  std::cout << chosen << "\n";
  return 0;
}
