
#include "server/operators/watch_stream.h"

#include <utility>

#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "server/operators/operator_messages.h"
#include "server/rpc/call.h"

namespace resident {
namespace {

constexpr size_t kEventsRead = 16;

}  // namespace

void WatchStream::Open(const grpc::CallbackServerContext& context,
                       const v1::WatchRequest& request) {
  Register(MakeRecheck(context, core_, RoleSet::All(), "resident.v1.Operators/Watch"));
  name_ = request.name();
  identity_ = IdentifyCaller(context, core_);
  const absl::Status refused = TakeSlot(context);
  {
    absl::MutexLock lock(&mu_);
    if (!refused.ok()) return Conclude(refused);
    after_ = request.after_revision() == 0 ? core_.operators.revision() : request.after_revision();
  }
  subscription_ = core_.operators.Subscribe([weak = weak_from_this()] {
    const auto self = std::static_pointer_cast<WatchStream>(weak.lock());
    if (self == nullptr) return;
    absl::MutexLock lock(&self->mu_);
    self->WriteNext();
  });
  absl::MutexLock lock(&mu_);
  // The headers show a client that it receives all events from now on.
  SendHeaders();
  WriteNext();
}

absl::Status WatchStream::TakeSlot(const grpc::CallbackServerContext& context) {
  if (core_.gate.draining()) return errors::Draining();
  RETURN_IF_ERROR(identity_.status());
  const Account& account = *(*identity_)->account();
  ASSIGN_OR_RETURN(auto slot, installs_.watch_slots.Take(NameHolder(account, context.peer()),
                                                         account.watch_quota()));
  slot_ = std::move(slot);
  return absl::OkStatus();
}

void WatchStream::WriteNext() {
  while (!ending() && !writing() && events_.empty()) {
    auto next = core_.operators.EventsAfter(after_, kEventsRead);
    if (!next.ok()) return Conclude(next.status());
    if (next->empty()) return;
    after_ = next->back().revision;
    for (OperatorEvent& event : *next) {
      if (name_.empty() || event.operator_name == name_) events_.push_back(std::move(event));
    }
  }
  if (ending() || writing()) return;
  OperatorEvent event = std::move(events_.front());
  events_.pop_front();
  HideFrom(Viewer::Of(**identity_), &event);
  v1::WatchResponse response;
  FillEvent(event, response.mutable_event());
  core_.counters.Sent(response.ByteSizeLong());
  Write(std::move(response));
}

void WatchStream::OnDone() {
  // Waits for a running callback, which locks mu_; therefore mu_ is not held here.
  core_.operators.Unsubscribe(subscription_);
}

}  // namespace resident
