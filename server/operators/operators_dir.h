// OperatorsDir: brings the daemon to the set of operators in the folder of --operators_dir, when it
// starts and whenever the folder changes.
//
//   read ─▶ applying ─▶ applied ──the folder changes──▶ read
//            │    ▲        └─ others change an operator: drift, which is shown and not reverted
//            ▼    │ again after 1 s, doubling to 60 s
//           failed
//
// What is done is what `residentctl apply` does on one node, by the same comparison
// (runtime/operator_set/set_messages.h) and the same OperatorManager: every version that is missing
// is installed, and only if that succeeds for all of them, they are activated with the set's bake.
// The actor in the audit log is the daemon; the events have the plan and the set.
//
// The last change wins. The digest of the folder's files that was applied is kept with the state
// (FolderRecord), and the folder is acted on only when its digest is another one, also after a
// restart. A roll-out of the same set that others have begun since supersedes the folder until its
// files change. While a claim is valid for names of the set, the folder waits.
//
// The versions of `operators_next.yaml` are only installed, once the set of `operators.yaml` was
// applied and has no bake and no claim, so that a roll-out of that set has nothing left but to
// activate them. A superseded folder installs nothing. What is installed here belongs to no plan:
// a claim, also one of the next set's own plan, ends it.
//
// Core::set_applied is false until the first set was applied, or was superseded, and true from
// then on: a later set that fails leaves the daemon ready, with the versions that served before.
//
// Thread safety: view() and RequestStop may be called from any thread, the others from one thread.
//
//   OperatorsDir folder(path, core, /*on_ready=*/[&] { health.Update(); });
//   RETURN_IF_ERROR(folder.Start());
//   ... folder.RequestStop(); ... folder.Join();
#ifndef RESIDENT_SERVER_OPERATORS_OPERATORS_DIR_H_
#define RESIDENT_SERVER_OPERATORS_OPERATORS_DIR_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "resident/v1/admin.pb.h"
#include "resident/v1/operators.pb.h"
#include "runtime/base/time_source.h"
#include "runtime/operator_set/operator_set.h"
#include "runtime/operator_set/set_messages.h"
#include "server/core/core.h"
#include "server/operators/set_folder.h"

namespace resident {

class OperatorsDir {
 public:
  // A folder that others have superseded for longer than this is drift.
  static constexpr absl::Duration kMaxSuperseded = absl::Hours(1);

  // From now on the core is not ready. It must outlive the object. `on_ready` is called once, by
  // Start or from the object's thread.
  OperatorsDir(const std::string& path, Core& core, std::function<void()> on_ready);
  ~OperatorsDir() {
    RequestStop();
    Join();
  }

  // Reads the folder and begins to apply it. INVALID_ARGUMENT: it is no folder, or not trusted.
  // Errors of its files are reported by view(), because they can be corrected.
  absl::Status Start();
  // Withdraws what is being installed.
  void RequestStop();
  void Join();

  // As Admin.Status shows it to administrators.
  v1::OperatorsDirStatus view() const;

 private:
  // Why a version was refused, and the operator's revision then: the same version is not tried
  // again before the folder or the operator changes.
  struct Refusal {
    uint64_t revision = 0;
    absl::Status status;
  };
  // What a file of the folder says, as it was read last without an error.
  struct Wanted {
    explicit Wanted(OperatorSet the_set, std::string the_digest)
        : set(std::move(the_set)), digest(std::move(the_digest)), plan(set.Plan()), target(set) {}

    OperatorSet set;
    std::string digest;
    std::string plan;
    SetTarget target;
    std::map<std::string, Refusal> refused = {};
    v1::ChangeContext context = {};  // Of its installs.
  };
  // Whether something has to be done, and when it is tried.
  struct Schedule {
    bool pending = false;
    TimeSource::TimePoint at = {};
    std::chrono::seconds pause{0};

    void Begin();
    void Postpone(TimeSource::TimePoint now, const absl::Status& why);
  };

  void Run();
  void Take(SetFolder::Contents contents);
  void TakeNext(std::optional<absl::StatusOr<OperatorSet>> set, const std::string& digest);
  // Whether the record says that the folder needs no work.
  bool Settled() const;
  // Applies the folder, or fails, and then sets the time of the next attempt.
  void Attempt();
  absl::Status Apply();
  absl::Status CheckClaim() const;
  std::vector<SetDifference> Compare(const Wanted& wanted, v1::SummaryResponse* summary) const;
  // Installs what is missing. The error has those of all operators.
  absl::Status Stage(Wanted& wanted, const std::vector<SetDifference>& differences,
                     const v1::SummaryResponse& summary);
  absl::Status Install(const Wanted& wanted, const SetOperator& op, uint64_t revision);
  absl::Status Switch();
  void AttemptNext();
  absl::Status StageNext();
  void BecomeReady();
  void FindDrift();
  void Fail(const absl::Status& status);
  void SetState(v1::OperatorsDirStatus::State state, const std::string& error);
  bool stopping() const ABSL_LOCKS_EXCLUDED(mu_);

  const std::string path_;
  Core& core_;
  const std::function<void()> on_ready_;
  std::thread thread_;

  // Of the thread; before it begins, of Start.
  SetFolder folder_;
  std::optional<Wanted> wanted_;
  bool readable_ = false;  // `wanted_` is what the folder says now.
  Schedule apply_;         // Of `wanted_`.
  std::optional<Wanted> next_;
  Schedule stage_next_;
  // Of the manager, plus 1, when drift was looked for last; 0: never.
  uint64_t compared_revision_ = 0;

  mutable absl::Mutex mu_;
  bool stopping_ ABSL_GUARDED_BY(mu_) = false;
  v1::OperatorsDirStatus view_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_OPERATORS_OPERATORS_DIR_H_
