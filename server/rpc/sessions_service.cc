#include "server/rpc/sessions_service.h"

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "runtime/base/errors/daemon_errors.h"
#include "server/rpc/call.h"
#include "server/rpc/live_streams.h"
#include "server/rpc/status.h"

namespace resident {
namespace {

// One session: lasts from its first message until the client or the daemon goes.
class SessionStream final : public grpc::ServerWriteReactor<v1::OpenSessionResponse>,
                            public LiveStream,
                            public std::enable_shared_from_this<SessionStream> {
 public:
  static SessionStream* Start(Core& core, const grpc::CallbackServerContext& context,
                              const v1::OpenSessionRequest& request) {
    std::shared_ptr<SessionStream> stream(new SessionStream(core));
    stream->self_ = stream;
    stream->Open(context, request);
    return stream.get();
  }
  ~SessionStream() override { core_.streams.Remove(this); }

  void OnWriteDone(bool ok) override {
    absl::MutexLock lock(&mu_);
    written_ = true;
    if (!ok && end_.ok()) end_ = errors::Cancelled();
    FinishIfEnded();
  }
  void OnCancel() override { End(errors::Cancelled()); }
  void OnDone() override {
    if (client_ != nullptr) core_.clients.EndSession(client_);
    self_.reset();
  }
  void End(const absl::Status& status) override {
    absl::MutexLock lock(&mu_);
    if (end_.ok()) end_ = status;
    FinishIfEnded();
  }

 private:
  explicit SessionStream(Core& core) : core_(core) {}

  void Open(const grpc::CallbackServerContext& context, const v1::OpenSessionRequest& request) {
    core_.streams.Add(shared_from_this(),
                      RecheckOf(context, core_, Role::kSubmit, "resident.v1.Sessions/Open"));
    absl::StatusOr<std::shared_ptr<Client>> client = errors::Draining();
    if (!core_.gate.draining()) {
      const auto identity = IdentityOf(context, core_);
      client = identity.ok() ? core_.clients.OpenSession(request.client_name(), context.peer(),
                                                         (*identity)->account())
                             : identity.status();
    }
    absl::MutexLock lock(&mu_);
    if (!client.ok()) {
      end_ = client.status();
      written_ = true;
      FinishIfEnded();
      return;
    }
    client_ = *std::move(client);
    first_.set_session_id(client_->session());
    first_.set_local_address(core_.local_address);
    StartWrite(&first_);
  }

  void FinishIfEnded() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (end_.ok() || !written_ || finished_) return;
    finished_ = true;
    Finish(ToGrpc(end_));
  }

  Core& core_;
  std::shared_ptr<SessionStream> self_;  // Until OnDone.
  std::shared_ptr<Client> client_;
  v1::OpenSessionResponse first_;

  absl::Mutex mu_;
  bool written_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

grpc::ServerWriteReactor<v1::OpenSessionResponse>* SessionsService::Open(
    grpc::CallbackServerContext* context, const v1::OpenSessionRequest* request) {
  return SessionStream::Start(core_, *context, *request);
}

}  // namespace resident
