// CudaEngine: the resident kernel on a GPU.
//
// While graphs are in use, the graph kernel is there beside it (*launch kind*, docs/ring.md): the
// first quantum of a graph makes the resident kernel leave, and both are launched; so does a
// quantum for the other form of the graph kernel. At a park after 30 s without a quantum, or when
// the kernel leaves by itself because there was none for 10 minutes, the resident kernel is
// launched alone again. A thread of the engine waits for that, so that the front end need not know
// the kind; it rings the doorbell for each quantum.
//
// The kernels' image, with the built-in operators, is loaded once. Each installed operator
// is a module of its own, which the kernel calls through its jump table; a change of
// generation loads the modules that are new, writes the table, and unloads those that no
// slot uses any more. Its cost depends on what changes, not on the number of operators.
//
// The data of a launch (zeroed memory, the jump table) is written on the kernel's own stream:
// that stream is non-blocking, so work on any other stream is not ordered with the launch. The
// graph kernel has a stream of its own, and is launched when that data is written.
//
// After a launch nothing here calls functions that wait for a resident kernel (module loading and
// unloading, copies, freeing, unregistering: docs/gpu_facts.md); such work is deferred until
// the kernel is parked.
//
// Thread safety: see Engine. The state that concurrent calls share is guarded by
// preloaded_mu_ and by mappings_mu_; the latter is held while the kernels are launched, so that
// nothing is unregistered while a kernel may use it, and that only one thread launches them.
#ifndef RESIDENT_RUNTIME_ENGINE_CUDA_CUDA_ENGINE_H_
#define RESIDENT_RUNTIME_ENGINE_CUDA_CUDA_ENGINE_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernels/resident/launch_parameters.h"
#include "runtime/engine/cuda/driver.h"
#include "runtime/engine/cuda/imported_memory.h"
#include "runtime/engine/cuda/launch_shape.h"
#include "runtime/engine/engine.h"

namespace resident {

class CudaEngine : public Engine {
 public:
  CudaEngine(int ordinal, const Driver& driver)
      : ordinal_(ordinal), driver_(driver), imported_(driver) {}
  // Does not free the device's memory, because freeing waits for the kernel; the system frees it
  // when the process ends.
  ~CudaEngine() override;

  absl::StatusOr<std::vector<EnginePhase>> Prepare(const SharedRegion& region) override;
  absl::StatusOr<EngineInfo> Start(const EngineOptions& options) override;
  absl::Status AwaitPark(std::chrono::nanoseconds timeout) override;
  absl::Status Resume() override;
  absl::StatusOr<std::vector<OperatorResources>> Preload(
      std::shared_ptr<const Generation> generation) override;
  absl::StatusOr<SwitchTimes> Switch(uint64_t change, bool launch,
                                     std::chrono::nanoseconds timeout) override;
  absl::StatusOr<uint64_t> MapShared(int fd, uint64_t bytes) override;
  absl::StatusOr<uint64_t> MapSharedDevice(const std::string& handle, uint64_t bytes) override;
  absl::StatusOr<uint64_t> MapDeviceDescriptor(int fd, uint64_t allocation_bytes) override;
  absl::Status UnmapShared(uint64_t address) override;
  absl::Status Health() override;
  std::chrono::milliseconds health_interval() const override {
    return std::chrono::milliseconds(50);
  }

 private:
  // An object that is loaded on the device.
  struct Module {
    std::shared_ptr<const std::string> object;
    CUmodule module = nullptr;
    std::map<std::string, uint64_t> entries;  // Addresses of operators, by symbol.
  };
  // Modules by object.
  using Modules = std::map<const std::string*, Module>;
  // A generation that has been inspected. Operators whose object is on the device point to that
  // object.
  struct Preloaded {
    Generation generation;
    std::vector<OperatorResources> resources;  // The built-in operators' first.
  };

  absl::Status OpenDevice();
  absl::Status LoadKernel();
  // Reads what the generation's operators need, and refuses operators that cannot run.
  absl::StatusOr<Preloaded> Inspect(const Generation& generation) const;
  // Loads new objects, and writes the generation's operators to the table. If it fails, the
  // previous generation is not changed. REQUIRES: no kernel on the device.
  absl::Status Load(const Preloaded& preloaded);
  absl::Status LoadModules(const Generation& generation, Modules* added);
  absl::StatusOr<uint64_t> ReadEntry(Module* module, const std::string& symbol);
  absl::Status WriteTable(const Generation& generation, Modules* added);
  absl::Status Unload(const Modules& modules);
  // Sets the number of blocks, their threads, and the stream of the launch.
  absl::Status ChooseLaunch();
  absl::StatusOr<SmResources> ReadSmResources() const;
  // Of a kernel with compute_threads_.
  absl::StatusOr<BlockFootprint> ReadFootprint(CUfunction kernel) const;
  // Creates the streams of both kernels. Returns how many of the device's SMs they have.
  absl::StatusOr<uint32_t> CreateStreams(uint32_t sms);
  // Makes the region accessible to the device.
  absl::Status PinRegion(const SharedRegion& region);
  absl::Status AllocateState();
  absl::Status AllocateBuffers();
  // Retries for options_.memory_wait.
  absl::StatusOr<CUdeviceptr> Allocate(uint64_t bytes);
  // A form of the graph kernel.
  struct GraphKernel {
    CUfunction function = nullptr;
    uint32_t threads = 0;         // Of a block.
    uint32_t ring_bytes = 0;      // Its dynamic shared memory.
    uint32_t shared_percent = 0;  // Preferred share of an SM's memory that is shared memory.
  };
  // Launches the kernels of the kind that is due.
  absl::Status Launch() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mappings_mu_);
  absl::Status LaunchGraphKernel(const GraphKernel& kernel)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mappings_mu_);
  // Whether both streams are empty: CUDA_ERROR_NOT_READY, or an error that ended a kernel.
  CUresult QueryStreams() const;
  // If the kernels have left to be launched with another kind, launches them. Returns whether they
  // are parked, otherwise; false: they run.
  absl::StatusOr<bool> LaunchOtherKind() ABSL_LOCKS_EXCLUDED(mappings_mu_);
  // The thread that does so when it is due.
  void WatchKind();
  // Waits until the kernels are parked, at most for `timeout`; polls without sleeping for the time
  // `spin` and while `hurry`, if not null, returns true. Returns OK, DEADLINE_EXCEEDED, the error
  // that ended the kernel, or CANCELLED when `withdrawn`, if not null, returns true.
  absl::Status AwaitStreams(std::chrono::nanoseconds timeout, std::chrono::nanoseconds spin,
                            const std::function<bool()>& withdrawn,
                            const std::function<bool()>& hurry);
  void NoteParked() ABSL_LOCKS_EXCLUDED(mappings_mu_);
  LaunchKind LaunchedKind() ABSL_LOCKS_EXCLUDED(mappings_mu_);
  // Opens the handle, unless it is open, and counts this use of it. Returns the address.
  absl::StatusOr<CUdeviceptr> OpenHandle(const std::string& handle)
      ABSL_LOCKS_EXCLUDED(mappings_mu_);
  // Whether the memory at the address, of another process, is on this device and has that many
  // bytes from there.
  absl::Status CheckImport(CUdeviceptr address, uint64_t bytes) const;
  // Ends the mappings that have no uses.
  absl::Status UnmapDeferred() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mappings_mu_);
  absl::StatusOr<int> Attribute(CUdevice_attribute attribute) const;
  absl::StatusOr<uint64_t> AllocateZeroed(uint64_t bytes, const char* what);

  // Memory of another process. It is unmapped while no kernel is on the device.
  struct Mapping {
    void* host = nullptr;  // Null: device memory.
    uint64_t bytes = 0;
    // Device memory: the handle that was opened first, and how often the driver opened the memory.
    std::string handle = {};
    uint64_t opens = 0;
    uint64_t uses = 1;
  };

  const int ordinal_;
  EngineOptions options_;  // Set by Start.
  const Driver& driver_;
  const SharedRegion* region_ = nullptr;
  CUdevice device_ = 0;
  CUcontext context_ = nullptr;
  uint32_t architecture_ = 0;  // What operators are compiled for, as in 90.
  CUfunction kernel_ = nullptr;
  GraphKernel graph_kernel_;
  GraphKernel stream_kernel_;               // For graphs that have streams.
  CUdeviceptr table_ = 0;                   // The kernel's jump table.
  CUdeviceptr limits_ = 0;                  // The kernel's kTaskLimits.
  std::vector<uint64_t> builtin_table_;     // The table without installed operators.
  std::vector<OperatorResources> builtin_;  // What the built-in operators need.
  uint32_t registers_ = 0;                  // Registers of a thread that an operator may use.
  uint64_t number_ = 0;                     // Number of the generation on the device.
  Modules modules_;                         // Its modules.
  // Of the resident kernel, and of the graph kernel.
  CUstream stream_ = nullptr;
  CUstream graph_stream_ = nullptr;
  uint32_t blocks_ = 0;
  uint32_t graph_blocks_ = 0;     // Those of them that a graph kernel has, when it is there.
  uint32_t shared_percent_ = 0;   // As in GraphKernel, of the resident kernel alone.
  uint32_t compute_threads_ = 0;  // Threads of a block without its control warp.
  LaunchParameters parameters_{};
  absl::Mutex preloaded_mu_;
  std::optional<Preloaded> preloaded_ ABSL_GUARDED_BY(preloaded_mu_);
  absl::Mutex mappings_mu_;
  bool resident_ ABSL_GUARDED_BY(mappings_mu_) = false;
  // The kernels that are there, or were until the park.
  LaunchKind kind_ ABSL_GUARDED_BY(mappings_mu_) = LaunchKind::kTasks;
  // Why the kernels could not be launched with another kind: the engine has to end.
  absl::Status launch_error_ ABSL_GUARDED_BY(mappings_mu_);
  std::map<uint64_t, Mapping> mappings_ ABSL_GUARDED_BY(mappings_mu_);  // By device address.
  ImportedMemory imported_;
  EngineInfo info_;
  // Written by the kernel when it leaves.
  LeaveReport* report_ = nullptr;
  std::atomic<uint32_t> ends_{0};  // 1: the watcher ends.
  std::thread watcher_;            // Runs WatchKind.
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CUDA_CUDA_ENGINE_H_
