// UnaryCall: one unary call, from its handler to its answer. Each method of a service that has one
// request and one response, except those that run a batch (run_call.h), is served through it.
//
// A handler is a function `absl::Status(UnaryCall& call)`, which sets the response and returns the
// status of the call. It runs on gRPC's thread and must not block. A handler that answers later
// calls Post or Defer and returns OK:
//
//   handler ──returns──────────────────────────────▶ answered
//      └── Post, Defer ──▶ deferred ──its result───────▲
//
// A handler that returns an error ends the call with it, also if it has called Defer; the call must
// then not be finished by anything else.
//
// The context, the request and the response are valid until the call is answered. A call that is
// counted by the daemon's gate (Enter) leaves it after the answer.
//
// Thread safety: Enter, Post, Defer and OnCancel are for the handler. After Defer, `cancelled` and
// Finish may be called from any thread.
//
//   return UnaryCall::Serve(*context, [&](UnaryCall& call) -> absl::Status {
//     ASSIGN_OR_RETURN(const auto client, FindSessionClient(*context, core_));
//     RETURN_IF_ERROR(call.Enter(core_.gate));
//     return call.Post(core_.pools.disk, [this, client] { return Save(*client); });
//   });
#ifndef RESIDENT_SERVER_RPC_UNARY_CALL_H_
#define RESIDENT_SERVER_RPC_UNARY_CALL_H_

#include <cassert>
#include <functional>
#include <memory>

#include "absl/functional/function_ref.h"
#include "absl/status/status.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/server_callback.h"
#include "server/core/core.h"
#include "server/core/worker_pool.h"

namespace resident {

class UnaryCall : public std::enable_shared_from_this<UnaryCall> {
 public:
  using Handler = absl::FunctionRef<absl::Status(UnaryCall& call)>;
  // Returns an error in the words of the call's interface.
  using Words = absl::Status (*)(const absl::Status& status);

  // Serves the call. The service's method returns the result to gRPC. `words`: null for errors as
  // they are.
  static grpc::ServerUnaryReactor* Serve(grpc::CallbackServerContext& context, Handler handler,
                                         Words words = nullptr);
  ~UnaryCall();
  UnaryCall(const UnaryCall&) = delete;
  UnaryCall& operator=(const UnaryCall&) = delete;

  // A drain of the daemon waits from now on until the call is answered. UNAVAILABLE: the daemon
  // drains. REQUIRES: called once.
  absl::Status Enter(DrainGate& gate);
  // Runs `work` on a thread of the pool and answers with its result. Returns OK, for the handler to
  // return. REQUIRES: not deferred.
  absl::Status Post(WorkerPool& pool, std::function<absl::Status()> work);
  // The call is answered by Finish of the result. REQUIRES: not deferred.
  std::shared_ptr<UnaryCall> Defer();
  // Calls `cancel` on any thread if the client cancels the call or goes, possibly after the answer.
  // REQUIRES: deferred; called once.
  void OnCancel(std::function<void()> cancel);

  // Whether the client has cancelled the call or gone. REQUIRES: not answered.
  bool cancelled() const {
    assert(!finished_);
    return context_.IsCancelled();
  }
  // Answers the call. REQUIRES: deferred; called once.
  void Finish(const absl::Status& status);

 private:
  class Reactor;

  UnaryCall(grpc::CallbackServerContext& context, Words words) : context_(context), words_(words) {}
  void Finish(grpc::ServerUnaryReactor& reactor, const absl::Status& status);

  grpc::CallbackServerContext& context_;
  const Words words_;
  DrainGate::Entry entry_;
  Reactor* reactor_ = nullptr;  // Null: not deferred.
  bool finished_ = false;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_UNARY_CALL_H_
