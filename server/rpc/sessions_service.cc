#include "server/rpc/sessions_service.h"

#include <memory>
#include <utility>

#include "absl/synchronization/mutex.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "server/rpc/bidi_stream.h"
#include "server/rpc/call.h"
#include "server/rpc/grpc_call.h"

namespace resident {
namespace {

// One session: lasts from its first message until the client or the daemon ends it.
class SessionStream final : public BidiStream<NoMessage, v1::OpenSessionResponse> {
 public:
  SessionStream(Transport& transport, Core& core) : BidiStream(transport, core) {}

  bool is_session() const override { return true; }

  void Open(const grpc::CallbackServerContext& context, const v1::OpenSessionRequest& request) {
    Register(MakeRecheck(context, core_, Role::kSubmit, "resident.v1.Sessions/Open"));
    const absl::Status opened = OpenSession(context, request);
    absl::MutexLock lock(&mu_);
    if (!opened.ok()) return Conclude(opened);
    v1::OpenSessionResponse first;
    first.set_session_id(client_->session());
    first.set_local_address(core_.local_address);
    Write(std::move(first));
  }

  void OnDone() override {
    if (client_ != nullptr) core_.clients.EndSession(client_);
  }

 private:
  absl::Status OpenSession(const grpc::CallbackServerContext& context,
                           const v1::OpenSessionRequest& request) {
    if (core_.gate.draining()) return errors::Draining();
    ASSIGN_OR_RETURN(const auto identity, IdentifyCaller(context, core_));
    ASSIGN_OR_RETURN(client_, core_.clients.OpenSession(request.client_name(), context.peer(),
                                                        identity->account()));
    return absl::OkStatus();
  }

  std::shared_ptr<Client> client_;  // Set before the service's method returns.
};

}  // namespace

SessionsService::SessionsService(Core& core) : core_(core) {}
SessionsService::~SessionsService() = default;

grpc::ServerWriteReactor<v1::OpenSessionResponse>* SessionsService::Open(
    grpc::CallbackServerContext* context, const v1::OpenSessionRequest* request) {
  return StartWriteCall<SessionStream>(*context, core_, *request);
}

}  // namespace resident
