#include "server/health.h"

#include <algorithm>

namespace resident {
namespace {

constexpr const char* kServices[] = {
    "",
    "resident.v1.Executor",
    "resident.v1.Sessions",
    "resident.v1.Buffers",
    "resident.v1.Operators",
    "resident.v1.Admin",
};

}  // namespace

void Health::Attach(grpc::HealthCheckServiceInterface* service) {
  {
    absl::MutexLock lock(&mu_);
    service_ = service;
  }
  Update();
}

void Health::Update() {
  const bool usable = std::any_of(devices_.begin(), devices_.end(), [](const Device* device) {
    return device->snapshot().state != Device::State::kUnhealthy;
  });
  absl::MutexLock lock(&mu_);
  if (service_ == nullptr) return;
  const bool serving = usable && !gate_->draining();
  for (const char* name : kServices) service_->SetServingStatus(name, serving);
}

}  // namespace resident
