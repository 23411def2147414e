#include "server/rpc/call_memory.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "grpcpp/support/byte_buffer.h"
#include "grpcpp/support/server_interceptor.h"
#include "runtime/base/status_macros.h"
#include "server/auth/method_roles.h"
#include "server/core/status.h"
#include "server/rpc/call.h"
#include "server/rpc/errors.h"

namespace resident {

using grpc::experimental::InterceptionHookPoints;
using grpc::experimental::InterceptorBatchMethods;
using grpc::experimental::ServerRpcInfo;

class CallMemory::Contexts final : public grpc::ContextAllocator {
 public:
  explicit Contexts(CallMemory& memory) : memory_(memory) {}
  grpc::CallbackServerContext* NewCallbackServerContext() override {
    return new CallContext(memory_);
  }
  grpc::GenericCallbackServerContext* NewGenericCallbackServerContext() override {
    return nullptr;  // The server has no generic service.
  }
  // gRPC also releases its own contexts, of calls of unknown methods, and then destroys them
  // itself.
  void Release(grpc::CallbackServerContext* context) override {
    delete dynamic_cast<CallContext*>(context);
  }

 private:
  CallMemory& memory_;
};

// Charges the answers of one call.
class CallMemory::AnswerCharge final : public grpc::experimental::Interceptor {
 public:
  AnswerCharge(CallMemory& memory, CallContext& context) : memory_(memory), context_(context) {}

  void Intercept(InterceptorBatchMethods* operations) override {
    if (operations->QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_MESSAGE)) {
      Charge(*operations);
    }
    operations->Proceed();
  }

 private:
  void Charge(InterceptorBatchMethods& operations) {
    grpc::ByteBuffer& answer = *operations.GetSerializedSendMessage();
    const uint64_t bytes = answer.Length();
    context_.answer_.Clear();  // The answer before, of a stream, is written.
    if (bytes <= kUncharged) return;
    const absl::Status refused = memory_.CheckShare(context_, bytes);
    // The answer of a stream is sent: it writes one at a time.
    if (!refused.ok() &&
        operations.QueryInterceptionHookPoint(InterceptionHookPoints::PRE_SEND_STATUS)) {
      answer.Clear();
      operations.ModifySendStatus(ToGrpc(refused));
      return;
    }
    context_.answer_ =
        memory_.core_.admission.host().Count(context_.account_, bytes, Budget::Purpose::kAnswers);
  }

  CallMemory& memory_;
  CallContext& context_;
};

class CallMemory::Answers final : public grpc::experimental::ServerInterceptorFactoryInterface {
 public:
  explicit Answers(CallMemory& memory) : memory_(memory) {}
  grpc::experimental::Interceptor* CreateServerInterceptor(ServerRpcInfo* call) override {
    const MethodRule rule = FindMethodRule(call->method());
    const bool known = rule.max_objects > 0;
    if (!known || rule.unread == Unread::kHandler) return nullptr;
    return new AnswerCharge(memory_, CallContext::Of(*call->server_context()));
  }

 private:
  CallMemory& memory_;
};

void CallMemory::AddTo(grpc::ServerBuilder& builder) {
  builder.SetContextAllocator(std::make_unique<Contexts>(*this));
  std::vector<std::unique_ptr<grpc::experimental::ServerInterceptorFactoryInterface>> creators;
  creators.push_back(std::make_unique<Answers>(*this));
  builder.experimental().SetInterceptorCreators(std::move(creators));
}

std::shared_ptr<Budget::Account> CallMemory::FindAccount(const CallContext& context) {
  const std::string session = ReadSessionId(context);
  if (!session.empty()) {
    const std::shared_ptr<Client> client = core_.clients.FindSession(session);
    if (client != nullptr) return client->accounts()->host();
  }
  const std::string peer = context.peer();
  absl::MutexLock lock(&mu_);
  if (accounts_.size() >= prune_at_) {
    absl::erase_if(accounts_, [](const auto& entry) { return entry.second.expired(); });
    prune_at_ = std::max(kMinAccounts, 2 * accounts_.size());
  }
  std::weak_ptr<Budget::Account>& entry = accounts_[peer];
  std::shared_ptr<Budget::Account> account = entry.lock();
  if (account == nullptr) entry = account = std::make_shared<Budget::Account>();
  return account;
}

absl::Status CallMemory::CheckShare(CallContext& context, uint64_t bytes) {
  const Budget& host = core_.admission.host();
  if (context.account_ == nullptr) context.account_ = FindAccount(context);
  const Budget::Account& account = *context.account_;
  // The call's own message does not prevent its answer.
  const uint64_t own = context.message_.amount();
  const uint64_t others = account.counted() - std::min(own, account.counted());
  if ((others == 0 && own > 0) || others + bytes <= kSmall) return absl::OkStatus();
  if (!host.Full(account)) return absl::OkStatus();
  return errors::CallMemoryFull({.of_client = account.counted(),
                                 .of_all = host.used(),
                                 .client_limit = host.client_limit(),
                                 .limit = host.limit()});
}

absl::Status CallMemory::Charge(CallContext& context, uint64_t bytes) {
  const Budget& host = core_.admission.host();
  const uint64_t used =
      host.used(Budget::Purpose::kRequests) + host.used(Budget::Purpose::kAnswers);
  // Most calls need no account. A client whose share is used is refused before its answer is made.
  if (bytes <= kUncharged && used <= kSmall) return absl::OkStatus();
  RETURN_IF_ERROR(CheckShare(context, bytes));
  if (bytes <= kUncharged) return absl::OkStatus();
  context.message_ = core_.admission.host().Count(context.account_, bytes);
  return absl::OkStatus();
}

absl::Status CallMemory::Raise(CallContext& context, uint64_t bytes) {
  // Streams wait to read while all clients' messages have their share of the budget (Budget::Full).
  // Two messages that expand to a gigabyte each would stop the streams of everybody.
  const Budget& host = core_.admission.host();
  absl::MutexLock lock(&raise_mu_);  // Otherwise two messages could find the same memory free.
  const uint64_t share = host.limit() / Budget::kCountedShare;
  const uint64_t all = host.used(Budget::Purpose::kRequests);
  if (bytes > kLarge && all > context.message_.amount() && all + bytes > share - share / 8) {
    return errors::CallMemoryFull({.of_client = context.message_.amount() + bytes,
                                   .of_all = all + bytes,
                                   .client_limit = UINT64_MAX,
                                   .limit = host.limit()});
  }
  context.message_.Become(Budget::Purpose::kRequests, context.message_.amount() + bytes);
  return absl::OkStatus();
}

void CallMemory::Handle(uint64_t length, std::function<void()> handle) {
  if (length <= kLarge) return handle();
  threads_.Post(std::move(handle));
}

void CallMemory::HandleLarge(const CallContext& context, uint64_t length,
                             std::function<void()> handle) {
  CallMemory& memory = context.memory_;
  const auto charge = std::make_shared<Budget::Charge>(
      memory.core_.admission.host().Count(memory.FindAccount(context), length));
  memory.threads_.Post([charge, handle = std::move(handle)] { handle(); });
}

}  // namespace resident
