#include "tests/gpu/cuda_baselines.h"

#include <cuda.h>
#include <dlfcn.h>

#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <string>

extern "C" {
extern const char _binary_baseline_kernels_ptx_start[];
}

namespace resident::testing {
namespace {

using Clock = std::chrono::steady_clock;

// clang-format off
#define BASELINE_CALLS(X) \
  X(cuInit) X(cuDeviceGet) X(cuDevicePrimaryCtxRetain) X(cuCtxSetCurrent) \
  X(cuModuleLoadData) X(cuModuleGetFunction) X(cuLaunchKernel) X(cuStreamCreate) \
  X(cuStreamSynchronize) X(cuStreamDestroy) X(cuMemAlloc) X(cuMemFree) X(cuMemsetD8) \
  X(cuMemHostAlloc) X(cuMemHostGetDevicePointer) X(cuMemFreeHost) X(cuMemcpyDtoDAsync) \
  X(cuGraphCreate) X(cuGraphAddKernelNode) X(cuGraphInstantiateWithFlags) \
  X(cuGraphLaunch) X(cuModuleUnload)
// clang-format on

#define NAME_EXPANDED(call) #call
#define NAME(call) NAME_EXPANDED(call)

struct Calls {
#define DECLARE(call) decltype(&::call) call;
  BASELINE_CALLS(DECLARE)
#undef DECLARE
};

void Check(CUresult result, const char* what) {
  if (result == CUDA_SUCCESS) return;
  std::fprintf(stderr, "baselines: %s failed with error %d\n", what, static_cast<int>(result));
  std::exit(1);
}

Calls Load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW);
  if (library == nullptr) {
    std::fprintf(stderr, "baselines: no NVIDIA driver: %s\n", dlerror());
    std::exit(1);
  }
  Calls calls{};
#define LOAD(call)                                                                 \
  calls.call = reinterpret_cast<decltype(calls.call)>(dlsym(library, NAME(call))); \
  if (calls.call == nullptr) Check(CUDA_ERROR_NOT_FOUND, NAME(call));
  BASELINE_CALLS(LOAD)
#undef LOAD
  return calls;
}

#define RUN(call, ...) Check(cuda.call(__VA_ARGS__), #call)

double MicrosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

constexpr int kWarmUp = 200;
constexpr int kLaunches = 5000;
constexpr int kNodes = 1000;
constexpr long long kElements = 1024;

}  // namespace

Baselines MeasureBaselines() {
  const Calls cuda = Load();
  Baselines baselines;
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction add = nullptr, add_flag = nullptr;
  CUstream stream = nullptr;
  RUN(cuInit, 0);
  RUN(cuDeviceGet, &device, 0);
  RUN(cuDevicePrimaryCtxRetain, &context, device);
  RUN(cuCtxSetCurrent, context);
  RUN(cuModuleLoadData, &module, _binary_baseline_kernels_ptx_start);
  RUN(cuModuleGetFunction, &add, module, "baseline_add");
  RUN(cuModuleGetFunction, &add_flag, module, "baseline_add_flag");
  RUN(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);

  const size_t vector_bytes = kElements * 4;
  CUdeviceptr memory = 0;
  RUN(cuMemAlloc, &memory, 3 * kNodes * vector_bytes);
  RUN(cuMemsetD8, memory, 0x3f, 3 * kNodes * vector_bytes);
  CUdeviceptr x = memory, y = memory + vector_bytes, out = memory + 2 * vector_bytes;
  float alpha = 1.0f;
  long long n = kElements;
  void* arguments[] = {&x, &y, &out, &alpha, &n};

  for (int i = 0; i < kWarmUp + kLaunches; ++i) {
    const auto start = Clock::now();
    RUN(cuLaunchKernel, add, 1, 1, 1, 256, 1, 1, 0, stream, arguments, nullptr);
    RUN(cuStreamSynchronize, stream);
    if (i >= kWarmUp) baselines.launch_us.push_back(MicrosecondsSince(start));
  }

  unsigned* flag = nullptr;
  CUdeviceptr flag_address = 0;
  RUN(cuMemHostAlloc, reinterpret_cast<void**>(&flag), 4096, CU_MEMHOSTALLOC_DEVICEMAP);
  RUN(cuMemHostGetDevicePointer, &flag_address, flag, 0);
  *flag = 0;
  unsigned value = 0;
  void* flag_arguments[] = {&x, &y, &out, &alpha, &n, &flag_address, &value};
  for (int i = 0; i < kWarmUp + kLaunches; ++i) {
    ++value;
    const auto start = Clock::now();
    RUN(cuLaunchKernel, add_flag, 1, 1, 1, 256, 1, 1, 0, stream, flag_arguments, nullptr);
    while (std::atomic_ref<unsigned>(*flag).load(std::memory_order_acquire) != value) {
    }
    if (i >= kWarmUp) baselines.launch_flag_us.push_back(MicrosecondsSince(start));
  }
  RUN(cuStreamSynchronize, stream);

  CUDA_KERNEL_NODE_PARAMS node{};
  node.func = add;
  node.gridDimX = node.gridDimY = node.gridDimZ = 1;
  node.blockDimX = 256;
  node.blockDimY = node.blockDimZ = 1;
  node.kernelParams = arguments;
  CUgraph one = nullptr, many = nullptr;
  CUgraphExec one_exec = nullptr, many_exec = nullptr;
  CUgraphNode added = nullptr;
  RUN(cuGraphCreate, &one, 0);
  RUN(cuGraphAddKernelNode, &added, one, nullptr, 0, &node);
  RUN(cuGraphInstantiateWithFlags, &one_exec, one, 0);
  for (int i = 0; i < kWarmUp + kLaunches; ++i) {
    const auto start = Clock::now();
    RUN(cuGraphLaunch, one_exec, stream);
    RUN(cuStreamSynchronize, stream);
    if (i >= kWarmUp) baselines.graph_one_us.push_back(MicrosecondsSince(start));
  }

  RUN(cuGraphCreate, &many, 0);
  for (int i = 0; i < kNodes; ++i) {
    x = memory + 3 * i * vector_bytes;
    y = x + vector_bytes;
    out = y + vector_bytes;
    RUN(cuGraphAddKernelNode, &added, many, nullptr, 0, &node);
  }
  RUN(cuGraphInstantiateWithFlags, &many_exec, many, 0);
  for (int warm = 0; warm < 2; ++warm) {
    constexpr int kGraphs = 200;
    const auto start = Clock::now();
    for (int i = 0; i < kGraphs; ++i) RUN(cuGraphLaunch, many_exec, stream);
    RUN(cuStreamSynchronize, stream);
    baselines.graph_independent_per_s = 1e6 * kGraphs * kNodes / MicrosecondsSince(start);
  }
  for (int warm = 0; warm < 2; ++warm) {
    constexpr int kMany = 50'000;
    const auto start = Clock::now();
    for (int i = 0; i < kMany; ++i) {
      RUN(cuLaunchKernel, add, 1, 1, 1, 256, 1, 1, 0, stream, arguments, nullptr);
    }
    RUN(cuStreamSynchronize, stream);
    baselines.launches_per_s = 1e6 * kMany / MicrosecondsSince(start);
  }

  constexpr size_t kCopyBytes = size_t{1} << 30;
  CUdeviceptr from = 0, to = 0;
  RUN(cuMemAlloc, &from, kCopyBytes);
  RUN(cuMemAlloc, &to, kCopyBytes);
  RUN(cuMemsetD8, from, 0x5a, kCopyBytes);
  for (int warm = 0; warm < 3; ++warm) {
    constexpr int kCopies = 20;
    const auto start = Clock::now();
    for (int i = 0; i < kCopies; ++i) RUN(cuMemcpyDtoDAsync, to, from, kCopyBytes, stream);
    RUN(cuStreamSynchronize, stream);
    baselines.copy_bytes_per_s = 1e6 * 2 * kCopies * kCopyBytes / MicrosecondsSince(start);
  }
  RUN(cuMemFree, from);
  RUN(cuMemFree, to);
  RUN(cuMemFree, memory);
  RUN(cuMemFreeHost, flag);
  RUN(cuStreamDestroy, stream);
  return baselines;
}

}  // namespace resident::testing
