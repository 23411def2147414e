#include "runtime/device/durable_copy.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "runtime/base/status_macros.h"
#include "runtime/device/errors.h"

namespace resident {

absl::StatusOr<std::shared_ptr<DurableCopy>> DurableCopy::Make(
    std::shared_ptr<DurableMemory> memory, std::shared_ptr<HostUsage> own, uint64_t bytes,
    uint64_t epoch) {
  ASSIGN_OR_RETURN(HostMemory::Charge charge, memory->copies.Hold(std::move(own), bytes));
  return MakeCharged(std::move(memory), std::move(charge), bytes, epoch);
}

absl::StatusOr<std::shared_ptr<DurableCopy>> DurableCopy::Restore(
    std::shared_ptr<DurableMemory> memory, uint64_t bytes, absl::Span<const uint8_t> contents) {
  HostMemory::Charge charge = memory->copies.Count(std::make_shared<HostUsage>(), bytes);
  auto copy = MakeCharged(std::move(memory), std::move(charge), bytes, /*epoch=*/0);
  if (!copy.ok() || contents.empty()) return copy;
  absl::MutexLock lock(&(*copy)->mu_);
  std::memcpy((*copy)->bytes_.get(), contents.data(), std::min<uint64_t>(contents.size(), bytes));
  return copy;
}

absl::StatusOr<std::shared_ptr<DurableCopy>> DurableCopy::MakeCharged(
    std::shared_ptr<DurableMemory> memory, HostMemory::Charge charge, uint64_t bytes,
    uint64_t epoch) {
  // calloc gets zero pages from the system: writing zeros here would use the memory at once, and
  // take time.
  Bytes zeros(static_cast<uint8_t*>(calloc(bytes, 1)));
  if (zeros == nullptr) return errors::NoHostMemory(bytes);
  return std::shared_ptr<DurableCopy>(
      new DurableCopy(std::move(memory), std::move(charge), std::move(zeros), bytes, epoch));
}

absl::StatusOr<std::unique_ptr<DurableWrite>> DurableCopy::StartWrite(
    Kind kind, uint64_t buffer_id, uint64_t epoch, std::shared_ptr<HostUsage> own) {
  absl::MutexLock lock(&mu_);
  if (epoch_ != epoch) return errors::EngineReplacedDuringWrite(buffer_id);
  if (kind == Kind::kUpload) {
    ++open_uploads_;
    ++started_uploads_;
  } else if (open_uploads_ > 0) {
    return errors::PersistDuringUpload(buffer_id);
  }
  return std::unique_ptr<DurableWrite>(new DurableWrite(shared_from_this(), kind, buffer_id, epoch,
                                                        started_uploads_, std::move(own)));
}

bool DurableCopy::Mirror(uint64_t epoch) {
  absl::MutexLock lock(&mu_);
  if (epoch_ > epoch) return false;
  epoch_ = epoch;
  return true;
}

bool DurableCopy::Read(uint64_t epoch, uint64_t offset, absl::Span<uint8_t> to) const {
  absl::ReaderMutexLock lock(&mu_);
  if (epoch_ != epoch) return false;
  std::memcpy(to.data(), bytes_.get() + offset, to.size());
  return true;
}

std::vector<uint8_t> DurableCopy::Contents() const {
  absl::ReaderMutexLock lock(&mu_);
  return std::vector<uint8_t>(bytes_.get(), bytes_.get() + size_);
}

DurableWrite::~DurableWrite() {
  if (kind_ != DurableCopy::Kind::kUpload) return;
  absl::MutexLock lock(&copy_->mu_);
  --copy_->open_uploads_;
}

absl::Status DurableWrite::Add(uint64_t offset, absl::Span<const uint8_t> data) {
  if (data.empty()) return absl::OkStatus();
  if (offset > copy_->size_ || data.size() > copy_->size_ - offset) {
    return errors::BeyondBufferEnd(buffer_id_, offset, data.size(), copy_->size_);
  }
  {
    absl::ReaderMutexLock lock(&copy_->mu_);
    if (copy_->epoch_ != epoch_) return errors::EngineReplacedDuringWrite(buffer_id_);
  }
  ASSIGN_OR_RETURN(HostMemory::Charge charge, copy_->memory_->writes.Hold(own_, data.size()));
  DurableCopy::Bytes bytes(static_cast<uint8_t*>(malloc(data.size())));
  if (bytes == nullptr) return errors::NoHostMemory(data.size());
  std::memcpy(bytes.get(), data.data(), data.size());
  absl::MutexLock lock(&mu_);
  pieces_.push_back({offset, data.size(), std::move(bytes), std::move(charge)});
  return absl::OkStatus();
}

absl::Status DurableWrite::Commit() {
  std::vector<Piece> pieces;  // Destroyed after the locks are released.
  absl::MutexLock lock(&mu_);
  absl::MutexLock copy_lock(&copy_->mu_);
  if (copy_->epoch_ != epoch_) return errors::EngineReplacedDuringWrite(buffer_id_);
  if (kind_ == DurableCopy::Kind::kPersist && copy_->started_uploads_ != started_uploads_) {
    return errors::PersistDuringUpload(buffer_id_);
  }
  pieces.swap(pieces_);
  for (const Piece& piece : pieces) {
    std::memcpy(copy_->bytes_.get() + piece.offset, piece.data.get(), piece.bytes);
  }
  return absl::OkStatus();
}

}  // namespace resident
