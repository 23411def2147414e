#include "server/rpc/upload_stream.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/errors/buffer_errors.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "server/rpc/buffer_access.h"
#include "server/rpc/call.h"
#include "server/rpc/message_bytes.h"
#include "server/rpc/status.h"
#include "server/translation/copy_task.h"

namespace resident {
namespace {

constexpr int kPiecesUnderWay = 2;

}  // namespace

UploadStream* UploadStream::Start(Core& core, const grpc::CallbackServerContext& context,
                                  grpc::ByteBuffer& response) {
  std::shared_ptr<UploadStream> stream(new UploadStream(core, context, response));
  stream->self_ = stream;
  stream->Open();
  return stream.get();
}

UploadStream::~UploadStream() {
  core_.request_memory->Withdraw(this);
  core_.streams->Remove(this);
  if (entered_) core_.gate->Leave(1);
}

void UploadStream::Open() {
  core_.streams->Add(shared_from_this(),
                     RecheckOf(context_, core_, Role::kSubmit, "resident.v1.Buffers/Upload"));
  const absl::StatusOr<std::shared_ptr<Client>> client = SessionClientOf(context_, core_);
  absl::MutexLock lock(&mu_);
  if (!client.ok()) {
    Fail(client.status());
  } else if (!core_.gate->Enter(1)) {
    Fail(errors::Draining());
  } else {
    entered_ = true;
    client_ = *client;
  }
  Advance();
}

void UploadStream::OnReadDone(bool ok) {
  absl::MutexLock lock(&mu_);
  reading_ = false;
  if (!ok) {
    reads_ended_ = true;
    // A client that is gone has not said that its upload is complete.
    if (context_.IsCancelled()) Fail(errors::Cancelled());
    if (buffer_ == nullptr) Fail(errors::NoUpload());
  } else {
    Fail(Accept());
  }
  Advance();
}

absl::Status UploadStream::Accept() {
  RETURN_IF_ERROR(ParseMessage(message_bytes_, &message_));
  const uint64_t bytes = message_.data().size();
  core_.counters->Received(bytes);
  message_charge_ = core_.request_memory->Count(client_->request_use(), bytes);
  position_ = 0;
  if (buffer_ == nullptr) {
    ASSIGN_OR_RETURN(auto buffer, core_.buffers->Find(client_->id(), message_.buffer_id()));
    buffer_ = std::move(buffer);
    offset_ = message_.offset();
    if (buffer_->durable) {
      ASSIGN_OR_RETURN(auto write, core_.buffers->StartWrite(DurableCopy::Kind::kUpload,
                                                             client_->id(), *buffer_));
      durable_write_ = std::move(write);
    }
  }
  const uint64_t size = buffer_->size_bytes;
  if (offset_ > size || bytes > size - offset_) {
    return errors::BeyondBufferEnd(buffer_->id, offset_, bytes, size);
  }
  return absl::OkStatus();
}

absl::Status UploadStream::SendPiece() {
  ASSIGN_OR_RETURN(const auto engine, EngineOf(core_, *buffer_));
  WindowGate& gate = *core_.serving[buffer_->device].window;
  const uint64_t bytes =
      std::min<uint64_t>(gate.PieceBytes(kCopyPieceBytes), message_.data().size() - position_);
  auto window =
      gate.Allocate(*engine, client_->window_use()[buffer_->device], bytes, this, &waiting_);
  if (waiting_) return absl::OkStatus();
  if (!window.ok()) return window.status();
  std::memcpy((*window)->host, message_.data().data() + position_, bytes);

  ASSIGN_OR_RETURN(const auto copy_bytes, core_.registry->Resolve(kCopyBytesOperator, 0));
  auto batch = MakeCopyBatch(copy_bytes, buffer_->device, *engine, (*window)->address,
                             buffer_->memory->address + offset_, bytes);
  batch->keep_alive = {*window, buffer_};
  batch->done = [self = shared_from_this(), offset = offset_, bytes,
                 host = (*window)->host](Batch& piece) {
    // Off the pump's thread: it may have to copy the piece once more. The piece keeps
    // the window memory, so it is kept until then.
    const absl::Status outcome =
        piece.status[0] == TaskStatus::kOk ? absl::OkStatus() : CopyError("the upload", piece);
    self->core_.runner->Post(
        [self, offset, bytes, host, outcome, keep = std::exchange(piece.keep_alive, {})] {
          self->OnPieceDone(outcome, offset, bytes, host);
        });
  };
  const absl::Status taken =
      core_.devices[buffer_->device]->queue().Enqueue(client_->transfer_id(), batch);
  if (!taken.ok()) {
    return taken.code() == absl::StatusCode::kNotFound ? errors::UnknownSession(client_->session())
                                                       : taken;
  }
  ++under_way_;
  position_ += bytes;
  offset_ += bytes;
  return absl::OkStatus();
}

void UploadStream::OnPieceDone(const absl::Status& copied, uint64_t offset, uint64_t bytes,
                               const uint8_t* host) {
  std::shared_ptr<DurableWrite> durable;
  {
    absl::MutexLock lock(&mu_);
    durable = durable_write_;
  }
  absl::Status outcome = copied;
  if (outcome.ok() && durable != nullptr) outcome = durable->Add(offset, {host, bytes});
  absl::MutexLock lock(&mu_);
  --under_way_;
  if (outcome.ok()) written_ += bytes;
  Fail(outcome);
  Advance();
}

void UploadStream::OnCancel() { End(errors::Cancelled()); }

void UploadStream::End(const absl::Status& status) {
  absl::MutexLock lock(&mu_);
  Fail(status);
  Advance();
}

std::function<void()> UploadStream::WindowWake() {
  return [self = shared_from_this()] {
    self->core_.runner->Post([self] {
      absl::MutexLock lock(&self->mu_);
      self->waiting_ = false;
      self->Advance();
    });
  };
}

void UploadStream::Fail(const absl::Status& status) {
  if (status_.ok()) status_ = status;
}

void UploadStream::ReadOn() {
  message_ = v1::UploadRequest();
  position_ = 0;
  message_charge_.Clear();
  const bool full = core_.request_memory->WaitIfFull(
      client_->request_use(), this, core_.runner->PostTo(weak_from_this(), [](UploadStream& self) {
        absl::MutexLock lock(&self.mu_);
        self.Advance();
      }));
  if (full) return;
  reading_ = true;
  StartRead(&message_bytes_);
}

void UploadStream::Advance() {
  if (finished_) return;
  while (status_.ok() && !waiting_ && buffer_ != nullptr && !reading_ && !reads_ended_ &&
         position_ < message_.data().size() && under_way_ < kPiecesUnderWay) {
    const absl::Status sent = SendPiece();
    // A queue that is full may be so of this upload's own: its next piece retries.
    if (sent.code() == absl::StatusCode::kResourceExhausted && under_way_ > 0) return;
    Fail(sent);
  }
  if (status_.ok() && !reads_ended_) {
    const bool all_sent = buffer_ == nullptr || position_ == message_.data().size();
    if (all_sent && !reading_) ReadOn();
    return;
  }
  if (waiting_) {
    // Woken already: it ends when that has come.
    if (!core_.serving[buffer_->device].window->Withdraw(*this)) return;
    waiting_ = false;
  }
  // Others need not wait for what is still under way.
  WindowGate::Leave(*this);
  if (under_way_ > 0) return;
  finished_ = true;
  FinishUpload();
}

void UploadStream::FinishUpload() {
  v1::UploadResponse response;
  response.set_written_bytes(written_);
  response_ = ToBytes(response);
  const bool durable = durable_write_ != nullptr;
  if (status_.ok() && durable) Fail(durable_write_->Commit());
  durable_write_.reset();
  if (status_.ok() && durable && core_.buffers->on_disk()) {
    // Answered once a restart would bring it back.
    core_.disk->Post([self = shared_from_this(), buffer = buffer_] {
      self->Finish(ToGrpc(self->core_.buffers->Save(*buffer)));
    });
    return;
  }
  Finish(ToGrpc(status_));
}

}  // namespace resident
