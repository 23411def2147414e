#include "server/unreadable_requests.h"

#include <string>

#include "runtime/errors/daemon_errors.h"
#include "server/status.h"

namespace resident {
namespace {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::Interceptor;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerRpcInfo;

class UnreadableRequest final : public Interceptor {
 public:
  explicit UnreadableRequest(const char* method) : method_(method) {}

  void Intercept(InterceptorBatchMethods* methods) override {
    if (methods->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      const grpc::Status status = methods->GetSendStatus();
      if (status.error_code() == grpc::StatusCode::UNIMPLEMENTED &&
          status.error_message().empty()) {
        methods->ModifySendStatus(
            ToGrpc(errors::UnreadableMessage("request of " + std::string(method_))));
      }
    }
    methods->Proceed();
  }

 private:
  const char* const method_;
};

class Factory final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  Interceptor* CreateServerInterceptor(ServerRpcInfo* info) override {
    // Calls whose clients stream read bytes, as Run does. A method that is not there counts
    // as one of them.
    const bool one_request = info->type() == ServerRpcInfo::Type::UNARY ||
                             info->type() == ServerRpcInfo::Type::SERVER_STREAMING;
    if (!one_request || info->method() == std::string("/resident.v1.Executor/Run")) return nullptr;
    return new UnreadableRequest(info->method());
  }
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeUnreadableRequests() {
  return std::make_unique<Factory>();
}

}  // namespace resident
