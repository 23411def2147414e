
#include <dlfcn.h>
#include <nvrtc.h>

#include "absl/cleanup/cleanup.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/cuda_tools.h"
#include "runtime/compile/errors.h"
#include "runtime/compile/inspect.h"
#include "runtime/image/cuda_library.h"

namespace resident {
namespace {

#define RESIDENT_NVRTC_CALLS(X) \
  X(nvrtcVersion)               \
  X(nvrtcGetErrorString)        \
  X(nvrtcCreateProgram)         \
  X(nvrtcCompileProgram)        \
  X(nvrtcGetProgramLogSize)     \
  X(nvrtcGetProgramLog)         \
  X(nvrtcGetCUBINSize)          \
  X(nvrtcGetCUBIN)              \
  X(nvrtcGetPTXSize)            \
  X(nvrtcGetPTX)                \
  X(nvrtcDestroyProgram)

struct Nvrtc {
#define DECLARE(call) decltype(&::call) call;  // NOLINT(bugprone-macro-parentheses)
  RESIDENT_NVRTC_CALLS(DECLARE)
#undef DECLARE
};

absl::StatusOr<Nvrtc> Open() {
  ASSIGN_OR_RETURN(void* const library, OpenCudaLibrary("NVRTC", "libnvrtc.so.13"));
  Nvrtc nvrtc{};
#define LOAD(call)                                                                          \
  nvrtc.call = reinterpret_cast<decltype(nvrtc.call)>(dlsym(library, #call));               \
  if (nvrtc.call == nullptr) {                                                              \
    return absl::UnavailableError("NVRTC has no " #call ". Fix: install CUDA 13 or later"); \
  }
  RESIDENT_NVRTC_CALLS(LOAD)
#undef LOAD
  return nvrtc;
}

absl::StatusOr<const Nvrtc*> Get() {
  static const absl::StatusOr<Nvrtc>* const nvrtc = new absl::StatusOr<Nvrtc>(Open());
  if (!nvrtc->ok()) return nvrtc->status();
  return &nvrtc->value();
}

}  // namespace

absl::StatusOr<std::string> NvrtcVersion() {
  ASSIGN_OR_RETURN(const auto nvrtc, Get());
  int major = 0;
  int minor = 0;
  nvrtc->nvrtcVersion(&major, &minor);
  return absl::StrCat("NVRTC ", major, ".", minor);
}

absl::StatusOr<std::string> WarmNvrtc() {
  NvrtcSource source;
  source.main_name = "warm.cc";
  // Resembles an operator, with a mathematical function and a 64-bit division.
  source.main_text =
      "extern \"C\" __device__ void warm(float* x, long long n) {\n"
      "  for (long long i = threadIdx.x; i < n; i += 256) x[i] = sinf(x[i / 3]) * x[i % n];\n"
      "}\n";
  source.options = {"-std=c++20", "-rdc=true", absl::StrCat("-arch=sm_", kWarmArchitecture),
                    "-minimal"};
  std::string log;
  return NvrtcCompile(source, &log);
}

absl::StatusOr<std::string> NvrtcCompile(const NvrtcSource& source, std::string* log) {
  log->clear();
  ASSIGN_OR_RETURN(const auto found, Get());
  const Nvrtc& nvrtc = *found;

  std::vector<const char*> names, texts, options;
  for (const auto& [name, text] : source.headers) {
    names.push_back(name.c_str());
    texts.push_back(text.c_str());
  }
  for (const std::string& option : source.options) options.push_back(option.c_str());
  // NVRTC's own cache would open the driver, which starts a thread.
  options.push_back("--no-cache");
  nvrtcProgram program = nullptr;
  nvrtcResult result =
      nvrtc.nvrtcCreateProgram(&program, source.main_text.c_str(), source.main_name.c_str(),
                               static_cast<int>(names.size()), texts.data(), names.data());
  absl::Cleanup destroy = [&] {
    if (program != nullptr) nvrtc.nvrtcDestroyProgram(&program);
  };
  if (result == NVRTC_SUCCESS) {
    result = nvrtc.nvrtcCompileProgram(program, static_cast<int>(options.size()), options.data());
  }
  size_t size = 0;
  if (program != nullptr && nvrtc.nvrtcGetProgramLogSize(program, &size) == NVRTC_SUCCESS &&
      size > 1) {
    log->resize(size);
    nvrtc.nvrtcGetProgramLog(program, log->data());
    log->resize(size - 1);  // Without the terminating zero.
  }
  if (result == NVRTC_ERROR_COMPILATION) {
    return DoesNotCompile(*log);
  }
  std::string cubin;
  if (result == NVRTC_SUCCESS) result = nvrtc.nvrtcGetPTXSize(program, &size);
  if (result == NVRTC_SUCCESS) {
    std::string ptx(size, '\0');
    result = nvrtc.nvrtcGetPTX(program, ptx.data());
    const absl::Status checked = CheckPtxFunctions(ptx);
    if (result == NVRTC_SUCCESS && !checked.ok()) return checked;
    if (result == NVRTC_SUCCESS && source.ptx) return ptx;
  }
  if (result == NVRTC_SUCCESS) result = nvrtc.nvrtcGetCUBINSize(program, &size);
  if (result == NVRTC_SUCCESS) {
    cubin.resize(size);
    result = nvrtc.nvrtcGetCUBIN(program, cubin.data());
  }
  if (result == NVRTC_ERROR_OUT_OF_MEMORY) {
    return absl::ResourceExhaustedError("the compiler is out of memory");
  }
  if (result == NVRTC_ERROR_INVALID_OPTION) {
    return absl::UnavailableError(
        absl::StrCat("NVRTC does not support an option or the GPU: ", *log, ". Fix: update CUDA"));
  }
  if (result != NVRTC_SUCCESS) {
    return absl::InternalError(absl::StrCat("NVRTC: ", nvrtc.nvrtcGetErrorString(result)));
  }
  return cubin;
}

}  // namespace resident
