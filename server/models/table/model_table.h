// ModelTable: the models of the daemon by name, their versions, and which version of each serves.
//
//            Add            Activate                Rollback
//   (none) ─────▶ LOADED ─────────────▶ ACTIVE ───────────────▶ PREVIOUS
//                                        ▲  │ Activate of another   │
//                                        │  └──────────▶ PREVIOUS   │
//                                        └──────── Rollback ◀───────┘
//
// A version that is neither active nor the previous one stays LOADED until it is removed. One
// version that is not active may serve a share of the requests that name no version, until the next
// Activate, Rollback, or its removal. The table
// knows no graphs and no devices: a version is a ServedModel, which makes the work of one request.
// What it owns is freed with its last reference, so that a request that was admitted before a
// change is still served by the version that it found.
//
// Invariants:
//   1. Numbers of versions of a name increase, and are not used again, also after the model was
//      removed, unless thousands of other names were used since.
//   2. A model has at most one version of each content.
//   3. The table does not destroy a version with its lock held.
//
// Thread safety: all members may be called from any thread. They do not wait.
//
//   ASSIGN_OR_RETURN(const auto added, table.Add("ranker", std::move(served), NowMs(),
//   "anonymous")); RETURN_IF_ERROR(table.Activate("ranker", added.version, std::nullopt).status());
//   ASSIGN_OR_RETURN(const ModelTable::Found found, table.Find("ranker", /*version=*/0));
//   auto work = found.served->MakeWorkload(message, found.version);
#ifndef RESIDENT_SERVER_MODELS_TABLE_MODEL_TABLE_H_
#define RESIDENT_SERVER_MODELS_TABLE_MODEL_TABLE_H_

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "resident/v1/executor.pb.h"
#include "resident/v1/models.pb.h"
#include "runtime/queue/operator_stats.h"
#include "runtime/state/state_model.h"

namespace resident {

class Workload;

// A version of a model that can serve requests.
class ServedModel {
 public:
  virtual ~ServedModel() = default;
  // SHA-256 of the content, in hex.
  virtual const std::string& content_hash() const = 0;
  // What a restart restores of it, without the version's number and who loaded it.
  virtual const StoredModel::Version& stored() const = 0;
  // The work of one request (server/workload/workload.h). `message` has a ModelCall, and stays
  // valid until Workload::Fill has returned. `version`: the number of this version.
  virtual std::unique_ptr<Workload> MakeWorkload(const v1::Batch& message,
                                                 uint32_t version) const = 0;
  // What it has served.
  struct Counters {
    uint64_t requests = 0;
    uint64_t failed = 0;
    DurationHistogram::Counts device_times{};  // Of executions.
    // Of the executions that are not in the argument; 0: there are none.
    uint64_t p99_ns = 0;
  };
  virtual Counters CountServed(const DurationHistogram::Counts&) const { return {}; }
  // Sets everything but the version's number, its state, and who loaded it when.
  virtual void Describe(v1::ModelVersion* out) const = 0;
};

class ModelTable {
 public:
  static constexpr size_t kMaxModels = 256;
  static constexpr size_t kMaxVersions = 8;  // Of one model.

  enum class State : uint8_t { kLoaded, kActive, kPrevious };
  struct Version {
    uint32_t version = 0;
    State state = State::kLoaded;
    std::shared_ptr<const ServedModel> served;
    int64_t loaded_ms = 0;  // Since 1970.
    std::string loaded_by;
  };
  struct Model {
    std::string name;
    uint64_t revision = 0;
    std::vector<Version> versions;  // By number.
    // The version that serves a share of the requests; 0: none.
    uint32_t share_version = 0;
    double share_percent = 0;
  };

  struct Added {
    uint32_t version = 0;
    uint64_t revision = 0;
    // The model has a version of this content, which is this one; `served` was not added.
    bool already_loaded = false;
  };
  // Adds a version, and the model if there is none of this name. RESOURCE_EXHAUSTED: too many
  // models, or versions of this one.
  absl::StatusOr<Added> Add(const std::string& name, std::shared_ptr<const ServedModel> served,
                            int64_t loaded_ms, const std::string& loaded_by)
      ABSL_LOCKS_EXCLUDED(mu_);

  struct Change {
    uint32_t version = 0;           // Active after the change; 0: none.
    uint32_t previous_version = 0;  // Active before it; 0: none.
    uint64_t revision = 0;
  };
  using Revision = std::optional<uint64_t>;
  // `version` 0: the one that was loaded last. For these: NOT_FOUND; ABORTED: the revision is not
  // `expected`. Activate and Rollback end a share, and Remove that of the version.
  absl::StatusOr<Change> Activate(const std::string& name, uint32_t version, Revision expected)
      ABSL_LOCKS_EXCLUDED(mu_);
  // FAILED_PRECONDITION: there is no previous version.
  absl::StatusOr<Change> Rollback(const std::string& name, Revision expected)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Lets the version serve this share of the requests that name none, in place of the active one; 0
  // percent: ends the share. INVALID_ARGUMENT: the percentage. FAILED_PRECONDITION: the version is
  // active, or none is.
  absl::StatusOr<Change> Share(const std::string& name, uint32_t version, double percent,
                               Revision expected) ABSL_LOCKS_EXCLUDED(mu_);
  // `version` 0: the model. FAILED_PRECONDITION: the version is active.
  absl::StatusOr<Change> Remove(const std::string& name, uint32_t version, Revision expected)
      ABSL_LOCKS_EXCLUDED(mu_);
  // Adds a model that was stored, with all its versions. REQUIRES: there is none of this name;
  // called before the other members.
  void Restore(const StoredModel& stored, std::vector<std::shared_ptr<const ServedModel>> versions)
      ABSL_LOCKS_EXCLUDED(mu_);
  // What is to be stored of a model now; nullopt: there is none of this name.
  std::optional<StoredModel> Store(const std::string& name) const ABSL_LOCKS_EXCLUDED(mu_);
  // Removes everything, and adds nothing any more (UNAVAILABLE).
  void Close() ABSL_LOCKS_EXCLUDED(mu_);

  struct Found {
    uint32_t version = 0;
    std::shared_ptr<const ServedModel> served;
  };
  // The version for a request; 0: the active one, or the one with a share. NOT_FOUND. UNAVAILABLE:
  // no version is active.
  absl::StatusOr<Found> Find(const std::string& name, uint32_t version) const
      ABSL_LOCKS_EXCLUDED(mu_);
  bool Has(const std::string& name) const ABSL_LOCKS_EXCLUDED(mu_);
  // NOT_FOUND.
  absl::StatusOr<Model> Describe(const std::string& name) const ABSL_LOCKS_EXCLUDED(mu_);
  // By name.
  std::vector<Model> List() const ABSL_LOCKS_EXCLUDED(mu_);

 private:
  struct Entry {
    uint64_t revision = 0;
    uint32_t active = 0;    // 0: none.
    uint32_t previous = 0;  // 0: none.
    std::map<uint32_t, Version> versions;
    uint32_t share_version = 0;  // 0: none.
    double share_percent = 0;
    // Requests that were counted for the share (IsPicked).
    mutable std::atomic<uint64_t> shared{0};
  };

  // NOT_FOUND, ABORTED.
  absl::StatusOr<Entry*> FindForChange(const std::string& name, Revision expected)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  Change Switch(Entry& entry, uint32_t to) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  static Model Describe(const std::string& name, const Entry& entry);

  mutable absl::Mutex mu_;
  bool closed_ ABSL_GUARDED_BY(mu_) = false;
  uint64_t revision_ ABSL_GUARDED_BY(mu_) = 0;  // Of the last change of any model.
  std::map<std::string, Entry> models_ ABSL_GUARDED_BY(mu_);
  // The last number of a version of each name. Those of removed models are forgotten when there are
  // more than kMaxNumbers.
  static constexpr size_t kMaxNumbers = 4096;
  std::map<std::string, uint32_t> last_numbers_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_MODELS_TABLE_MODEL_TABLE_H_
