#include "server/rpc/admitted_service.h"

#include <grpc/grpc.h>

#include <cstdint>
#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "google/protobuf/descriptor.h"
#include "grpcpp/alarm.h"
#include "grpcpp/impl/codegen/server_callback_handlers.h"
#include "grpcpp/impl/rpc_service_method.h"
#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/message_allocator.h"
#include "grpcpp/support/server_callback.h"
#include "grpcpp/support/slice.h"
#include "runtime/base/status_macros.h"
#include "server/auth/method_roles.h"
#include "server/core/status.h"
#include "server/rpc/call.h"
#include "server/rpc/errors.h"
#include "server/rpc/message_bytes.h"

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

// A method: its name, the service's handler for it, the check of its callers, and its messages.
struct Method {
  MethodHandler& handler;
  const std::string& name;
  bool one_message;  // The client sends exactly one message.
  const google::protobuf::Descriptor& message;
  MessageLimits limits;
  AdmittedService::Admit admit;
  CallMemory& memory;
  OpenCalls& calls;
  bool open_to_all;

  absl::Status Admit(const Parameter& call) const {
    return admit(name, CallContext::Of(*call.server_context));
  }
};

// The bytes of a message of gRPC's core API, which are not copied.
grpc::ByteBuffer ShareBytes(const grpc_byte_buffer& message) {
  const grpc_slice_buffer& buffer = message.data.raw.slice_buffer;
  std::vector<grpc::Slice> slices;
  for (size_t i = 0; i < buffer.count; ++i) {
    slices.emplace_back(buffer.slices[i], grpc::Slice::ADD_REF);
  }
  return grpc::ByteBuffer(slices.data(), slices.size());
}

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
    if (FindMethodRule(method.name).unfinished == Unfinished::kTimed) LimitTime();
    CallContext::Of(*call.server_context).BeginMessage();
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
    static_cast<MessageRead*>(self)->TakeMessage();
  }

  void TakeMessage() {
    late_.Cancel();
    const uint64_t length = message_ == nullptr ? 0 : grpc_byte_buffer_length(message_);
    CallContext& context = CallContext::Of(*call_.server_context);
    context.EndMessage(length);
    const absl::Status charged = method_.memory.Charge(context, length);
    if (!charged.ok()) {
      RefuseMessage(charged);
      return End();
    }
    method_.memory.Handle(length, [this, length] {
      RunHandler(length);
      End();
    });
  }

  void End() {
    grpc_call_unref(core_call_);
    delete this;
  }

  void RefuseMessage(const absl::Status& why) {
    if (message_ != nullptr) grpc_byte_buffer_destroy(message_);
    Refuse(call_, why);
  }

  // Measures the message, and raises its charge. Errors: of the measure, and of Raise.
  absl::Status MeasureMessage(uint64_t length) {
    if (length <= CallMemory::kUncharged && IsBelowLimits(length, method_.limits)) {
      return absl::OkStatus();
    }
    grpc::ByteBuffer bytes = ShareBytes(*message_);
    ASSIGN_OR_RETURN(const uint64_t parsed,
                     resident::MeasureMessage(method_.message, bytes, method_.limits));
    return method_.memory.Raise(CallContext::Of(*call_.server_context), parsed);
  }

  void RunHandler(uint64_t length) {
    if (std::chrono::steady_clock::now() - started_ > AdmittedService::kRecheckAfter) {
      const absl::Status admitted = method_.Admit(call_);
      if (!admitted.ok()) return RefuseMessage(admitted);
    }
    if (message_ != nullptr) {
      const absl::Status measured = MeasureMessage(length);
      if (!measured.ok()) return RefuseMessage(measured);
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
    const absl::StatusOr<OpenCalls::Place> place = Begin(call);
    if (!place.ok()) return Refuse(call, place.status());
    // gRPC destroys the function when the call has ended.
    const Parameter placed(call.call, call.server_context, call.request, call.status,
                           call.internal_data,
                           [place = *place, next = call.call_requester] { next(); });
    if (method_.one_message) {
      MessageRead::Start(method_, placed);
    } else {
      method_.handler.RunHandler(placed);
    }
  }

 private:
  absl::StatusOr<OpenCalls::Place> Begin(const Parameter& call) const {
    RETURN_IF_ERROR(method_.Admit(call));
    return method_.calls.Enter(CallContext::Of(*call.server_context), method_.open_to_all);
  }

  const Method method_;
};

// Gives access to the handlers, which are protected members of grpc::Service.
struct Handlers : grpc::Service {
  using grpc::Service::GetHandler;
};

}  // namespace

AdmittedService::AdmittedService(grpc::Service& service, absl::string_view full_name,
                                 const Admit& admit, CallMemory& memory, OpenCalls& calls) {
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
    MarkMethodCallback(
        i, new AdmittedMethod({handler, name, !method.client_streaming(), *method.input_type(),
                               FindMessageLimits(memory.core(), name), admit, memory, calls,
                               FindMethodRule(name).open_to_all}));
  }
}

}  // namespace resident
