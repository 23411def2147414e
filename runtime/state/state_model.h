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
#include <vector>

#include "absl/status/status.h"
#include "runtime/model/operator_event.h"
#include "runtime/model/version_spec.h"
#include "runtime/model/version_state.h"

namespace resident {

// StoredOperator and StoredBuffer: what the state store restores at a start.

// The contents of a version in addition to its VersionSpec: enough to compile it again.
struct VersionContent {
  // Name of the main file among `blobs`; empty for bytecode.
  std::string body = {};
  // Name to SHA-256: the files of a source or an object, the generated source of an expression, or
  // the one program of bytecode.
  std::map<std::string, std::string> blobs = {};
};

struct StoredVersion {
  uint32_t version = 0;
  VersionState state = VersionState::kLoaded;
  // Whether it still has its slot. Of other versions only the data for listings is kept.
  bool in_slot = false;
  uint32_t slot = kNoSlot;
  VersionSpec spec;  // Without bytecode, which is a blob.
  VersionContent content;
  std::string quarantine_reason;
  std::string label;  // Empty: none.
};

struct StoredOperator {
  std::string name;
  uint64_t revision = 0;
  uint32_t last_version = 0;
  std::vector<StoredVersion> versions;  // Ascending.
  uint32_t trial_version = 0;           // 0: no version is on trial.
  double traffic_percent = 0;
  double shadow_percent = 0;
};

struct StoredRemoval {
  std::string name;
  uint32_t last_version = 0;
};

// A durable buffer.
struct StoredBuffer {
  uint64_t id = 0;
  std::string name = {};
  uint32_t device = 0;
  uint32_t dtype = 0;  // DType of kernels/layout/task.h.
  std::vector<int64_t> shape = {};
  uint64_t size_bytes = 0;
  // SHA-256 of the contents; empty: never written. Set by the store.
  std::string sha256 = {};
};

// A task graph that clients have loaded.
struct StoredGraph {
  struct Holder {
    std::string name;
    int64_t loaded_ms = 0;
  };
  // SHA-256 of the serialized graph, which is a blob.
  std::string id = {};
  std::vector<Holder> holders = {};  // At least one.
};

// A model: a task graph under a name, with versions (server/models).
struct StoredModel {
  struct Weight {
    std::string tensor;
    std::string sha256;  // Of its contents, which are a blob.
  };
  struct Version {
    uint32_t version = 0;
    std::string content_hash = {};
    std::string graph_sha256 = {};  // Of the serialized graph, which is a blob.
    std::vector<Weight> weights = {};
    uint32_t device = 0;
    uint32_t instances = 0;
    uint32_t max_combined_rows = 0;
    int64_t loaded_ms = 0;
    std::string loaded_by = {};
    // Of a model with a graph for each size (internal::PlanRules), and the blob of what the graphs
    // are made of; empty: it has one graph.
    std::string plan_rules = {};
    std::string source_sha256 = {};

    // All blobs of the version.
    std::set<std::string> Blobs() const {
      std::set<std::string> blobs = {graph_sha256};
      for (const Weight& weight : weights) blobs.insert(weight.sha256);
      if (!source_sha256.empty()) blobs.insert(source_sha256);
      return blobs;
    }
  };
  std::string name = {};
  uint64_t revision = 0;
  uint32_t last_version = 0;  // The last number that a version had.
  uint32_t active = 0;        // 0: none.
  uint32_t previous = 0;      // 0: none.
  // The version that serves a share of the requests; 0: none.
  uint32_t share_version = 0;
  double share_percent = 0;
  std::vector<Version> versions = {};
};

struct StateModel {
  // A UUID, which identifies the daemon; empty: an older daemon wrote the folder.
  std::string node_id = {};
  uint64_t revision = 0;        // Revision of the last event.
  uint64_t generation = 0;      // Generation of the last kGeneration event.
  uint64_t highest_buffer = 0;  // Highest id of a durable buffer, including freed ones.
  std::map<std::string, StoredOperator> operators = {};
  std::deque<StoredRemoval> removed = {};  // Oldest first; each name once.
  std::map<uint64_t, StoredBuffer> buffers = {};
  std::map<std::string, StoredGraph> graphs = {};
  std::map<std::string, StoredModel> models = {};
  PlanTable plans = {};
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
  // SHA-256 of the contents of versions that are in slots, of graphs and of models, and those of
  // buffers.
  std::set<std::string> UsedBlobs() const;
  std::set<std::string> UsedBufferContents() const;
};

}  // namespace resident

#endif  // RESIDENT_RUNTIME_STATE_STATE_MODEL_H_
