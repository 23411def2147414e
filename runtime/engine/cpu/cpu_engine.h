// CpuEngine: the resident kernel on worker threads of this process.
//
// It is the engine where there is no GPU, and the reference for GPU results. Workers poll the same
// ring that a GPU polls, run the same operators, and write the same completions. A worker that
// finds no work for some time sleeps until the front end rings the doorbell.
//
// Thread safety: see Engine.
//
// Memory ordering: a worker takes task s by advancing `next_` from s to s + 1, after
// it has read all stamps of s (acquire). Completion chunks are published by their
// stamps (release). Chunks of a wide task are assigned and counted with
// acquire-release counters, so that the completion follows every chunk's writes. graph_table.h
// describes graphs.
#ifndef RESIDENT_RUNTIME_ENGINE_CPU_CPU_ENGINE_H_
#define RESIDENT_RUNTIME_ENGINE_CPU_CPU_ENGINE_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "kernels/sdk/operator.h"
#include "runtime/engine/cpu/cpu_generation.h"
#include "runtime/engine/cpu/graph_table.h"
#include "runtime/engine/cpu/task_stopper.h"
#include "runtime/engine/engine.h"
#include "runtime/ring/shared_region.h"

namespace resident {

class CpuEngine : public Engine, private GraphTable::Engine {
 public:
  // The kernel need not be parked: each worker exits after its current task.
  ~CpuEngine() override;

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
  // A fault ends the process at once (fault_handler.h), so a running engine has no fault.
  absl::Status Health() override { return absl::OkStatus(); }
  std::chrono::milliseconds health_interval() const override {
    return std::chrono::milliseconds::max();
  }

 private:
  // A wide task or a range that its owner, the worker that took it, shares with the others. The
  // owner opens it, works on chunks until all are assigned, closes it, waits until `helpers` is 0,
  // and completes it.
  struct Wide {
    std::atomic<bool> open{false};
    std::atomic<uint32_t> helpers{0};
    std::atomic<uint64_t> next_chunk{0};
    std::atomic<uint32_t> status_and_detail{0};
    std::atomic<uint32_t> failed{0};  // Tasks of a range that did not end OK.
    uint64_t chunks = 0;              // Of a range: claims.
    TaskDescriptor task;
    uint64_t sequence = 0;
    uint64_t start_ns = 0;
    TaskMemory memory;  // Not of a range.
  };

  void Launch();
  // Joins the workers, which have exited or will exit soon.
  void Join();
  // Sleeps until all workers have exited, at most for `timeout`. Returns whether they have.
  bool AwaitWorkers(std::chrono::nanoseconds timeout);
  void Work(uint32_t worker);
  // Runs a task, a part of one, or a part of a graph; returns false if there is none.
  // `graph_turn_ns`: when the worker last ended a turn with a graph.
  bool RunSomething(uint32_t worker, BlockState& state, uint64_t& graph_turn_ns);
  // Takes and runs the next task of the ring. Returns false if there is none.
  bool RunNextTask(uint32_t worker, BlockState& state);
  void RunWide(uint32_t worker, uint64_t sequence, uint64_t chunks, BlockState& state);
  // Works on another worker's wide task. Returns false if there is none.
  bool HelpWithWideTask(uint32_t worker, BlockState& state);
  void RunChunks(Wide& wide, uint32_t worker, BlockState& state);
  // Runs the tasks of a claim; returns how many did not end OK.
  uint32_t RunClaim(const RangeDescriptor& range, uint64_t claim, uint32_t worker,
                    BlockState& state);
  // Copies the arguments of the task from its argument block.
  void LoadArguments(uint64_t sequence, const TaskDescriptor& task, BlockState& state) const;
  // Calls the operator of the state's task, and clears what the one before may have written to the
  // state. Returns CompletionStatus | detail << 16. `memory`: what the chunks of the task share.
  uint32_t Call(uint32_t worker, uint32_t token, BlockState& state, TaskMemory* memory = nullptr);
  // Why no further chunk of a wide task that began at `start_ns` is to run, if so.
  StopReason ReasonToStop(const TaskDescriptor& task, uint64_t start_ns) const;
  // `task`: its index, if it is of a range.
  void WriteBreadcrumb(uint32_t worker, uint32_t token, uint32_t operator_slot, uint32_t task = 0);
  void WriteCompletion(uint64_t sequence, uint64_t start_ns, uint32_t status_and_detail,
                       const u8* result);

  uint32_t CallOperator(uint32_t worker, uint32_t token, BlockState& state) override {
    return Call(worker, token, state);
  }
  void NoteGraphTask(uint32_t worker, uint32_t token, uint32_t operator_slot,
                     uint32_t task) override {
    WriteBreadcrumb(worker, token, operator_slot, task);
  }
  bool RingHasTask() const override;
  void WakeWorkers() override { WakeSleepers(); }
  void CompleteGraph(uint64_t sequence, uint64_t start_ns, uint32_t status_and_detail) override;

  void SleepUntilDoorbell();
  void WakeSleepers();

  EngineOptions options_;
  const SharedRegion* region_ = nullptr;
  uint32_t mask_ = 0;
  uint8_t* memory_ = nullptr;  // Buffer memory, then a scratch area for each worker.
  uint64_t memory_bytes_ = 0;
  std::vector<std::thread> workers_;
  std::vector<std::unique_ptr<Wide>> wide_;  // By owner.
  GraphTable graphs_{*this};

  std::atomic<uint64_t> next_{0};  // Sequence number of the next task to take.
  std::atomic<bool> leaving_{false};
  std::atomic<uint32_t> running_{0};  // Workers that have not exited.
  bool resident_ = false;             // Launched and not yet joined.

  TaskStopper stopper_;

  // The current generation. Changed only while no worker runs, so workers read it without a lock.
  std::shared_ptr<const CpuGeneration> generation_;
  absl::Mutex preloaded_mu_;
  std::shared_ptr<const CpuGeneration> preloaded_ ABSL_GUARDED_BY(preloaded_mu_);

  // Mappings that were made. A worker acquires it before it calls an operator: that a task names a
  // mapping only behind MapShared is ensured by the front end, another process, which neither C++
  // nor ThreadSanitizer sees.
  std::atomic<uint32_t> mappings_{0};
  absl::Mutex mapped_mu_;
  std::vector<std::pair<uint64_t, uint64_t>> mapped_
      ABSL_GUARDED_BY(mapped_mu_);  // Address, bytes.
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CPU_CPU_ENGINE_H_
