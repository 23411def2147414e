// TaskStopper: ends the call of an operator on a worker thread of the CPU engine: a signal to the
// thread, whose handler jumps back to Call. That is possible because operators hold no locks and no
// memory of the heap, and make no system calls. An operator that blocks signals is not stopped, and
// the front end ends the engine then.
//
//   TaskStopper stopper;
//   stopper.Start(region, workers);
//   (worker) StopReason stopped = stopper.Call(worker, token, slot, &state);
//
// A thread sleeps until the front end has written a stop word (ControlBlock::stop_event), or until
// an operator that runs exceeds its limit.
//
// Thread safety: Call: one thread for each worker. The other members: one thread.
#ifndef RESIDENT_RUNTIME_ENGINE_CPU_TASK_STOPPER_H_
#define RESIDENT_RUNTIME_ENGINE_CPU_TASK_STOPPER_H_

#include <setjmp.h>
#include <sys/types.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

#include "kernels/layout/ring_layout.h"
#include "kernels/sdk/operator.h"
#include "runtime/engine/cpu/cpu_generation.h"
#include "runtime/ring/shared_region.h"

namespace resident {

class TaskStopper {
 public:
  TaskStopper() = default;
  ~TaskStopper();

  // `region` outlives the stopper.
  void Start(const SharedRegion& region, uint32_t workers);
  // The shortest limit of an operator from now on; 0: none has a limit.
  void SetMinTimeLimit(std::chrono::nanoseconds limit);

  // (worker thread) Calls the operator for the task with this token. kNone: it has returned.
  // REQUIRES: the slot is stoppable.
  StopReason Call(uint32_t worker, uint32_t token, const CpuGeneration::Slot& slot,
                  BlockState* state);

  // Why the task has to stop, according to its stop word.
  StopReason Asked(uint32_t token) const {
    u64& word = stop_words_[token & mask_];
    return StopOf(std::atomic_ref<u64>(word).load(std::memory_order_relaxed), token);
  }

 private:
  // A call: its number, and in the low bits the reason for which it is to end, or 0.
  static constexpr uint32_t kReasonBits = 8;
  struct alignas(64) Worker {
    std::atomic<uint64_t> call{0};  // 0: no operator is called.
    std::atomic<uint32_t> token{0};
    std::atomic<int64_t> until_ns{0};  // Of steady_clock.
    std::atomic<pid_t> thread{0};
    uint64_t calls = 0;  // So far. Only for the worker.
    sigjmp_buf back;
  };

  static void HandleSignal(int signal);
  void Watch();
  // Stops the worker's call if that is due. Returns when to look again.
  int64_t Look(Worker& worker, int64_t now_ns);

  u64* stop_words_ = nullptr;
  uint32_t mask_ = 0;
  u32* event_ = nullptr;
  std::vector<std::unique_ptr<Worker>> workers_;
  std::atomic<int64_t> min_limit_ns_{0};
  std::atomic<bool> ending_{false};
  std::thread thread_;

  static thread_local Worker* current_;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_ENGINE_CPU_TASK_STOPPER_H_
