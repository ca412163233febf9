/// The pack of the process.
#pragma once

#include "gemmill/gemmill.h"

namespace gemmill_torch {

/// The pack that GEMMILL_PACKS names, opened at the first call. Throws std::runtime_error if it cannot be opened; the
/// next call then tries again.
gemmill_pack* the_pack();

}  // namespace gemmill_torch
