/// Opens a pack, checks its kernels and prints their names, or prints the status and the error.
#include <cstdio>

#include "gemmill/gemmill.h"

int main(int, char** arguments) {
  gemmill_pack* pack = nullptr;
  gemmill_status status = gemmill_pack_open(arguments[1], arguments[2], &pack);
  if (status == GEMMILL_OK) status = gemmill_pack_check(pack);
  if (status != GEMMILL_OK) {
    std::printf("%d %s\n", static_cast<int>(status), gemmill_last_error());
  } else {
    for (size_t i = 0; i < gemmill_pack_size(pack); ++i) std::printf("%s\n", gemmill_pack_kernel(pack, i));
  }
  gemmill_pack_close(pack);
  return 0;
}
