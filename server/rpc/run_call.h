// RunCall: one unary call that runs one batch. A derived class knows the messages of its protocol:
// Executor.Run (server/rpc/executor_service.cc) and ModelInfer (server/inference/infer_calls.h).
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
// A call is refused if a resource that it needs is not free, with one exception: a request to a
// model whose instances are all busy waits for one, handed over to a Reactor.
//
// Thread safety: all members may be called from any thread. Each hook is called by one
// thread at a time.
//
//   return RunCall::Start(std::make_shared<NativeRun>(core, *response), *context, *request);
#ifndef RESIDENT_SERVER_RPC_RUN_CALL_H_
#define RESIDENT_SERVER_RPC_RUN_CALL_H_

#include <chrono>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_callback.h"
#include "resident/v1/executor.pb.h"
#include "server/core/core.h"
#include "server/workload/workload.h"

namespace resident {

class RunCall : public std::enable_shared_from_this<RunCall> {
 public:
  virtual ~RunCall() = default;
  RunCall(const RunCall&) = delete;
  RunCall& operator=(const RunCall&) = delete;

  // Serves the call. The handler returns the result to gRPC.
  static grpc::ServerUnaryReactor* Start(const std::shared_ptr<RunCall>& call,
                                         grpc::CallbackServerContext& context,
                                         const grpc::ByteBuffer& request);

 protected:
  RunCall(Core& core, grpc::ByteBuffer& response)
      : core_(core), response_(response), wait_(core.admission) {}

  // Hooks.

  // Reads the request, and consumes its bytes.
  virtual absl::Status Read(grpc::ByteBuffer& bytes) = 0;
  // The batch that the request describes, after Read has returned OK.
  virtual const v1::Batch& message() const = 0;
  // The owner of the buffers that the batch names.
  virtual ClientId FindBufferOwner(const Client& client) const { return client.id(); }
  // The message is not needed any more. BuildAnswer may run at the same time.
  virtual void DropMessage() = 0;
  // Sets the answer to a batch whose tasks have ended, or returns the error with which the call
  // ends.
  virtual absl::Status BuildAnswer(RequestBatch& batch, grpc::ByteBuffer& answer) = 0;
  // In place of BuildAnswer for a batch none of whose tasks ran, because the call was cancelled or
  // its deadline passed.
  virtual void Discard(RequestBatch& batch) {}
  // The error of the call in the words of its interface.
  virtual absl::Status Worded(const absl::Status& status) const { return status; }

  Core& core_;

 private:
  class Reactor;

  absl::Status Launch(const grpc::CallbackServerContext& context, grpc::ByteBuffer request);
  // Launches the batch with its ticket. `expires`: its deadline.
  absl::Status LaunchWith(std::unique_ptr<Workload> work, Ticket ticket,
                          const std::shared_ptr<Client>& client, Clock::time_point expires,
                          std::chrono::nanoseconds inline_time);
  // Lets the batch wait for its ticket, and launches it then.
  void LaunchLater(std::unique_ptr<Workload> work, const Needs& needs,
                   const std::shared_ptr<Client>& client, Clock::time_point expires);
  // Ends a call whose batch was not launched.
  void Refuse(const absl::Status& why) ABSL_LOCKS_EXCLUDED(mu_);
  // Answers the call.
  void Finish(grpc::Status status) ABSL_LOCKS_EXCLUDED(mu_);
  // Returns a reactor for the call; null if it is already answered with a small answer.
  Reactor* HandOver();
  void Answer(RequestBatch& batch);
  // The error of a call none of whose tasks ran, because it was cancelled or its deadline passed.
  absl::Status FindEnd(const RequestBatch& batch) const;
  // Sets the response.
  absl::Status FillResponse(RequestBatch& batch);
  void Cancel();

  grpc::ByteBuffer& response_;
  Admission::Wait wait_;  // For the ticket.
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
