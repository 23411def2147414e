// UploadStream: one Buffers.Upload.
//
// Each message is divided into pieces, which are copied through staging memory to the buffer. Two
// pieces are under way at a time: one is copied into staging memory while the device copies the
// other out of it. The next message is read once the last piece of the previous one is under way.
// If staging memory is full, the upload waits for it.
//
// A stream that is ending waits for the pieces that are under way, but not for a message.
//
// Thread safety: see BidiStream.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"
#include "grpcpp/support/byte_buffer.h"
#include "resident/v1/buffers.pb.h"
#include "runtime/base/errors/daemon_errors.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/errors.h"
#include "server/buffers/buffers.h"
#include "server/buffers/errors.h"
#include "server/buffers/transfers.h"
#include "server/rpc/bidi_stream.h"
#include "server/rpc/call.h"
#include "server/rpc/grpc_call.h"
#include "server/rpc/message_bytes.h"
#include "server/workload/copy_workload.h"

namespace resident {
namespace {

constexpr int kPiecesUnderWay = 2;

class UploadStream final : public BidiStream<grpc::ByteBuffer, NoMessage> {
 public:
  UploadStream(Transport& transport, Core& core)
      : BidiStream(transport, core),
        limits_(FindMessageLimits(core, "/resident.v1.Buffers/Upload")),
        wait_(core.admission) {}
  // `response`: sent if the stream ends OK; valid until OnDone.
  void Open(const grpc::CallbackServerContext& context, grpc::ByteBuffer& response) {
    Register(MakeRecheck(context, core_, Role::kSubmit, "resident.v1.Buffers/Upload"));
    response_ = &response;
    const absl::StatusOr<std::shared_ptr<Client>> client = FindSessionClient(context, core_);
    absl::MutexLock lock(&mu_);
    if (!client.ok()) return Conclude(client.status());
    absl::StatusOr<DrainGate::Entry> entry = core_.gate.Enter(1);
    if (!entry.ok()) return Conclude(entry.status());
    entry_ = *std::move(entry);
    client_ = *client;
    Step();
  }

 private:
  void OnRequest(grpc::ByteBuffer& bytes) override {
    absl::MutexLock lock(&mu_);
    awaits_message_ = false;
    // A message that arrives after the end must not open another durable write.
    if (!ending()) Fail(Accept(bytes));
    Step();
  }

  void OnHalfClose() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    awaits_message_ = false;
    half_closed_ = true;
    if (buffer_ == nullptr) Fail(errors::NoUpload());
    Step();
  }

  void OnMayRead() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { Step(); }
  void OnEnd(const absl::Status& status) override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (!saving_) Fail(status);
  }

  bool Busy() const override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return under_way_ > 0 || waiting_ || saving_;
  }
  // The durable write ends before the answer is sent.
  void OnFinish() override ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) { durable_write_.reset(); }

  // Checks and stores the message that was read.
  absl::Status Accept(grpc::ByteBuffer& bytes_read) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    RETURN_IF_ERROR(ParseMessage(bytes_read, limits_, &message_));
    const uint64_t bytes = message_.data().size();
    core_.counters.Received(bytes);
    message_charge_ = core_.admission.host().Count(client_->accounts()->host(), bytes);
    position_ = 0;
    if (buffer_ == nullptr) {
      ASSIGN_OR_RETURN(auto buffer, core_.buffers.Find(client_->id(), message_.buffer_id()));
      buffer_ = std::move(buffer);
      offset_ = message_.offset();
      if (buffer_->durable) {
        ASSIGN_OR_RETURN(auto write, core_.buffers.StartWrite(DurableCopy::Kind::kUpload,
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

  absl::Status SendPiece() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const uint64_t bytes =
        std::min<uint64_t>(core_.admission.PieceBytes(buffer_->device, kCopyPieceBytes),
                           message_.data().size() - position_);
    piece_ = CopyWorkload::Write(core_.planner.sources(), {buffer_, offset_}, bytes);
    RETURN_IF_ERROR(piece_->Check());
    auto ticket = core_.admission.TryAcquire(client_->accounts(), piece_->TransferNeeds());
    if (ticket.ok()) return Send(*std::move(ticket));
    waiting_ = true;
    core_.runner.Post([self = Ref(this)] { self->AwaitTicket(); });
    return absl::OkStatus();
  }

  // Sends piece_.
  absl::Status Send(Ticket ticket) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    const uint64_t bytes = piece_->bytes();
    std::memcpy(ticket.staging()->host, message_.data().data() + position_, bytes);
    const auto batch =
        Planner::Fill(Clock::time_point::max(), std::move(piece_), std::move(ticket));
    batch->done = [self = Ref(this), offset = offset_, bytes](Batch& ended) {
      // Posted, because OnPieceDone may have to copy the piece once more, and this is the
      // dispatcher's thread.
      self->core_.runner.Post(
          [self, offset, bytes, piece = static_cast<RequestBatch&>(ended).shared_from_this()] {
            self->OnPieceDone(*piece, offset, bytes);
          });
    };
    RETURN_IF_ERROR(core_.runner.LaunchPiece(batch, *client_));
    ++under_way_;
    std::erase_if(copies_, [](const auto& copy) { return copy.expired(); });
    copies_.push_back(batch);
    position_ += bytes;
    offset_ += bytes;
    return absl::OkStatus();
  }

  void AwaitTicket() ABSL_LOCKS_EXCLUDED(mu_) {
    Needs needs;
    {
      absl::MutexLock lock(&mu_);
      needs = piece_->TransferNeeds();
    }
    core_.admission.Acquire(
        wait_, client_->accounts(), needs, Clock::time_point::max(),
        [self = Ref(this)](absl::StatusOr<Ticket> ticket) { self->OnTicket(std::move(ticket)); });
  }

  void OnTicket(absl::StatusOr<Ticket> ticket) ABSL_LOCKS_EXCLUDED(mu_) {
    absl::MutexLock lock(&mu_);
    waiting_ = false;
    absl::Status status = ticket.status();
    if (status.ok() && !ending()) {
      status = Send(*std::move(ticket));
      // See Step.
      if (status.code() == absl::StatusCode::kResourceExhausted && under_way_ > 0) {
        status = absl::OkStatus();
      }
    }
    Fail(status);
    Step();
  }

  void OnPieceDone(RequestBatch& piece, uint64_t offset, uint64_t bytes) {
    std::shared_ptr<DurableWrite> durable;
    {
      absl::MutexLock lock(&mu_);
      durable = durable_write_;
    }
    absl::Status outcome = FindOutcome("the upload", piece);
    if (outcome.ok() && durable != nullptr) {
      outcome = durable->Add(offset, {piece.ticket.staging()->host, bytes});
    }
    // The stream then has the last reference, so that the write ends before the answer.
    durable.reset();
    piece.keep_alive.clear();
    piece.ticket.Release();
    absl::MutexLock lock(&mu_);
    --under_way_;
    if (outcome.ok()) written_ += bytes;
    Fail(outcome);
    Step();
  }

  // Releases the message's memory and reads the next one, or waits until there is memory for it.
  void ReadOn() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    message_ = v1::UploadRequest();
    position_ = 0;
    message_charge_.Clear();
    if (WaitToRead(client_->accounts())) return;
    awaits_message_ = true;
    Read();
  }

  // Concludes with `status`, unless it is OK.
  void Fail(const absl::Status& status) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    if (status.ok()) return;
    // If the wait cannot be cancelled, OnTicket follows.
    if (waiting_ && wait_.Cancel()) waiting_ = false;
    // A parked device would keep the pieces, and with them the call, until it is resumed.
    for (const std::weak_ptr<RequestBatch>& weak : copies_) {
      const std::shared_ptr<RequestBatch> copy = weak.lock();
      if (copy != nullptr) core_.runner.Cancel(*copy);
    }
    Conclude(status);
  }

  // Does the next step: sends pieces, reads, completes, or ends.
  void Step() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    while (!ending() && !waiting_ && buffer_ != nullptr && !awaits_message_ &&
           position_ < message_.data().size() && under_way_ < kPiecesUnderWay) {
      const absl::Status sent = SendPiece();
      // The queue may be full because of this upload's own pieces: the next piece that ends
      // retries.
      if (sent.code() == absl::StatusCode::kResourceExhausted && under_way_ > 0) return;
      Fail(sent);
    }
    if (ending()) return Advance();
    const bool all_sent = buffer_ == nullptr || position_ == message_.data().size();
    if (!all_sent || awaits_message_ || saving_) return;
    if (!half_closed_) return ReadOn();
    if (under_way_ == 0) Complete();
  }

  // Called when all data is on the device. Updates and saves the copy of a durable buffer.
  void Complete() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    v1::UploadResponse response;
    response.set_written_bytes(written_);
    ToBytes(response).Swap(response_);
    if (durable_write_ == nullptr) return Conclude(absl::OkStatus());
    const absl::Status committed = durable_write_->Commit();
    durable_write_.reset();
    if (!committed.ok() || !core_.buffers.on_disk()) return Conclude(committed);
    // Answer only once a restart would restore the contents.
    saving_ = true;
    core_.pools.disk.Post([self = Ref(this), buffer = buffer_] {
      const absl::Status saved = self->core_.buffers.Save(*buffer);
      absl::MutexLock lock(&self->mu_);
      self->saving_ = false;
      self->Conclude(saved);
    });
  }

  const MessageLimits limits_;
  grpc::ByteBuffer* response_ = nullptr;
  std::shared_ptr<Client> client_;
  Admission::Wait wait_;  // For the ticket of the next piece; cancelled when the stream ends.
  DrainGate::Entry entry_;

  v1::UploadRequest message_ ABSL_GUARDED_BY(mu_);
  Budget::Charge message_charge_ ABSL_GUARDED_BY(mu_);
  bool awaits_message_ ABSL_GUARDED_BY(mu_) = false;
  bool half_closed_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<const Buffer> buffer_ ABSL_GUARDED_BY(mu_);  // From the first message on.
  // For a durable buffer: committed once all of the upload is on the device. Shared with the
  // pieces.
  std::shared_ptr<DurableWrite> durable_write_ ABSL_GUARDED_BY(mu_);
  uint64_t position_ ABSL_GUARDED_BY(mu_) = 0;  // In message_'s data.
  uint64_t offset_ ABSL_GUARDED_BY(mu_) = 0;    // The buffer's offset for position_.
  uint64_t written_ ABSL_GUARDED_BY(mu_) = 0;
  int under_way_ ABSL_GUARDED_BY(mu_) = 0;
  // Those of the pieces under way.
  std::vector<std::weak_ptr<RequestBatch>> copies_ ABSL_GUARDED_BY(mu_);
  std::unique_ptr<CopyWorkload> piece_ ABSL_GUARDED_BY(mu_);  // The next one, until it is sent.
  bool waiting_ ABSL_GUARDED_BY(mu_) = false;                 // For its ticket.
  bool saving_ ABSL_GUARDED_BY(mu_) = false;  // The buffer is being written to the disk.
};

}  // namespace

grpc::ServerReadReactor<grpc::ByteBuffer>* StartUpload(grpc::CallbackServerContext& context,
                                                       Core& core, grpc::ByteBuffer& response) {
  return StartReadCall<UploadStream>(context, core, response);
}

}  // namespace resident
