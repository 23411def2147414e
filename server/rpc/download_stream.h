// DownloadStream: one Buffers.Download.
//
// Pieces are copied into messages as they come, so that a client who does not read holds
// DeviceReader::kPiecesAhead messages of the daemon's memory, for which it is charged, and no
// staging memory. One whose client
// does not read is broken off soon after End: gRPC sends no status past a message that the
// client does not take.
//
// Thread safety: gRPC and the reader call its members from any thread; mu_ orders
// them.
#ifndef RESIDENT_SERVER_RPC_DOWNLOAD_STREAM_H_
#define RESIDENT_SERVER_RPC_DOWNLOAD_STREAM_H_

#include <deque>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/synchronization/mutex.h"
#include "grpcpp/alarm.h"
#include "grpcpp/support/server_callback.h"
#include "resident/v1/buffers.pb.h"
#include "server/rpc/core.h"
#include "server/rpc/device_reader.h"
#include "server/rpc/live_streams.h"

namespace resident {

class DownloadStream final : public grpc::ServerWriteReactor<v1::DownloadResponse>,
                             public LiveStream,
                             public std::enable_shared_from_this<DownloadStream> {
 public:
  // Owns itself until gRPC and the reader are done with it.
  static DownloadStream* Start(Core& core, const grpc::CallbackServerContext& context,
                               const v1::DownloadRequest& request);
  ~DownloadStream() override;

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override { self_.reset(); }
  void End(const absl::Status& status) override;

 private:
  DownloadStream(Core& core, const grpc::CallbackServerContext& context)
      : core_(core), context_(context) {}
  absl::Status Open(const grpc::CallbackServerContext& context, const v1::DownloadRequest& request);
  void Take(absl::Span<const uint8_t> data, Budget::Charge memory);
  // The reader has ended, or never began.
  void Conclude(const absl::Status& status);

  Core& core_;
  // Valid until Finish.
  const grpc::CallbackServerContext& context_;
  std::shared_ptr<DownloadStream> self_;  // Until OnDone.
  bool entered_ = false;                  // Counted by the gate.

  absl::Mutex mu_;
  struct Unwritten {
    std::unique_ptr<v1::DownloadResponse> response;
    Budget::Charge memory;
  };
  // The first is being written.
  std::deque<Unwritten> responses_ ABSL_GUARDED_BY(mu_);
  std::shared_ptr<DeviceReader> reader_ ABSL_GUARDED_BY(mu_);
  bool finished_ ABSL_GUARDED_BY(mu_) = false;
  absl::Status ended_ ABSL_GUARDED_BY(mu_);  // Why, if not by itself.
  grpc::Alarm unread_alarm_;                 // Holds no reference to this.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_DOWNLOAD_STREAM_H_
