#include "server/rpc/download_stream.h"

#include <chrono>
#include <utility>

#include "runtime/base/errors/buffer_errors.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/limits.h"
#include "runtime/base/status_macros.h"
#include "server/rpc/call.h"
#include "server/rpc/status.h"

namespace resident {
namespace {

// How long a stream that is ended waits for its client to take the message that is being
// written; then it is broken off.
constexpr auto kLastWrite = std::chrono::milliseconds(500);

}  // namespace

DownloadStream* DownloadStream::Start(Core& core, const grpc::CallbackServerContext& context,
                                      const v1::DownloadRequest& request) {
  std::shared_ptr<DownloadStream> stream(new DownloadStream(core, context));
  stream->self_ = stream;
  const absl::Status opened = stream->Open(context, request);
  if (!opened.ok()) stream->Conclude(opened);
  return stream.get();
}

DownloadStream::~DownloadStream() {
  core_.streams.Remove(this);
  if (entered_) core_.gate.Leave(1);
}

absl::Status DownloadStream::Open(const grpc::CallbackServerContext& context,
                                  const v1::DownloadRequest& request) {
  core_.streams.Add(shared_from_this(),
                    RecheckOf(context, core_, Role::kSubmit, "resident.v1.Buffers/Download"));
  ASSIGN_OR_RETURN(const auto client, SessionClientOf(context, core_));
  if (!core_.gate.Enter(1)) return errors::Draining();
  entered_ = true;
  ASSIGN_OR_RETURN(const auto buffer, core_.buffers.Find(client->id(), request.buffer_id()));
  const uint64_t size = buffer->size_bytes;
  const uint64_t offset = request.offset();
  if (offset > size || request.size_bytes() > size - offset) {
    return errors::BeyondBufferEnd(request.buffer_id(), offset, request.size_bytes(), size);
  }
  const uint64_t bytes = request.size_bytes() == 0 ? size - offset : request.size_bytes();
  auto reader = std::make_shared<DeviceReader>(
      core_, client, buffer, DeviceReader::Range{offset, bytes, kDownloadChunkBytes},
      [self = shared_from_this()](absl::Span<const uint8_t> data, Budget::Charge memory) {
        self->Take(data, std::move(memory));
      },
      [self = shared_from_this()](const absl::Status& status) { self->Conclude(status); });
  {
    absl::MutexLock lock(&mu_);
    if (!ended_.ok()) return ended_;
    reader_ = reader;
  }
  reader->Start();
  return absl::OkStatus();
}

void DownloadStream::Take(absl::Span<const uint8_t> data, Budget::Charge memory) {
  auto response = std::make_unique<v1::DownloadResponse>();
  response->mutable_data()->assign(reinterpret_cast<const char*>(data.data()), data.size());
  core_.counters.Sent(data.size());
  absl::MutexLock lock(&mu_);
  if (!ended_.ok()) {
    // Not sent any more: End has set unread_alarm_ only for what was being written by then. The
    // reader has no lock of its own here.
    const std::shared_ptr<DeviceReader> reader = reader_;
    if (reader != nullptr) reader->Next();
    return;
  }
  responses_.push_back({std::move(response), std::move(memory)});
  // The reader ends the call only once every piece is given back, in OnWriteDone.
  if (responses_.size() == 1) StartWrite(responses_.front().response.get());
}

void DownloadStream::OnWriteDone(bool ok) {
  std::shared_ptr<DeviceReader> reader;
  {
    absl::MutexLock lock(&mu_);
    responses_.pop_front();
    if (!responses_.empty()) StartWrite(responses_.front().response.get());
    reader = reader_;
  }
  if (reader == nullptr) return;
  if (!ok) reader->Cancel();
  reader->Next();
}

void DownloadStream::OnCancel() {
  std::shared_ptr<DeviceReader> reader;
  {
    absl::MutexLock lock(&mu_);
    reader = reader_;
  }
  if (reader != nullptr) reader->Cancel();
}

void DownloadStream::End(const absl::Status& status) {
  std::shared_ptr<DeviceReader> reader;
  size_t dropped = 0;
  {
    absl::MutexLock lock(&mu_);
    if (finished_ || !ended_.ok()) return;
    ended_ = status;
    reader = reader_;
    // What is being written is gRPC's; the rest is not sent any more.
    while (responses_.size() > 1) {
      responses_.pop_back();
      ++dropped;
    }
    if (!responses_.empty()) {
      unread_alarm_.Set(std::chrono::system_clock::now() + kLastWrite,
                        [weak = weak_from_this()](bool passed) {
                          const std::shared_ptr<DownloadStream> self = weak.lock();
                          if (!passed || self == nullptr) return;
                          absl::MutexLock lock(&self->mu_);
                          if (!self->finished_) self->context_.TryCancel();
                        });
    }
  }
  if (reader == nullptr) return;
  reader->Cancel();
  for (size_t i = 0; i < dropped; ++i) reader->Next();
}

void DownloadStream::Conclude(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  if (finished_) return;
  finished_ = true;
  unread_alarm_.Cancel();
  reader_.reset();  // It refers to this object.
  Finish(ToGrpc(ended_.ok() ? status : ended_));
}

}  // namespace resident
