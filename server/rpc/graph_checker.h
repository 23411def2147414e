// GraphChecker: the threads that check graphs, for all calls of the service Graphs.
//
// A large graph takes seconds and up to a gigabyte: checks run on two threads of their own, so that
// they neither delay other calls nor need more memory together.
//
// Thread safety: all members may be called from any thread.
//
//   RETURN_IF_ERROR(checker.Post([...] { ... }));
#ifndef RESIDENT_SERVER_RPC_GRAPH_CHECKER_H_
#define RESIDENT_SERVER_RPC_GRAPH_CHECKER_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <utility>

#include "absl/status/status.h"
#include "runtime/base/errors/graph_errors.h"
#include "runtime/graph/limits.h"
#include "server/rpc/core.h"
#include "server/rpc/shared_slots.h"
#include "server/rpc/worker_pool.h"

namespace resident {

class GraphChecker {
 public:
  explicit GraphChecker(Core& core) : core_(core) {}

  Core& core() { return core_; }
  // One for each run of a graph.
  SharedSlots& run_slots() { return run_slots_; }

  // Runs `check` on one of the threads. RESOURCE_EXHAUSTED: kMaxChecks run or wait.
  absl::Status Post(std::function<void()> check) {
    if (checks_.fetch_add(1, std::memory_order_relaxed) >= graph::kMaxChecks) {
      checks_.fetch_sub(1, std::memory_order_relaxed);
      return errors::TooManyGraphChecks(graph::kMaxChecks);
    }
    threads_.Post([this, check = std::move(check)]() mutable {
      std::exchange(check, nullptr)();
      checks_.fetch_sub(1, std::memory_order_relaxed);
    });
    return absl::OkStatus();
  }
  // The same for the check of a run, which holds one of run_slots().
  void PostRun(std::function<void()> check) { threads_.Post(std::move(check)); }

 private:
  Core& core_;
  SharedSlots run_slots_{{.what = "runs of graphs"}, graph::kMaxRuns};
  // Checks that are running or wait for a thread.
  std::atomic<uint32_t> checks_{0};
  // Its destructor finishes the posted checks, so it comes last.
  WorkerPool threads_{2};
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_GRAPH_CHECKER_H_
