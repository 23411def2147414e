#include "server/rpc/unary_call.h"

#include <cassert>
#include <utility>

#include "runtime/base/status_macros.h"
#include "server/core/status.h"

namespace resident {

// The reactor of a call that is answered later. gRPC's own one, which other calls get, is released
// in place but receives no cancellation. gRPC calls OnCancel and OnDone only after the service's
// method has returned. Owns itself until OnDone.
class UnaryCall::Reactor final : public grpc::ServerUnaryReactor {
 public:
  void OnCancel() override {
    if (cancel != nullptr) cancel();
  }
  void OnDone() override { delete this; }

  // Here and not in the call, to which it may refer.
  std::function<void()> cancel;
};

grpc::ServerUnaryReactor* UnaryCall::Serve(grpc::CallbackServerContext& context, Handler handler,
                                           Words words) {
  const std::shared_ptr<UnaryCall> call(new UnaryCall(context, words));
  const absl::Status status = handler(*call);
  if (call->reactor_ == nullptr) {
    grpc::ServerUnaryReactor* const reactor = context.DefaultReactor();
    call->Finish(*reactor, status);
    return reactor;
  }
  if (!status.ok()) call->Finish(status);
  return call->reactor_;
}

UnaryCall::~UnaryCall() { assert(finished_); }

absl::Status UnaryCall::Enter(DrainGate& gate) {
  assert(!entry_.entered());
  ASSIGN_OR_RETURN(entry_, gate.Enter(1));
  return absl::OkStatus();
}

absl::Status UnaryCall::Post(WorkerPool& pool, std::function<absl::Status()> work) {
  pool.Post([call = Defer(), work = std::move(work)] { call->Finish(work()); });
  return absl::OkStatus();
}

std::shared_ptr<UnaryCall> UnaryCall::Defer() {
  assert(reactor_ == nullptr);
  reactor_ = new Reactor;
  return shared_from_this();
}

void UnaryCall::OnCancel(std::function<void()> cancel) {
  assert(reactor_ != nullptr && reactor_->cancel == nullptr);
  reactor_->cancel = std::move(cancel);
}

void UnaryCall::Finish(const absl::Status& status) {
  assert(reactor_ != nullptr);
  Finish(*reactor_, status);
}

void UnaryCall::Finish(grpc::ServerUnaryReactor& reactor, const absl::Status& status) {
  assert(!finished_);
  finished_ = true;
  reactor.Finish(ToGrpc(words_ == nullptr ? status : words_(status)));
  entry_.Clear();
}

}  // namespace resident
