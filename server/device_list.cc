#include "server/device_list.h"

#include <cstdlib>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/device/cuda_probe.h"

namespace resident {
namespace {

DeviceOptions OptionsOf(const DeviceChoice& choice, uint32_t index, const ServeOptions& options) {
  DeviceOptions device;
  device.index = index;
  device.cuda = choice.cuda;
  device.engine.ordinal = choice.ordinal;
  device.engine.memory_bytes = options.device_limits.device_memory_mib << 20;
  device.engine.threads_per_block = options.threads_per_block;
  device.engine.blocks_per_sm = options.blocks_per_sm;
  device.engine.sms_free = options.sms_free;
  device.engine.cpu_workers = options.cpu_workers;
  device.engine.test_operators = options.test_operators;
  device.limits = options.device_limits;
  device.queue.max_queued_tasks = options.limits.max_queued_tasks;
  const uint64_t host_bytes = options.limits.max_client_host_mib << 20;
  device.queue.max_queued_bytes = host_bytes == 0 ? UINT64_MAX : host_bytes;
  device.park_after = options.park_after;
  device.task_time_limit = options.task_time_limit;
  return device;
}

}  // namespace

absl::StatusOr<DeviceChoices> ChooseDevices(const std::string& flag) {
  DeviceChoices choices;
  if (flag == "all") {
    const auto gpus = ProbeCudaDevices();
    if (!gpus.ok() || gpus->empty()) {
      choices.gpu_unavailable_reason =
          gpus.ok() ? "the driver reports no device" : std::string(gpus.status().message());
      choices.devices.push_back({});
      return choices;
    }
    for (size_t i = 0; i < gpus->size(); ++i) {
      choices.devices.push_back({true, static_cast<int>(i)});
    }
    return choices;
  }
  for (const absl::string_view part : absl::StrSplit(flag, ',')) {
    int ordinal = 0;
    if (part == "cpu") {
      choices.devices.push_back({});
    } else if (absl::SimpleAtoi(part, &ordinal) && ordinal >= 0) {
      choices.devices.push_back({true, ordinal});
    } else {
      return absl::InvalidArgumentError(
          absl::StrCat("--devices=", flag, ": '", part,
                       "' is no device. Fix: give all, cpu, or GPU ordinals such as 0,2"));
    }
  }
  return choices;
}

absl::StatusOr<std::vector<std::unique_ptr<Device>>> StartDevices(const DeviceChoices& choices,
                                                                  const ServeOptions& options,
                                                                  const SlotInfo& slots) {
  std::vector<absl::StatusOr<std::unique_ptr<Device>>> started(choices.devices.size());
  std::vector<std::thread> starters;
  for (size_t i = 0; i < choices.devices.size(); ++i) {
    starters.emplace_back([&, i] {
      DeviceOptions device = OptionsOf(choices.devices[i], static_cast<uint32_t>(i), options);
      device.slot_name = slots.name;
      device.slot_time_limit = slots.time_limit;
      started[i] = Device::Create(device);
    });
  }
  for (std::thread& starter : starters) starter.join();

  std::vector<std::unique_ptr<Device>> devices;
  for (size_t i = 0; i < started.size(); ++i) {
    if (!started[i].ok()) {
      const DeviceChoice& choice = choices.devices[i];
      return absl::Status(started[i].status().code(),
                          absl::StrCat(choice.cuda ? absl::StrCat("GPU ", choice.ordinal) : "CPU",
                                       ": ", started[i].status().message()));
    }
    devices.push_back(*std::move(started[i]));
  }
  return devices;
}

}  // namespace resident
