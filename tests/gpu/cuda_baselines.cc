#include "tests/gpu/cuda_baselines.h"

#include <atomic>
#include <chrono>

#include "tests/gpu/cuda_calls.h"

extern "C" {
extern const char _binary_baseline_kernels_ptx_start[];
}

namespace resident::testing {
namespace {

using Clock = std::chrono::steady_clock;

double MicrosecondsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}

constexpr int kWarmUp = 200;
constexpr int kLaunches = 5000;
constexpr int kNodes = 1000;
constexpr long long kElements = 1024;

}  // namespace

Baselines MeasureBaselines() {
  Baselines baselines;
  CUdevice device = 0;
  CUcontext context = nullptr;
  CUmodule module = nullptr;
  CUfunction add = nullptr, add_flag = nullptr;
  CUstream stream = nullptr;
  RUN_CUDA(cuDeviceGet, &device, 0);
  RUN_CUDA(cuDevicePrimaryCtxRetain, &context, device);
  RUN_CUDA(cuCtxSetCurrent, context);
  RUN_CUDA(cuModuleLoadData, &module, _binary_baseline_kernels_ptx_start);
  RUN_CUDA(cuModuleGetFunction, &add, module, "baseline_add");
  RUN_CUDA(cuModuleGetFunction, &add_flag, module, "baseline_add_flag");
  RUN_CUDA(cuStreamCreate, &stream, CU_STREAM_NON_BLOCKING);

  const size_t vector_bytes = kElements * 4;
  CUdeviceptr memory = 0;
  RUN_CUDA(cuMemAlloc, &memory, 3 * kNodes * vector_bytes);
  RUN_CUDA(cuMemsetD8, memory, 0x3f, 3 * kNodes * vector_bytes);
  CUdeviceptr x = memory, y = memory + vector_bytes, out = memory + 2 * vector_bytes;
  float alpha = 1.0f;
  long long n = kElements;
  void* arguments[] = {&x, &y, &out, &alpha, &n};

  for (int i = 0; i < kWarmUp + kLaunches; ++i) {
    const auto start = Clock::now();
    RUN_CUDA(cuLaunchKernel, add, 1, 1, 1, 256, 1, 1, 0, stream, arguments, nullptr);
    RUN_CUDA(cuStreamSynchronize, stream);
    if (i >= kWarmUp) baselines.launch_us.push_back(MicrosecondsSince(start));
  }

  unsigned* flag = nullptr;
  CUdeviceptr flag_address = 0;
  RUN_CUDA(cuMemHostAlloc, reinterpret_cast<void**>(&flag), 4096, CU_MEMHOSTALLOC_DEVICEMAP);
  RUN_CUDA(cuMemHostGetDevicePointer, &flag_address, flag, 0);
  *flag = 0;
  unsigned value = 0;
  void* flag_arguments[] = {&x, &y, &out, &alpha, &n, &flag_address, &value};
  for (int i = 0; i < kWarmUp + kLaunches; ++i) {
    ++value;
    const auto start = Clock::now();
    RUN_CUDA(cuLaunchKernel, add_flag, 1, 1, 1, 256, 1, 1, 0, stream, flag_arguments, nullptr);
    while (std::atomic_ref<unsigned>(*flag).load(std::memory_order_acquire) != value) {
    }
    if (i >= kWarmUp) baselines.launch_flag_us.push_back(MicrosecondsSince(start));
  }
  RUN_CUDA(cuStreamSynchronize, stream);

  CUDA_KERNEL_NODE_PARAMS node{};
  node.func = add;
  node.gridDimX = node.gridDimY = node.gridDimZ = 1;
  node.blockDimX = 256;
  node.blockDimY = node.blockDimZ = 1;
  node.kernelParams = arguments;
  CUgraph one = nullptr, many = nullptr;
  CUgraphExec one_exec = nullptr, many_exec = nullptr;
  CUgraphNode added = nullptr;
  RUN_CUDA(cuGraphCreate, &one, 0);
  RUN_CUDA(cuGraphAddKernelNode, &added, one, nullptr, 0, &node);
  RUN_CUDA(cuGraphInstantiateWithFlags, &one_exec, one, 0);
  for (int i = 0; i < kWarmUp + kLaunches; ++i) {
    const auto start = Clock::now();
    RUN_CUDA(cuGraphLaunch, one_exec, stream);
    RUN_CUDA(cuStreamSynchronize, stream);
    if (i >= kWarmUp) baselines.graph_one_us.push_back(MicrosecondsSince(start));
  }

  RUN_CUDA(cuGraphCreate, &many, 0);
  for (int i = 0; i < kNodes; ++i) {
    x = memory + 3 * i * vector_bytes;
    y = x + vector_bytes;
    out = y + vector_bytes;
    RUN_CUDA(cuGraphAddKernelNode, &added, many, nullptr, 0, &node);
  }
  RUN_CUDA(cuGraphInstantiateWithFlags, &many_exec, many, 0);
  for (int warm = 0; warm < 2; ++warm) {
    constexpr int kGraphs = 200;
    const auto start = Clock::now();
    for (int i = 0; i < kGraphs; ++i) RUN_CUDA(cuGraphLaunch, many_exec, stream);
    RUN_CUDA(cuStreamSynchronize, stream);
    baselines.graph_independent_per_s = 1e6 * kGraphs * kNodes / MicrosecondsSince(start);
  }
  for (int warm = 0; warm < 2; ++warm) {
    constexpr int kMany = 50'000;
    const auto start = Clock::now();
    for (int i = 0; i < kMany; ++i) {
      RUN_CUDA(cuLaunchKernel, add, 1, 1, 1, 256, 1, 1, 0, stream, arguments, nullptr);
    }
    RUN_CUDA(cuStreamSynchronize, stream);
    baselines.launches_per_s = 1e6 * kMany / MicrosecondsSince(start);
  }

  constexpr size_t kCopyBytes = size_t{1} << 30;
  CUdeviceptr from = 0, to = 0;
  RUN_CUDA(cuMemAlloc, &from, kCopyBytes);
  RUN_CUDA(cuMemAlloc, &to, kCopyBytes);
  RUN_CUDA(cuMemsetD8, from, 0x5a, kCopyBytes);
  for (int warm = 0; warm < 3; ++warm) {
    constexpr int kCopies = 20;
    const auto start = Clock::now();
    for (int i = 0; i < kCopies; ++i) RUN_CUDA(cuMemcpyDtoDAsync, to, from, kCopyBytes, stream);
    RUN_CUDA(cuStreamSynchronize, stream);
    baselines.copy_bytes_per_s = 1e6 * 2 * kCopies * kCopyBytes / MicrosecondsSince(start);
  }
  RUN_CUDA(cuMemFree, from);
  RUN_CUDA(cuMemFree, to);
  RUN_CUDA(cuMemFree, memory);
  RUN_CUDA(cuMemFreeHost, flag);
  RUN_CUDA(cuStreamDestroy, stream);
  return baselines;
}

}  // namespace resident::testing
