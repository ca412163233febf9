#include "boundary.h"

#include <cstdio>

namespace gemmill {
namespace {

thread_local char last_message[4096] = "";

}  // namespace

void keep_message(const char* message) noexcept { std::snprintf(last_message, sizeof last_message, "%s", message); }

}  // namespace gemmill

const char* gemmill_last_error(void) { return gemmill::last_message; }

const char* gemmill_version(void) { return GEMMILL_VERSION; }
