
#include "runtime/engine/cuda/cuda_engine.h"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kernels/ops/builtin.h"
#include "runtime/base/futex.h"
#include "runtime/base/status_macros.h"
#include "runtime/engine/cuda/cuda_registration.h"
#include "runtime/engine/cuda/launch_shape.h"
#include "runtime/image/cubin.h"
#include "runtime/image/first_generation.h"
#include "runtime/image/link.h"
#include "runtime/ring/switch_signals.h"

namespace resident {
namespace {

// By default, buffers get this fraction (1 / N) of the free memory.
constexpr uint64_t kDefaultMemoryDivisor = 4;
constexpr auto kParkSpin = std::chrono::milliseconds(1);
// A change of generation usually ends within this time. After it, the wait sleeps between polls
// until the front end holds submission.
constexpr auto kSwitchSpin = std::chrono::milliseconds(20);
constexpr auto kParkPollInterval = std::chrono::microseconds(100);
// Interval of attempts to allocate memory that another process is releasing.
constexpr auto kMemoryLook = std::chrono::milliseconds(2);
// Compute capability * 10 of the first GPUs that copy pages of weights (graph_stream.h).
constexpr uint32_t kFirstWithBulkCopies = 90;

// A launch after this time without a quantum of a graph is one without the graph kernel.
constexpr uint64_t kIdleAtParkNs = 30'000'000'000;
// The thread that launches another kind sleeps until the front end rings for a quantum, or for so
// long. For kKindLookFor after a quantum it looks each kKindLook if the resident kernel is alone,
// and otherwise, because changes are rare then, each kFormLook; and when kGraphsIdleNs have nearly
// passed, each kKindLook again.
constexpr auto kKindWait = std::chrono::seconds(1);
constexpr auto kKindLook = std::chrono::microseconds(50);
constexpr auto kFormLook = std::chrono::milliseconds(1);
constexpr auto kKindLookFor = std::chrono::seconds(15);
constexpr auto kGraphsIdleLook = std::chrono::nanoseconds(kGraphsIdleNs) - 2 * kKindWait;
// Of what cuMemAlloc returns.
constexpr uint64_t kDeviceAlignment = 256;

OperatorResources ToOperatorResources(uint32_t slot, const FunctionResources& function) {
  return {slot, function.registers, function.stack_bytes, 0, function.code_bytes};
}

// As nvidia-smi prints it.
std::string UuidText(const CUuuid& uuid) {
  const std::string hex = absl::BytesToHexString({uuid.bytes, sizeof(uuid.bytes)});
  const auto group = [&](size_t start, size_t digits) { return hex.substr(start, digits); };
  return absl::StrCat("GPU-", group(0, 8), "-", group(8, 4), "-", group(12, 4), "-", group(16, 4),
                      "-", group(20, 12));
}

// An entry of the kernel's kTaskLimits.
u32 ToLimit(std::chrono::microseconds limit) {
  return static_cast<u32>(std::min<int64_t>(limit.count(), kMaxTaskLimit));
}

#define RETURN_IF_CUDA_ERROR(call_name, ...)                                          \
  do {                                                                                \
    absl::Status status_ = driver_.Check(driver_.call_name(__VA_ARGS__), #call_name); \
    if (!status_.ok()) return status_;                                                \
  } while (false)

}  // namespace

CudaEngine::~CudaEngine() {
  if (!watcher_.joinable()) return;
  ends_.store(1);
  // So that a wait that is about to begin does not.
  std::atomic_ref<u32>(region_->control()->doorbell).fetch_add(1);
  FutexWake(&region_->control()->doorbell);
  watcher_.join();
}

absl::StatusOr<std::vector<EnginePhase>> CudaEngine::Prepare(const SharedRegion& region) {
  region_ = &region;
  PhaseTimer timer;
  RETURN_IF_ERROR(OpenDevice());
  timer.Mark("context");
  RETURN_IF_ERROR(LoadKernel());
  timer.Mark("kernel image");
  RETURN_IF_ERROR(PinRegion(region));
  timer.Mark("pin the region");
  return timer.phases();
}

absl::StatusOr<EngineInfo> CudaEngine::Start(const EngineOptions& options) {
  options_ = options;
  RETURN_IF_CUDA_ERROR(cuCtxSetCurrent, context_);
  PhaseTimer timer;
  RETURN_IF_ERROR(ChooseLaunch());
  timer.Mark("stream");
  auto first = Inspect(options_.generation != nullptr ? *options_.generation : Generation());
  RETURN_IF_ERROR(first.status());
  info_.operators = first->resources;
  RETURN_IF_ERROR(Load(*std::move(first)));
  timer.Mark("load the generation");
  RETURN_IF_ERROR(AllocateState());
  RETURN_IF_ERROR(AllocateBuffers());
  timer.Mark("take memory");
  region_->control()->worker_count = blocks_;
  if (!options_.start_parked) {
    RETURN_IF_ERROR(Resume());
    timer.Mark("launch");
  }
  if (graph_blocks_ > 0) watcher_ = std::thread([this] { WatchKind(); });
  info_.phases = timer.phases();
  info_.traits = CudaTraits(architecture_, compute_threads_, graph_blocks_);
  info_.layout_hash = LayoutHash();
  info_.generation = number_;
  info_.workers = blocks_;
  info_.threads_per_block = compute_threads_;
  return info_;
}

absl::Status CudaEngine::OpenDevice() {
  int count = 0;
  RETURN_IF_CUDA_ERROR(cuDeviceGetCount, &count);
  if (ordinal_ < 0 || ordinal_ >= count) {
    return absl::UnavailableError(absl::StrCat("there is no GPU ", ordinal_,
                                               ": the driver reports ", count,
                                               ". Fix: choose another in --devices"));
  }
  RETURN_IF_CUDA_ERROR(cuDeviceGet, &device_, ordinal_);
  RETURN_IF_CUDA_ERROR(cuDevicePrimaryCtxRetain, &context_, device_);
  RETURN_IF_CUDA_ERROR(cuCtxSetCurrent, context_);
  // It can be set only while no kernel runs.
  RETURN_IF_CUDA_ERROR(cuCtxSetLimit, CU_LIMIT_STACK_SIZE, kThreadStackBytes);
  char name[256] = {};
  RETURN_IF_CUDA_ERROR(cuDeviceGetName, name, sizeof(name), device_);
  CUuuid uuid{};
  RETURN_IF_CUDA_ERROR(cuDeviceGetUuid, &uuid, device_);
  int driver_version = 0;
  RETURN_IF_CUDA_ERROR(cuDriverGetVersion, &driver_version);
  info_.name = name;
  info_.uuid = UuidText(uuid);
  info_.detail =
      absl::StrCat("driver for CUDA ", driver_version / 1000, ".", driver_version % 1000 / 10);
  return absl::OkStatus();
}

absl::StatusOr<int> CudaEngine::Attribute(CUdevice_attribute attribute) const {
  int value = 0;
  RETURN_IF_CUDA_ERROR(cuDeviceGetAttribute, &value, attribute, device_);
  return value;
}

absl::Status CudaEngine::LoadKernel() {
  const auto major = Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
  const auto minor = Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
  RETURN_IF_ERROR(major.status());
  RETURN_IF_ERROR(minor.status());
  architecture_ = static_cast<uint32_t>(UnitArchitecture(*major, *minor));
  const bool from_ptx = std::getenv("RESIDENT_LINK_FROM_PTX") != nullptr;
  const auto image = FirstGenerationImage(*major, *minor, from_ptx);
  RETURN_IF_ERROR(image.status());
  const auto functions = ReadCubin(*image);
  RETURN_IF_ERROR(functions.status());
  const auto add = [&](const BuiltinOperator& op) {
    const auto found = functions->find(op.symbol);
    if (found == functions->end()) return;
    builtin_.push_back(ToOperatorResources(*FindBuiltinSlot(op.name), found->second));
  };
  for (const BuiltinOperator& op : kBuiltinOperators) add(op);
  for (const BuiltinOperator& op : kTestOperators) add(op);
  CUmodule module = nullptr;
  RETURN_IF_CUDA_ERROR(cuModuleLoadData, &module, image->data());
  RETURN_IF_CUDA_ERROR(cuModuleGetFunction, &kernel_, module, kResidentKernelName);
  RETURN_IF_CUDA_ERROR(cuModuleGetFunction, &graph_kernel_.function, module, kGraphKernelName);
  RETURN_IF_CUDA_ERROR(cuModuleGetFunction, &stream_kernel_.function, module,
                       kGraphStreamKernelName);
  int registers = 0;
  RETURN_IF_CUDA_ERROR(cuFuncGetAttribute, &registers, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel_);
  registers_ = AllocatedRegisters(static_cast<uint32_t>(registers));
  size_t table_bytes = 0;
  RETURN_IF_CUDA_ERROR(cuModuleGetGlobal, &table_, &table_bytes, module, kJumpTableName);
  if (table_bytes != kMaxOperatorSlots * sizeof(uint64_t)) {
    return absl::InternalError(
        absl::StrCat("the kernel's jump table has ", table_bytes, " bytes. Fix: build it again"));
  }
  size_t limits_bytes = 0;
  RETURN_IF_CUDA_ERROR(cuModuleGetGlobal, &limits_, &limits_bytes, module, kTaskLimitsName);
  if (limits_bytes != kMaxOperatorSlots * sizeof(u32)) {
    return absl::InternalError(
        absl::StrCat("the kernel's limits have ", limits_bytes, " bytes. Fix: build it again"));
  }
  builtin_table_.resize(kMaxOperatorSlots);
  RETURN_IF_CUDA_ERROR(cuMemcpyDtoH, builtin_table_.data(), table_, table_bytes);
  return absl::OkStatus();
}

absl::StatusOr<CudaEngine::Preloaded> CudaEngine::Inspect(const Generation& generation) const {
  RETURN_IF_ERROR(CheckGeneration(generation));
  Preloaded preloaded{generation, builtin_};
  // An object that several operators share is read once.
  std::map<const std::string*, std::map<std::string, FunctionResources>> read;
  for (GenerationOperator& added : preloaded.generation.operators) {
    const auto bad = [&](absl::string_view why, absl::string_view fix) {
      return absl::InvalidArgumentError(absl::StrCat("generation ", generation.number, ": ",
                                                     added.symbol, " of slot ", added.slot, " ",
                                                     why, ". Fix: ", fix));
    };
    if (added.object == nullptr) return bad("has no module", "link its unit");
    auto& functions = read[added.object.get()];
    if (functions.empty()) {
      auto found = ReadCubin(*added.object);
      if (!found.ok()) return bad(found.status().message(), "link its unit again");
      functions = *std::move(found);
    }
    const auto function = functions.find(added.symbol);
    if (function == functions.end()) {
      return bad("is not defined by its module", "link the unit that defines it");
    }
    // The kernel is launched with registers_ registers; with more, its blocks would not fit.
    for (const auto& [name, used] : functions) {
      if (used.registers <= registers_) continue;
      return bad(absl::StrCat("needs ", used.registers, " registers a thread in ", name,
                              "; the kernel has ", registers_),
                 "compile it for at most as many");
    }
    preloaded.resources.push_back(ToOperatorResources(added.slot, function->second));
    for (const auto& [object, module] : modules_) {
      if (*object == *added.object) added.object = module.object;
    }
  }
  return preloaded;
}

absl::StatusOr<uint64_t> CudaEngine::ReadEntry(Module* module, const std::string& symbol) {
  const auto known = module->entries.find(symbol);
  if (known != module->entries.end()) return known->second;
  CUdeviceptr address = 0;
  size_t bytes = 0;
  uint64_t entry = 0;
  RETURN_IF_CUDA_ERROR(cuModuleGetGlobal, &address, &bytes, module->module,
                       absl::StrCat(symbol, kEntrySuffix).c_str());
  if (bytes != sizeof(entry)) return absl::InternalError("the module's entry is not an address");
  RETURN_IF_CUDA_ERROR(cuMemcpyDtoH, &entry, address, bytes);
  module->entries.emplace(symbol, entry);
  return entry;
}

absl::Status CudaEngine::LoadModules(const Generation& generation, Modules* added) {
  for (const GenerationOperator& op : generation.operators) {
    const std::string* const object = op.object.get();
    if (modules_.contains(object) || added->contains(object)) continue;
    CUmodule module = nullptr;
    RETURN_IF_CUDA_ERROR(cuModuleLoadData, &module, object->data());
    added->emplace(object, Module{op.object, module, {}});
  }
  return absl::OkStatus();
}

absl::Status CudaEngine::WriteTable(const Generation& generation, Modules* added) {
  std::vector<uint64_t> table = builtin_table_;
  std::vector<u32> limits(kMaxOperatorSlots, ToLimit(options_.task_time_limit));
  if (options_.test_operators) limits[*FindBuiltinSlot(kStoppableTestOperator)] |= kCanBeStopped;
  for (const GenerationOperator& op : generation.operators) {
    if (op.time_limit.count() != 0) limits[op.slot] = ToLimit(op.time_limit);
    if (op.stoppable) limits[op.slot] |= kCanBeStopped;
    const auto present = modules_.find(op.object.get());
    Module& module = present != modules_.end() ? present->second : added->at(op.object.get());
    const auto entry = ReadEntry(&module, op.symbol);
    RETURN_IF_ERROR(entry.status());
    table[op.slot] = *entry;
  }
  // On the kernel's stream, so that the next launch runs after it. The table has been read when
  // the call returns.
  RETURN_IF_CUDA_ERROR(cuMemcpyHtoDAsync, table_, table.data(), table.size() * sizeof(uint64_t),
                       stream_);
  RETURN_IF_CUDA_ERROR(cuMemcpyHtoDAsync, limits_, limits.data(), limits.size() * sizeof(u32),
                       stream_);
  return absl::OkStatus();
}

absl::Status CudaEngine::Unload(const Modules& modules) {
  for (const auto& [object, loaded] : modules) {
    RETURN_IF_CUDA_ERROR(cuModuleUnload, loaded.module);
  }
  return absl::OkStatus();
}

absl::Status CudaEngine::Load(const Preloaded& preloaded) {
  const Generation& next = preloaded.generation;
  Modules added;
  absl::Status status = LoadModules(next, &added);
  if (status.ok()) status = WriteTable(next, &added);
  if (!status.ok()) {
    RETURN_IF_ERROR(Unload(added));
    return absl::InvalidArgumentError(absl::StrCat("generation ", next.number,
                                                   " cannot be loaded: ", status.message(),
                                                   ". Fix: compile its operators for this GPU"));
  }
  modules_.merge(added);
  Modules unused;
  for (auto at = modules_.begin(); at != modules_.end();) {
    const bool used =
        std::any_of(next.operators.begin(), next.operators.end(),
                    [&](const GenerationOperator& op) { return op.object.get() == at->first; });
    const auto here = at++;
    if (!used) unused.insert(modules_.extract(here));
  }
  number_ = next.number;
  // It is the current generation now. If the context has an error, the launch reports it.
  Unload(unused).IgnoreError();
  return absl::OkStatus();
}

absl::StatusOr<SmResources> CudaEngine::ReadSmResources() const {
  SmResources sm;
  for (const auto& [attribute, to] :
       {std::pair{CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, &sm.threads},
        std::pair{CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR, &sm.registers},
        std::pair{CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR, &sm.shared_bytes},
        std::pair{CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR, &sm.blocks}}) {
    const auto value = Attribute(attribute);
    RETURN_IF_ERROR(value.status());
    *to = static_cast<uint32_t>(*value);
  }
  return sm;
}

absl::StatusOr<BlockFootprint> CudaEngine::ReadFootprint(CUfunction kernel) const {
  int registers = 0, shared = 0;
  RETURN_IF_CUDA_ERROR(cuFuncGetAttribute, &registers, CU_FUNC_ATTRIBUTE_NUM_REGS, kernel);
  RETURN_IF_CUDA_ERROR(cuFuncGetAttribute, &shared, CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES, kernel);
  return BlockFootprint{compute_threads_ + kControlThreads, static_cast<uint32_t>(registers),
                        static_cast<uint32_t>(shared)};
}

absl::Status CudaEngine::ChooseLaunch() {
  const auto threads = ComputeThreads(options_.threads_per_block);
  RETURN_IF_ERROR(threads.status());
  compute_threads_ = *threads;
  ASSIGN_OR_RETURN(const BlockFootprint block, ReadFootprint(kernel_));
  ASSIGN_OR_RETURN(const BlockFootprint graph_block, ReadFootprint(graph_kernel_.function));
  ASSIGN_OR_RETURN(BlockFootprint stream_block, ReadFootprint(stream_kernel_.function));
  stream_block.threads += kLoaderThreads;
  stream_block.shared_bytes += kRingBytes;
  int fit = 0;
  RETURN_IF_CUDA_ERROR(cuOccupancyMaxActiveBlocksPerMultiprocessor, &fit, kernel_,
                       static_cast<int>(block.threads), 0);
  const auto sm = ReadSmResources();
  RETURN_IF_ERROR(sm.status());
  const auto sms = Attribute(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
  RETURN_IF_ERROR(sms.status());
  const auto per_sm = BlocksPerSm(options_.blocks_per_sm, static_cast<uint32_t>(fit), block, *sm);
  RETURN_IF_ERROR(per_sm.status());
  RETURN_IF_ERROR(CheckSmsFree(options_.sms_free, static_cast<uint32_t>(*sms)));
  shared_percent_ = SharedMemoryPercent(*per_sm, block, *sm);
  graph_kernel_.threads = graph_block.threads;
  graph_kernel_.shared_percent = SharedMemoryPercentBeside(graph_block, block, *per_sm, *sm);
  parameters_.kind_for_streams = LaunchKind::kGraphs;
  if (architecture_ >= kFirstWithBulkCopies && compute_threads_ == kMaxComputeThreads &&
      FitsBeside(stream_block, block, *per_sm, *sm)) {
    parameters_.kind_for_streams = LaunchKind::kGraphStreams;
    stream_kernel_.threads = stream_block.threads;
    stream_kernel_.ring_bytes = kRingBytes;
    stream_kernel_.shared_percent = SharedMemoryPercentBeside(stream_block, block, *per_sm, *sm);
    RETURN_IF_CUDA_ERROR(cuFuncSetAttribute, stream_kernel_.function,
                         CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                         static_cast<int>(kRingBytes));
  }
  const auto ours = CreateStreams(static_cast<uint32_t>(*sms));
  RETURN_IF_ERROR(ours.status());
  const auto blocks = CountBlocks(*ours, *per_sm, options_.max_blocks);
  RETURN_IF_ERROR(blocks.status());
  blocks_ = *blocks;
  graph_blocks_ = FitsBeside(graph_block, block, *per_sm, *sm) ? GraphBlocks(blocks_, *per_sm) : 0;
  info_.detail = absl::StrCat(info_.detail, "; ", blocks_, " blocks of ", compute_threads_, " + ",
                              kControlThreads, " threads, ", block.registers, " registers, ",
                              block.shared_bytes, " bytes of shared memory; for graphs ",
                              graph_blocks_, " of them, ", graph_block.registers, " registers, ",
                              graph_block.shared_bytes, " bytes");
  return absl::OkStatus();
}

absl::StatusOr<uint32_t> CudaEngine::CreateStreams(uint32_t sms) {
  if (options_.sms_free == 0) {
    for (CUstream* const stream : {&stream_, &graph_stream_}) {
      RETURN_IF_CUDA_ERROR(cuStreamCreate, stream, CU_STREAM_NON_BLOCKING);
    }
    return sms;
  }
  // A green context restricts the kernels to a part of the SMs.
  CUdevResource all{}, ours{}, rest{};
  RETURN_IF_CUDA_ERROR(cuDeviceGetDevResource, device_, &all, CU_DEV_RESOURCE_TYPE_SM);
  // The driver rounds up to what the GPU can split; ask for fewer until enough are free.
  for (uint32_t wanted = sms - options_.sms_free;; --wanted) {
    unsigned groups = 1;
    RETURN_IF_CUDA_ERROR(cuDevSmResourceSplitByCount, &ours, &groups, &all, &rest, 0, wanted);
    if (groups == 1 && ours.sm.smCount <= sms - options_.sms_free) break;
    if (wanted == 1) {
      return absl::InvalidArgumentError(
          absl::StrCat("--sms_free=", options_.sms_free, " of ", sms,
                       " SMs: this GPU cannot hold the kernel on fewer than ", ours.sm.smCount,
                       ". Fix: leave at most ", sms - ours.sm.smCount, " free"));
    }
  }
  CUdevResourceDesc description{};
  CUgreenCtx green = nullptr;
  RETURN_IF_CUDA_ERROR(cuDevResourceGenerateDesc, &description, &ours, 1);
  RETURN_IF_CUDA_ERROR(cuGreenCtxCreate, &green, description, device_, CU_GREEN_CTX_DEFAULT_STREAM);
  for (CUstream* const stream : {&stream_, &graph_stream_}) {
    RETURN_IF_CUDA_ERROR(cuGreenCtxStreamCreate, stream, green, CU_STREAM_NON_BLOCKING, 0);
  }
  return ours.sm.smCount;
}

absl::StatusOr<CUdeviceptr> CudaEngine::Allocate(uint64_t bytes) {
  const auto until = std::chrono::steady_clock::now() + options_.memory_wait;
  while (true) {
    CUdeviceptr address = 0;
    const CUresult result = driver_.cuMemAlloc(&address, bytes);
    if (result == CUDA_SUCCESS) return address;
    if (result != CUDA_ERROR_OUT_OF_MEMORY || std::chrono::steady_clock::now() >= until) {
      return driver_.Check(result, "cuMemAlloc");
    }
    std::this_thread::sleep_for(kMemoryLook);
  }
}

absl::StatusOr<uint64_t> CudaEngine::AllocateZeroed(uint64_t bytes, const char* what) {
  const auto allocated = Allocate(bytes);
  if (!allocated.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat("no memory for ", what, " (", bytes,
                                                     " bytes): ", allocated.status().message()));
  }
  const CUdeviceptr address = *allocated;
  // On the kernel's stream: work on another stream is not ordered with a launch there.
  RETURN_IF_CUDA_ERROR(cuMemsetD8Async, address, 0, bytes, stream_);
  return address;
}

absl::Status CudaEngine::PinRegion(const SharedRegion& region) {
  const RegionLayout& layout = region.layout();
  RETURN_IF_CUDA_ERROR(cuMemHostRegister, region.base(), layout.total_bytes,
                       CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
  CUdeviceptr base = 0;
  RETURN_IF_CUDA_ERROR(cuMemHostGetDevicePointer, &base, region.base(), 0);
  info_.region_address = base;
  const auto at = [base](uint64_t offset) { return reinterpret_cast<void*>(base + offset); };
  parameters_.control = static_cast<ControlBlock*>(at(layout.control));
  parameters_.breadcrumbs = static_cast<Breadcrumb*>(at(layout.breadcrumbs));
  parameters_.submissions = static_cast<RingSlot*>(at(layout.submissions));
  parameters_.completions = static_cast<RingSlot*>(at(layout.completions));
  parameters_.argument_blocks = static_cast<ArgumentBlock*>(at(layout.argument_blocks));
  parameters_.host_stop_words = static_cast<u64*>(at(layout.stop_words));
  parameters_.slot_mask = layout.slots - 1;
  return absl::OkStatus();
}

absl::Status CudaEngine::AllocateState() {
  const RegionLayout& layout = region_->layout();
  const auto state = AllocateZeroed(sizeof(KernelState), "the kernel's state");
  const auto ring = AllocateZeroed(kDeviceRingSlots * sizeof(RingSlot), "the device ring");
  const auto wide = AllocateZeroed(layout.slots * sizeof(WideProgress), "wide tasks");
  const auto wide_arguments =
      AllocateZeroed(layout.slots * sizeof(ArgumentBlock), "arguments of wide tasks");
  const auto task_memories =
      AllocateZeroed(layout.slots * sizeof(TaskMemory), "what the chunks of wide tasks share");
  const auto scratch = AllocateZeroed(blocks_ * kScratchBytes, "the blocks' scratch memory");
  const auto mailboxes = AllocateZeroed(sizeof(Mailboxes), "mailboxes of graph workers");
  const auto stop_words = AllocateZeroed(layout.slots * sizeof(u64), "stops of tasks");
  for (const auto* allocated :
       {&state, &ring, &wide, &wide_arguments, &task_memories, &scratch, &mailboxes, &stop_words})
    RETURN_IF_ERROR(allocated->status());
  parameters_.state = reinterpret_cast<KernelState*>(*state);
  parameters_.device_ring = reinterpret_cast<RingSlot*>(*ring);
  parameters_.wide = reinterpret_cast<WideProgress*>(*wide);
  parameters_.wide_arguments = reinterpret_cast<ArgumentBlock*>(*wide_arguments);
  parameters_.task_memories = reinterpret_cast<TaskMemory*>(*task_memories);
  parameters_.scratch = reinterpret_cast<unsigned char*>(*scratch);
  parameters_.mailboxes = reinterpret_cast<Mailboxes*>(*mailboxes);
  parameters_.stop_words = reinterpret_cast<u64*>(*stop_words);
  parameters_.workers = blocks_;
  void* report = nullptr;
  RETURN_IF_CUDA_ERROR(cuMemHostAlloc, &report, sizeof(LeaveReport), CU_MEMHOSTALLOC_DEVICEMAP);
  CUdeviceptr report_address = 0;
  RETURN_IF_CUDA_ERROR(cuMemHostGetDevicePointer, &report_address, report, 0);
  report_ = new (report) LeaveReport{};
  parameters_.report = reinterpret_cast<LeaveReport*>(report_address);
  return absl::OkStatus();
}

absl::Status CudaEngine::AllocateBuffers() {
  size_t free = 0, total = 0;
  RETURN_IF_CUDA_ERROR(cuMemGetInfo, &free, &total);
  const uint64_t bytes =
      options_.memory_bytes != 0 ? options_.memory_bytes : free / kDefaultMemoryDivisor;
  const auto memory = Allocate(bytes);
  if (!memory.ok()) {
    return absl::ResourceExhaustedError(absl::StrCat(
        "cannot allocate ", bytes, " bytes of the ", free, " that are free on GPU ", ordinal_,
        " for buffers (", memory.status().message(), "). Fix: lower --device_memory_mib"));
  }
  info_.memory_address = *memory;
  info_.memory_bytes = bytes;
  return absl::OkStatus();
}

absl::Status CudaEngine::Launch() {
  // The report is that of the launch before.
  if (report_->reason == LeaveReason::kOtherKind) {
    kind_ = report_->kind;
  } else if (report_->mail_idle_ns > kIdleAtParkNs) {
    kind_ = LaunchKind::kTasks;
  }
  *report_ = LeaveReport{};
  const GraphKernel* const graph_kernel = kind_ == LaunchKind::kTasks    ? nullptr
                                          : kind_ == LaunchKind::kGraphs ? &graph_kernel_
                                                                         : &stream_kernel_;
  parameters_.first_sequence = region_->control()->resume_sequence;
  parameters_.kind = kind_;
  parameters_.graph_workers = graph_kernel != nullptr ? graph_blocks_ : 0;
  parameters_.resident_blocks = blocks_ - parameters_.graph_workers;
  // Both have the same share: an SM cannot change it while a block of the other one is there.
  const auto set_share = [&](CUfunction kernel) {
    return driver_.Check(driver_.cuFuncSetAttribute(
                             kernel, CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT,
                             static_cast<int>(graph_kernel != nullptr ? graph_kernel->shared_percent
                                                                      : shared_percent_)),
                         "cuFuncSetAttribute");
  };
  RETURN_IF_ERROR(set_share(kernel_));
  if (graph_kernel != nullptr) {
    RETURN_IF_ERROR(set_share(graph_kernel->function));
    RETURN_IF_ERROR(LaunchGraphKernel(*graph_kernel));
  }
  void* arguments[] = {&parameters_};
  RETURN_IF_CUDA_ERROR(cuLaunchKernel, kernel_, parameters_.resident_blocks, 1, 1,
                       compute_threads_ + kControlThreads, 1, 1, 0, stream_, arguments, nullptr);
  resident_ = true;
  return absl::OkStatus();
}

absl::Status CudaEngine::LaunchGraphKernel(const GraphKernel& kernel) {
  if (graph_blocks_ == 0) {
    return absl::InternalError("a graph was submitted to an engine that executes none");
  }
  RETURN_IF_CUDA_ERROR(cuMemsetD8Async, reinterpret_cast<CUdeviceptr>(parameters_.mailboxes), 0,
                       sizeof(Mailboxes), stream_);
  // The mailboxes and the jump table are written on the resident kernel's stream, and with the
  // graph kernel's nothing there is ordered: it is launched when they are.
  CUresult written = CUDA_ERROR_NOT_READY;
  while (written == CUDA_ERROR_NOT_READY) written = driver_.cuStreamQuery(stream_);
  RETURN_IF_ERROR(driver_.Check(written, "the data of a launch"));
  void* arguments[] = {&parameters_};
  RETURN_IF_CUDA_ERROR(cuLaunchKernel, kernel.function, graph_blocks_, 1, 1, kernel.threads, 1, 1,
                       kernel.ring_bytes, graph_stream_, arguments, nullptr);
  return absl::OkStatus();
}

CUresult CudaEngine::QueryStreams() const {
  const CUresult result = driver_.cuStreamQuery(stream_);
  return result == CUDA_SUCCESS ? driver_.cuStreamQuery(graph_stream_) : result;
}

absl::StatusOr<bool> CudaEngine::LaunchOtherKind() {
  absl::MutexLock lock(&mappings_mu_);
  if (!resident_) return true;
  // Another thread may have launched them meanwhile.
  const CUresult result = QueryStreams();
  if (result == CUDA_ERROR_NOT_READY) return false;
  RETURN_IF_ERROR(driver_.Check(result, "the resident kernel"));
  switch (report_->reason) {
    case LeaveReason::kPark:
      return true;
    case LeaveReason::kOtherKind:
      RETURN_IF_ERROR(Launch());
      return false;
    case LeaveReason::kNone:
      break;
  }
  return absl::InternalError("the resident kernel has ended without a reason. Fix: report this");
}

void CudaEngine::WatchKind() {
  using Clock = std::chrono::steady_clock;
  if (driver_.cuCtxSetCurrent(context_) != CUDA_SUCCESS) return;  // Health reports it.
  u32* const bell = &region_->control()->doorbell;
  u32 rung = std::atomic_ref<u32>(*bell).load();
  Clock::time_point rung_at = Clock::now() - kKindLookFor;
  while (ends_.load() == 0) {
    const auto reason =
        std::atomic_ref<LeaveReason>(report_->reason).load(std::memory_order_acquire);
    // An error of a kernel is permanent, so that Health finds it.
    if (reason == LeaveReason::kOtherKind && QueryStreams() == CUDA_SUCCESS) {
      const absl::Status launched = LaunchOtherKind().status();
      absl::MutexLock lock(&mappings_mu_);
      if (!launched.ok()) launch_error_ = launched;
    }
    const u32 rung_before = std::exchange(rung, std::atomic_ref<u32>(*bell).load());
    if (rung != rung_before) rung_at = Clock::now();
    const auto quiet = Clock::now() - rung_at;
    const bool alone = LaunchedKind() == LaunchKind::kTasks;
    if (quiet < kKindLookFor) {
      std::this_thread::sleep_for(alone ? Clock::duration(kKindLook) : Clock::duration(kFormLook));
    } else if (!alone && quiet > kGraphsIdleLook) {
      std::this_thread::sleep_for(kKindLook);
    } else {
      FutexWait(bell, rung, kKindWait);
    }
  }
}

absl::Status CudaEngine::AwaitStreams(std::chrono::nanoseconds timeout,
                                      std::chrono::nanoseconds spin,
                                      const std::function<bool()>& withdrawn,
                                      const std::function<bool()>& hurry) {
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    const CUresult result = QueryStreams();
    if (result == CUDA_SUCCESS) {
      ASSIGN_OR_RETURN(const bool parked, LaunchOtherKind());
      if (parked) return absl::OkStatus();
    } else if (result != CUDA_ERROR_NOT_READY) {
      return driver_.Check(result, "the resident kernel");
    }
    if (withdrawn && withdrawn()) return absl::CancelledError("the change was withdrawn");
    const auto waited = std::chrono::steady_clock::now() - start;
    if (waited > timeout) {
      return absl::DeadlineExceededError(
          "the kernel has not returned: a task before the park marker still runs");
    }
    if (hurry && hurry()) continue;
    if (waited < spin) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kParkPollInterval);
    }
  }
}

void CudaEngine::NoteParked() {
  absl::MutexLock lock(&mappings_mu_);
  resident_ = false;
}

LaunchKind CudaEngine::LaunchedKind() {
  absl::MutexLock lock(&mappings_mu_);
  return kind_;
}

absl::Status CudaEngine::AwaitPark(std::chrono::nanoseconds timeout) {
  RETURN_IF_CUDA_ERROR(cuCtxSetCurrent, context_);
  RETURN_IF_ERROR(AwaitStreams(timeout, kParkSpin, nullptr, nullptr));
  absl::MutexLock lock(&mappings_mu_);
  resident_ = false;
  return UnmapDeferred();
}

absl::Status CudaEngine::Resume() {
  RETURN_IF_CUDA_ERROR(cuCtxSetCurrent, context_);
  absl::MutexLock lock(&mappings_mu_);
  if (resident_) return absl::FailedPreconditionError("the engine is not parked");
  return Launch();
}

absl::StatusOr<std::vector<OperatorResources>> CudaEngine::Preload(
    std::shared_ptr<const Generation> generation) {
  auto preloaded = Inspect(*generation);
  RETURN_IF_ERROR(preloaded.status());
  std::vector<OperatorResources> resources = preloaded->resources;
  absl::MutexLock lock(&preloaded_mu_);
  preloaded_ = *std::move(preloaded);
  return resources;
}

absl::StatusOr<SwitchTimes> CudaEngine::Switch(uint64_t change, bool launch,
                                               std::chrono::nanoseconds timeout) {
  using Clock = std::chrono::steady_clock;
  RETURN_IF_CUDA_ERROR(cuCtxSetCurrent, context_);
  bool resident = false;
  {
    absl::MutexLock lock(&mappings_mu_);
    resident = resident_;
  }
  {
    absl::MutexLock lock(&preloaded_mu_);
    if (!preloaded_) return absl::FailedPreconditionError("no generation is preloaded");
  }
  SwitchSignals signals(region_->control());
  SwitchTimes times;
  auto held = Clock::now();
  if (resident) {
    signals.Arm(change);
    const auto withdrawn = [&] { return signals.withdrawn(change); };
    bool was_held = false;
    const auto is_held = [&] {
      const bool now_held = signals.held(change);
      if (now_held && !was_held) held = Clock::now();
      return was_held = now_held;
    };
    RETURN_IF_ERROR(AwaitStreams(timeout, kSwitchSpin, withdrawn, is_held));
    NoteParked();
  }
  const auto parked = Clock::now();
  times.park = parked - held;
  std::optional<Preloaded> next;
  {
    absl::MutexLock lock(&preloaded_mu_);
    next = std::exchange(preloaded_, std::nullopt);
  }
  // Deferred unmaps wait for the next AwaitPark, because they may be large and would lengthen the
  // pause.
  const absl::Status loading = Load(*std::move(next));
  const auto loaded = Clock::now();
  times.load = loaded - parked;
  // If the launch fails, the device is lost, and the end is not signalled.
  if (resident || launch) {
    absl::MutexLock lock(&mappings_mu_);
    RETURN_IF_ERROR(Launch());
  }
  times.launch = Clock::now() - loaded;
  signals.End(change, number_);
  RETURN_IF_ERROR(loading);
  return times;
}

absl::StatusOr<uint64_t> CudaEngine::MapShared(int fd, uint64_t bytes) {
  RETURN_IF_CUDA_ERROR(cuCtxSetCurrent, context_);
  void* host = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (host == MAP_FAILED) {
    return absl::InvalidArgumentError(
        absl::StrCat("cannot map ", bytes, " bytes of the shared object: ", std::strerror(errno)));
  }
  CUdeviceptr address = 0;
  absl::Status status =
      driver_.Check(driver_.cuMemHostRegister(
                        host, bytes, CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP),
                    "cuMemHostRegister");
  if (status.ok()) {
    status = driver_.Check(driver_.cuMemHostGetDevicePointer(&address, host, 0),
                           "cuMemHostGetDevicePointer");
  }
  if (!status.ok()) {
    munmap(host, bytes);
    return status;
  }
  absl::MutexLock lock(&mappings_mu_);
  mappings_[address] = {.host = host, .bytes = bytes};
  return address;
}

absl::StatusOr<CUdeviceptr> CudaEngine::OpenHandle(const std::string& handle) {
  CUipcMemHandle opened{};
  static_assert(sizeof(opened) == kDeviceHandleBytes);
  if (handle.size() != sizeof(opened)) {
    return absl::InvalidArgumentError(absl::StrCat("a handle of device memory has ", sizeof(opened),
                                                   " bytes, and this one has ", handle.size()));
  }
  std::memcpy(&opened, handle.data(), sizeof(opened));
  {
    absl::MutexLock lock(&mappings_mu_);
    uint64_t unused = 0;
    for (auto& [address, mapping] : mappings_) {
      if (mapping.host != nullptr) continue;
      if (mapping.uses == 0) ++unused;
      if (mapping.handle != handle) continue;
      // A mapping without uses, which would have been closed at the next park, is used again.
      ++mapping.uses;
      return address;
    }
    if (unused >= kMaxUnusedImports) {
      return absl::ResourceExhaustedError(absl::StrCat(
          unused,
          " handles of device memory are no longer used, and are closed at the next park. Fix: "
          "park and resume the device, or register memory once and use it for several requests"));
    }
  }
  CUdeviceptr address = 0;
  const CUresult result =
      driver_.cuIpcOpenMemHandle(&address, opened, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
  if (result == CUDA_ERROR_ALREADY_MAPPED) {
    return absl::FailedPreconditionError(
        "memory that was registered before and had this address in its process is still open, "
        "until the kernel is parked. Fix: unregister its region, if that was not done, and try "
        "again "
        "after the next park (the device is parked when it is idle, or by Admin.Park); better, "
        "register memory once and use it for several requests");
  }
  const absl::Status status = driver_.Check(result, "cuIpcOpenMemHandle");
  if (absl::IsResourceExhausted(status)) return status;
  if (!status.ok()) {
    // After a fault each call of the driver fails, whatever the handle is.
    RETURN_IF_ERROR(Health());
    return absl::InvalidArgumentError(absl::StrCat(
        "the handle of device memory cannot be opened: ", status.message(),
        ". Fix: send the handle that cudaIpcGetMemHandle or cuIpcGetMemHandle returned "
        "for memory of cudaMalloc or cuMemAlloc, in a process of this machine that has "
        "not freed the memory and has not ended"));
  }
  absl::MutexLock lock(&mappings_mu_);
  Mapping& mapping =
      mappings_.try_emplace(address, Mapping{.handle = handle, .uses = 0}).first->second;
  // The driver returns the same address for another handle of the same memory.
  ++mapping.opens;
  ++mapping.uses;
  return address;
}

absl::Status CudaEngine::CheckImport(CUdeviceptr address, uint64_t bytes) const {
  if (address % kDeviceAlignment != 0) {
    return absl::InvalidArgumentError(absl::StrCat(
        "the handle is of memory that does not begin at a multiple of ", kDeviceAlignment,
        " bytes. Fix: send the handle as cudaIpcGetMemHandle or cuIpcGetMemHandle returned it"));
  }
  CUdeviceptr base = 0;
  size_t size = 0;
  RETURN_IF_CUDA_ERROR(cuMemGetAddressRange, &base, &size, address);
  const uint64_t available = base + size - address;
  if (bytes > available) {
    return absl::InvalidArgumentError(
        absl::StrCat(bytes, " bytes of device memory of ", available,
                     " bytes were requested. Fix: use a size from 1 to that of the allocation"));
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> CudaEngine::MapSharedDevice(const std::string& handle, uint64_t bytes) {
  RETURN_IF_CUDA_ERROR(cuCtxSetCurrent, context_);
  ASSIGN_OR_RETURN(const CUdeviceptr address, OpenHandle(handle));
  const absl::Status status = CheckImport(address, bytes);
  if (status.ok()) return address;
  UnmapShared(address).IgnoreError();
  return status;
}

absl::StatusOr<uint64_t> CudaEngine::MapDeviceDescriptor(int fd, uint64_t allocation_bytes) {
  RETURN_IF_CUDA_ERROR(cuCtxSetCurrent, context_);
  absl::StatusOr<uint64_t> address = imported_.Map(ordinal_, fd, allocation_bytes);
  // After a fault each call of the driver fails, whatever the descriptor is.
  if (!address.ok()) RETURN_IF_ERROR(Health());
  return address;
}

absl::Status CudaEngine::UnmapShared(uint64_t address) {
  RETURN_IF_CUDA_ERROR(cuCtxSetCurrent, context_);
  if (imported_.Unmap(address)) return absl::OkStatus();
  absl::MutexLock lock(&mappings_mu_);
  const auto found = mappings_.find(address);
  if (found == mappings_.end() || found->second.uses == 0) {
    return absl::NotFoundError("no shared memory is mapped there");
  }
  --found->second.uses;
  if (resident_) return absl::OkStatus();
  return UnmapDeferred();
}

absl::Status CudaEngine::UnmapDeferred() {
  for (auto it = mappings_.begin(); it != mappings_.end();) {
    if (it->second.uses > 0) {
      ++it;
      continue;
    }
    const uint64_t address = it->first;
    const Mapping mapping = std::move(it->second);
    it = mappings_.erase(it);
    if (mapping.host != nullptr) {
      RETURN_IF_CUDA_ERROR(cuMemHostUnregister, mapping.host);
      munmap(mapping.host, mapping.bytes);
    }
    // An error is ignored: the memory stays imported until the engine ends. Its process may have
    // ended, which must not end the engine.
    for (uint64_t i = 0; i < mapping.opens; ++i) driver_.cuIpcCloseMemHandle(address);
  }
  return absl::OkStatus();
}

absl::Status CudaEngine::Health() {
  RETURN_IF_CUDA_ERROR(cuCtxSetCurrent, context_);
  const CUresult result = QueryStreams();
  if (result != CUDA_SUCCESS && result != CUDA_ERROR_NOT_READY) {
    return driver_.Check(result, "an operator faulted");
  }
  absl::MutexLock lock(&mappings_mu_);
  return launch_error_;
}

absl::StatusOr<std::unique_ptr<Engine>> CreateCudaEngine(int ordinal) {
  ASSIGN_OR_RETURN(const auto driver, Driver::Get());
  return std::unique_ptr<Engine>(std::make_unique<CudaEngine>(ordinal, *driver));
}

void OpenCudaDriver() { (void)Driver::Get(); }

absl::StatusOr<std::vector<std::string>> ListCudaDevices() {
  ASSIGN_OR_RETURN(const auto found, Driver::Get());
  const Driver& driver = *found;
  int count = 0;
  RETURN_IF_ERROR(driver.Check(driver.cuDeviceGetCount(&count), "cuDeviceGetCount"));
  std::vector<std::string> names;
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    CUdevice device = 0;
    char name[256] = {};
    driver.cuDeviceGet(&device, ordinal);
    driver.cuDeviceGetName(name, sizeof(name), device);
    names.emplace_back(name);
  }
  if (names.empty())
    return absl::UnavailableError("the NVIDIA driver finds no GPU. Fix: use --devices=cpu");
  return names;
}

}  // namespace resident
