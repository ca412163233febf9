/// The C functions of plans.
#include "boundary.h"
#include "handles.h"

namespace {

using gemmill::Error;

void require(const void* argument, const char* name) {
  if (argument == nullptr) throw Error(GEMMILL_OPERAND, std::string(name) + " is NULL: pass one");
}

uint64_t address_of(const void* pointer) { return reinterpret_cast<uint64_t>(pointer); }

}  // namespace

gemmill_status gemmill_plan_create(const gemmill_pack* pack, const gemmill_gemm* gemm, gemmill_plan** plan) {
  return gemmill::guarded([&] {
    require(pack, "pack");
    require(gemm, "gemm");
    require(plan, "plan");
    *plan = nullptr;
    *plan = new gemmill_plan{gemmill::make_plan(*pack->pack, *gemm), gemmill::addresses_of(*gemm)};
  });
}

gemmill_status gemmill_plan_launch(gemmill_plan* plan, void* stream, void* workspace, const void* a, const void* b,
                                   const void* c, void* d) {
  return gemmill::guarded([&] {
    require(plan, "plan");
    gemmill::Addresses addresses = plan->addresses;
    addresses[gemmill::kA] = address_of(a);
    addresses[gemmill::kB] = address_of(b);
    addresses[gemmill::kC] = address_of(c);
    addresses[gemmill::kD] = address_of(d);
    plan->plan.launch(stream, address_of(workspace), addresses);
  });
}

gemmill_status gemmill_plan_launch_gemm(gemmill_plan* plan, void* stream, void* workspace, const gemmill_gemm* gemm) {
  return gemmill::guarded([&] {
    require(plan, "plan");
    require(gemm, "gemm");
    plan->plan.launch(stream, address_of(workspace), gemmill::addresses_of(*gemm));
  });
}

size_t gemmill_plan_workspace(const gemmill_plan* plan) {
  return plan == nullptr || plan->plan.launcher == nullptr ? 0 : plan->plan.launcher->workspace_bytes();
}

const char* gemmill_plan_kernel(const gemmill_plan* plan) {
  return plan == nullptr || plan->plan.launcher == nullptr ? "" : plan->plan.launcher->kernel_name().c_str();
}

void gemmill_plan_destroy(gemmill_plan* plan) { delete plan; }

gemmill_status gemmill_matmul(gemmill_pack* pack, const gemmill_gemm* gemm, void* stream) {
  return gemmill::guarded([&] {
    require(pack, "pack");
    require(gemm, "gemm");
    const auto plan = pack->plans.find(*pack->pack, *gemm);
    plan->launch(stream, 0, gemmill::addresses_of(*gemm));
  });
}
