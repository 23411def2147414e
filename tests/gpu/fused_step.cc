#include "tests/gpu/fused_step.h"

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <string>
#include <utility>
#include <vector>

#include "tests/gpu/cuda_calls.h"
#include "tests/gpu/fused_step_kernels.h"
#include "tests/support/bench_report.h"

extern "C" {
#define RESIDENT_DECLARE_IMAGE(arch)                                     \
  extern const char _binary_fused_step_kernels_sm##arch##_cubin_start[]; \
  extern const char _binary_fused_step_kernels_sm##arch##_cubin_end[];
RESIDENT_CUDA_ARCHITECTURES(RESIDENT_DECLARE_IMAGE)
#undef RESIDENT_DECLARE_IMAGE
}

namespace resident::testing {
namespace {

using fused::Kind;
using fused::Phase;
using fused::StepParameters;

constexpr int kMajor = 9;  // Compute capability, exactly.
constexpr uint32_t kGraphSteps = 9;
constexpr uint32_t kKernelSteps = 24;
constexpr int kRounds = 9;
constexpr unsigned kThreads = fused::kComputeThreads;
// The grid of a part's kernel has at most so many blocks for each SM; the better one counts.
constexpr unsigned kBlocksOfSm[] = {2, 4};
// Of the logits, beside those of the graph.
constexpr double kMaxDifference = 1e-3;

// Empty: this program has no image for these GPUs.
std::string FindImage() {
  std::string image;
#define RESIDENT_FIND_IMAGE(arch)                                   \
  if (arch == 10 * kMajor) {                                        \
    image.assign(_binary_fused_step_kernels_sm##arch##_cubin_start, \
                 _binary_fused_step_kernels_sm##arch##_cubin_end);  \
  }
  RESIDENT_CUDA_ARCHITECTURES(RESIDENT_FIND_IMAGE)
#undef RESIDENT_FIND_IMAGE
  return image;
}

int Attribute(CUdevice device, CUdevice_attribute attribute) {
  int value = 0;
  RUN_CUDA(cuDeviceGetAttribute, &value, attribute, device);
  return value;
}

struct Part {
  const char* kernel;
  uint32_t rows;
  uint32_t columns;
};
constexpr std::array<Part, fused::kKinds> kParts = {{
    {"fused_qkv", fused::kQkvRows, fused::kHidden},
    {"fused_attention", 0, 0},
    {"fused_out", fused::kHidden, fused::kHidden},
    {"fused_up", 2 * fused::kInner, fused::kHidden},
    {"fused_down", fused::kHidden, fused::kInner},
    {"fused_head", fused::kVocab, fused::kHidden},
}};
constexpr uint64_t BytesOf(const Part& part) { return uint64_t{2} * part.rows * part.columns; }

double Median(std::vector<double> values) {
  std::nth_element(values.begin(), values.begin() + values.size() / 2, values.end());
  return values[values.size() / 2];
}

}  // namespace

struct FusedStep::Objects {
  CUmodule module = nullptr;
  CUstream stream = nullptr;
  unsigned sms = 0;
  std::array<CUfunction, fused::kKinds> phases{};
  CUfunction argmax = nullptr;
  CUfunction steps = nullptr;
  CUfunction fill = nullptr;
  std::vector<Phase> parts;
  StepParameters parameters{};
  uint64_t cache = 0;
  // Of the steps of the last graph.
  std::vector<float> logits;
  std::vector<uint64_t> best;

  CUfunction Find(const char* name) const {
    CUfunction function = nullptr;
    RUN_CUDA(cuModuleGetFunction, &function, module, name);
    return function;
  }
  static uint64_t Allocate(uint64_t bytes) {
    CUdeviceptr address = 0;
    RUN_CUDA(cuMemAlloc, &address, bytes);
    RUN_CUDA(cuMemsetD8, address, 0, bytes);
    return address;
  }
  static constexpr uint64_t kCacheElements =
      uint64_t{2} * fused::kKvHeads * fused::kCapacity * fused::kHeadDim;  // Of a layer.

  void Fill(uint64_t address, unsigned long long elements, float width, float middle,
            unsigned seed) const {
    void* arguments[] = {&address, &elements, &width, &middle, &seed};
    RUN_CUDA(cuLaunchKernel, fill, 8 * sms, 1, 1, kThreads, 1, 1, 0, stream, arguments, nullptr);
  }

  void MakeParts(uint64_t weights) {
    const uint64_t norms = Allocate(uint64_t{2 * fused::kLayers + 1} * fused::kHidden * 2);
    Fill(norms, (2 * fused::kLayers + 1) * fused::kHidden, 0.1f, 1, 2);
    cache = Allocate(fused::kLayers * kCacheElements * 2);
    uint32_t rotation = 0;
    const auto add = [&](Kind kind, uint32_t layer, uint32_t norm) {
      Phase part{};
      const auto pages = static_cast<uint32_t>(BytesOf(kParts[kind]) / fused::kPageBytes);
      part.weights = weights;
      part.norm = norms + uint64_t{norm} * fused::kHidden * 2;
      part.cache = cache + layer * kCacheElements * 2;
      part.kind = kind;
      part.pages = pages / sms;
      part.more = pages % sms;
      part.rotation = rotation;
      rotation = (rotation + sms - part.more) % sms;
      part.layer = layer;
      part.signal = static_cast<uint32_t>(parts.size());
      weights += BytesOf(kParts[kind]);
      parts.push_back(part);
    };
    for (uint32_t layer = 0; layer < fused::kLayers; ++layer) {
      add(fused::kQkv, layer, 2 * layer);
      add(fused::kAttention, layer, 0);
      add(fused::kOut, layer, 0);
      add(fused::kUp, layer, 2 * layer + 1);
      add(fused::kDown, layer, 0);
    }
    add(fused::kHead, 0, 2 * fused::kLayers);
    parameters.table = parts.back().weights;
    for (size_t i = 0; i < parts.size(); ++i) {
      const Phase& before = parts[(i + parts.size() - 1) % parts.size()];
      parts[i].wait = before.signal;
      parts[i].arrivals = before.kind == fused::kAttention ? fused::kHeads : sms;
    }
    parameters.phases = Allocate(parts.size() * sizeof(Phase));
    RUN_CUDA(cuMemcpyHtoD, parameters.phases, parts.data(), parts.size() * sizeof(Phase));
  }

  void MakeAngles() {
    constexpr uint32_t kPairs = fused::kHeadDim / 2;
    std::vector<float> angles;
    for (uint32_t i = 0; i < fused::kCapacity * kPairs; ++i) {
      const double angle =
          i / kPairs * std::pow(500000.0, -static_cast<double>(i % kPairs) / kPairs);
      angles.push_back(static_cast<float>(std::cos(angle)));
      angles.push_back(static_cast<float>(std::sin(angle)));
    }
    parameters.angles = Allocate(angles.size() * sizeof(float));
    RUN_CUDA(cuMemcpyHtoD, parameters.angles, angles.data(), angles.size() * sizeof(float));
  }

  // What a measurement begins with. `fills`: with the same cache, too.
  void Reset(bool fills) const {
    constexpr uint64_t kCounterBytes = fused::kCounters * fused::kCounterWords * sizeof(uint32_t);
    RUN_CUDA(cuMemsetD8Async, parameters.counters, 0, kCounterBytes, stream);
    RUN_CUDA(cuMemsetD8Async, parameters.best, 0, fused::kKeptSteps * sizeof(uint64_t), stream);
    if (fills) Fill(cache, fused::kLayers * kCacheElements, 1, 0, 3);
    RUN_CUDA(cuStreamSynchronize, stream);
  }

  // The median time of `launch` for each of so many steps, in us.
  template <typename F>
  double Measure(uint32_t steps, F launch) const {
    std::vector<double> us;
    for (int round = 0; round < kRounds + 1; ++round) {
      Reset(/*fills=*/round == 0);
      const auto start = std::chrono::steady_clock::now();
      launch();
      RUN_CUDA(cuStreamSynchronize, stream);
      const std::chrono::duration<double, std::micro> took =
          std::chrono::steady_clock::now() - start;
      if (round > 0) us.push_back(took.count() / steps);
    }
    return Median(std::move(us));
  }

  std::vector<float> ReadLogits() const {
    std::vector<float> read(fused::kVocab);
    RUN_CUDA(cuMemcpyDtoH, read.data(), parameters.logits, read.size() * sizeof(float));
    return read;
  }
  std::vector<uint64_t> ReadBest() const {
    std::vector<uint64_t> read(kGraphSteps);
    RUN_CUDA(cuMemcpyDtoH, read.data(), parameters.best, read.size() * sizeof(uint64_t));
    return read;
  }

  void LaunchSteps(uint32_t count) {
    parameters.steps = count;
    parameters.first_step = 0;
    void* arguments[] = {&parameters};
    RUN_CUDA(cuLaunchKernel, steps, sms, 1, 1, fused::kStepThreads, 1, 1,
             fused::kPages * fused::kPageBytes, stream, arguments, nullptr);
  }

  // All parts of some steps, one after the other.
  CUgraphExec MakeGraph(unsigned blocks_of_sm, bool programmatic) {
    CUgraph graph = nullptr;
    RUN_CUDA(cuGraphCreate, &graph, 0);
    CUgraphNode last = nullptr;
    const auto add = [&](CUfunction function, unsigned blocks, unsigned threads, void** arguments) {
      CUgraphNodeParams node{};
      node.type = CU_GRAPH_NODE_TYPE_KERNEL;
      node.kernel.func = function;
      node.kernel.gridDimX = blocks;
      node.kernel.gridDimY = node.kernel.gridDimZ = 1;
      node.kernel.blockDimX = threads;
      node.kernel.blockDimY = node.kernel.blockDimZ = 1;
      node.kernel.kernelParams = arguments;
      CUgraphEdgeData kind{};
      if (programmatic) {
        kind.from_port = CU_GRAPH_KERNEL_NODE_PORT_PROGRAMMATIC;
        kind.type = CU_GRAPH_DEPENDENCY_TYPE_PROGRAMMATIC;
      }
      const CUgraphNode before = last;
      RUN_CUDA(cuGraphAddNode, &last, graph, &before, &kind, before == nullptr ? 0 : 1, &node);
    };
    for (uint32_t step = 0; step < kGraphSteps; ++step) {
      parameters.first_step = step;
      for (Phase& part : parts) {
        uint32_t rows = kParts[part.kind].rows;
        // Warps have 8 KiB of weights each.
        const uint64_t units = BytesOf(kParts[part.kind]) / fused::kUnitBytes;
        const auto blocks =
            part.kind == fused::kAttention
                ? fused::kHeads
                : static_cast<unsigned>(std::min<uint64_t>(units / 8, sms * blocks_of_sm));
        void* arguments[] = {&parameters, &part, &rows};
        add(phases[part.kind], blocks, kThreads, arguments);
      }
      void* arguments[] = {&parameters};
      add(argmax, 32, 1024, arguments);
    }
    CUgraphExec executable = nullptr;
    RUN_CUDA(cuGraphInstantiateWithFlags, &executable, graph, 0);
    return executable;
  }
};

bool FusedStep::IsSupported(int ordinal) {
  CUdevice device = 0;
  RUN_CUDA(cuDeviceGet, &device, ordinal);
  const bool supported = !FindImage().empty() &&
                         Attribute(device, CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) == kMajor;
  if (!supported) std::printf("  the kernels for one model need compute capability 9.0\n");
  return supported;
}

FusedStep::FusedStep(int ordinal, uint64_t weights) : objects_(std::make_unique<Objects>()) {
  Objects& o = *objects_;
  CUdevice device = 0;
  CUcontext context = nullptr;
  RUN_CUDA(cuDeviceGet, &device, ordinal);
  RUN_CUDA(cuDevicePrimaryCtxRetain, &context, device);
  RUN_CUDA(cuCtxSetCurrent, context);
  o.sms = static_cast<unsigned>(Attribute(device, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT));
  const std::string image = FindImage();
  RUN_CUDA(cuModuleLoadData, &o.module, image.data());
  for (uint32_t kind = 0; kind < fused::kKinds; ++kind) {
    o.phases[kind] = o.Find(kParts[kind].kernel);
  }
  o.argmax = o.Find("fused_argmax");
  o.steps = o.Find("fused_steps");
  o.fill = o.Find("fused_fill");
  RUN_CUDA(cuFuncSetAttribute, o.steps, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
           static_cast<int>(fused::kPages * fused::kPageBytes));
  RUN_CUDA(cuFuncSetAttribute, o.steps, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT, 100);
  RUN_CUDA(cuStreamCreate, &o.stream, CU_STREAM_NON_BLOCKING);
  StepParameters& p = o.parameters;
  p.counters = Objects::Allocate(fused::kCounters * fused::kCounterWords * sizeof(uint32_t));
  p.residual = Objects::Allocate(fused::kHidden * sizeof(float));
  p.qkv = Objects::Allocate(fused::kQkvRows * sizeof(float));
  p.attended = Objects::Allocate(fused::kHidden * sizeof(float));
  p.gated = Objects::Allocate(fused::kInner * sizeof(float));
  p.logits = Objects::Allocate(fused::kVocab * sizeof(float));
  p.best = Objects::Allocate(fused::kKeptSteps * sizeof(uint64_t));
  void* records = nullptr;
  RUN_CUDA(cuMemHostAlloc, &records, fused::kKeptSteps * 16, CU_MEMHOSTALLOC_DEVICEMAP);
  CUdeviceptr on_device = 0;
  RUN_CUDA(cuMemHostGetDevicePointer, &on_device, records, 0);
  p.records = on_device;
  o.Fill(weights, kWeightBytes / 2, 0.03f, 0, 1);
  o.MakeParts(weights);
  o.MakeAngles();
  RUN_CUDA(cuStreamSynchronize, o.stream);
}

// The benchmark ends without releasing anything: a kernel may be resident.
FusedStep::~FusedStep() = default;

double FusedStep::MeasureGraph(uint32_t keys, bool programmatic) {
  Objects& o = *objects_;
  o.parameters.positions = keys - 1;
  double best_us = 0;
  for (const unsigned blocks_of_sm : kBlocksOfSm) {
    const CUgraphExec graph = o.MakeGraph(blocks_of_sm, programmatic);
    const double us = o.Measure(kGraphSteps, [&] { RUN_CUDA(cuGraphLaunch, graph, o.stream); });
    if (best_us == 0 || us < best_us) best_us = us;
  }
  o.logits = o.ReadLogits();
  o.best = o.ReadBest();
  return best_us;
}

double FusedStep::MeasureKernel(uint32_t keys) {
  Objects& o = *objects_;
  o.parameters.positions = keys - 1;
  // As many steps as the graph has.
  o.Reset(/*fills=*/true);
  RUN_CUDA(cuMemsetD8Async, o.parameters.logits, 0xff, fused::kVocab * sizeof(float), o.stream);
  o.LaunchSteps(kGraphSteps);
  RUN_CUDA(cuStreamSynchronize, o.stream);
  const std::vector<float> logits = o.ReadLogits();
  double difference = 0;
  double length = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    const double each = static_cast<double>(logits[i]) - static_cast<double>(o.logits[i]);
    difference += each * each;
    length += static_cast<double>(o.logits[i]) * static_cast<double>(o.logits[i]);
  }
  difference = std::sqrt(difference / length);
  const std::vector<uint64_t> best = o.ReadBest();
  bool same = true;
  for (size_t i = 0; i < best.size(); ++i) {
    same &= static_cast<uint32_t>(best[i]) == static_cast<uint32_t>(o.best[i]);
  }
  std::printf("  kernel of whole steps: logits differ by %.2g of their length, tokens %s\n",
              difference, same ? "are equal" : "differ");
  if (!same || !(difference <= kMaxDifference)) {
    Fail("the kernel of whole steps computes something else than the graph");
  }
  return o.Measure(kKernelSteps, [&] { o.LaunchSteps(kKernelSteps); });
}

}  // namespace resident::testing
