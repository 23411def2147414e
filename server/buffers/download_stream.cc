#include "server/buffers/download_stream.h"

#include <utility>

#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/limits.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/errors.h"
#include "server/rpc/call.h"

namespace resident {

void DownloadStream::Open(const grpc::CallbackServerContext& context,
                          const v1::DownloadRequest& request) {
  Register(MakeRecheck(context, core_, Role::kSubmit, "resident.v1.Buffers/Download"));
  const absl::Status started = StartReader(context, request);
  if (started.ok()) return;
  absl::MutexLock lock(&mu_);
  Conclude(started);
}

absl::Status DownloadStream::StartReader(const grpc::CallbackServerContext& context,
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

void DownloadStream::Take(absl::Span<const uint8_t> data, Budget::Charge memory) {
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

void DownloadStream::OnWritten() {
  if (reader_ != nullptr) reader_->Next();
}

void DownloadStream::OnEnd(const absl::Status& status) {
  if (reader_ != nullptr) reader_->Cancel();
  DropUnread();
  Conclude(status);
}

void DownloadStream::OnReaderEnd(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  reader_.reset();  // The reader refers to this object.
  Conclude(status);
}

}  // namespace resident
