#include <dlfcn.h>
#include <sys/mman.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "tests/conformance/library_runner.h"

namespace resident::testing {
namespace {

[[noreturn]] void Abort(const char* call, int result) {
  std::fprintf(stderr, "%s failed: %d\n", call, result);
  std::abort();
}

// A function of the driver. The tests are also built without the CUDA toolkit, so that they declare
// the few calls that they make.
template <typename... Arguments>
int TryCall(const char* name, Arguments... arguments) {
  static void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) Abort(dlerror(), 0);
  auto* const function = reinterpret_cast<int (*)(Arguments...)>(dlsym(library, name));
  if (function == nullptr) Abort(name, 0);
  return function(arguments...);
}

template <typename... Arguments>
void Call(const char* name, Arguments... arguments) {
  if (const int result = TryCall(name, arguments...); result != 0) Abort(name, result);
}

constexpr unsigned kNonBlockingStream = 1;
constexpr unsigned kPortableAndMapped = 3;

}  // namespace

LibraryDevice::LibraryDevice() {
  const char* const engine = std::getenv("RESIDENT_TEST_ENGINE");
  if (engine == nullptr || std::strcmp(engine, "cuda") != 0) return;
  number_ = 0;
  int device = 0;
  void* context = nullptr;
  Call("cuInit", 0u);
  Call("cuDeviceGet", &device, 0);
  Call("cuDevicePrimaryCtxRetain", &context, device);
  Call("cuCtxSetCurrent", context);
  Call("cuStreamCreate", &stream_, kNonBlockingStream);
}

void LibraryDevice::Synchronize() const {
  if (gpu()) Call("cuStreamSynchronize", stream_);
}

bool LibraryDevice::TrySynchronize() const {
  return !gpu() || TryCall("cuStreamSynchronize", stream_) == 0;
}

uint8_t* LibraryDevice::Allocate(uint64_t bytes) const {
  if (gpu()) {
    // Memory of the host that the GPU reads and writes at the same address.
    void* memory = nullptr;
    Call("cuMemHostAlloc", &memory, static_cast<size_t>(bytes), kPortableAndMapped);
    return static_cast<uint8_t*>(memory);
  }
  void* const memory = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                            MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) Abort("mmap", 0);
  return static_cast<uint8_t*>(memory);
}

}  // namespace resident::testing
