// CallMemory: charges the messages and the answers of all calls to their clients' memory (the
// budget of --max_client_host_mib and --max_host_mib), in one place for all methods.
//
//   * A message is charged once gRPC has it, before it is parsed, with what it will take then
//     (message_bytes.h). For a call with one message, the charge lasts until the call ends; the
//     handlers of streams charge what they keep (batch_stream.h, upload_stream.cc).
//   * An answer is charged when it is serialized: that of a unary call until the call ends, which
//     is not before the client has read it, and that of a stream until the next one.
//     MethodRule::charges_answers lists the methods whose handlers do that.
//   * A client whose charges are over its share (Budget::Full) is refused further messages and
//     answers with RESOURCE_EXHAUSTED until some are read or end.
//
// Messages up to kUncharged bytes are not charged, because the call itself takes more. A client may
// always have messages and answers of kSmall bytes together, so that the memory of others does not
// prevent its calls.
//
// The client is that of the call's session, or else its connection.
//
// Messages over kLarge are counted, parsed and handled on two threads of their own: parsing 16 MiB
// can take a second, in which a thread of gRPC would serve no other connection.
//
// How it gets hold of each call: gRPC creates the context of each call through AddTo's allocator,
// and destroys it when the call has ended; an interceptor sees each answer.
//
// Thread safety: all members may be called from any thread, those of a context by one thread at a
// time.
//
//   CallMemory memory(core);
//   memory.AddTo(builder);
//   RETURN_IF_ERROR(memory.Charge(context, bytes.Length()));
#ifndef RESIDENT_SERVER_RPC_CALL_MEMORY_H_
#define RESIDENT_SERVER_RPC_CALL_MEMORY_H_

#include <cassert>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/container/flat_hash_map.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/server_context.h"
#include "server/connections/connection_table.h"
#include "server/core/core.h"
#include "server/core/worker_pool.h"

namespace resident {

class CallMemory;

// The context of a call of the daemon's server.
class CallContext final : public grpc::CallbackServerContext {
 public:
  explicit CallContext(CallMemory& memory) : memory_(memory) {}
  // REQUIRES: the context is of a server with CallMemory::AddTo.
  static CallContext& Of(grpc::ServerContextBase& context) {
    assert(dynamic_cast<CallContext*>(&context) != nullptr);
    return static_cast<CallContext&>(context);
  }

  // The meter of the call's connection; null if it is not known.
  void set_meter(std::shared_ptr<ConnectionMeter> meter) { meter_ = std::move(meter); }
  // See ConnectionMeter.
  void BeginMessage() const {
    if (meter_ != nullptr) meter_->BeginMessage();
  }
  void EndMessage(uint64_t length) const {
    if (meter_ != nullptr) meter_->EndMessage(length + length / 16 + kFrameBytes);
  }

 private:
  friend class CallMemory;
  // What a short message has around it, at least: frames, records of TLS.
  static constexpr uint64_t kFrameBytes = 64;

  CallMemory& memory_;
  std::shared_ptr<ConnectionMeter> meter_;
  std::shared_ptr<Budget::Account> account_;  // Null: nothing was charged yet.
  Budget::Charge message_;
  Budget::Charge answer_;
};

class CallMemory {
 public:
  static constexpr uint64_t kUncharged = 1u << 10;
  static constexpr uint64_t kSmall = 64u << 10;
  static constexpr uint64_t kLarge = 1u << 20;
  static constexpr size_t kMinAccounts = 1024;

  // `core` must outlive the server.
  explicit CallMemory(Core& core) : core_(core) {}
  CallMemory(const CallMemory&) = delete;
  CallMemory& operator=(const CallMemory&) = delete;

  // Before the server is built.
  void AddTo(grpc::ServerBuilder& builder);

  // Finishes what is being handled. REQUIRES: the server has ended. Idempotent.
  void Stop() { threads_.Stop(); }

  const Core& core() const { return core_; }

  // Charges the message of a call that has one, which takes `bytes` so far. RESOURCE_EXHAUSTED: the
  // client's charges are over its share.
  absl::Status Charge(CallContext& context, uint64_t bytes);
  // Raises the charge by `bytes`, once it is known what the message takes. RESOURCE_EXHAUSTED: it
  // would take the memory that streams need to read; not if no other client has messages.
  absl::Status Raise(CallContext& context, uint64_t bytes);
  // Lets `handle` handle a message of this length: at once, or on a thread for large messages.
  void Handle(uint64_t length, std::function<void()> handle);
  // Handles a large message of a stream on such a thread. It is charged until it is handled.
  static void HandleLarge(const CallContext& context, uint64_t length,
                          std::function<void()> handle);

 private:
  class Contexts;
  class Answers;
  class AnswerCharge;

  // The account of the call's session, or, if it has none, that of its connection.
  std::shared_ptr<Budget::Account> FindAccount(const CallContext& context);
  // Sets the context's account. RESOURCE_EXHAUSTED: see Charge.
  absl::Status CheckShare(CallContext& context, uint64_t bytes);

  Core& core_;
  WorkerPool threads_{2};
  absl::Mutex raise_mu_;  // See Raise.
  absl::Mutex mu_;
  // Accounts of connections. Those that nothing is charged to are removed when there are prune_at_.
  absl::flat_hash_map<std::string, std::weak_ptr<Budget::Account>> accounts_ ABSL_GUARDED_BY(mu_);
  size_t prune_at_ ABSL_GUARDED_BY(mu_) = kMinAccounts;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_CALL_MEMORY_H_
