// The instances of one plan of a version of a model (model_plan.h), which serve one request at a
// time each, or one batch of requests (model_run.h).
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
// The first instance of a plan that a version does not have yet makes the plan, too. Whether it may
// be made, and which other plan is dropped for it, is decided by the version (PlanKeeper).
//
// Thread safety: all members may be called from any thread. TryTake and Return do not wait.
//
//   auto instances = std::make_shared<ModelInstances>(graphs, parts, sizes, keeper);
//   ASSIGN_OR_RETURN(auto instance, instances->TryTake(session->epoch()));
//   if (instance == nullptr) ...   // Later: Admission tries again.
#ifndef RESIDENT_SERVER_MODELS_MODEL_INSTANCES_H_
#define RESIDENT_SERVER_MODELS_MODEL_INSTANCES_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "resident/v1/models.pb.h"
#include "server/admission/admission.h"
#include "server/graphs/graph_quanta.h"
#include "server/graphs/graphs.h"
#include "server/models/model_plan.h"

namespace resident {

struct ModelInstance {
  std::shared_ptr<const ModelPlan> plan;
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
  std::shared_ptr<const void> own_weights;  // Of the plan.
  // On the device and in staging memory, without weights.
  uint64_t memory_bytes = 0;

  uint8_t* host() const { return staging.staging()->host; }
  const ModelInterface& interface() const { return plan->interface; }
};

class ModelRun;

// What the requests that wait for an instance of a plan have in common.
struct ModelLine {
  std::atomic<uint32_t> waiting{0};
  // The run that requests which are tried now may share. Used by Admission's thread.
  std::shared_ptr<ModelRun> open;
  // Rows that take about kBatchNs, by the last run. Before the first one, requests are not
  // combined.
  std::atomic<uint64_t> row_limit{1};
  std::atomic<uint64_t> runs{0};  // Executions that did not fail.
};

class ModelInstances;

// Instances of other plans, whose destruction frees their memory.
using DroppedInstances = std::vector<std::unique_ptr<ModelInstance>>;

// What the plans of a version share while instances are made.
class PlanKeeper {
 public:
  virtual ~PlanKeeper() = default;
  // Lets the plan make an instance (MakeAnother), if it is there, or there are fewer than the
  // limit, or another one that no request uses can be dropped for it: `dropped` are its instances.
  virtual void Admit(ModelInstances& plan, DroppedInstances* dropped) = 0;
  // Drops another plan that no request uses, for its memory; `of_device`: if the version has none,
  // one of another version on its device. False: there is none. Not to be called with Admission's
  // lock.
  virtual bool DropOther(const ModelInstances& plan, bool of_device) = 0;
  // Calls `make` when nobody else allocates for the version: the weights on the device are copied
  // once. It ends with Leave.
  virtual void Enter(std::function<void()> make) = 0;
  virtual void Leave() = 0;
};

class ModelInstances : public std::enable_shared_from_this<ModelInstances> {
 public:
  static constexpr uint32_t kDefaultInstances = ModelParts::kDefaultInstances;
  static constexpr uint32_t kMaxInstances = 16;
  // How long an error of a failed attempt is returned before the next attempt.
  static constexpr std::chrono::milliseconds kRetryAfter{1000};

  // `graphs` must outlive it. `plan`: null: it is made when it is needed, and dropped again.
  ModelInstances(Graphs& graphs, std::shared_ptr<const ModelParts> parts, PlanSizes sizes,
                 std::shared_ptr<const ModelPlan> plan, std::weak_ptr<PlanKeeper> keeper)
      : graphs_(graphs),
        parts_(std::move(parts)),
        sizes_(std::move(sizes)),
        fixed_(plan != nullptr),
        keeper_(std::move(keeper)),
        plan_(std::move(plan)) {}

  const PlanSizes& sizes() const { return sizes_; }
  uint32_t count() const ABSL_LOCKS_EXCLUDED(mu_);
  ModelLine& line() const { return line_; }
  // Of its instances.
  uint64_t memory_bytes() const ABSL_LOCKS_EXCLUDED(mu_);
  // Sets the nodes, the instances and their memory.
  void Describe(v1::ModelPlan* out) const ABSL_LOCKS_EXCLUDED(mu_);
  // Whether there is a plan; or it is being made.
  bool ready() const ABSL_LOCKS_EXCLUDED(mu_);
  bool present() const ABSL_LOCKS_EXCLUDED(mu_);

  // A free instance of the present checked form and of this engine; null: none is free. Lets
  // another one be made, if there are fewer than there may be. Errors: the last attempt to make one
  // failed, and there is none.
  absl::StatusOr<std::unique_ptr<ModelInstance>> TryTake(uint64_t epoch) ABSL_LOCKS_EXCLUDED(mu_);
  // Whether there are as many instances as there may be, and none is free.
  bool AllBusy() const ABSL_LOCKS_EXCLUDED(mu_);
  // An instance whose quantum ended within the step is dropped: its next one would continue there.
  void Return(std::unique_ptr<ModelInstance> instance) ABSL_LOCKS_EXCLUDED(mu_);
  // Makes the first instance, and calls `done` once, on any thread.
  void MakeFirst(std::function<void(const absl::Status& status)> done) ABSL_LOCKS_EXCLUDED(mu_);
  // Starts to make an instance, unless there are as many as there may be.
  void MakeAnother() ABSL_LOCKS_EXCLUDED(mu_);
  // Ends the making of an instance with CANCELLED, once its task that is in the ring has ended.
  void CancelMaking() ABSL_LOCKS_EXCLUDED(mu_);
  // Takes the plan and its instances out, if no request uses one. `gives_way`: for the memory of
  // another version: not if requests wait for it; of the only plan of a version, its instances.
  // Returns whether it did.
  bool Drop(bool gives_way, DroppedInstances* dropped) ABSL_LOCKS_EXCLUDED(mu_);

 private:
  class Maker;

  void StartMaking() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  void OnMade(absl::StatusOr<std::unique_ptr<ModelInstance>> made) ABSL_LOCKS_EXCLUDED(mu_);
  // Destroys instances on another thread: the caller may hold Admission's lock.
  void DestroyLater(DroppedInstances instances);

  Graphs& graphs_;
  const std::shared_ptr<const ModelParts> parts_;
  const PlanSizes sizes_;
  const bool fixed_;  // The plan is not dropped; its instances may be.
  const std::weak_ptr<PlanKeeper> keeper_;
  mutable ModelLine line_;

  mutable absl::Mutex mu_;
  std::shared_ptr<const ModelPlan> plan_ ABSL_GUARDED_BY(mu_);  // Null: it is not made.
  std::vector<std::unique_ptr<ModelInstance>> free_ ABSL_GUARDED_BY(mu_);
  // Free ones and those that serve.
  uint32_t count_ ABSL_GUARDED_BY(mu_) = 0;
  uint64_t memory_bytes_ ABSL_GUARDED_BY(mu_) = 0;  // Of these.
  bool making_ ABSL_GUARDED_BY(mu_) = false;
  std::shared_ptr<Maker> maker_ ABSL_GUARDED_BY(mu_);  // While it is making.
  std::function<void(const absl::Status&)> first_ ABSL_GUARDED_BY(mu_);
  absl::Status failed_ ABSL_GUARDED_BY(mu_);
  Clock::time_point failed_at_ ABSL_GUARDED_BY(mu_);
};

}  // namespace resident

#endif  // RESIDENT_SERVER_MODELS_MODEL_INSTANCES_H_
