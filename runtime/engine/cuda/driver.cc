#include "runtime/engine/cuda/driver.h"

#include <dlfcn.h>
#include <nvJitLink.h>

#include "absl/strings/str_cat.h"
#include "kernels/resident/kernel_parameters.h"

namespace resident {
namespace {

// cuda.h maps names to their versions (cuMemAlloc is cuMemAlloc_v2): the symbol is the
// name after that.
#define SYMBOL_NAME_EXPANDED(call) #call
#define SYMBOL_NAME(call) SYMBOL_NAME_EXPANDED(call)

absl::StatusOr<Driver> Open() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return absl::UnavailableError(absl::StrCat("there is no NVIDIA driver on this machine (",
                                               dlerror(),
                                               "). Fix: install it, or use --devices=cpu"));
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
    return absl::UnavailableError("the NVIDIA driver finds no GPU. Fix: use --devices=cpu");
  }
  if (absl::Status status = driver.Check(initialized, "cuInit"); !status.ok()) {
    return absl::UnavailableError(status.message());
  }
  return driver;
}

// The part of nvJitLink that is used, opened at run time.
struct JitLink {
  decltype(&::nvJitLinkCreate) create;
  decltype(&::nvJitLinkAddData) add_data;
  decltype(&::nvJitLinkComplete) complete;
  decltype(&::nvJitLinkGetLinkedCubinSize) cubin_size;
  decltype(&::nvJitLinkGetLinkedCubin) cubin;
  decltype(&::nvJitLinkGetErrorLogSize) log_size;
  decltype(&::nvJitLinkGetErrorLog) log;
  decltype(&::nvJitLinkDestroy) destroy;
};

absl::StatusOr<JitLink> OpenJitLink() {
  void* library = dlopen("libnvJitLink.so.13", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    library = dlopen("/usr/local/cuda/lib64/libnvJitLink.so.13", RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("cannot open nvJitLink (", dlerror(), "). Fix: install the CUDA 13 toolkit"));
  }
  JitLink link{};
#define LOAD(member, call)                                                                  \
  link.member = reinterpret_cast<decltype(link.member)>(dlsym(library, SYMBOL_NAME(call))); \
  if (link.member == nullptr) {                                                             \
    return absl::UnavailableError(absl::StrCat("nvJitLink has no ", SYMBOL_NAME(call)));    \
  }
  LOAD(create, nvJitLinkCreate)
  LOAD(add_data, nvJitLinkAddData)
  LOAD(complete, nvJitLinkComplete)
  LOAD(cubin_size, nvJitLinkGetLinkedCubinSize)
  LOAD(cubin, nvJitLinkGetLinkedCubin)
  LOAD(log_size, nvJitLinkGetErrorLogSize)
  LOAD(log, nvJitLinkGetErrorLog)
  LOAD(destroy, nvJitLinkDestroy)
#undef LOAD
  return link;
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

absl::StatusOr<std::string> LinkPtx(const std::vector<std::string>& ptx, int architecture) {
  static const absl::StatusOr<JitLink>* const opened = new absl::StatusOr<JitLink>(OpenJitLink());
  if (!opened->ok()) return opened->status();
  const JitLink& link = **opened;
  const std::string arch = absl::StrCat("-arch=sm_", architecture);
  const std::string registers = absl::StrCat("-maxrregcount=", kMaxRegisters);
  const char* options[] = {arch.c_str(), registers.c_str()};
  nvJitLinkHandle handle = nullptr;
  nvJitLinkResult result = link.create(&handle, 2, options);
  for (size_t i = 0; i < ptx.size() && result == NVJITLINK_SUCCESS; ++i) {
    result = link.add_data(handle, NVJITLINK_INPUT_PTX, ptx[i].data(), ptx[i].size() + 1,
                           absl::StrCat("source ", i).c_str());
  }
  if (result == NVJITLINK_SUCCESS) result = link.complete(handle);
  std::string image;
  size_t size = 0;
  if (result == NVJITLINK_SUCCESS) result = link.cubin_size(handle, &size);
  if (result == NVJITLINK_SUCCESS) {
    image.resize(size);
    result = link.cubin(handle, image.data());
  }
  std::string log;
  if (result != NVJITLINK_SUCCESS && handle != nullptr &&
      link.log_size(handle, &size) == NVJITLINK_SUCCESS && size > 0) {
    log.resize(size);
    link.log(handle, log.data());
  }
  if (handle != nullptr) link.destroy(&handle);
  if (result != NVJITLINK_SUCCESS) {
    return absl::InternalError(
        absl::StrCat("nvJitLink failed for sm_", architecture, " (error ", result, "): ", log));
  }
  return image;
}

}  // namespace resident
