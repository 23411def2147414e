#include "server/translation/placement.h"

#include "runtime/errors/daemon_errors.h"

namespace resident {

absl::StatusOr<Placement> Place(const std::vector<ServingDevice>& devices,
                                std::optional<uint32_t> wanted) {
  if (!wanted.has_value() && devices.size() == 1) wanted = 0;
  if (wanted.has_value()) {
    if (*wanted >= devices.size()) return errors::UnknownDevice(*wanted, devices.size());
    Device* const device = devices[*wanted].device;
    std::shared_ptr<EngineSession> session = device->session();
    if (session == nullptr) {
      return errors::DeviceUnavailable(*wanted, device->snapshot().detail);
    }
    return Placement{*wanted, std::move(session)};
  }
  Placement best;
  uint64_t least = UINT64_MAX;
  for (uint32_t i = 0; i < devices.size(); ++i) {
    std::shared_ptr<EngineSession> session = devices[i].device->session();
    if (session == nullptr) continue;
    const DeviceQueue::Counters counters = devices[i].device->queue().counters();
    const uint64_t load = counters.queued_tasks + counters.in_flight;
    if (load < least) {
      least = load;
      best = {i, std::move(session)};
    }
  }
  if (best.session == nullptr) return errors::NoDeviceAvailable();
  return best;
}

}  // namespace resident
