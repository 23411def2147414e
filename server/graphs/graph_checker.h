// GraphChecker: the threads that check graphs, for all calls of the service Graphs.
//
// A check has a budget of steps and memory (runtime/graph/check_budget.h). Its memory is taken from
// --max_host_mib, with --max_client_host_mib for the checks of one holder (shared_slots.h). Places
// to wait for a thread, and the threads themselves, are slots that holders share, and the holders
// take turns: a caller with many large checks leaves a thread to the next caller.
//
//   waiting ──a thread──▶ running ──▶ answered (its place, thread and memory are free by then)
//      └── Cancel, EndAll ──┴──────▶ answered with the reason
//
// A check ends soon after its caller's end (Cancel), its deadline, or the daemon's drain (EndAll).
//
// Thread safety: all members may be called from any thread.
//
//   ASSIGN_OR_RETURN(check_, checker.Post(
//       {holder, deadline}, [...](graph::CheckBudget& budget) { return Work(budget); },
//       [...](const absl::Status& status) { Conclude(status); }));
#ifndef RESIDENT_SERVER_GRAPHS_GRAPH_CHECKER_H_
#define RESIDENT_SERVER_GRAPHS_GRAPH_CHECKER_H_

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "runtime/graph/check_budget.h"
#include "runtime/graph/limits.h"
#include "runtime/queue/batch.h"
#include "server/admission/budget.h"
#include "server/core/core.h"
#include "server/core/shared_slots.h"
#include "server/core/worker_pool.h"
#include "server/rpc/unary_call.h"

namespace resident {

class GraphChecker {
 public:
  struct Caller {
    // NameHolder().
    std::string holder;
    Clock::time_point deadline = Clock::time_point::max();
    // Whether it holds one of run_slots(), or a slot of another kind, instead of a place for a
    // check.
    bool runs = false;
  };
  // Runs on a thread of the checker. Whatever it returns, a check that something other than the
  // graph ended is answered with that reason.
  using Work = std::function<absl::Status(graph::CheckBudget& budget)>;
  // Called once, on any thread, without locks, after the work and all that it refers to is gone.
  using Answer = std::function<void(const absl::Status& status)>;
  class Check;

  explicit GraphChecker(Core& core) : core_(core) {}
  ~GraphChecker() { EndAll(); }

  Core& core() { return core_; }
  // One for each run of a graph.
  SharedSlots& run_slots() { return run_slots_; }

  // RESOURCE_EXHAUSTED: no place is free for the caller. UNAVAILABLE: the daemon drains. `answer`
  // is then not called.
  absl::StatusOr<std::shared_ptr<Check>> Post(Caller caller, Work work, Answer answer)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The same for a unary call: the check ends when the call does. `answer` answers the call.
  // REQUIRES: the call is deferred.
  absl::Status PostFor(UnaryCall& call, Caller caller, Work work, Answer answer)
      ABSL_LOCKS_EXCLUDED(mu_);
  // The caller does not need the check any more. No effect on one that was answered.
  void Cancel(const std::shared_ptr<Check>& check) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends all checks, and refuses further ones.
  void EndAll() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // Checks of one holder that wait, in the order of their arrival.
  using Line = std::deque<std::shared_ptr<Check>>;

  // Checks what waits and may have a thread, until nothing does.
  void RunWaiting() ABSL_LOCKS_EXCLUDED(mu_);
  // Null: nothing.
  std::shared_ptr<Check> TakeNext() ABSL_LOCKS_EXCLUDED(mu_);
  void Run(const std::shared_ptr<Check>& check) ABSL_LOCKS_EXCLUDED(mu_);
  absl::Status RunWork(Check& check);
  void AnswerLater(std::shared_ptr<Check> check, absl::Status status);
  std::shared_ptr<Budget::Account> FindAccount(const std::string& holder)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Core& core_;
  SharedSlots run_slots_{{.what = "runs of graphs"}, graph::kMaxRuns};
  SharedSlots places_{{.what = "checks of graphs"}, graph::kMaxChecks};
  SharedSlots thread_slots_{{.what = "threads that check graphs"}, graph::kCheckThreads};

  absl::Mutex mu_;
  bool ended_ ABSL_GUARDED_BY(mu_) = false;
  absl::flat_hash_map<std::string, Line> waiting_ ABSL_GUARDED_BY(mu_);
  // The holders in waiting_, the next one first.
  std::deque<std::string> turns_ ABSL_GUARDED_BY(mu_);
  std::vector<std::shared_ptr<Check>> running_ ABSL_GUARDED_BY(mu_);
  // The memory of all checks of a holder, while it has any.
  absl::flat_hash_map<std::string, std::weak_ptr<Budget::Account>> accounts_ ABSL_GUARDED_BY(mu_);

  // Its destructor finishes the posted checks, so it comes last.
  WorkerPool threads_{graph::kCheckThreads};
};

}  // namespace resident

#endif  // RESIDENT_SERVER_GRAPHS_GRAPH_CHECKER_H_
