// The instances of a version of a model, which serve one request at a time each, or one batch of
// requests (model_run.h).
//
// An instance is memory that is ready: the graph's image and its activations on the device, and in
// staging memory the inputs, the outputs and the quantum (server/graphs/graph_quanta.h). A request
// allocates nothing there. Instances share the weights on the device.
//
//                       ┌────────────── Return ◀─────────────┐
//   TryTake: none free ─┴▶ made on other threads ──▶ free ──▶ TryTake ──▶ serves a request
//                                   │                  └──▶ dropped: another engine, or graph
//                                   └──▶ failed: TryTake returns the error until kRetryAfter
//
// An instance belongs to one engine, and to one checked form of the graph: with fused nodes, the
// operators that serve decide which form that is. An instance that does not fit any more is dropped
// when it would be taken, and another one is made.
//
// Thread safety: all members may be called from any thread. TryTake and Return do not wait.
//
//   auto instances = std::make_shared<ModelInstances>(graphs, std::move(parts));
//   ASSIGN_OR_RETURN(auto instance, instances->TryTake(checked, session->epoch()));
//   if (instance == nullptr) ...   // Later: Admission tries again.
#ifndef RESIDENT_SERVER_MODELS_MODEL_INSTANCES_H_
#define RESIDENT_SERVER_MODELS_MODEL_INSTANCES_H_

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/admission/admission.h"
#include "server/core/client_table.h"
#include "server/graphs/graph_quanta.h"
#include "server/graphs/graph_store.h"
#include "server/graphs/graphs.h"
#include "server/models/model_graph.h"
#include "server/models/model_rows.h"

namespace resident {

// The contents of a model's weights and constants, in the daemon's memory: each engine gets them
// again. By index in ModelInterface::weights.
using ModelWeights = std::vector<std::string>;

struct ModelInstance {
  LoadedGraph::Checked checked;  // The quanta refer to it.
  bool independent_rows = false;
  std::unique_ptr<GraphQuanta> quanta;
  uint64_t epoch = 0;  // Of its engine.
  // Staging memory: the quantum, then each input, then each output.
  Ticket staging;
  std::vector<uint64_t> inputs;   // Bytes from its begin, by index in ModelInterface::inputs.
  std::vector<uint64_t> outputs;  // The same for outputs.
  // Frees the activations, and the weights with the last instance of an engine.
  std::shared_ptr<const void> activations;
  std::shared_ptr<const void> weights;

  uint8_t* host() const { return staging.staging()->host; }
};

class ModelInstances : public std::enable_shared_from_this<ModelInstances> {
 public:
  static constexpr uint32_t kDefaultInstances = 2;
  static constexpr uint32_t kMaxInstances = 16;
  // How long an error of a failed attempt is returned before the next attempt.
  static constexpr std::chrono::milliseconds kRetryAfter{1000};

  struct Parts {
    std::shared_ptr<LoadedGraph> graph;
    // Its first checked form, for the ranges of scalars, which do not change.
    LoadedGraph::Checked checked;
    ModelInterface interface;
    ModelWeights weights;
    uint32_t device = 0;
    uint32_t max_instances = kDefaultInstances;
    // Owns the memory on the device, and its tasks set that memory.
    std::shared_ptr<Client> client;
    // Rows of a batch of several requests at most; 0: as many as one request may have.
    uint32_t max_combined_rows = 0;
    // Who loaded the model, for the checker of graphs (NameHolder).
    std::string holder;
  };

  // `graphs` must outlive it.
  ModelInstances(Graphs& graphs, Parts parts)
      : graphs_(graphs),
        parts_(std::move(parts)),
        rows_(FindRows(*parts_.checked, parts_.interface)) {}

  const Parts& parts() const { return parts_; }
  const ModelRows& rows() const { return rows_; }
  // Rows of a batch of several requests at most; 0: requests are not combined.
  uint64_t max_batch() const;
  uint64_t weight_bytes() const;
  uint32_t count() const ABSL_LOCKS_EXCLUDED(mu_);

  // A free instance of this checked form (null: the graph has to be checked again first) and of
  // this engine; null: none is free. Lets another one be made, if there are fewer than
  // max_instances. Errors: the last attempt to make one failed, and there is none.
  absl::StatusOr<std::unique_ptr<ModelInstance>> TryTake(const LoadedGraph::Checked& checked,
                                                         uint64_t epoch) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether there are as many instances as there may be, and none is free.
  bool AllBusy() const ABSL_LOCKS_EXCLUDED(mu_);
  // An instance whose quantum ended within the step is dropped: its next one would continue there.
  void Return(std::unique_ptr<ModelInstance> instance) ABSL_LOCKS_EXCLUDED(mu_);
  // Makes the first instance, and calls `done` once, on any thread.
  void MakeFirst(std::function<void(const absl::Status& status)> done) ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the making of an instance with CANCELLED, once its task that is in the ring has ended.
  void CancelMaking() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Maker;
  struct DeviceWeights {
    uint64_t epoch = 0;
    std::weak_ptr<const void> memory;
    std::vector<uint64_t> addresses;  // By index in ModelInterface::weights.
  };

  void StartMaking() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnMade(absl::StatusOr<std::unique_ptr<ModelInstance>> made) ABSL_LOCKS_EXCLUDED(mu_);
  // Destroys instances on another thread: the caller may hold Admission's lock.
  void Drop(std::vector<std::unique_ptr<ModelInstance>> instances);

  Graphs& graphs_;
  const Parts parts_;
  const ModelRows rows_;

  mutable absl::Mutex mu_;
  std::vector<std::unique_ptr<ModelInstance>> free_ ABSL_GUARDED_BY(mu_);
  // Free ones and those that serve.
  uint32_t count_ ABSL_GUARDED_BY(mu_) = 0;
  bool making_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<Maker> maker_ ABSL_GUARDED_BY(mu_);  // While it is making.
  std::function<void(const absl::Status&)> first_ ABSL_GUARDED_BY(mu_);
  absl::Status failed_ ABSL_GUARDED_BY(mu_);
  Clock::time_point failed_at_ ABSL_GUARDED_BY(mu_);
  // Used by the Maker; there is one at a time.
  DeviceWeights device_weights_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_MODELS_MODEL_INSTANCES_H_
