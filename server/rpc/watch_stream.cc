#include "server/rpc/watch_stream.h"

#include <utility>

#include "runtime/base/errors/daemon_errors.h"
#include "server/rpc/call.h"
#include "server/rpc/operator_messages.h"
#include "server/rpc/status.h"

namespace resident {
namespace {

constexpr size_t kEventsRead = 16;

}  // namespace

WatchStream* WatchStream::Start(Core& core, const grpc::CallbackServerContext& context,
                                const v1::WatchRequest& request) {
  std::shared_ptr<WatchStream> stream(new WatchStream(core, context, request));
  stream->self_ = stream;
  stream->Open(context, request.after_revision());
  return stream.get();  // gRPC destroys nothing before this handler has returned.
}

WatchStream::WatchStream(Core& core, const grpc::CallbackServerContext& context,
                         const v1::WatchRequest& request)
    : core_(core), name_(request.name()), identity_(IdentityOf(context, core)) {}

WatchStream::~WatchStream() { core_.streams.Remove(this); }

void WatchStream::Open(const grpc::CallbackServerContext& context, uint64_t after_revision) {
  core_.streams.Add(shared_from_this(),
                    RecheckOf(context, core_, RoleSet::All(), "resident.v1.Operators/Watch"));
  {
    absl::MutexLock lock(&mu_);
    absl::Status refused = identity_.status();
    if (core_.gate.draining()) refused = errors::Draining();
    if (refused.ok()) {
      const Account& account = *(*identity_)->account();
      auto slot = core_.watch_slots.Take(HolderOf(account, context.peer()), account.watch_quota());
      if (slot.ok()) slot_ = *std::move(slot);
      refused = slot.status();
    }
    if (!refused.ok()) {
      Conclude(refused);
      return;
    }
    after_ = after_revision == 0 ? core_.operators.revision() : after_revision;
  }
  subscription_ = core_.operators.Subscribe([weak = weak_from_this()] {
    const std::shared_ptr<WatchStream> self = weak.lock();
    if (self == nullptr) return;
    absl::MutexLock lock(&self->mu_);
    self->Advance();
  });
  absl::MutexLock lock(&mu_);
  // So that a client knows that it sees everything from here on.
  StartSendInitialMetadata();
  Advance();
}

void WatchStream::Advance() {
  if (finished_ || writing_) return;
  while (end_.ok() && events_.empty()) {
    auto next = core_.operators.EventsAfter(after_, kEventsRead);
    if (!next.ok()) {
      end_ = next.status();
    } else if (next->empty()) {
      return;
    } else {
      after_ = next->back().revision;
      for (OperatorEvent& event : *next) {
        if (name_.empty() || event.operator_name == name_) events_.push_back(std::move(event));
      }
    }
  }
  if (!end_.ok()) {
    finished_ = true;
    Finish(ToGrpc(end_));
    return;
  }
  response_.Clear();
  OperatorEvent& event = events_.front();
  if (!SeesOthers(**identity_)) {
    event.actor.clear();
    event.content_hash.clear();
    event.message.clear();
  }
  FillEvent(event, response_.mutable_event());
  events_.pop_front();
  core_.counters.Sent(response_.ByteSizeLong());
  writing_ = true;
  StartWrite(&response_);
}

void WatchStream::OnWriteDone(bool ok) {
  absl::MutexLock lock(&mu_);
  writing_ = false;
  if (!ok && end_.ok()) end_ = errors::Cancelled();
  Advance();
}

void WatchStream::Conclude(const absl::Status& status) {
  if (end_.ok()) end_ = status;
  Advance();
}

void WatchStream::OnCancel() {
  absl::MutexLock lock(&mu_);
  Conclude(errors::Cancelled());
}

void WatchStream::End(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  Conclude(status);
}

void WatchStream::OnDone() {
  // Waits for a wake that is under way, which takes mu_.
  core_.operators.Unsubscribe(subscription_);
  self_.reset();
}

}  // namespace resident
