// WatchStream: one Operators.Watch.
//
// Nothing is queued: an event is read from the manager once the previous one is written, so that a
// slow client uses no memory. If the manager no longer has the client's next event, the stream ends
// with OUT_OF_RANGE.
//
// The actor, the hash of the content, and the message of an event are left out for callers that may
// not see information about others (MaySeeOthers in viewer.h).
//
// Thread safety: see BidiStream. The manager calls it from any thread.
#ifndef RESIDENT_SERVER_OPERATORS_WATCH_STREAM_H_
#define RESIDENT_SERVER_OPERATORS_WATCH_STREAM_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"
#include "resident/v1/operators.pb.h"
#include "server/operators/installs.h"
#include "server/rpc/bidi_stream.h"

namespace resident {

class WatchStream final : public BidiStream<NoMessage, v1::WatchResponse> {
 public:
  WatchStream(Transport& transport, Installs& installs)
      : BidiStream(transport, installs.core), installs_(installs) {}
  void Open(const grpc::CallbackServerContext& context, const v1::WatchRequest& request);
  void OnDone() override;

 private:
  void OnWritten() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { WriteNext(); }

  absl::Status TakeSlot(const grpc::CallbackServerContext& context);
  // Reads and writes the next event, if there is one.
  void WriteNext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Installs& installs_;
  // Set before the service's method returns.
  std::string name_;
  absl::StatusOr<std::shared_ptr<Identity>> identity_;  // The caller. An error ends the call.
  SharedSlots::Ticket slot_;
  uint64_t subscription_ = 0;

  uint64_t after_ ABSL_GUARDED_BY(mu_) = 0;  // Revision of the last event read.
  // Events that are read and not yet written; at most kEventsRead.
  std::deque<OperatorEvent> events_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_OPERATORS_WATCH_STREAM_H_
