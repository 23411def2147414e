#include "server/workload/placement.h"

#include <utility>

#include "runtime/device/errors.h"
#include "server/workload/errors.h"

namespace resident {

namespace {

// The requested device, if it has an engine.
absl::StatusOr<Placement> PlaceOn(const std::vector<Device*>& devices, uint32_t wanted) {
  if (wanted >= devices.size()) return errors::UnknownDevice(wanted, devices.size());
  Device* const device = devices[wanted];
  std::shared_ptr<EngineSession> session = device->session();
  if (session != nullptr) return Placement{wanted, std::move(session)};
  const Device::Snapshot snapshot = device->snapshot();
  return snapshot.state == Device::State::kUnhealthy
             ? errors::DeviceUnhealthy(wanted, snapshot.detail)
             : errors::DeviceUnavailable(wanted, snapshot.detail);
}

// The device with the smallest `load`, among the devices that are open to all. If there is none,
// among all devices with an engine: work sent to parked devices waits there.
template <typename Load>
absl::StatusOr<Placement> PlaceOnLeastLoaded(const std::vector<Device*>& devices,
                                             const Load& load) {
  for (const bool only_open : {true, false}) {
    Placement best;
    uint64_t min = UINT64_MAX;
    for (uint32_t i = 0; i < devices.size(); ++i) {
      Device& device = *devices[i];
      if (only_open && !device.open_to_all()) continue;
      std::shared_ptr<EngineSession> session = device.session();
      if (session == nullptr) continue;
      const uint64_t of_this = load(device, *session);
      if (best.session != nullptr && of_this >= min) continue;
      min = of_this;
      best = {i, std::move(session)};
    }
    if (best.session != nullptr) return best;
  }
  return errors::NoDeviceAvailable();
}

uint64_t FreeBytes(const EngineSession& session) {
  const uint64_t used = session.memory_used_bytes();
  const uint64_t total = session.info().memory_bytes;
  return total > used ? total - used : 0;
}

}  // namespace

absl::StatusOr<Placement> Place(const std::vector<Device*>& devices,
                                std::optional<uint32_t> wanted) {
  if (wanted.has_value()) return PlaceOn(devices, *wanted);
  if (devices.size() == 1) return PlaceOn(devices, 0);
  return PlaceOnLeastLoaded(devices, [](Device& device, const EngineSession&) {
    const DeviceQueue::Counters counters = device.queue().counters();
    return counters.queued_tasks + counters.in_flight;
  });
}

absl::StatusOr<Placement> PlaceBuffer(const std::vector<Device*>& devices,
                                      std::optional<uint32_t> wanted, std::optional<uint32_t> home,
                                      uint64_t bytes) {
  if (wanted.has_value()) return PlaceOn(devices, *wanted);
  if (devices.size() == 1) return PlaceOn(devices, 0);
  if (home.has_value() && devices[*home]->open_to_all()) {
    auto place = PlaceOn(devices, *home);
    if (place.ok() && FreeBytes(*place->session) >= bytes) return place;
  }
  return PlaceOnLeastLoaded(devices, [](Device&, const EngineSession& session) {
    return UINT64_MAX - FreeBytes(session);
  });
}

}  // namespace resident
