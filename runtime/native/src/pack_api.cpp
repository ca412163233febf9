/// The C functions of packs.
#include <memory>

#include "boundary.h"
#include "handles.h"

using gemmill::Error;

gemmill_status gemmill_pack_open(const char* path, const char* trusted_keys, gemmill_pack** pack) {
  return gemmill::guarded([&] {
    if (path == nullptr || pack == nullptr) throw Error(GEMMILL_OPERAND, "path or pack is NULL: pass both");
    *pack = nullptr;
    *pack = new gemmill_pack{std::make_shared<const gemmill::Pack>(path, trusted_keys), {}};
  });
}

void gemmill_pack_close(gemmill_pack* pack) { delete pack; }

size_t gemmill_pack_size(const gemmill_pack* pack) { return pack == nullptr ? 0 : pack->pack->members().size(); }

const char* gemmill_pack_kernel(const gemmill_pack* pack, size_t place) {
  return place < gemmill_pack_size(pack) ? pack->pack->members()[place].name.c_str() : nullptr;
}

gemmill_status gemmill_pack_check(const gemmill_pack* pack) {
  return gemmill::guarded([&] {
    if (pack == nullptr) throw Error(GEMMILL_OPERAND, "pack is NULL: open one with gemmill_pack_open");
    pack->pack->check();
  });
}
