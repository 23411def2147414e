// DownloadStream: one Buffers.Download.
//
// Pieces are copied into messages as they arrive, so that a client that does not read holds at most
// DeviceReader::kPiecesAhead messages of the daemon's memory, for which it is charged, and no
// staging memory. A stream whose client does not read is aborted soon after End, because gRPC sends
// no status while the client does not read the message before it.
//
// Thread safety: see BidiStream. The reader's mutex is locked while mu_ is held, never the reverse.
#include <memory>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/types/span.h"
#include "grpcpp/server_context.h"
#include "resident/v1/buffers.pb.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/limits.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/errors.h"
#include "server/buffers/device_reader.h"
#include "server/buffers/transfers.h"
#include "server/rpc/bidi_stream.h"
#include "server/rpc/call.h"
#include "server/rpc/grpc_call.h"

namespace resident {
namespace {

class DownloadStream final : public BidiStream<NoMessage, v1::DownloadResponse> {
 public:
  DownloadStream(Transport& transport, Core& core) : BidiStream(transport, core) {}
  void Open(const grpc::CallbackServerContext& context, const v1::DownloadRequest& request) {
    Register(MakeRecheck(context, core_, Role::kSubmit, "resident.v1.Buffers/Download"));
    const absl::Status started = StartReader(context, request);
    if (started.ok()) return;
    absl::MutexLock lock(&mu_);
    Conclude(started);
  }

 private:
  void OnWritten() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (reader_ != nullptr) reader_->Next();
  }

  void OnEnd(const absl::Status& status) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (reader_ != nullptr) reader_->Cancel();
    DropUnread();
    Conclude(status);
  }

  // The reader ends once all of its pieces are released.
  bool Busy() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { return reader_ != nullptr; }

  absl::Status StartReader(const grpc::CallbackServerContext& context,
                           const v1::DownloadRequest& request) {
    ASSIGN_OR_RETURN(const auto client, FindSessionClient(context, core_));
    ASSIGN_OR_RETURN(entry_, core_.gate.Enter(1));
    ASSIGN_OR_RETURN(const auto buffer, core_.buffers.Find(client->id(), request.buffer_id()));
    const uint64_t size = buffer->size_bytes;
    const uint64_t offset = request.offset();
    if (offset > size || request.size_bytes() > size - offset) {
      return errors::BeyondBufferEnd(request.buffer_id(), offset, request.size_bytes(), size);
    }
    const uint64_t bytes = request.size_bytes() == 0 ? size - offset : request.size_bytes();
    auto reader = std::make_shared<DeviceReader>(
        core_, client, buffer, DeviceReader::Range{offset, bytes, kDownloadChunkBytes},
        [self = Ref(this)](absl::Span<const uint8_t> data, Budget::Charge memory) {
          self->Take(data, std::move(memory));
        },
        [self = Ref(this)](const absl::Status& status) { self->OnReaderEnd(status); });
    absl::MutexLock lock(&mu_);
    if (ending()) return absl::OkStatus();
    reader_ = std::move(reader);
    reader_->Start();
    return absl::OkStatus();
  }

  void Take(absl::Span<const uint8_t> data, Budget::Charge memory) {
    v1::DownloadResponse response;
    response.mutable_data()->assign(reinterpret_cast<const char*>(data.data()), data.size());
    core_.counters.Sent(data.size());
    absl::MutexLock lock(&mu_);
    if (ending()) {
      // Do not send it: DropUnread in OnEnd covers only the message that was being written at that
      // time.
      if (reader_ != nullptr) reader_->Next();
      return;
    }
    Write(std::move(response), std::move(memory));
  }

  void OnReaderEnd(const absl::Status& status) {
    absl::MutexLock lock(&mu_);
    reader_.reset();  // The reader refers to this object.
    Conclude(status);
  }

  DrainGate::Entry entry_;
  std::shared_ptr<DeviceReader> reader_ ABSL_GUARDED_BY(mu_);
};

}  // namespace

grpc::ServerWriteReactor<v1::DownloadResponse>* StartDownload(grpc::CallbackServerContext& context,
                                                              Core& core,
                                                              const v1::DownloadRequest& request) {
  return StartWriteCall<DownloadStream>(context, core, request);
}

}  // namespace resident
