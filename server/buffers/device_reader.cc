
#include "server/buffers/device_reader.h"

#include <algorithm>
#include <utility>

#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "server/buffers/buffers.h"
#include "server/workload/copy_workload.h"

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
    for (const std::shared_ptr<Piece>& piece : pieces_) {
      const std::shared_ptr<RequestBatch> copy = piece->copy.lock();
      if (copy != nullptr) core_.runner.Cancel(*copy);
    }
  }
  Post();
}

absl::Status DeviceReader::PlanPiece() {
  next_piece_ = CopyWorkload::Read(core_.planner.sources(), {buffer_, next_offset_},
                                   std::min(piece_bytes_, end_offset_ - next_offset_));
  return next_piece_->Check();
}

Needs DeviceReader::NextNeeds() const {
  Needs needs = next_piece_->TransferNeeds();
  needs.host_bytes = kMessageCopies * needs.staging_bytes;
  needs.purpose = Budget::Purpose::kDownloads;
  return needs;
}

bool DeviceReader::RequestPieces() {
  while (status_.ok() && !waiting_ && next_offset_ < end_offset_ &&
         pieces_.size() + handed_over_ < kPiecesAhead) {
    status_ = PlanPiece();
    if (!status_.ok()) return false;
    auto ticket = core_.admission.TryAcquire(client_->accounts(), NextNeeds());
    if (!ticket.ok()) {
      waiting_ = true;
      return true;
    }
    const absl::Status requested = Request(*std::move(ticket));
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
    needs = NextNeeds();
  }
  core_.admission.Acquire(wait_, client_->accounts(), std::move(needs), Clock::time_point::max(),
                          [self = shared_from_this()](absl::StatusOr<Ticket> ticket) {
                            self->OnTicket(std::move(ticket));
                          });
}

void DeviceReader::OnTicket(absl::StatusOr<Ticket> ticket) {
  {
    absl::MutexLock lock(&mu_);
    waiting_ = false;
    absl::Status status = ticket.status();
    if (status.ok() && status_.ok()) {
      status = Request(*std::move(ticket));
      // See RequestPieces.
      if (status.code() == absl::StatusCode::kResourceExhausted && !pieces_.empty()) {
        status = absl::OkStatus();
      }
    }
    if (status_.ok()) status_ = status;
  }
  Post();
}

absl::Status DeviceReader::Request(Ticket ticket) {
  auto piece = std::make_shared<Piece>();
  piece->bytes = next_piece_->bytes();
  const auto batch =
      Planner::Fill(Clock::time_point::max(), std::move(next_piece_), std::move(ticket));
  piece->copy = batch;
  batch->done = [self = shared_from_this(), piece](Batch& ended) {
    self->core_.runner.Post(
        [self, piece, batch = static_cast<RequestBatch&>(ended).shared_from_this()] {
          self->OnPieceDone(*batch, *piece);
        });
  };
  RETURN_IF_ERROR(core_.runner.LaunchPiece(batch, *client_));
  next_offset_ += piece->bytes;
  pieces_.push_back(std::move(piece));
  return absl::OkStatus();
}

void DeviceReader::OnPieceDone(RequestBatch& batch, Piece& piece) {
  batch.keep_alive.clear();
  {
    absl::MutexLock lock(&mu_);
    piece.ticket = std::move(batch.ticket);
    piece.done = true;
    if (status_.ok()) status_ = FindOutcome("the download", batch);
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
          if (!wait_.Cancel()) return;
          waiting_ = false;
        }
        if (handed_over_ > 0) return;
        ended_ = true;
        outcome = status_;
        break;
      }
    }
    Ticket& ticket = ready->ticket;
    take_({ticket.staging()->host, ready->bytes}, ticket.TakeHost());
    ready.reset();
    absl::MutexLock lock(&mu_);
    taking_ = false;
  }
  end_(outcome);
}

}  // namespace resident
