#include "tests/gpu/cuda_calls.h"

#include <dlfcn.h>

#include "absl/strings/str_cat.h"
#include "tests/support/bench_report.h"

namespace resident::testing {
namespace {

// cuda.h maps names to versioned names (cuMemAlloc is cuMemAlloc_v2); the symbol is the versioned
// name.
#define NAME_EXPANDED(call) #call
#define NAME(call) NAME_EXPANDED(call)

CudaCalls Load() {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) Fail(absl::StrCat("there is no NVIDIA driver: ", dlerror()));
  CudaCalls calls{};
#define LOAD(call)                                                                 \
  calls.call = reinterpret_cast<decltype(calls.call)>(dlsym(library, NAME(call))); \
  if (calls.call == nullptr) Fail("the NVIDIA driver has no " NAME(call));
  RESIDENT_BASELINE_CALLS(LOAD)
#undef LOAD
  if (const CUresult result = calls.cuInit(0); result != CUDA_SUCCESS) {
    Fail(absl::StrCat("cuInit failed with error ", static_cast<int>(result)));
  }
  return calls;
}

}  // namespace

const CudaCalls& GetCudaCalls() {
  static const CudaCalls calls = Load();
  return calls;
}

void CheckCuda(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  const char* name = nullptr;
  GetCudaCalls().cuGetErrorName(result, &name);
  Fail(absl::StrCat(what, " failed: ", name == nullptr ? "unknown error" : name, " (",
                    static_cast<int>(result), ")"));
}

}  // namespace resident::testing
