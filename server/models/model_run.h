// ModelRun: one use of an instance, by one request or by several at once.
//
// Requests are combined if the rows of the model are independent of each other (model_rows.h), and
// the requests have one plan.
// Admission decides who gets an instance: a request that finds one idle, and nobody waiting, has it
// alone and at once. Those that wait hold nothing, in the order of their arrival. When an instance
// is free, they are tried in one round, and each that has the same scalars and fits shares the run
// of the one before it:
//
//   ModelLender::TryBorrow ──▶ seat of a new run, or of the open one ──▶ Settle: the run is closed
//     ──▶ each request: its rows to the instance's staging memory, Join  (or Leave: it has ended)
//     ──▶ the last one: one quantum for all rows ──▶ each gets its rows ──▶ answers
//
// What a request costs is what it costs alone: each has its ticket, with its place in its client's
// queue, its task of the quota and its memory, until it is answered. Only the turn differs: the
// quantum of several requests is a task of the model's own queue on the device, which takes its
// turn beside those of all clients; so a request does not wait behind tasks that another request's
// client has queued. The quantum of a request that is alone takes its client's turn.
//
// If an operator refuses arguments, or an operator is not the built-in one that the proof is about,
// the requests run one after the other on the instance instead, so that only the one that is at
// fault fails. A request that ends while it runs does not change the run: its rows are computed and
// dropped.
//
// Thread safety: all members may be called from any thread.
#ifndef RESIDENT_SERVER_MODELS_MODEL_RUN_H_
#define RESIDENT_SERVER_MODELS_MODEL_RUN_H_

#include <atomic>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "server/admission/admission.h"
#include "server/core/shared_slots.h"
#include "server/graphs/quantum_workload.h"
#include "server/models/model_instances.h"
#include "server/workload/workload.h"

namespace resident {

class GraphModel;
class ModelRun;

// How long the nodes of one run may take together: work of the device's other clients continues
// meanwhile, but the kernel cannot be parked. Nodes have the limit of tasks (--task_time_limit).
inline constexpr std::chrono::milliseconds kModelTimeLimit{1000};

// Requests are combined up to the number of rows that takes so long, about.
inline constexpr uint64_t kBatchNs = 100'000'000;
static_assert(kBatchNs * 10 <= std::chrono::nanoseconds(kModelTimeLimit).count());

// The place of a request in a run, which its ticket holds. One that is destroyed without
// ModelRun::Join leaves the run.
struct ModelSeat {
  ~ModelSeat();

  const std::shared_ptr<ModelRun> run;
  // Where its rows begin.
  const uint64_t first_row = 0;
  bool joined = false;
};

class ModelRun final : public SharedRun, public std::enable_shared_from_this<ModelRun> {
 public:
  // `slot`: among the runs of graphs, each of which has one quantum at a time.
  ModelRun(std::shared_ptr<const GraphModel> model, std::shared_ptr<ModelInstances> plan,
           std::unique_ptr<ModelInstance> instance, SharedSlots::Ticket slot)
      : model_(std::move(model)),
        plan_(std::move(plan)),
        instance_(std::move(instance)),
        slot_(std::move(slot)) {}
  ~ModelRun() override { Release(); }

  // A seat for a request with these scalars. Null: it does not fit. Before the run is settled; one
  // thread at a time.
  std::shared_ptr<ModelSeat> AddSeat(const std::vector<double>& scalars);

  // After it is settled:

  // Whether there is one seat. Its request uses the instance itself, and does not join.
  bool alone() const { return seats_ == 1; }
  ModelInstance& instance() { return *instance_; }
  // Plans a quantum. Errors: those of GraphQuanta::Plan. One thread at a time.
  absl::StatusOr<std::unique_ptr<QuantumWorkload>> Plan(const std::vector<double>& scalars);
  // Plans the quantum of all requests, in the first call. Errors: those of Plan.
  absl::Status Prepare() ABSL_LOCKS_EXCLUDED(mu_);
  void Join(std::shared_ptr<RequestBatch> batch) override ABSL_LOCKS_EXCLUDED(mu_);
  void Leave() ABSL_LOCKS_EXCLUDED(mu_);

 private:
  // All requests have joined or left. From here on one thread at a time.
  void Depart();
  void Start(std::unique_ptr<QuantumWorkload> quantum);
  void OnEnd(RequestBatch& ended);
  // The next request of those that run one after the other.
  void StartNext();
  // Answers a request whose outcome is set.
  void Answer(size_t member);
  // Answers all requests that are not answered.
  void End();
  void Release();
  // Sets the outcome of a request: that of the task that ran, or an error. An empty message: the
  // usual one of the status.
  void SetOutcome(RequestBatch& member, const RequestBatch& ended, const QuantumReport& report,
                  uint64_t first_row);
  void Fail(RequestBatch& member, TaskStatus status, const std::string& cause,
            const std::string& message);

  const std::shared_ptr<const GraphModel> model_;
  const std::shared_ptr<ModelInstances> plan_;
  std::unique_ptr<ModelInstance> instance_;  // Until its release.
  SharedSlots::Ticket slot_;
  uint32_t seats_ = 0;
  uint64_t rows_ = 0;
  std::vector<double> scalars_;  // With the rows of all seats.

  absl::Mutex mu_;
  std::optional<absl::Status> planned_ ABSL_GUARDED_BY(mu_);
  uint32_t arrived_ ABSL_GUARDED_BY(mu_) = 0;  // Requests that have joined or left.
  // Those that have joined; null: it is answered.
  std::vector<std::shared_ptr<RequestBatch>> members_;
  std::unique_ptr<QuantumWorkload> quantum_;
  // Whether they run one after the other, and which of them runs.
  bool one_by_one_ = false;
  size_t next_ = 0;
};

// Of one request. What it lends is a ModelSeat.
class ModelLender final : public Lender {
 public:
  // `plan`: for the sizes of the request.
  ModelLender(std::shared_ptr<const GraphModel> model, std::shared_ptr<ModelInstances> plan,
              std::vector<double> scalars);
  ~ModelLender() override { SetWaits(false); }

  absl::StatusOr<std::shared_ptr<void>> TryBorrow(bool shared) override;
  bool MayLend() const override;
  void Settle() override;

 private:
  absl::StatusOr<std::shared_ptr<ModelRun>> TryStart() const;
  void SetWaits(bool waits);

  const std::shared_ptr<const GraphModel> model_;
  const std::shared_ptr<ModelInstances> plan_;
  const std::vector<double> scalars_;
  bool tried_ = false;
  bool waits_ = false;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_MODELS_MODEL_RUN_H_
