/// Runs a table of products in C, from plans or from repeated calls. Arguments: a pack, the table (JSON), `calls`, or
/// `plan` with the address of a workspace, 0 for the library's.
///
/// A line with the case precedes its records in the file that RECORDING names; one with the error, or the bytes of a
/// workspace that the caller passes, follows them.
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>

#include "product_case.h"

namespace {

void write(const nlohmann::json& line) {
  std::ofstream(std::getenv("RECORDING"), std::ios::app) << line.dump() << "\n";
}

}  // namespace

int main(int count, char** arguments) {
  gemmill_pack* pack = nullptr;
  if (gemmill_pack_open(arguments[1], nullptr, &pack) != GEMMILL_OK) {
    std::printf("%s\n", gemmill_last_error());
    return 1;
  }
  const bool by_plan = std::string(arguments[3]) == "plan";
  const uint64_t workspace = count > 4 ? std::strtoull(arguments[4], nullptr, 10) : 0;
  const nlohmann::json table = nlohmann::json::parse(std::ifstream(arguments[2]));
  for (const nlohmann::json& row : table) {
    write({{"case", row["id"]}});
    Case product(row);
    const gemmill_status status =
        by_plan ? product.plan(pack, reinterpret_cast<void*>(workspace)) : product.calls(pack);
    if (status != GEMMILL_OK) write({{"status", status}, {"message", gemmill_last_error()}});
    if (workspace != 0) write({{"workspace", product.workspace_bytes}});
  }
  gemmill_pack_close(pack);
  return 0;
}
