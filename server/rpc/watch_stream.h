// WatchStream: one Operators.Watch.
//
// Nothing is queued: an event is read from the manager once the one before it is written,
// so that a client that reads slowly takes no memory. One that falls behind what is kept
// ends OUT_OF_RANGE.
//
// Who did something, the hash of what, and the daemon's account of it are left out for callers
// who may not see what others did (SeesOthers in call.h).
//
// Thread safety: gRPC and the manager call its members from any thread; mu_ guards
// everything. Operations are started under mu_, and none after Finish.
#ifndef RESIDENT_SERVER_RPC_WATCH_STREAM_H_
#define RESIDENT_SERVER_RPC_WATCH_STREAM_H_

#include <cstdint>
#include <deque>
#include <memory>
#include <string>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/support/server_callback.h"
#include "resident/v1/operators.pb.h"
#include "server/rpc/core.h"
#include "server/rpc/live_streams.h"

namespace resident {

class WatchStream final : public grpc::ServerWriteReactor<v1::WatchResponse>,
                          public LiveStream,
                          public std::enable_shared_from_this<WatchStream> {
 public:
  // Owns itself until gRPC is done with it.
  static WatchStream* Start(Core& core, const grpc::CallbackServerContext& context,
                            const v1::WatchRequest& request);
  ~WatchStream() override;

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;
  void End(const absl::Status& status) override;

 private:
  WatchStream(Core& core, const grpc::CallbackServerContext& context,
              const v1::WatchRequest& request);
  void Open(const grpc::CallbackServerContext& context, uint64_t after_revision);
  // Reads and writes the next event, if there is one.
  void Advance() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void Conclude(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  Core& core_;
  const std::string name_;
  // Who watches. An error ends the call.
  const absl::StatusOr<std::shared_ptr<Identity>> identity_;
  SharedSlots::Ticket slot_;           // Set before the handler returns.
  std::shared_ptr<WatchStream> self_;  // Until OnDone.
  uint64_t subscription_ = 0;          // Set before the handler returns.

  absl::Mutex mu_;
  uint64_t after_ ABSL_GUARDED_BY(mu_) = 0;  // Revision of the last event read.
  // Read and not yet written; few.
  std::deque<OperatorEvent> events_ ABSL_GUARDED_BY(mu_);
  v1::WatchResponse response_ ABSL_GUARDED_BY(mu_);  // gRPC's while writing_.
  bool writing_ ABSL_GUARDED_BY(mu_) = false;
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status end_ ABSL_GUARDED_BY(mu_);  // Set: ends with it once nothing is written.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_WATCH_STREAM_H_
