#include "server/rpc/device_reader.h"

#include <algorithm>
#include <utility>

#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "server/rpc/buffer_access.h"
#include "server/translation/copy_task.h"

namespace resident {
void DeviceReader::Post() {
  core_.runner->Post([self = shared_from_this()] { self->Advance(); });
}

void DeviceReader::Next() {
  {
    absl::MutexLock lock(&mu_);
    --handed_over_;
  }
  Post();
}

void DeviceReader::Cancel() {
  {
    absl::MutexLock lock(&mu_);
    if (status_.ok()) status_ = errors::Cancelled();
  }
  Post();
}

std::function<void()> DeviceReader::WindowWake() {
  return [self = shared_from_this()] {
    self->core_.runner->Post([self] {
      {
        absl::MutexLock lock(&self->mu_);
        self->waiting_ = false;
      }
      self->Advance();
    });
  };
}

absl::Status DeviceReader::Request() {
  ASSIGN_OR_RETURN(const auto engine, EngineOf(core_, *buffer_));
  auto piece = std::make_shared<Piece>();
  piece->bytes = std::min(piece_bytes_, end_offset_ - next_offset_);
  auto window = window_.Allocate(*engine, client_->window_use()[buffer_->device], piece->bytes,
                                 this, &waiting_);
  if (waiting_) return absl::OkStatus();
  if (!window.ok()) return window.status();
  piece->window = *std::move(window);

  ASSIGN_OR_RETURN(const auto copy_bytes, core_.registry->Resolve(kCopyBytesOperator, 0));
  auto batch =
      MakeCopyBatch(copy_bytes, buffer_->device, *engine, buffer_->memory->address + next_offset_,
                    piece->window->address, piece->bytes);
  batch->keep_alive = {piece->window, buffer_};
  batch->done = [self = shared_from_this(), piece](Batch& ended) {
    const absl::Status status =
        ended.status[0] == TaskStatus::kOk ? absl::OkStatus() : CopyError("the download", ended);
    ended.keep_alive.clear();
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
  absl::Status outcome;
  while (true) {
    std::shared_ptr<Piece> ready;
    {
      absl::MutexLock lock(&mu_);
      if (ended_) return;
      while (status_.ok() && !waiting_ && next_offset_ < end_offset_ &&
             pieces_.size() + handed_over_ < kPiecesAhead) {
        const absl::Status requested = Request();
        // A queue that is full may be so of this reader's own: its next piece retries.
        if (requested.code() == absl::StatusCode::kResourceExhausted && !pieces_.empty()) break;
        if (!requested.ok()) status_ = requested;
      }
      if (taking_) return;
      if (status_.ok() && !pieces_.empty() && pieces_.front()->done) {
        ready = std::move(pieces_.front());
        pieces_.pop_front();
        taking_ = true;
        ++handed_over_;
      } else {
        if (status_.ok() && (handed_over_ > 0 || !pieces_.empty() || next_offset_ < end_offset_)) {
          return;
        }
        if (waiting_) {
          // Woken already: it ends when that has come.
          if (!window_.Withdraw(*this)) return;
          waiting_ = false;
        }
        // Others need not wait for what is still handed over.
        WindowGate::Leave(*this);
        if (handed_over_ > 0) return;
        ended_ = true;
        outcome = status_;
        break;
      }
    }
    take_({ready->window->host, ready->bytes});
    ready->window.reset();
    absl::MutexLock lock(&mu_);
    taking_ = false;
  }
  end_(outcome);
}

}  // namespace resident
