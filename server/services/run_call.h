// RunCall: one Executor.Run.
//
// The handler's thread lends itself to the queue for a moment, so that a lone task is
// submitted, awaited and answered without a change of threads.
//
// Thread safety: gRPC calls its members from any thread; mu_ orders a cancellation
// that comes while the batch is being made.
#ifndef RESIDENT_SERVER_SERVICES_RUN_CALL_H_
#define RESIDENT_SERVER_SERVICES_RUN_CALL_H_

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/server_callback.h"
#include "resident/v1/executor.pb.h"
#include "server/core.h"

namespace resident {

class RunCall final : public grpc::ServerUnaryReactor {
 public:
  // Owns itself until gRPC is done with it.
  static RunCall* Start(Core& core, const grpc::CallbackServerContext& context,
                        const v1::RunRequest& request, v1::RunResponse& response);

  void OnCancel() override;
  void OnDone() override { delete this; }

 private:
  RunCall(Core& core, v1::RunResponse& response) : core_(core), response_(response) {}
  absl::Status Launch(const grpc::CallbackServerContext& context, const v1::RunRequest& request);
  void Answer(RequestBatch& batch);

  Core& core_;
  v1::RunResponse& response_;
  // The call's own deadline.
  Clock::time_point deadline_ = Clock::time_point::max();

  absl::Mutex mu_;
  bool cancelled_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<RequestBatch> batch_ ABSL_GUARDED_BY(mu_);  // Until it is answered.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_SERVICES_RUN_CALL_H_
