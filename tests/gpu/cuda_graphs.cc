#include "tests/gpu/cuda_graphs.h"

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstdio>
#include <string>

#include "absl/strings/str_cat.h"
#include "kernels/resident/kernel_parameters.h"
#include "kernels/resident/operator_launch.h"
#include "runtime/image/first_generation.h"
#include "tests/gpu/cuda_calls.h"
#include "tests/support/bench_report.h"

extern "C" {
extern const char _binary_baseline_kernels_ptx_start[];
}

namespace resident::testing {
namespace {

constexpr int kFirstMajorWithProgrammaticLaunch = 9;
constexpr unsigned kThreads = kMaxComputeThreads + kControlThreads;
constexpr unsigned kReadThreads = 512;

}  // namespace

struct CudaGraphs::Objects {
  int Attribute(CUdevice_attribute attribute) const {
    int value = 0;
    RUN_CUDA(cuDeviceGetAttribute, &value, attribute, device);
    return value;
  }

  CUdevice device = 0;
  CUcontext context = nullptr;
  CUmodule operators = nullptr;
  CUmodule baselines = nullptr;
  CUfunction launch_operator = nullptr;
  CUfunction read = nullptr;
  CUstream stream = nullptr;
  bool has_programmatic = false;
  unsigned sms = 0;
  unsigned max_blocks = 0;
  CUdeviceptr scratch = 0;
  // Where launches report failures: for the host and for the device.
  LaunchOutcome* outcome = nullptr;
  LaunchOutcome* device_outcome = nullptr;
  std::vector<CUgraphExec> graphs;
};

CudaGraphs::CudaGraphs(int ordinal) : objects_(std::make_unique<Objects>()) {
  Objects& o = *objects_;
  RUN_CUDA(cuDeviceGet, &o.device, ordinal);
  RUN_CUDA(cuDevicePrimaryCtxRetain, &o.context, o.device);
  RUN_CUDA(cuCtxSetCurrent, o.context);
  const int major = o.Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  const int minor = o.Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  o.sms = static_cast<unsigned>(o.Attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  // Code that is linked from PTX does not wait for the launch before it (operator_launch.cu).
  const std::vector<int> images = ImageArchitectures();
  const bool has_image =
      std::find(images.begin(), images.end(), UnitArchitecture(major, minor)) != images.end();
  o.has_programmatic = has_image && major >= kFirstMajorWithProgrammaticLaunch;
  const std::string image = Must(FirstGenerationImage(major, minor), "the image of the operators");
  RUN_CUDA(cuModuleLoadData, &o.operators, image.data());
  RUN_CUDA(cuModuleGetFunction, &o.launch_operator, o.operators, kOperatorLaunchName);
  RUN_CUDA(cuModuleLoadData, &o.baselines, _binary_baseline_kernels_ptx_start);
  RUN_CUDA(cuModuleGetFunction, &o.read, o.baselines, "baseline_read");
  RUN_CUDA(cuStreamCreate, &o.stream, CU_STREAM_NON_BLOCKING);
  int per_sm = 0;
  RUN_CUDA(cuOccupancyMaxActiveBlocksPerMultiprocessor, &per_sm, o.launch_operator,
           static_cast<int>(kThreads), 0);
  o.max_blocks = static_cast<unsigned>(std::max(per_sm, 1)) * o.sms;
  RUN_CUDA(cuMemAlloc, &o.scratch, o.max_blocks * kScratchBytes);
  void* host = nullptr;
  RUN_CUDA(cuMemHostAlloc, &host, sizeof(LaunchOutcome), CU_MEMHOSTALLOC_DEVICEMAP);
  o.outcome = new (host) LaunchOutcome{};
  CUdeviceptr outcome = 0;
  RUN_CUDA(cuMemHostGetDevicePointer, &outcome, host, 0);
  o.device_outcome = std::bit_cast<LaunchOutcome*>(outcome);
}

// The benchmark ends without releasing anything: a kernel may be resident.
CudaGraphs::~CudaGraphs() = default;

std::optional<size_t> CudaGraphs::Add(absl::Span<const NodeCall> calls, Edges edges) {
  Objects& o = *objects_;
  if (edges == Edges::kProgrammatic && !o.has_programmatic) return std::nullopt;
  // Whether the call has succeeded. Only programmatic edges may be refused.
  const auto accepts = [&](CUresult result, const char* call) {
    if (result != CUDA_SUCCESS && edges == Edges::kProgrammatic) {
      std::printf("  no programmatic dependent launch: %s failed with error %d\n", call,
                  static_cast<int>(result));
      o.has_programmatic = false;
      return false;
    }
    CheckCuda(result, call);
    return true;
  };
  CUgraph graph = nullptr;
  RUN_CUDA(cuGraphCreate, &graph, 0);
  std::vector<CUgraphNode> nodes(calls.size());
  for (size_t i = 0; i < calls.size(); ++i) {
    const NodeCall& call = calls[i];
    OperatorLaunch launch{};
    launch.operator_slot = call.operator_slot;
    launch.argument_count = static_cast<u32>(call.arguments.size());
    launch.chunks = call.chunks;
    launch.launch = i;
    launch.outcome = o.device_outcome;
    launch.scratch = std::bit_cast<unsigned char*>(o.scratch);
    std::copy(call.arguments.begin(), call.arguments.end(), launch.arguments);
    void* parameters[] = {&launch};
    CUgraphNodeParams node{};
    node.type = CU_GRAPH_NODE_TYPE_KERNEL;
    node.kernel.func = o.launch_operator;
    node.kernel.gridDimX = static_cast<unsigned>(std::min<uint64_t>(call.chunks, o.max_blocks));
    node.kernel.gridDimY = node.kernel.gridDimZ = 1;
    node.kernel.blockDimX = kThreads;
    node.kernel.blockDimY = node.kernel.blockDimZ = 1;
    node.kernel.kernelParams = parameters;
    std::vector<CUgraphNode> before;
    if (edges == Edges::kDependencies) {
      for (const uint32_t each : call.predecessors) before.push_back(nodes[each]);
    } else if (i > 0) {
      before.push_back(nodes[i - 1]);
    }
    std::vector<CUgraphEdgeData> kinds(before.size());
    if (edges == Edges::kProgrammatic) {
      for (CUgraphEdgeData& kind : kinds) {
        kind.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
        kind.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
      }
    }
    const CUresult added = GetCudaCalls().cuGraphAddNode(&nodes[i], graph, before.data(),
                                                         kinds.data(), before.size(), &node);
    if (!accepts(added, "cuGraphAddNode")) return std::nullopt;
  }
  CUgraphExec executable = nullptr;
  const CUresult made = GetCudaCalls().cuGraphInstantiateWithFlags(&executable, graph, 0);
  if (!accepts(made, "cuGraphInstantiateWithFlags")) return std::nullopt;
  o.graphs.push_back(executable);
  return o.graphs.size() - 1;
}

void CudaGraphs::Launch(size_t graph) {
  RUN_CUDA(cuGraphLaunch, objects_->graphs[graph], objects_->stream);
}

void CudaGraphs::Synchronize() {
  RUN_CUDA(cuStreamSynchronize, objects_->stream);
  const LaunchOutcome& outcome = *objects_->outcome;
  if (outcome.status_and_detail == 0) return;
  Fail(absl::StrCat("node ", outcome.launch, " of a CUDA graph ended with status ",
                    outcome.status_and_detail & 0xffff, ", detail ",
                    outcome.status_and_detail >> 16));
}

double CudaGraphs::MeasureReadBytesPerSecond(uint64_t address, uint64_t bytes) {
  constexpr int kLaunches = 10;
  unsigned long long pieces = bytes / 16;
  CUdeviceptr result = objects_->scratch;
  void* parameters[] = {&address, &pieces, &result};
  double best = 0;
  for (const unsigned per_sm : {1u, 2u, 4u}) {
    for (int round = 0; round < 4; ++round) {
      const auto start = std::chrono::steady_clock::now();
      for (int i = 0; i < kLaunches; ++i) {
        RUN_CUDA(cuLaunchKernel, objects_->read, per_sm * objects_->sms, 1, 1, kReadThreads, 1, 1,
                 0, objects_->stream, parameters, nullptr);
      }
      RUN_CUDA(cuStreamSynchronize, objects_->stream);
      const std::chrono::duration<double> took = std::chrono::steady_clock::now() - start;
      best = std::max(best, kLaunches * static_cast<double>(16 * pieces) / took.count());
    }
  }
  return best;
}

void CudaGraphs::Clear(uint64_t address, uint64_t bytes) {
  RUN_CUDA(cuMemsetD8, address, 0, bytes);
  // It may return before the memory is cleared, and the stream does not wait for it.
  uint8_t last = 0;
  RUN_CUDA(cuMemcpyDtoH, &last, address + bytes - 1, 1);
}

void CudaGraphs::Download(void* to, uint64_t address, uint64_t bytes) {
  RUN_CUDA(cuMemcpyDtoH, to, address, bytes);
}

}  // namespace resident::testing
