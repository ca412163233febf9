/// The opaque handles of gemmill.h.
#pragma once

#include <memory>

#include "pack.h"

struct gemmill_pack {
  std::shared_ptr<const gemmill::Pack> pack;
};
