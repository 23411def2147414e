#include "server/health.h"

#include "absl/strings/str_cat.h"

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
    told_.clear();
  }
  Update();
}

void Health::Update() {
  // Held while states are read: of two callers, the later one tells the later state.
  absl::MutexLock lock(&mu_);
  if (service_ == nullptr) return;
  const bool draining = gate_->draining();
  bool usable = false;
  for (const Device* device : devices_) {
    const bool given_up = device->snapshot().state == Device::State::kUnhealthy;
    usable |= !given_up;
    Tell(absl::StrCat("resident.device/", device->index()), !given_up && !draining);
  }
  for (const char* name : kServices) Tell(name, usable && !draining);
}

void Health::Tell(const std::string& name, bool serving) {
  const auto [told, first] = told_.try_emplace(name, serving);
  if (!first && told->second == serving) return;
  told->second = serving;
  service_->SetServingStatus(name, serving);
}

}  // namespace resident
