#include "server/unreadable_requests.h"

#include <set>
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
    static const auto* const readers_of_bytes =
        new std::set<std::string>{"/resident.v1.Buffers/Upload", "/resident.v1.Executor/Run",
                                  "/resident.v1.Executor/Submit", "/resident.v1.Operators/Install"};
    if (readers_of_bytes->count(info->method()) != 0) return nullptr;
    return new UnreadableRequest(info->method());
  }
};

}  // namespace

std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface> MakeUnreadableRequests() {
  return std::make_unique<Factory>();
}

}  // namespace resident
