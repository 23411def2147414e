#include "server/models/model_run.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/quote.h"
#include "runtime/base/status_macros.h"
#include "runtime/device/errors.h"
#include "runtime/queue/batch_outcome.h"
#include "server/models/errors.h"
#include "server/models/graph_model.h"
#include "server/models/model_workload.h"
#include "server/workload/result_builder.h"

namespace resident {
namespace {

const ModelWorkload& FindModelWork(const RequestBatch& member) {
  return static_cast<const ModelWorkload&>(*member.work);
}

uint64_t FindFirstRow(const RequestBatch& member) {
  return static_cast<const ModelSeat*>(member.ticket.loan())->first_row;
}

TaskStatus ToTaskStatus(const absl::Status& status) {
  return absl::IsInvalidArgument(status) ? TaskStatus::kInvalidArgument : TaskStatus::kUnavailable;
}

}  // namespace

ModelSeat::~ModelSeat() {
  if (!joined && !run->alone()) run->Leave();
}

std::shared_ptr<ModelSeat> ModelRun::AddSeat(const std::vector<double>& scalars) {
  const ModelPlans& plans = *model_->plans();
  const uint32_t scalar = plans.rows().scalar;
  const bool combines = scalar != graph::kNone;
  const uint64_t rows = combines ? static_cast<uint64_t>(scalars[scalar]) : 0;
  if (seats_ != 0) {
    const uint64_t limit = std::min<uint64_t>(plans.max_batch(), plan_->line().row_limit.load());
    if (!instance_->independent_rows || rows_ + rows > limit) return nullptr;
    for (size_t i = 0; i < scalars.size(); ++i) {
      if (i != scalar && scalars[i] != scalars_[i]) return nullptr;
    }
  }
  const uint64_t first_row = rows_;
  ++seats_;
  rows_ += rows;
  scalars_ = scalars;
  if (combines) scalars_[scalar] = static_cast<double>(rows_);
  return std::shared_ptr<ModelSeat>(
      new ModelSeat{.run = shared_from_this(), .first_row = first_row});
}

absl::StatusOr<std::unique_ptr<QuantumWorkload>> ModelRun::Plan(
    const std::vector<double>& scalars) {
  GraphQuanta::Steps steps;
  steps.budget = kModelTimeLimit;
  steps.skip_shadows = true;
  return instance_->quanta->Plan(steps, scalars);
}

absl::Status ModelRun::Prepare() {
  absl::MutexLock lock(&mu_);
  if (planned_.has_value()) return *planned_;
  auto quantum = Plan(scalars_);
  planned_ = quantum.status();
  if (quantum.ok()) {
    quantum_ = *std::move(quantum);
    one_by_one_ =
        !std::ranges::all_of(instance_->quanta->operators(),
                             [](const ResolvedOperator& op) { return op.version->builtin; });
  } else if (absl::IsInvalidArgument(*planned_)) {
    // A node cannot end in time with the rows of all requests.
    one_by_one_ = true;
    planned_ = absl::OkStatus();
  }
  return *planned_;
}

void ModelRun::Join(std::shared_ptr<RequestBatch> batch) {
  PrepareOutcomes(*batch);
  batch->enqueued_at = Clock::now();
  static_cast<ModelSeat*>(batch->ticket.loan())->joined = true;
  {
    absl::MutexLock lock(&mu_);
    members_.push_back(std::move(batch));
    if (++arrived_ < seats_) return;
  }
  Depart();
}

void ModelRun::Leave() {
  {
    absl::MutexLock lock(&mu_);
    if (++arrived_ < seats_) return;
  }
  Depart();
}

void ModelRun::Depart() {
  // Those whose deadline has passed, or that were cancelled, take no time of the others.
  std::erase_if(members_, [&](std::shared_ptr<RequestBatch>& member) {
    const auto reason = ReasonToSkip(*member, model_->graphs().core.time);
    if (!reason.has_value()) return false;
    Fail(*member, reason->status, reason->cause, "");
    member->done(*member);
    return true;
  });
  if (members_.empty()) return End();
  // Those that run one after the other are moved to the first row, over rows that have run.
  std::ranges::sort(members_, {}, [](const auto& member) { return FindFirstRow(*member); });
  if (one_by_one_) return StartNext();
  Start(std::move(quantum_));
}

void ModelRun::Start(std::unique_ptr<QuantumWorkload> quantum) {
  const ModelParts& parts = model_->plans()->parts();
  Core& core = model_->graphs().core;
  quantum_ = std::move(quantum);
  const auto task = std::make_shared<RequestBatch>();
  task->operator_name = model_->name();
  // It is of no use to anybody after the last deadline of its requests.
  task->version = members_[next_]->version;
  task->deadline = members_[next_]->deadline;
  for (size_t i = next_; i < members_.size() && !one_by_one_; ++i) {
    task->deadline = std::max(task->deadline, members_[i]->deadline);
  }
  quantum_->FillAt(*instance_->staging.staging(), *task);
  task->done = [self = shared_from_this()](Batch& ended) {
    auto held = static_cast<RequestBatch&>(ended).shared_from_this();
    // Results are copied, which must not delay the dispatcher.
    self->model_->graphs().core.runner.Post([self, held = std::move(held)] { self->OnEnd(*held); });
  };
  const absl::Status taken = core.devices[parts.device]->queue().Enqueue(parts.client->id(), task);
  if (taken.ok()) return;
  // The engine has ended.
  for (size_t i = next_; i < members_.size(); ++i) {
    Fail(*members_[i], TaskStatus::kUnavailable, std::string(taken.message()), "");
  }
  End();
}

void ModelRun::OnEnd(RequestBatch& ended) {
  const QuantumReport report = quantum_->ReadReport();
  if (report.end != GraphEnd::kNone) {
    instance_->quanta->Read(*quantum_, report, ended.device_ns[0]);
  }
  const bool refused =
      ended.status[0] == TaskStatus::kInvalidArgument || ended.status[0] == TaskStatus::kInternal;
  if (!one_by_one_ && refused) {
    one_by_one_ = true;
    return StartNext();
  }
  if (ended.failed == 0) {
    model_->CountRun(*plan_, one_by_one_ ? FindModelWork(*members_[next_]).rows() : rows_,
                     ended.device_ns[0]);
  }
  if (one_by_one_) {
    SetOutcome(*members_[next_], ended, report, /*first_row=*/0);
    Answer(next_++);
    return StartNext();
  }
  for (const auto& member : members_) SetOutcome(*member, ended, report, FindFirstRow(*member));
  End();
}

void ModelRun::StartNext() {
  const ModelInterface& interface = instance_->interface();
  for (; next_ < members_.size(); ++next_) {
    RequestBatch& member = *members_[next_];
    if (const auto reason = ReasonToSkip(member, model_->graphs().core.time)) {
      Fail(member, reason->status, reason->cause, "");
      Answer(next_);
      continue;
    }
    if (instance_->quanta->in_step()) {
      Fail(member, TaskStatus::kAborted, "", errors::ModelTooSlow(kModelTimeLimit));
      Answer(next_);
      continue;
    }
    const ModelWorkload& work = FindModelWork(member);
    for (size_t i = 0; i < interface.inputs.size(); ++i) {
      const ModelPort& port = interface.inputs[i];
      uint8_t* const rows = instance_->host() + instance_->inputs[i];
      std::memmove(rows, rows + port.BytesBefore(FindFirstRow(member)), port.BytesAt(work.rows()));
    }
    auto quantum = Plan(work.scalars());
    if (quantum.ok()) return Start(*std::move(quantum));
    Fail(member, ToTaskStatus(quantum.status()), "", std::string(quantum.status().message()));
    Answer(next_);
  }
  End();
}

void ModelRun::SetOutcome(RequestBatch& member, const RequestBatch& ended,
                          const QuantumReport& report, uint64_t first_row) {
  member.status[0] = ended.status[0];
  member.detail[0] = ended.detail[0];
  member.device_ns[0] = ended.device_ns[0];
  member.cause = ended.cause;
  member.suspect = ended.suspect;
  member.failed = ended.failed;
  member.submitted = member.finished = 1;
  FindModelWork(member).SetResult(ended, report, *instance_, first_row);
}

void ModelRun::Fail(RequestBatch& member, TaskStatus status, const std::string& cause,
                    const std::string& message) {
  member.status[0] = status;
  member.cause = cause;
  member.failed = member.submitted = member.finished = 1;
  FindModelWork(member).SetError(member, message);
}

void ModelRun::Answer(size_t member) {
  const auto answered = std::move(members_[member]);
  answered->done(*answered);
}

void ModelRun::End() {
  Release();
  model_->graphs().core.admission.Wake();
  for (const auto& member : std::exchange(members_, {})) {
    if (member != nullptr) member->done(*member);
  }
}

void ModelRun::Release() {
  if (instance_ == nullptr) return;
  // Versions of operators that the next run need not use may be removed meanwhile.
  instance_->quanta->Pause();
  quantum_ = nullptr;
  slot_.Release();
  plan_->Return(std::move(instance_));
}

ModelLender::ModelLender(std::shared_ptr<const GraphModel> model,
                         std::shared_ptr<ModelInstances> plan, std::vector<double> scalars)
    : model_(std::move(model)), plan_(std::move(plan)), scalars_(std::move(scalars)) {}

absl::StatusOr<std::shared_ptr<ModelRun>> ModelLender::TryStart() const {
  const ModelParts& parts = model_->plans()->parts();
  Core& core = model_->graphs().core;
  const auto session = core.devices[parts.device]->session();
  if (session == nullptr) return errors::DeviceUnavailable(parts.device, "it has no engine");
  auto slot = model_->graphs().checker.run_slots().Take(
      absl::StrCat("model ", errors::Quote(model_->name())));
  if (!slot.ok()) return nullptr;
  ASSIGN_OR_RETURN(auto instance, plan_->TryTake(session->epoch()));
  if (instance == nullptr) return nullptr;
  return std::make_shared<ModelRun>(model_, plan_, std::move(instance), *std::move(slot));
}

absl::StatusOr<std::shared_ptr<void>> ModelLender::TryBorrow(bool shared) {
  ModelLine& line = plan_->line();
  if (!std::exchange(tried_, true) && !plan_->ready()) model_->plans()->misses.fetch_add(1);
  const bool combines = model_->plans()->max_batch() != 0;
  if (combines && !shared && line.waiting.load() > (waits_ ? 1 : 0)) {
    // Those that wait come first, together.
    SetWaits(true);
    return nullptr;
  }
  if (combines && shared && line.open != nullptr) {
    auto seat = line.open->AddSeat(scalars_);
    if (seat != nullptr) {
      SetWaits(false);
      return std::shared_ptr<void>(std::move(seat));
    }
    line.open = nullptr;
  }
  ASSIGN_OR_RETURN(const std::shared_ptr<ModelRun> run, TryStart());
  SetWaits(run == nullptr);
  if (run == nullptr) return nullptr;
  if (combines && shared) line.open = run;
  return std::shared_ptr<void>(run->AddSeat(scalars_));
}

bool ModelLender::MayLend() const { return plan_->line().open != nullptr || !plan_->AllBusy(); }

void ModelLender::Settle() { plan_->line().open = nullptr; }

void ModelLender::SetWaits(bool waits) {
  if (waits == waits_) return;
  waits_ = waits;
  plan_->line().waiting.fetch_add(waits ? 1 : -1);
}

}  // namespace resident
