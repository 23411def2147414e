// StateModel: the records of a state folder in memory. Pure logic without disk and clock.
//
// Thread safety: none; the state store's lock guards it.
#ifndef RESIDENT_RUNTIME_STATE_STATE_MODEL_H_
#define RESIDENT_RUNTIME_STATE_STATE_MODEL_H_

#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>

#include "absl/status/status.h"
#include "runtime/model/operator_event.h"
#include "runtime/model/registry_change.h"
#include "runtime/state/stored_operator.h"

namespace resident {

struct StateModel {
  uint64_t revision = 0;        // Revision of the last event.
  uint64_t generation = 0;      // Generation of the last kGeneration event.
  uint64_t highest_buffer = 0;  // Highest id of a durable buffer, including freed ones.
  std::map<std::string, StoredOperator> operators = {};
  std::deque<StoredRemoval> removed = {};  // Oldest first; each name once.
  std::map<uint64_t, StoredBuffer> buffers = {};
  std::map<std::string, StoredGraph> graphs = {};
  // The last events, up to `revision`, without gaps.
  std::deque<std::shared_ptr<const OperatorEvent>> events = {};

  // DATA_LOSS: the change contradicts the model.
  absl::Status Check(const RegistryChange& change) const;
  // REQUIRES: Check(change) is OK. `content` is used for kInstalled.
  void Apply(const RegistryChange& change, const VersionContent& content);
  // Keeps the last `max_events` events.
  void AddEvent(OperatorEvent event, size_t max_events);

  // Revision of the oldest event.
  uint64_t first_revision() const { return revision + 1 - events.size(); }
  // Content hash of a version; empty: the version is unknown.
  std::string ContentHash(const std::string& name, uint32_t version) const;
  // SHA-256 of the contents of versions that are in slots and of graphs, and those of buffers.
  std::set<std::string> UsedBlobs() const;
  std::set<std::string> UsedBufferContents() const;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_STATE_MODEL_H_
