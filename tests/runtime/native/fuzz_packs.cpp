/// Opens broken packs, reads their kernels and launches products on them: each step must succeed or give a status and a
/// message. The sanitizers end the program at the first fault.
///
/// Arguments: a pack, a table of products on its kernels (JSON), a file to write broken packs to, their number, a seed.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "mutated_pack.h"
#include "product_case.h"

namespace {

using nlohmann::json;

/// Outcomes of all steps, by status.
std::map<std::string, long> outcomes;

/// Counts an outcome; false for an error that nobody expects.
bool note(const char* step, gemmill_status status) {
  ++outcomes[std::string(step) + " with status " + std::to_string(status)];
  if (status == GEMMILL_OK) return true;
  if (status != GEMMILL_INTERNAL && std::strlen(gemmill_last_error()) > 10) return true;
  std::printf("%s: status %d: %s\n", step, static_cast<int>(status), gemmill_last_error());
  return false;
}

bool use(const char* path, const json& table, bool launches) {
  gemmill_pack* pack = nullptr;
  bool is_expected = note("opened", gemmill_pack_open(path, nullptr, &pack));
  if (pack != nullptr) is_expected = is_expected && note("read", gemmill_pack_check(pack));
  if (pack != nullptr && launches) {
    for (const json& row : table) is_expected = is_expected && note("launched", Case(row).plan(pack));
  }
  gemmill_pack_close(pack);
  return is_expected;
}

}  // namespace

int main(int, char** arguments) {
  std::ostringstream content;
  content << std::ifstream(arguments[1], std::ios::binary).rdbuf();
  const PackParts parts(content.str());
  const json table = json::parse(std::ifstream(arguments[2]));
  const char* path = arguments[3];
  const long count = std::atol(arguments[4]);
  Random random(std::strtoull(arguments[5], nullptr, 10));
  for (long i = 0; i < count; ++i) {
    bool keeps_code = false;
    std::ofstream(path, std::ios::binary | std::ios::trunc) << parts.mutated(random, keeps_code);
    if (!use(path, table, keeps_code)) return 1;
  }
  for (const auto& [step, times] : outcomes) std::printf("%s: %ld\n", step.c_str(), times);
  return 0;
}
