#include "server/rpc/admitted_service.h"

#include <grpc/grpc.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/alarm.h"
#include "grpcpp/impl/codegen/server_callback_handlers.h"
#include "grpcpp/impl/rpc_service_method.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/message_allocator.h"
#include "grpcpp/support/server_callback.h"
#include "runtime/base/errors/daemon_errors.h"
#include "server/auth/method_roles.h"
#include "server/rpc/status.h"

namespace resident {
namespace {

using grpc::internal::MethodHandler;
using Parameter = MethodHandler::HandlerParameter;

// Ends a call without reading its message.
class RefusedCall final : public grpc::ServerBidiReactor<grpc::ByteBuffer, grpc::ByteBuffer> {
 public:
  explicit RefusedCall(const absl::Status& why) { Finish(ToGrpc(why)); }
  void OnDone() override { delete this; }
};

void Refuse(const Parameter& call, const absl::Status& why) {
  grpc::internal::CallbackBidiHandler<grpc::ByteBuffer, grpc::ByteBuffer> refuse(
      [&why](grpc::CallbackServerContext*) { return new RefusedCall(why); });
  refuse.RunHandler(Parameter(call.call, call.server_context, nullptr, grpc::Status::OK, nullptr,
                              call.call_requester));
}

// A method: its name, the service's handler for it, and the check of its callers.
struct Method {
  MethodHandler& handler;
  const std::string& name;
  bool one_message;  // The client sends exactly one message.
  AdmittedService::Admit admit;

  absl::Status Admit(const Parameter& call) const {
    return admit(name, static_cast<grpc::CallbackServerContext&>(*call.server_context));
  }
};

// Reads the message of a call that has one, then runs the handler. Owns itself.
//
// It uses gRPC's core API, because the C++ API reads through a reactor, which only the handler can
// create.
class MessageRead final : private grpc_completion_queue_functor {
 public:
  static void Start(const Method& method, const Parameter& call) { new MessageRead(method, call); }

 private:
  MessageRead(const Method& method, const Parameter& call)
      : grpc_completion_queue_functor{Done, /*inlineable=*/0, 0, nullptr},
        method_(method),
        call_(call),
        core_call_(call.call->call()) {
    grpc_call_ref(core_call_);
    if (FindMethodRule(method.name).open_to_all) LimitTime();
    grpc_op read{};
    read.op = GRPC_OP_RECV_MESSAGE;
    read.data.recv_message.recv_message = &message_;
    const grpc_call_error error = grpc_call_start_batch(
        core_call_, &read, 1, static_cast<grpc_completion_queue_functor*>(this), nullptr);
    if (error != GRPC_CALL_OK) std::abort();  // Can only fail because of a bug in this class.
  }

  // Cancels the call if its message takes longer than kOpenMessage.
  void LimitTime() {
    grpc_call_ref(core_call_);
    late_.Set(std::chrono::system_clock::now() + AdmittedService::kOpenMessage,
              [call = core_call_](bool passed) {
                if (passed) grpc_call_cancel(call, nullptr);
                grpc_call_unref(call);
              });
  }

  static void Done(grpc_completion_queue_functor* self, int /*ok*/) {
    auto* const read = static_cast<MessageRead*>(self);
    read->late_.Cancel();
    read->RunHandler();
    grpc_call_unref(read->core_call_);
    delete read;
  }

  void RunHandler() {
    if (std::chrono::steady_clock::now() - started_ > AdmittedService::kRecheckAfter) {
      const absl::Status admitted = method_.Admit(call_);
      if (!admitted.ok()) {
        if (message_ != nullptr) grpc_byte_buffer_destroy(message_);
        return Refuse(call_, admitted);
      }
    }
    void* handler_data = nullptr;
    void* request = nullptr;
    grpc::Status parsed;
    if (message_ != nullptr) {  // Takes ownership of the bytes.
      request = method_.handler.Deserialize(core_call_, message_, &parsed, &handler_data);
    }
    // message_ is also null if the caller has cancelled, in which case the status is not sent.
    if (message_ == nullptr || !parsed.ok()) {
      // The messages of a unary call are allocated in the call's arena.
      if (handler_data != nullptr) {
        static_cast<grpc::RpcAllocatorState*>(handler_data)->~RpcAllocatorState();
      }
      return Refuse(call_, errors::UnreadableMessage("request of " + method_.name));
    }
    method_.handler.RunHandler(Parameter(call_.call, call_.server_context, request, parsed,
                                         handler_data, call_.call_requester));
  }

  const Method& method_;
  const std::chrono::steady_clock::time_point started_ = std::chrono::steady_clock::now();
  grpc::Alarm late_;
  const Parameter call_;
  grpc_call* const core_call_;
  grpc_byte_buffer* message_ = nullptr;
};

class AdmittedMethod final : public MethodHandler {
 public:
  explicit AdmittedMethod(Method method) : method_(std::move(method)) {}

  void RunHandler(const Parameter& call) override {
    const absl::Status admitted = method_.Admit(call);
    if (!admitted.ok()) {
      Refuse(call, admitted);
    } else if (method_.one_message) {
      MessageRead::Start(method_, call);
    } else {
      method_.handler.RunHandler(call);
    }
  }

 private:
  const Method method_;
};

// Gives access to the handlers, which are protected members of grpc::Service.
struct Handlers : grpc::Service {
  using grpc::Service::GetHandler;
};

}  // namespace

AdmittedService::AdmittedService(grpc::Service& service, absl::string_view full_name,
                                 const Admit& admit) {
  const google::protobuf::ServiceDescriptor* const descriptor =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(std::string(full_name));
  // Generated code and the descriptor number the methods in the same order.
  for (int i = 0; i < descriptor->method_count(); ++i) {
    const google::protobuf::MethodDescriptor& method = *descriptor->method(i);
    const std::string& name =
        methods_.emplace_back(absl::StrCat("/", full_name, "/", method.name()));
    MethodHandler& handler = *(service.*&Handlers::GetHandler)(i);
    AddMethod(new grpc::internal::RpcServiceMethod(
        name.c_str(), grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
    MarkMethodCallback(i, new AdmittedMethod({handler, name, !method.client_streaming(), admit}));
  }
}

}  // namespace resident
