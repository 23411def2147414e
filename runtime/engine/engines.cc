#include "runtime/engine/engines.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "runtime/engine/cpu/cpu_registration.h"
#include "runtime/engine/cuda/cuda_registration.h"
#include "runtime/image/gpu_variables.h"

namespace resident {
namespace {

constexpr EngineType kEngineTypes[] = {
    {.name = kCudaEngineName,
     .device_label = "GPU",
     .create = &CreateCudaEngine,
     .list_devices = &ListCudaDevices,
     .open_driver = &OpenCudaDriver,
     .variables = kGpuVariables},
    {.name = kCpuEngineName, .device_label = "CPU", .create = &CreateCpuEngine},
};

}  // namespace

std::span<const EngineType> EngineTypes() { return kEngineTypes; }

absl::StatusOr<const EngineType*> FindEngineType(std::string_view name) {
  for (const EngineType& type : kEngineTypes) {
    if (type.name == name) return &type;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no engine '", std::string(name), "'. Fix: name one of ",
                   absl::StrJoin(kEngineTypes, ", ", [](std::string* out, const EngineType& type) {
                     absl::StrAppend(out, type.name);
                   })));
}

}  // namespace resident
