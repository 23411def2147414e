// OpenCudaLibrary: opens a library of the CUDA toolkit at run time, so that the binary also
// starts on a machine without the toolkit.
//
// Thread safety: may be called from any thread.
//
//   absl::StatusOr<void*> library = OpenCudaLibrary("NVRTC", "libnvrtc.so.13");
#ifndef RESIDENT_RUNTIME_IMAGE_CUDA_LIBRARY_H_
#define RESIDENT_RUNTIME_IMAGE_CUDA_LIBRARY_H_

#include <dlfcn.h>

#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/str_cat.h"

namespace resident {

// Opens it from the loader's search path, or else from the toolkit's default folder. Returns a
// handle for dlsym, which stays open. UNAVAILABLE: the library was not found.
inline absl::StatusOr<void*> OpenCudaLibrary(const char* name, const std::string& file) {
  void* library = dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    library = dlopen(("/usr/local/cuda/lib64/" + file).c_str(), RTLD_NOW | RTLD_LOCAL);
  }
  if (library == nullptr) {
    return absl::UnavailableError(
        absl::StrCat("cannot open ", name, " (", dlerror(), "). Fix: install the CUDA 13 toolkit"));
  }
  return library;
}

}  // namespace resident

#endif  // RESIDENT_RUNTIME_IMAGE_CUDA_LIBRARY_H_
