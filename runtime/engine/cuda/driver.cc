#include "runtime/engine/cuda/driver.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"

namespace resident {
namespace {

// cuda.h maps names to versioned names (cuMemAlloc is cuMemAlloc_v2); the symbol is the versioned
// name.
#define SYMBOL_NAME_EXPANDED(call) #call
#define SYMBOL_NAME(call) SYMBOL_NAME_EXPANDED(call)

absl::StatusOr<Driver> Open() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::UnavailableError(absl::StrCat("there is no NVIDIA driver on this machine (",
                                               dlerror(), "). Fix: install it, or use the CPU"));
  }
  Driver driver{};
#define LOAD(call)                                                                          \
  driver.call = reinterpret_cast<decltype(driver.call)>(dlsym(library, SYMBOL_NAME(call))); \
  if (driver.call == nullptr) {                                                             \
    return absl::UnavailableError(absl::StrCat("the NVIDIA driver is too old: it has no ",  \
                                               SYMBOL_NAME(call), ". Fix: update it"));     \
  }
  RESIDENT_DRIVER_CALLS(LOAD)
#undef LOAD
  const CUresult initialized = driver.cuInit(0);
  if (initialized == CUDA_ERROR_NO_DEVICE) {
    return absl::UnavailableError("the NVIDIA driver finds no GPU. Fix: use the CPU");
  }
  if (absl::Status status = driver.Check(initialized, "cuInit"); !status.ok()) {
    return absl::UnavailableError(status.message());
  }
  return driver;
}

}  // namespace

absl::StatusOr<const Driver*> Driver::Get() {
  static const absl::StatusOr<Driver>* const driver = new absl::StatusOr<Driver>(Open());
  if (!driver->ok()) return driver->status();
  return &driver->value();
}

absl::Status Driver::Check(CUresult result, const char* call) const {
  if (result == CUDA_SUCCESS) return absl::OkStatus();
  const char* name = nullptr;
  const char* text = nullptr;
  cuGetErrorName(result, &name);
  cuGetErrorString(result, &text);
  const std::string message = absl::StrCat(call, ": ", name == nullptr ? "unknown error" : name,
                                           " (", text == nullptr ? "" : text, ")");
  if (result == CUDA_ERROR_OUT_OF_MEMORY) return absl::ResourceExhaustedError(message);
  return absl::InternalError(message);
}

}  // namespace resident
