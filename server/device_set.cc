#include "server/device_set.h"

#include <algorithm>
#include <optional>
#include <string>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/strings/strip.h"
#include "runtime/base/log.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/device_probe.h"
#include "runtime/device/failed_device.h"
#include "runtime/engine/engines.h"

namespace resident {
namespace {

DeviceOptions MakeDeviceOptions(const EngineChoice& choice, uint32_t index,
                                const ServeOptions& options) {
  DeviceOptions device;
  device.index = index;
  device.engine_type = choice.type;
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
  device.queue.lane_spin = std::chrono::microseconds(options.lane_spin_us);
  device.queue.lane_spin_share = options.lane_spin_percent / 100.0;
  device.park_after = options.park_after;
  device.task_time_limit = options.task_time_limit;
  return device;
}

// Whether the flags are the reason why the device does not start.
bool IsMistake(const EngineChoice& choice, const absl::Status& status,
               const DeviceStarter& starter) {
  if (status.code() == absl::StatusCode::kInvalidArgument) return true;
  if (choice.type->list_devices == nullptr) return false;
  const auto present = starter.probe(*choice.type);
  return !present.ok() || static_cast<size_t>(choice.ordinal) >= present->size();
}

// "cpu"; "cuda:1"; "1": of the first engine that can have several devices.
std::optional<EngineChoice> ParseDevice(absl::string_view text) {
  for (const EngineType& type : EngineTypes()) {
    if (type.list_devices == nullptr) {
      if (text == type.name) return EngineChoice{&type, 0};
      continue;
    }
    absl::string_view ordinal = text;
    if (absl::ConsumePrefix(&ordinal, type.name) && !absl::ConsumePrefix(&ordinal, ":")) continue;
    EngineChoice choice{&type, 0};
    if (absl::SimpleAtoi(ordinal, &choice.ordinal) && choice.ordinal >= 0) return choice;
  }
  return std::nullopt;
}

// Every device that engines list; where there is none, the one that is on every machine.
DeviceChoices ChooseAll() {
  DeviceChoices choices;
  for (const EngineType& type : EngineTypes()) {
    if (type.list_devices == nullptr) {
      if (choices.devices.empty()) choices.devices.push_back({&type, 0});
      return choices;
    }
    const auto present = ProbeDevices(type);
    const size_t count = present.ok() ? present->size() : 0;
    for (size_t i = 0; i < count; ++i) choices.devices.push_back({&type, static_cast<int>(i)});
    if (count == 0 && choices.gpu_unavailable_reason.empty()) {
      choices.gpu_unavailable_reason =
          present.ok() ? "the driver reports no device" : std::string(present.status().message());
    }
    if (!choices.devices.empty()) choices.gpu_unavailable_reason.clear();
  }
  return choices;
}

}  // namespace

absl::StatusOr<DeviceChoices> ChooseDevices(const std::string& flag) {
  DeviceChoices choices;
  if (flag == "all") return ChooseAll();
  for (const absl::string_view part : absl::StrSplit(flag, ',')) {
    const std::optional<EngineChoice> choice = ParseDevice(part);
    if (!choice) {
      return absl::InvalidArgumentError(absl::StrCat(
          "--devices=", flag, ": '", part, "' is not a device. Fix: give all, ",
          absl::StrJoin(EngineTypes(), ", ",
                        [](std::string* out, const EngineType& type) {
                          absl::StrAppend(out, type.name, type.list_devices != nullptr ? ":N" : "");
                        }),
          ", or GPU ordinals such as 0,2"));
    }
    choices.devices.push_back(*choice);
  }
  return choices;
}

DeviceStarter DeviceStarter::Real() {
  return {[](const DeviceOptions& options) { return DeviceControl::Create(options); },
          [](const EngineType& type) { return ProbeDevices(type); }};
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
    const EngineChoice& choice = choices.devices[i];
    if (!any || IsMistake(choice, status, starter)) {
      return absl::Status(status.code(), absl::StrCat(choice.Label(), ": ", status.message()));
    }
    LogError("device ", i, ": ", choice.Label(),
             " failed to start; continuing with the other devices: ", status.message());
    devices.push_back(std::make_unique<FailedDevice>(device_options[i], choice.Label(), status));
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

void DeviceSet::Shutdown() {
  for (DeviceControl* device : controls_) device->Shutdown();
}

}  // namespace resident
