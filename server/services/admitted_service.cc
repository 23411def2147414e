#include "server/services/admitted_service.h"

#include <grpc/grpc.h>

#include <cstdlib>
#include <utility>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/impl/codegen/server_callback_handlers.h"
#include "grpcpp/impl/rpc_service_method.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/message_allocator.h"
#include "grpcpp/support/server_callback.h"
#include "runtime/errors/daemon_errors.h"
#include "server/status.h"

namespace resident {
namespace {

using grpc::internal::MethodHandler;
using Parameter = MethodHandler::HandlerParameter;

// Ends a call without having read anything of it.
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

// Reads the message of a call that has one, then runs the handler. Owns itself.
//
// It asks gRPC's core: the C++ layer's readers belong to a reactor, which only the handler
// can make. The thread that finds the message goes on with the handler.
class MessageRead final : private grpc_completion_queue_functor {
 public:
  static void Start(MethodHandler& handler, const std::string& method, const Parameter& call) {
    new MessageRead(handler, method, call);
  }

 private:
  MessageRead(MethodHandler& handler, const std::string& method, const Parameter& call)
      : grpc_completion_queue_functor{Done, /*inlineable=*/1, 0, nullptr},
        handler_(handler),
        method_(method),
        call_(call),
        core_call_(call.call->call()) {
    grpc_call_ref(core_call_);
    grpc_op read{};
    read.op = GRPC_OP_RECV_MESSAGE;
    read.data.recv_message.recv_message = &message_;
    const grpc_call_error error = grpc_call_start_batch(
        core_call_, &read, 1, static_cast<grpc_completion_queue_functor*>(this), nullptr);
    if (error != GRPC_CALL_OK) std::abort();  // The call was used wrongly, here.
  }

  static void Done(grpc_completion_queue_functor* self, int /*ok*/) {
    auto* const read = static_cast<MessageRead*>(self);
    read->RunHandler();
    grpc_call_unref(read->core_call_);
    delete read;
  }

  void RunHandler() {
    void* handler_data = nullptr;
    void* request = nullptr;
    grpc::Status parsed;
    if (message_ != nullptr) {  // Takes the bytes.
      request = handler_.Deserialize(core_call_, message_, &parsed, &handler_data);
    }
    // Null also where the caller has cancelled, and hears nothing of this.
    if (message_ == nullptr || !parsed.ok()) {
      // The messages of a unary call lie in the call's arena.
      if (handler_data != nullptr) {
        static_cast<grpc::RpcAllocatorState*>(handler_data)->~RpcAllocatorState();
      }
      return Refuse(call_, errors::UnreadableMessage("request of " + method_));
    }
    handler_.RunHandler(Parameter(call_.call, call_.server_context, request, parsed, handler_data,
                                  call_.call_requester));
  }

  MethodHandler& handler_;
  const std::string& method_;
  const Parameter call_;
  grpc_call* const core_call_;
  grpc_byte_buffer* message_ = nullptr;
};

class AdmittedMethod final : public MethodHandler {
 public:
  // `one_message`: the caller sends one, and does not stream.
  AdmittedMethod(MethodHandler& handler, const std::string& method, bool one_message,
                 AdmittedService::Admit admit)
      : handler_(handler), method_(method), one_message_(one_message), admit_(std::move(admit)) {}

  void RunHandler(const Parameter& call) override {
    const absl::Status admitted =
        admit_(method_, static_cast<grpc::CallbackServerContext&>(*call.server_context));
    if (!admitted.ok()) {
      Refuse(call, admitted);
    } else if (one_message_) {
      MessageRead::Start(handler_, method_, call);
    } else {
      handler_.RunHandler(call);
    }
  }

 private:
  MethodHandler& handler_;
  const std::string& method_;
  const bool one_message_;
  const AdmittedService::Admit admit_;
};

// grpc::Service gives its handlers to derived classes only.
struct Handlers : grpc::Service {
  using grpc::Service::GetHandler;
};

}  // namespace

AdmittedService::AdmittedService(grpc::Service& service, absl::string_view full_name,
                                 const Admit& admit) {
  const google::protobuf::ServiceDescriptor* const descriptor =
      google::protobuf::DescriptorPool::generated_pool()->FindServiceByName(std::string(full_name));
  // Generated code numbers the methods as the descriptor does.
  for (int i = 0; i < descriptor->method_count(); ++i) {
    const google::protobuf::MethodDescriptor& method = *descriptor->method(i);
    const std::string& name =
        methods_.emplace_back(absl::StrCat("/", full_name, "/", method.name()));
    MethodHandler& handler = *(service.*&Handlers::GetHandler)(i);
    AddMethod(new grpc::internal::RpcServiceMethod(
        name.c_str(), grpc::internal::RpcMethod::BIDI_STREAMING, nullptr));
    MarkMethodCallback(i, new AdmittedMethod(handler, name, !method.client_streaming(), admit));
  }
}

}  // namespace resident
