#include "server/buffers/device_reader.h"

#include <algorithm>
#include <utility>

#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "server/buffers/buffer_access.h"
#include "server/workload/copy_task.h"

namespace resident {

void DeviceReader::Post() {
  core_.runner.Post([self = shared_from_this()] { self->Advance(); });
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

absl::StatusOr<Needs> DeviceReader::NextNeeds() const {
  ASSIGN_OR_RETURN(auto engine, FindEngine(core_, *buffer_));
  Needs needs;
  needs.device = buffer_->device;
  needs.session = std::move(engine);
  needs.staging_bytes = std::min(piece_bytes_, end_offset_ - next_offset_);
  needs.host_bytes = kMessageCopies * needs.staging_bytes;
  needs.purpose = Budget::Purpose::kDownloads;
  return needs;
}

bool DeviceReader::RequestPieces() {
  while (status_.ok() && !waiting_ && next_offset_ < end_offset_ &&
         pieces_.size() + handed_over_ < kPiecesAhead) {
    const absl::StatusOr<Needs> needs = NextNeeds();
    if (!needs.ok()) {
      status_ = needs.status();
      return false;
    }
    auto ticket = core_.admission.TryAcquire(client_->accounts(), *needs);
    if (!ticket.ok()) {
      waiting_ = true;
      return true;
    }
    const absl::Status requested = Request(*needs, *std::move(ticket));
    // The queue may be full because of this reader's own pieces: the next piece that ends retries.
    if (requested.code() == absl::StatusCode::kResourceExhausted && !pieces_.empty()) return false;
    if (!requested.ok()) status_ = requested;
  }
  return false;
}

void DeviceReader::AwaitTicket() {
  Needs needs;
  {
    absl::MutexLock lock(&mu_);
    absl::StatusOr<Needs> next = NextNeeds();
    if (!next.ok()) {
      if (status_.ok()) status_ = next.status();
      waiting_ = false;
      return;
    }
    needs = *std::move(next);
  }
  core_.admission.Acquire(
      this, client_->accounts(), needs, Clock::time_point::max(),
      [self = shared_from_this(), needs](absl::StatusOr<Ticket> ticket) {
        {
          absl::MutexLock lock(&self->mu_);
          self->waiting_ = false;
          absl::Status status = ticket.status();
          if (status.ok() && self->status_.ok()) {
            status = self->Request(needs, *std::move(ticket));
            if (status.code() == absl::StatusCode::kResourceExhausted && !self->pieces_.empty()) {
              status = absl::OkStatus();
            }
          }
          if (self->status_.ok()) self->status_ = status;
        }
        self->Post();
      });
  absl::MutexLock lock(&mu_);
  // If the reader was ended meanwhile, that call could not cancel the wait yet: cancel it now.
  if (!status_.ok() && waiting_ && core_.admission.Cancel(this)) waiting_ = false;
}

absl::Status DeviceReader::Request(const Needs& needs, Ticket ticket) {
  ASSIGN_OR_RETURN(const auto copy_bytes, core_.registry.Resolve(kCopyBytesOperator, 0));
  auto piece = std::make_shared<Piece>();
  piece->bytes = needs.staging_bytes;
  piece->ticket = std::move(ticket);
  auto batch = MakeCopyBatch(copy_bytes, buffer_->device, *needs.session,
                             buffer_->memory->address + next_offset_,
                             piece->ticket.staging()->address, piece->bytes);
  batch->keep_alive = {piece, buffer_};
  batch->done = [self = shared_from_this(), piece](Batch& ended) {
    const absl::Status status =
        ended.status[0] == TaskStatus::kOk ? absl::OkStatus() : CopyError("the download", ended);
    ended.keep_alive.clear();
    self->core_.runner.Post([self, piece, status] { self->OnPieceDone(*piece, status); });
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
  bool await_ticket = false;
  {
    absl::MutexLock lock(&mu_);
    if (ended_) return;
    await_ticket = RequestPieces();
  }
  if (await_ticket) AwaitTicket();
  absl::Status outcome;
  while (true) {
    std::shared_ptr<Piece> ready;
    {
      absl::MutexLock lock(&mu_);
      if (ended_ || taking_) return;
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
          // If the wait cannot be cancelled, the ticket's callback follows, and the reader ends
          // then.
          if (!core_.admission.Cancel(this)) return;
          waiting_ = false;
        }
        if (handed_over_ > 0) return;
        ended_ = true;
        outcome = status_;
        break;
      }
    }
    take_({ready->ticket.staging()->host, ready->bytes}, ready->ticket.TakeHost());
    ready.reset();
    absl::MutexLock lock(&mu_);
    taking_ = false;
  }
  end_(outcome);
}

}  // namespace resident
