#include "server/services/device_reader.h"

#include <algorithm>
#include <utility>

#include "runtime/buffers/copy_task.h"
#include "runtime/errors/daemon_errors.h"
#include "server/services/buffer_access.h"

namespace resident {
namespace {

constexpr size_t kPiecesAhead = 4;

}  // namespace

void DeviceReader::Next() {
  {
    absl::MutexLock lock(&mu_);
    if (handed_over_) {
      handed_over_ = false;
      pieces_.pop_front();
    }
  }
  core_.runner->Post([self = shared_from_this()] { self->Advance(); });
}

void DeviceReader::Cancel() {
  {
    absl::MutexLock lock(&mu_);
    if (status_.ok()) status_ = errors::Cancelled();
  }
  core_.runner->Post([self = shared_from_this()] { self->Advance(); });
}

absl::Status DeviceReader::Request() {
  const auto engine = EngineOf(core_, *buffer_);
  if (!engine.ok()) return engine.status();
  auto piece = std::make_shared<Piece>();
  piece->bytes = std::min(piece_bytes_, end_offset_ - next_offset_);
  auto window = (*engine)->AllocateWindow(piece->bytes);
  if (!window.ok()) return window.status();
  piece->window = *std::move(window);

  const auto copy_bytes = core_.registry->Resolve(kCopyBytesOperator, 0);
  if (!copy_bytes.ok()) return copy_bytes.status();
  auto batch =
      MakeCopyBatch(*copy_bytes, buffer_->device, **engine, buffer_->memory->address + next_offset_,
                    piece->window->address, piece->bytes);
  batch->keep_alive = {piece->window, buffer_};
  batch->done = [self = shared_from_this(), piece](Batch& ended) {
    const absl::Status status =
        ended.status[0] == TaskStatus::kOk ? absl::OkStatus() : CopyError("the download", ended);
    self->core_.runner->Post([self, piece, status] { self->OnPieceDone(*piece, status); });
  };
  const absl::Status taken =
      core_.devices[buffer_->device]->queue().Enqueue(client_->transfer_id(), batch);
  if (!taken.ok()) {
    return taken.code() == absl::StatusCode::kNotFound ? errors::UnknownSession(client_->session())
                                                       : taken;
  }
  next_offset_ += piece->bytes;
  pieces_.push_back(std::move(piece));
  return absl::OkStatus();
}

void DeviceReader::OnPieceDone(Piece& piece, const absl::Status& status) {
  {
    absl::MutexLock lock(&mu_);
    piece.done = true;
    if (status_.ok()) status_ = status;
  }
  Advance();
}

void DeviceReader::Advance() {
  std::shared_ptr<Piece> ready;
  absl::Status outcome;
  {
    absl::MutexLock lock(&mu_);
    if (ended_) return;
    while (status_.ok() && next_offset_ < end_offset_ && pieces_.size() < kPiecesAhead) {
      const absl::Status requested = Request();
      // Staging memory that is full may be this reader's own: taking a piece retries.
      if (requested.code() == absl::StatusCode::kResourceExhausted && !pieces_.empty()) break;
      if (!requested.ok()) status_ = requested;
    }
    if (handed_over_) return;
    if (status_.ok()) {
      if (!pieces_.empty()) {
        if (!pieces_.front()->done) return;
        handed_over_ = true;
        ready = pieces_.front();
      }
    }
    if (ready == nullptr) {
      ended_ = true;
      outcome = status_;
    }
  }
  if (ready != nullptr) {
    take_({ready->window->host, ready->bytes});
  } else {
    end_(outcome);
  }
}

}  // namespace resident
