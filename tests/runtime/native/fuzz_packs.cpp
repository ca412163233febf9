/// Opens broken packs and checks their kernels: each must give a status and a message, or be read. The sanitizers end
/// the program at the first fault. Arguments: a pack, a file to write broken ones to, their number, a seed.
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <sstream>

#include "gemmill/gemmill.h"
#include "mutated_pack.h"

namespace {

gemmill_status read_all(const char* path) {
  gemmill_pack* pack = nullptr;
  gemmill_status status = gemmill_pack_open(path, nullptr, &pack);
  if (status == GEMMILL_OK) status = gemmill_pack_check(pack);
  gemmill_pack_close(pack);
  return status;
}

}  // namespace

int main(int, char** arguments) {
  std::ostringstream content;
  content << std::ifstream(arguments[1], std::ios::binary).rdbuf();
  const PackParts parts(content.str());
  const char* path = arguments[2];
  const long count = std::atol(arguments[3]);
  Random random(std::strtoull(arguments[4], nullptr, 10));
  std::map<int, long> outcomes;
  for (long i = 0; i < count; ++i) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << parts.mutated(random);
    const gemmill_status status = read_all(path);
    ++outcomes[status];
    if (status != GEMMILL_OK && (status == GEMMILL_INTERNAL || std::strlen(gemmill_last_error()) < 10)) {
      std::printf("pack %ld: status %d: %s\n", i, static_cast<int>(status), gemmill_last_error());
      return 1;
    }
  }
  for (const auto& [status, times] : outcomes) std::printf("status %d: %ld packs\n", status, times);
  return 0;
}
