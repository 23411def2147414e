// Engine: runs the resident kernel, in the engine process.
//
// There are two implementations: CudaEngine (a kernel on a GPU) and CpuEngine (the same kernel
// sources on worker threads). Other code uses only this interface, EngineTraits, which the engine
// fills in, and EngineType (engine_type.h), which is available before an engine runs. No other code
// checks which engine it is.
//
//   created ──Prepare──▶ prepared ──Start──▶ resident ──AwaitPark──▶ parked ──Resume──▶ resident
//                                               │  ▲                  ▲  │
//                                               └──┘                  └──┘
//                                         Preload, then Switch    Preload, then Switch
//                                                                 (launch: ─▶ resident)
//
// Prepare does the slow steps that are the same for every use of the device. A prepared engine does
// no work on the device and has no buffer memory; it can wait until it is started for any use.
//
// The front end parks a kernel through the ring (kTaskPark), after all earlier
// tasks. AwaitPark and Switch wait until the kernel has returned.
//
// A change of generation has two steps. Preload does everything that can be done while
// the kernel runs; Switch is the pause. Front end and engine signal its progress
// in shared memory (switch_signals.h), so that the latency of calls is not part of the pause.
//
// Thread safety: calls are made one at a time, with these exceptions:
// Preload may run during any call except Switch, MapShared, MapSharedDevice and MapDeviceDescriptor
// during any call (Preload not during another Preload, the other three not during each other);
// UnmapShared, Health() and health_interval() may be called from any thread at any time.
#ifndef RESIDENT_RUNTIME_ENGINE_ENGINE_H_
#define RESIDENT_RUNTIME_ENGINE_ENGINE_H_

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "runtime/engine/generation.h"
#include "runtime/ring/shared_region.h"

namespace resident {

struct EngineOptions {
  // Which of the devices that the engine's type lists (EngineType::list_devices); 0 if it lists
  // none.
  int ordinal = 0;
  // Bytes of memory for buffers; 0: the engine's default (DeviceLimits).
  uint64_t memory_bytes = 0;
  // GPU: how long to retry an allocation of memory that is not free: the system releases the memory
  // of an engine some time after its end.
  std::chrono::milliseconds memory_wait{0};
  // GPU: threads of a block that run operators, and blocks of the resident kernel on each SM;
  // 0: see launch_shape.h. CPU: ignored.
  uint32_t threads_per_block = 0;
  uint32_t blocks_per_sm = 0;
  // GPU: SMs that are left to other programs.
  uint32_t sms_free = 0;
  // CPU: worker threads, at most kMaxWorkers; 0: one for each processor, at most 16.
  uint32_t cpu_workers = 0;
  // Load the operators that cause faults (for tests).
  bool test_operators = false;
  // Maximum number of blocks (CPU: workers) of the kernel; 0: no limit. A GPU needs two.
  uint32_t max_blocks = 0;
  // Start() does not launch the kernel: the first Switch or Resume launches it.
  bool start_parked = false;
  // How long a task may run before it is stopped, where its operator has no limit of its own; 0:
  // any time.
  std::chrono::milliseconds task_time_limit{0};
  // The longest interval of the process's heartbeat.
  std::chrono::milliseconds beat_every{500};
  // The generation that Start() loads; null: only the built-in operators.
  std::shared_ptr<const Generation> generation;
};

// Duration of a step of the start of an engine, for logs and status.
struct EnginePhase {
  std::string name;
  std::chrono::nanoseconds took{0};
};

struct OperatorResources {
  uint32_t operator_slot;
  uint32_t registers;
  uint32_t stack_bytes;
  uint32_t shared_bytes;
  uint32_t code_bytes;
};

// Durations of the steps of a change of generation, in order.
struct SwitchTimes {
  std::chrono::nanoseconds park{0};    // From the hold until the kernel had returned.
  std::chrono::nanoseconds load{0};    // Loading the new generation.
  std::chrono::nanoseconds launch{0};  // The launch call.
};

// What other code has to know of an engine. The engine fills it in when it starts; it does not
// change afterwards. The speeds of FLUX are a safe fraction of what was measured: they size tasks,
// so that no task comes near the time limit.
struct EngineTraits {
  // EngineType::name: part of the status, and a label of metrics.
  std::string engine;
  // What operators are compiled for ("x86-64", "sm_90"): the name of a target of
  // runtime/compile/compile_job.h.
  std::string compile_target;
  // What EngineInfo::workers counts: "workers", "blocks".
  std::string work_units;

  // FLUX instructions that one work unit executes in a millisecond, all its runs together.
  uint64_t instructions_per_ms = 1;
  // FLUX instructions that a single run executes in a millisecond while all work units are busy.
  uint64_t run_instructions_per_ms = 1;
  // FLUX runs that execute in lockstep (the lanes of a warp). 1: each run is independent.
  uint32_t lockstep_runs = 1;
  // How many times slower runs in lockstep are if they execute different programs.
  uint32_t divergence_slowdown = 1;
  // The opposite of a safe fraction: more than a work unit can execute in a millisecond, whatever
  // the operator. What needs longer with these rates does certainly not end in time, and is refused
  // (server/workload/work_bound.h). Arithmetic operations, as operators' costs count them
  // (runtime/model/cost_rule.h), and elements of inputs that are read. 0: unknown.
  uint64_t max_operations_per_ms = 0;
  uint64_t max_elements_per_ms = 0;
  // Elements of views in which no two elements are adjacent in memory.
  uint64_t max_scattered_elements_per_ms = 0;
  // Whether all work units take part in a wide task. If not, a task must end in time with one.
  bool units_share_task = false;
  // Whether it executes graphs itself, as slots with kTaskGraph (kernels/graph/graph_task.h). If
  // not, the front end submits each node.
  bool executes_graphs = false;
  // Work units that form gangs for graphs (GraphImage::gang) and do nothing else meanwhile. 0: an
  // engine that executes graphs does so with all of them, beside other tasks.
  uint32_t graph_workers = 0;
  // Whether MapSharedDevice and MapDeviceDescriptor are implemented.
  bool maps_device_memory = false;
  // How long a task may be made at most: parking, a change of generation and the lone task of
  // another client wait for it.
  std::chrono::milliseconds max_task_time{1};

  bool operator==(const EngineTraits&) const = default;
};

struct EngineInfo {
  EngineTraits traits;
  std::string name;    // Of the device: "cpu", or the GPU's name.
  std::string detail;  // Driver and toolkit versions, as text.
  // As nvidia-smi prints it: "GPU-" and 32 hexadecimal digits in groups; empty: the device has
  // none.
  std::string uuid;
  uint64_t layout_hash = 0;
  uint64_t generation = 0;
  // Addresses of the shared region and of the buffer memory for operators.
  uint64_t region_address = 0;
  uint64_t memory_address = 0;
  uint64_t memory_bytes = 0;
  uint32_t workers = 0;  // Work units: blocks, or threads.
  // Threads of a work unit that run operators.
  uint32_t threads_per_block = 0;
  std::vector<OperatorResources> operators;
  // Steps of Start, in order.
  std::vector<EnginePhase> phases;
};

// Once so many handles of device memory are no longer used, and wait for a park to be closed, no
// further ones are opened: their memory is not free.
inline constexpr uint64_t kMaxUnusedImports = 64;
// Size of the handle of device memory of another process: that of cudaIpcMemHandle_t.
inline constexpr size_t kDeviceHandleBytes = 64;

// Exit status of an engine's process that ended itself because of a fault, which
// ControlBlock::exit_reason describes.
inline constexpr int kEngineFaultStatus = 3;

class Engine {
 public:
  virtual ~Engine() = default;

  // Opens the device, loads the kernel's image, and makes the region, which outlives the
  // engine, accessible to the device. Returns the durations of its steps. Errors: UNAVAILABLE (no
  // driver, no device; the message says why), RESOURCE_EXHAUSTED (memory).
  virtual absl::StatusOr<std::vector<EnginePhase>> Prepare(const SharedRegion& region) = 0;

  // Allocates memory for buffers, loads the first generation and starts the kernel at
  // sequence number control->resume_sequence. Errors: RESOURCE_EXHAUSTED (memory),
  // INVALID_ARGUMENT (the launch configuration does not fit; the message has the numbers).
  virtual absl::StatusOr<EngineInfo> Start(const EngineOptions& options) = 0;

  // Waits until the kernel has returned after a park marker. DEADLINE_EXCEEDED: it has
  // not returned within `timeout`.
  virtual absl::Status AwaitPark(std::chrono::nanoseconds timeout) = 0;

  // Starts the kernel again. FAILED_PRECONDITION: it is not parked.
  virtual absl::Status Resume() = 0;

  // Preloads a generation for the next Switch, while the kernel runs; replaces a generation
  // that was preloaded and not switched to. Returns what its operators need. May run during any
  // call except Switch. Errors: INVALID_ARGUMENT (an object cannot be loaded; the message says
  // which, and why).
  virtual absl::StatusOr<std::vector<OperatorResources>> Preload(
      std::shared_ptr<const Generation> generation) = 0;

  // Makes the preloaded generation the current one. With the kernel on the device, signals
  // the front end that the engine is ready, waits at most `timeout` for the kernel to return,
  // loads, and launches. While parked it loads, and launches if `launch`. `change` is
  // the number of this change in the region's signals.
  //
  // If loading fails, the previous generation stays the current one (it is launched again if it
  // was resident), and the error says what failed. Other errors: FAILED_PRECONDITION
  // (nothing is preloaded), CANCELLED (withdrawn by the front end), DEADLINE_EXCEEDED (the
  // kernel has not returned within `timeout`: it continues, and the preloaded generation stays).
  virtual absl::StatusOr<SwitchTimes> Switch(uint64_t change, bool launch,
                                             std::chrono::nanoseconds timeout) = 0;

  // Makes `bytes` of a shared-memory object accessible to operators and returns its address for
  // them. `fd` is used during the call only.
  virtual absl::StatusOr<uint64_t> MapShared(int fd, uint64_t bytes) = 0;
  // The same for device memory of another process: the first `bytes` bytes of the allocation that
  // the handle was made for. `handle` has kDeviceHandleBytes; the same one may be mapped several
  // times, and each mapping is ended by UnmapShared. Errors: UNIMPLEMENTED (see
  // EngineTraits::maps_device_memory), INVALID_ARGUMENT (the handle cannot be opened, or is of
  // fewer bytes), FAILED_PRECONDITION (memory that had the same address in its process waits to be
  // closed), RESOURCE_EXHAUSTED (also if kMaxUnusedImports are unused). Memory of another device
  // may be opened too, if the devices have access to each other's memory: the driver does not tell.
  virtual absl::StatusOr<uint64_t> MapSharedDevice(const std::string& handle, uint64_t bytes) = 0;
  // The same for device memory whose process exported a descriptor of it: an allocation of
  // `allocation_bytes`. `fd` is used during the call only. Errors: UNIMPLEMENTED (see
  // EngineTraits::maps_device_memory), INVALID_ARGUMENT (the descriptor is not one of device
  // memory, the memory is not on this device, or the allocation has another size),
  // RESOURCE_EXHAUSTED.
  virtual absl::StatusOr<uint64_t> MapDeviceDescriptor(int fd, uint64_t allocation_bytes) = 0;
  // May be deferred until the kernel is parked, except for memory of MapDeviceDescriptor.
  virtual absl::Status UnmapShared(uint64_t address) = 0;

  // Returns OK, or the fault that has made the device's context fail.
  virtual absl::Status Health() = 0;
  // The longest interval of calls of Health(), which delays the detection of a fault. max(): no
  // calls are needed. Each call wakes an idle process.
  virtual std::chrono::milliseconds health_interval() const = 0;
};

// Measures the durations of consecutive steps.
class PhaseTimer {
 public:
  // Ends the step that began with the previous call, or with the construction.
  void Mark(std::string name) {
    const auto now = std::chrono::steady_clock::now();
    phases_.push_back({std::move(name), now - std::exchange(since_, now)});
  }
  const std::vector<EnginePhase>& phases() const { return phases_; }

 private:
  std::chrono::steady_clock::time_point since_ = std::chrono::steady_clock::now();
  std::vector<EnginePhase> phases_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_ENGINE_H_
