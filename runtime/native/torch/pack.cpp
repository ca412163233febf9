#include "pack.h"

#include <cstdlib>
#include <stdexcept>
#include <string>

namespace gemmill_torch {
namespace {

gemmill_pack* opened() {
  const char* path = std::getenv("GEMMILL_PACKS");
  if (path == nullptr || *path == '\0') {
    throw std::runtime_error("GEMMILL_PACKS is not set: set it to the pack of the model (gemmill model CONFIG --pack FILE)");
  }
  if (std::string(path).find(',') != std::string::npos) {
    throw std::runtime_error(std::string("GEMMILL_PACKS is ") + path +
                             "; without Python it must name one pack: make one of all problems");
  }
  gemmill_pack* pack = nullptr;
  if (gemmill_pack_open(path, nullptr, &pack) != GEMMILL_OK) throw std::runtime_error(gemmill_last_error());
  return pack;
}

}  // namespace

gemmill_pack* the_pack() {
  static gemmill_pack* const pack = opened();
  return pack;
}

}  // namespace gemmill_torch
