#include "server/core/core.h"

#include <algorithm>
#include <cstdint>
#include <functional>
#include <string>
#include <thread>
#include <utility>

#include "server/workload/copy_workload.h"

namespace resident {
namespace {

// The queues' client for restoring durable buffers; the ids of all other clients are smaller.
constexpr ClientId kRestoreClient = UINT64_MAX;

int AnswerThreads() {
  return std::clamp<int>(static_cast<int>(std::thread::hardware_concurrency()) / 4, 2, 4);
}

}  // namespace

Pools::Pools(uint32_t max_installs)
    : answers(AnswerThreads()),
      fills(AnswerThreads()),
      blocking(4),
      disk(1),
      loads(1),
      changes(2),
      rounds(2),
      installs(static_cast<int>(max_installs)) {}

void Pools::Stop() {
  for (WorkerPool* pool :
       {&installs, &rounds, &changes, &loads, &disk, &blocking, &fills, &answers}) {
    pool->Stop();
  }
}

Core::Core(const CoreOptions& options, std::vector<Device*> all_devices, Registry& the_registry,
           OperatorManager& the_operators, Access& the_access)
    : limits(options.limits),
      credentials(options.credentials),
      local_address(options.local_address),
      node(options.node),
      time(*options.time),
      devices(std::move(all_devices)),
      registry(the_registry),
      operators(the_operators),
      access(the_access),
      admission(limits, &gate, time),
      buffers(limits),
      pools(limits.max_installs),
      clients(limits, devices, buffers),
      planner({&limits, &registry, &buffers, devices, options.task_time_limit,
               options.staging_bytes, &models}),
      shadows(registry, devices, pools.answers,
              [this](const OperatorVersion& version, uint64_t tasks, uint64_t mismatches) {
                operators.RecordShadow(version, tasks, mismatches);
              }),
      runner(planner, devices, gate, pools.answers, shadows) {
  for (size_t i = 0; i < devices.size(); ++i) admission.AddDevice(options.staging_bytes);
  registry.SetOtherNames([this](const std::string& name) { return models.Has(name); });
  admission.Start([this](std::function<void()> work) { pools.fills.Post(std::move(work)); });
}

Core::~Core() {
  registry.SetOtherNames(nullptr);
  Stop();
}

void Core::Stop() {
  admission.Stop();
  pools.Stop();
}

bool Core::ready() const {
  const auto usable = [](const Device* device) {
    return device->snapshot().state != Device::State::kUnhealthy;
  };
  return !gate.draining() && set_applied && std::any_of(devices.begin(), devices.end(), usable);
}

void Core::RestoreBuffers(Device& device, EngineSession& session) {
  const auto copy_bytes = registry.Resolve(kCopyBytesOperator, 0);
  if (!copy_bytes.ok()) return;
  device.queue().AddClient(kRestoreClient);
  buffers.OnRestart(device.index(), session, device.snapshot().detail,
                    [&](EngineSession& engine, const DeviceMemory& memory, uint64_t bytes,
                        const BufferTable::Fill& fill) {
                      return WriteAndWait(*copy_bytes, device, kRestoreClient, engine,
                                          memory.address, bytes, fill);
                    });
}

}  // namespace resident
