// CheckedCall: a unary call that needs the check of a graph. The check ends when the call does.
//
// gRPC destroys it after Finish.
//
// Thread safety: gRPC calls the reactions from any thread.
//
//   auto* const call = new CheckedCall(checker);
//   call->Start(caller, [=](graph::CheckBudget& budget) { return Work(budget, *response); });
//   return call;
#ifndef RESIDENT_SERVER_GRAPHS_CHECKED_CALL_H_
#define RESIDENT_SERVER_GRAPHS_CHECKED_CALL_H_

#include <memory>
#include <utility>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/support/server_callback.h"
#include "runtime/base/errors/daemon_errors.h"
#include "server/core/status.h"
#include "server/graphs/graph_checker.h"

namespace resident {

class CheckedCall final : public grpc::ServerUnaryReactor {
 public:
  explicit CheckedCall(GraphChecker& checker) : checker_(checker) {}

  // Finishes the call with what `work` returns, or with the error of a caller that could not be
  // identified. The daemon waits for it when it drains.
  void Start(absl::StatusOr<GraphChecker::Caller> caller, GraphChecker::Work work) {
    if (!caller.ok()) return Finish(ToGrpc(caller.status()));
    DrainGate& gate = checker_.core().gate;
    if (!gate.Enter(1)) return Finish(ToGrpc(errors::Draining()));
    const absl::Status posted =
        Post(*std::move(caller), std::move(work), [this, &gate](const absl::Status& status) {
          Finish(ToGrpc(status));  // It may be destroyed from here on.
          gate.Leave(1);
        });
    if (posted.ok()) return;
    gate.Leave(1);
    Finish(ToGrpc(posted));
  }
  // The same for a call whose end is decided by `answer`. If the result is an error, `answer` is
  // not called.
  absl::Status Post(GraphChecker::Caller caller, GraphChecker::Work work,
                    GraphChecker::Answer answer) {
    auto check = checker_.Post(std::move(caller), std::move(work), std::move(answer));
    // OnCancel comes after the service's method has returned, and so does OnDone.
    if (check.ok()) check_ = *std::move(check);
    return check.status();
  }

  void OnCancel() override {
    if (check_ != nullptr) checker_.Cancel(check_);
  }
  void OnDone() override { delete this; }

 private:
  GraphChecker& checker_;
  std::shared_ptr<GraphChecker::Check> check_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_GRAPHS_CHECKED_CALL_H_
