// EngineType: the properties of an engine that are available before it runs. engines.h has the
// table.
//
// Thread safety: constants; the functions may be called from any thread.
#ifndef RESIDENT_RUNTIME_ENGINE_ENGINE_TYPE_H_
#define RESIDENT_RUNTIME_ENGINE_ENGINE_TYPE_H_

#include <cassert>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"
#include "runtime/engine/engine.h"

namespace resident {

struct EngineType {
  // Its name in --devices, in the engine's command line and in EngineTraits::engine.
  const char* name = "";
  // The name of a device in messages: "CPU", "GPU".
  const char* device_label = "";

  // Called in the engine's process: makes the engine for the device with this ordinal. UNAVAILABLE,
  // with the reason: there is no such device, or this build does not have the engine.
  absl::StatusOr<std::unique_ptr<Engine>> (*create)(int ordinal) = nullptr;

  // Lists the machine's devices by name; UNAVAILABLE, with the reason, if there are none. It may
  // load a driver into the process: probe it from another one (runtime/device/device_probe.h).
  // Null: there is exactly one device, on every machine.
  absl::StatusOr<std::vector<std::string>> (*list_devices)() = nullptr;

  // Called in the engine's process, concurrently with its start: opens the driver, which takes
  // 100 ms or more; otherwise `create` opens it. Errors are returned by `create`. Null: no driver.
  // This selects the sandbox's profile (EngineProfile), too.
  void (*open_driver)() = nullptr;

  // Environment variables of its process, for PickEnvironment.
  std::span<const char* const> variables = {};
};

// An engine of a type, and the device that it is for.
struct EngineChoice {
  const EngineType* type = nullptr;
  int ordinal = 0;

  // "CPU", "GPU 1". REQUIRES: type != nullptr.
  std::string Label() const {
    assert(type != nullptr);
    return type->list_devices == nullptr ? std::string(type->device_label)
                                         : absl::StrCat(type->device_label, " ", ordinal);
  }
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_ENGINE_TYPE_H_
