#include "server/device_set.h"

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/cuda_probe.h"
#include "runtime/device/failed_device.h"

namespace resident {
namespace {

DeviceOptions MakeDeviceOptions(const DeviceChoice& choice, uint32_t index,
                                const ServeOptions& options) {
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
  device.spare_engine = options.spare_engine;
  device.limits = options.device_limits;
  device.queue.max_queued_tasks = options.limits.max_queued_tasks;
  const uint64_t host_bytes = options.limits.max_client_host_mib << 20;
  device.queue.max_queued_bytes = host_bytes == 0 ? UINT64_MAX : host_bytes;
  device.park_after = options.park_after;
  device.task_time_limit = options.task_time_limit;
  return device;
}

std::string NameOf(const DeviceChoice& choice) {
  return choice.cuda ? absl::StrCat("GPU ", choice.ordinal) : "CPU";
}

// Whether the flags are the reason why the device does not start.
bool IsMistake(const DeviceChoice& choice, const absl::Status& status,
               const DeviceStarter& starter) {
  if (status.code() == absl::StatusCode::kInvalidArgument) return true;
  if (!choice.cuda) return false;
  const auto gpus = starter.probe();
  return !gpus.ok() || static_cast<size_t>(choice.ordinal) >= gpus->size();
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
                       "' is not a device. Fix: give all, cpu, or GPU ordinals such as 0,2"));
    }
  }
  return choices;
}

DeviceStarter DeviceStarter::Real() {
  return {[](const DeviceOptions& options) { return DeviceControl::Create(options); },
          [] { return ProbeCudaDevices(); }};
}

absl::StatusOr<std::vector<std::unique_ptr<DeviceControl>>> StartDevices(
    const DeviceChoices& choices, const ServeOptions& options, const SlotInfo& slots,
    const DeviceStarter& starter) {
  const size_t count = choices.devices.size();
  std::vector<DeviceOptions> device_options;
  for (size_t i = 0; i < count; ++i) {
    device_options.push_back(
        MakeDeviceOptions(choices.devices[i], static_cast<uint32_t>(i), options));
    device_options[i].slot_name = slots.name;
    device_options[i].slot_time_limit = slots.time_limit;
  }
  std::vector<absl::StatusOr<std::unique_ptr<DeviceControl>>> started(count);
  std::vector<std::thread> starters;
  for (size_t i = 0; i < count; ++i) {
    starters.emplace_back([&, i] { started[i] = starter.create(device_options[i]); });
  }
  for (std::thread& thread : starters) thread.join();

  const bool any =
      std::any_of(started.begin(), started.end(), [](const auto& device) { return device.ok(); });
  std::vector<std::unique_ptr<DeviceControl>> devices;
  for (size_t i = 0; i < count; ++i) {
    if (started[i].ok()) {
      devices.push_back(*std::move(started[i]));
      continue;
    }
    const absl::Status& status = started[i].status();
    const DeviceChoice& choice = choices.devices[i];
    if (!any || IsMistake(choice, status, starter)) {
      return absl::Status(status.code(), absl::StrCat(NameOf(choice), ": ", status.message()));
    }
    LogError("device ", i, ": ", NameOf(choice),
             " failed to start; continuing with the other devices: ", status.message());
    devices.push_back(std::make_unique<FailedDevice>(device_options[i], NameOf(choice), status));
  }
  return devices;
}

absl::StatusOr<std::unique_ptr<DeviceSet>> DeviceSet::Start(const ServeOptions& options) {
  ASSIGN_OR_RETURN(DeviceChoices choices, ChooseDevices(options.devices));
  ASSIGN_OR_RETURN(auto registry,
                   Registry::Create({.devices = static_cast<uint32_t>(choices.devices.size()),
                                     .test_operators = options.test_operators}));
  const Registry& names = *registry;
  const SlotInfo slots = {.name =
                              [&names](uint32_t slot) {
                                const auto version = names.FindBySlot(slot);
                                if (version == nullptr) return absl::StrCat("operator slot ", slot);
                                if (version->builtin) return version->op->name();
                                return absl::StrCat(version->op->name(), " version ",
                                                    version->version);
                              },
                          .time_limit =
                              [&names](uint32_t slot) {
                                const auto version = names.FindBySlot(slot);
                                return version == nullptr ? std::chrono::milliseconds(0)
                                                          : version->spec.task_time_limit;
                              }};
  ASSIGN_OR_RETURN(auto devices, StartDevices(choices, options, slots));
  return std::make_unique<DeviceSet>(std::move(choices), std::move(registry), std::move(devices));
}

DeviceSet::DeviceSet(DeviceChoices choices, std::unique_ptr<Registry> registry,
                     std::vector<std::unique_ptr<DeviceControl>> devices)
    : choices_(std::move(choices)), registry_(std::move(registry)), owned_(std::move(devices)) {
  for (const auto& device : owned_) {
    devices_.push_back(device.get());
    controls_.push_back(device.get());
  }
}

std::vector<DeviceControl*> DeviceSet::started() const {
  std::vector<DeviceControl*> started;
  for (DeviceControl* device : controls_) {
    if (device->started()) started.push_back(device);
  }
  return started;
}

std::vector<int> DeviceSet::ordinals() const {
  std::vector<int> ordinals;
  for (const DeviceChoice& choice : choices_.devices) ordinals.push_back(choice.ordinal);
  return ordinals;
}

void DeviceSet::Shutdown() {
  for (DeviceControl* device : controls_) device->Shutdown();
}

}  // namespace resident
