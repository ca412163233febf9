/// The opaque handles of gemmill.h.
#pragma once

#include <memory>

#include "pack.h"
#include "plan.h"

struct gemmill_pack {
  std::shared_ptr<const gemmill::Pack> pack;
  gemmill::PlanCache plans;
};

struct gemmill_plan {
  gemmill::Plan plan;
  /// Those of the tensors that it was made with.
  gemmill::Addresses addresses;
};
