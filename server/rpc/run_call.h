// RunCall: one Executor.Run.
//
// The handler's thread runs the dispatch loop inline for a short time, so that a lone task is
// submitted, awaited and answered without a thread switch. Such a call is finished with gRPC's own
// reactor, which gRPC releases in place. A custom reactor costs a switch to another thread, for
// which a lone task's caller would wait (half of an empty round trip). Calls that are not answered
// within that time get a custom reactor, which receives their cancellation.
//
// A large answer gets a custom reactor too: its memory is charged until gRPC has sent it.
//
//   launched ──answered within the handler──▶ finished
//      └────────handed over to a Reactor──answered──────────▲
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_SERVER_RPC_RUN_CALL_H_
#define RESIDENT_SERVER_RPC_RUN_CALL_H_

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "server/rpc/core.h"

namespace resident {

class RunCall : public std::enable_shared_from_this<RunCall> {
 public:
  // Serves the call. The handler returns the result to gRPC.
  static grpc::ServerUnaryReactor* Start(Core& core, grpc::CallbackServerContext& context,
                                         const grpc::ByteBuffer& request,
                                         grpc::ByteBuffer& response);

  RunCall(Core& core, grpc::ByteBuffer& response) : core_(core), response_(response) {}

 private:
  class Reactor;

  absl::Status Launch(const grpc::CallbackServerContext& context, grpc::ByteBuffer request);
  // Returns a reactor for the call; null if it is already answered with a small answer.
  Reactor* HandOver();
  void Answer(RequestBatch& batch);
  grpc::Status BuildAnswer(RequestBatch& batch);
  void Cancel();

  Core& core_;
  grpc::ByteBuffer& response_;
  // The call's own deadline.
  Clock::time_point deadline_ = Clock::time_point::max();

  absl::Mutex mu_;
  std::shared_ptr<RequestBatch> batch_ ABSL_GUARDED_BY(mu_);  // Until it is answered.
  bool answered_ ABSL_GUARDED_BY(mu_) = false;
  grpc::Status status_ ABSL_GUARDED_BY(mu_);  // Once answered.
  Budget::Charge answer_charge_;              // Until this is destroyed.
  Reactor* reactor_ ABSL_GUARDED_BY(mu_) = nullptr;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_RUN_CALL_H_
