// StateModel: what the records of a journal add up to. Pure logic: no disk, no clock.
//
// Thread safety: none of its own; the state store's lock guards it.
#ifndef RESIDENT_RUNTIME_STATE_STATE_MODEL_H_
#define RESIDENT_RUNTIME_STATE_STATE_MODEL_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "resident/internal/state.pb.h"
#include "runtime/model/operator_event.h"
#include "runtime/state/stored_operator.h"

namespace resident {

class StateModel {
 public:
  // `most_events`: kept, in snapshots too.
  explicit StateModel(size_t most_events) : most_events_(most_events) {}

  // DATA_LOSS: the record does not fit what came before it.
  absl::Status Check(const internal::StateRecord& record) const;
  // REQUIRES: Check(record) is OK.
  void Apply(const internal::StateRecord& record);
  // One record that makes a new model like this one.
  internal::StateRecord Snapshot() const;

  uint64_t revision() const { return revision_; }
  uint64_t generation() const { return generation_; }
  std::vector<StoredOperator> operators() const;
  std::vector<StoredRemoval> removed() const;

  // Of a version that is known; else empty.
  std::string ContentHash(const std::string& name, uint32_t version) const;

  // The last ones, oldest first.
  using Event = std::shared_ptr<const internal::StoredEvent>;
  const std::deque<Event>& events() const { return events_; }

  const std::map<uint64_t, internal::StoredBuffer>& buffers() const { return buffers_; }
  uint64_t highest_buffer() const { return highest_buffer_; }

  // Blobs of versions that are in slots.
  std::set<std::string> UsedBlobs() const;
  std::set<std::pair<uint64_t, uint64_t>> UsedBufferFiles() const;

 private:
  absl::Status CheckChange(const internal::StoredChange& change) const;
  void ApplyChange(const internal::StoredChange& change);
  void ApplySnapshot(const internal::StateSnapshot& snapshot);
  void AddEvent(const internal::StoredEvent& event);

  size_t most_events_;
  uint64_t revision_ = 0;
  uint64_t generation_ = 0;
  std::map<std::string, internal::StoredOperator> operators_;
  std::deque<internal::StoredRemoval> removed_;
  std::map<uint64_t, internal::StoredBuffer> buffers_;
  uint64_t highest_buffer_ = 0;
  std::deque<Event> events_;
};

internal::StoredEvent ToStored(const OperatorEvent& event);

// The first record of a new journal: a snapshot of nothing.
std::string EmptyState();

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_STATE_MODEL_H_
