#include "tests/soak/traffic.h"

#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"

namespace resident::soak {
namespace {

constexpr size_t kInFlight = 16;
constexpr uint32_t kTasks = 4;

// Returns the number of task `task` of request `id`.
float Number(uint64_t id, uint32_t task) {
  return static_cast<float>((id * kTasks + task) % kMaxNumber);
}

void MakeBatch(uint64_t id, int op, v1::Batch* batch) {
  batch->Clear();
  batch->set_id(id);
  v1::OperatorTasks& tasks = *batch->mutable_tasks();
  tasks.set_operator_(OperatorName(op));
  tasks.set_count(kTasks);
  v1::InlineColumn& x = *tasks.add_arguments()->mutable_inline_();
  x.set_dtype(v1::DTYPE_F32);
  x.add_shape(kElements);
  std::string* const data = x.mutable_data();
  for (uint32_t i = 1; i <= kElements; ++i) {
    const auto value = static_cast<float>(i);
    data->append(reinterpret_cast<const char*>(&value), sizeof value);
  }
  v1::ScalarColumn& number = *tasks.add_arguments()->mutable_scalar();
  for (uint32_t task = 0; task < kTasks; ++task) number.add_f64(Number(id, task));
  v1::ReturnedColumn& out = *tasks.add_arguments()->mutable_returned();
  out.set_dtype(v1::DTYPE_F32);
  out.add_shape(kElements);
}

bool TaskOk(const v1::BatchResult& result, int task) {
  return result.status_size() == 0 || result.status(task) == v1::TASK_STATUS_OK;
}

}  // namespace

Traffic::Traffic(const std::shared_ptr<grpc::Channel>& channel, const World& world)
    : world_(world), stub_(v1::Executor::NewStub(channel)) {
  stream_ = stub_->Submit(&context_);
  writer_ = std::thread([this] { Write(); });
  reader_ = std::thread([this] { Read(); });
}

bool Traffic::MaySend() const { return stopping_ || ended_ || pending_.size() < kInFlight; }

void Traffic::Write() {
  v1::SubmitRequest request;
  for (uint64_t id = 1;; ++id) {
    const int op = static_cast<int>(id % world_.operators);
    MakeBatch(id, op, request.mutable_batch());
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(this, &Traffic::MaySend));
      if (stopping_ || ended_) break;
      pending_[id] = {op, Clock::now()};
    }
    if (!stream_->Write(request)) break;
    world_.findings->Count("requests sent");
  }
  stream_->WritesDone();
}

void Traffic::Read() {
  v1::SubmitResponse response;
  while (stream_->Read(&response)) HandleResult(response.result());
  const grpc::Status status = stream_->Finish();
  if (!status.ok()) {
    world_.findings->Violation(absl::StrCat("a stream ended: ", status.error_message()));
  }
  absl::MutexLock lock(&mu_);
  ended_ = true;
  for (const auto& [id, sent] : pending_) {
    world_.findings->Violation(absl::StrCat("request ", id, " was never answered"));
  }
}

bool Traffic::ComputeKey(const v1::BatchResult& result, uint32_t* key) {
  if (result.outputs_size() != 1 ||
      result.outputs(0).size() != kTasks * kElements * sizeof(float)) {
    return false;
  }
  float out[kTasks][kElements];
  std::memcpy(out, result.outputs(0).data(), sizeof out);
  float found = 0;
  for (uint32_t task = 0; task < kTasks; ++task) {
    if (!TaskOk(result, static_cast<int>(task))) continue;
    const float number = Number(result.id(), task);
    if (found == 0) found = out[task][0] - number;
    for (uint32_t i = 0; i < kElements; ++i) {
      if (out[task][i] != static_cast<float>(i + 1) * found + number) return false;
    }
  }
  *key = found > 0 && found < kMaxKey ? static_cast<uint32_t>(found) : 0;
  return *key != 0;
}

void Traffic::HandleResult(const v1::BatchResult& result) {
  const Clock::time_point now = Clock::now();
  answered_.fetch_add(1, std::memory_order_relaxed);
  Answer answer{0, result.version(), 0, Outcome::kServed, {now, now}};
  {
    absl::MutexLock lock(&mu_);
    const auto found = pending_.find(result.id());
    if (found == pending_.end()) {
      world_.findings->Violation(absl::StrCat("request ", result.id(), " was answered twice"));
      return;
    }
    answer.op = found->second.op;
    answer.span.sent = found->second.at;
    pending_.erase(found);
  }
  bool any_ok = false;
  bool any_lost = false;
  bool other = false;
  if (result.has_refused()) {
    const int code = result.refused().code();
    answer.outcome = Outcome::kRefused;
    // NOT_FOUND or UNAVAILABLE. FAILED_PRECONDITION is only for requests that name a
    // version.
    if (code != 5 && code != 14) {
      world_.findings->Violation(absl::StrCat("refused: ", result.refused().message()));
    }
  } else {
    for (int task = 0; task < static_cast<int>(kTasks); ++task) {
      const bool ok = TaskOk(result, task);
      any_ok |= ok;
      any_lost |= !ok;
      other |= !ok && result.status(task) != v1::TASK_STATUS_ABORTED &&
               result.status(task) != v1::TASK_STATUS_UNAVAILABLE;
    }
    if (other) {
      world_.findings->Violation(absl::StrCat(
          "a task failed: ", result.errors_size() > 0 ? result.errors(0).message() : ""));
    }
    if (any_ok && !ComputeKey(result, &answer.key)) {
      world_.findings->Violation(absl::StrCat("wrong values for request ", result.id(), " of ",
                                              OperatorName(answer.op), " from version ",
                                              answer.version));
      return;
    }
  }
  absl::MutexLock lock(&mu_);
  if (any_ok || result.has_refused()) answers_.push_back(answer);
  if (any_lost) {
    answer.outcome = Outcome::kLost;
    answers_.push_back(answer);
  }
}

void Traffic::Evaluate(const Answer& answer) {
  const std::string name = OperatorName(answer.op);
  switch (answer.outcome) {
    case Outcome::kServed:
      world_.findings->Count("answers: served");
      if (world_.keys->Get(answer.op, answer.version) != answer.key) {
        world_.findings->Violation(absl::StrCat(
            "an answer of ", name, " has version ", answer.version, " with key ",
            world_.keys->Get(answer.op, answer.version), " and was computed with ", answer.key));
      } else if (!world_.timeline->MayHaveServed(answer.op, answer.version, answer.span)) {
        world_.findings->Violation(absl::StrCat("version ", answer.version, " of ", name,
                                                " answered while it was not active"));
      }
      break;
    case Outcome::kRefused:
      world_.findings->Count("answers: refused while the operator was removed, or the engine away");
      if (!world_.timeline->MayHaveServed(answer.op, Timeline::kMissing, answer.span) &&
          !world_.timeline->WasDisturbed(answer.span)) {
        world_.findings->Violation(absl::StrCat("a request for ", name, " was refused"));
      }
      break;
    case Outcome::kLost:
      world_.findings->Count("answers: lost with an engine");
      if (!world_.timeline->WasDisturbed(answer.span)) {
        world_.findings->Violation(absl::StrCat("a task of ", name, " version ", answer.version,
                                                " failed while no fault was injected"));
      }
      break;
  }
}

void Traffic::Check() {
  std::vector<Answer> answers;
  {
    absl::MutexLock lock(&mu_);
    answers.swap(answers_);
  }
  for (const Answer& answer : answers) Evaluate(answer);
}

void Traffic::Finish() {
  {
    absl::MutexLock lock(&mu_);
    stopping_ = true;
  }
  writer_.join();
  reader_.join();
  world_.findings->Count("answers", answered());
  Check();
}

}  // namespace resident::soak
