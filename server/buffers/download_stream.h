// DownloadStream: one Buffers.Download.
//
// Pieces are copied into messages as they arrive, so that a client that does not read holds at most
// DeviceReader::kPiecesAhead messages of the daemon's memory, for which it is charged, and no
// staging memory. A stream whose client does not read is aborted soon after End, because gRPC sends
// no status while the client does not read the message before it.
//
// Thread safety: see BidiStream. The reader's mutex is locked while mu_ is held, never the reverse.
#ifndef RESIDENT_SERVER_BUFFERS_DOWNLOAD_STREAM_H_
#define RESIDENT_SERVER_BUFFERS_DOWNLOAD_STREAM_H_

#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "grpcpp/server_context.h"
#include "resident/v1/buffers.pb.h"
#include "server/buffers/device_reader.h"
#include "server/rpc/bidi_stream.h"

namespace resident {

class DownloadStream final : public BidiStream<NoMessage, v1::DownloadResponse> {
 public:
  DownloadStream(Transport& transport, Core& core) : BidiStream(transport, core) {}
  void Open(const grpc::CallbackServerContext& context, const v1::DownloadRequest& request);

 private:
  void OnWritten() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnEnd(const absl::Status& status) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // The reader ends once all of its pieces are released.
  bool Busy() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return reader_ != nullptr; }

  absl::Status StartReader(const grpc::CallbackServerContext& context,
                           const v1::DownloadRequest& request);
  void Take(absl::Span<const uint8_t> data, Budget::Charge memory);
  void OnReaderEnd(const absl::Status& status);

  DrainGate::Entry entry_;
  std::shared_ptr<DeviceReader> reader_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_BUFFERS_DOWNLOAD_STREAM_H_
