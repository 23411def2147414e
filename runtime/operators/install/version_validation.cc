#include "runtime/operators/install/version_validation.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "runtime/base/errors/install_errors.h"
#include "runtime/base/sha256.h"
#include "runtime/base/status_macros.h"
#include "runtime/operators/install/unit_payload.h"
#include "runtime/operators/install/validation_verdicts.h"

namespace resident {
namespace {

// Slots of the validation's own generation; the built-in operators are far below.
constexpr uint32_t kValidationSlot = kMaxOperatorSlots - 1;
constexpr uint32_t kCheckedSlot = kMaxOperatorSlots - 2;
constexpr uint32_t kActiveSlot = kMaxOperatorSlots - 3;
// A validation's generation is the second of its engine.
constexpr uint64_t kValidationGeneration = 2;

// How often `withdrawn` is asked.
constexpr absl::Duration kWithdrawnLook = absl::Milliseconds(20);

// Ends the engine, and with it its Run, once the install is withdrawn.
class WithdrawalWatch {
 public:
  WithdrawalWatch(ValidationEngine& engine, const std::function<bool()>& withdrawn)
      : thread_([this, &engine, &withdrawn] {
          while (!done_.WaitForNotificationWithTimeout(kWithdrawnLook)) {
            if (!withdrawn()) continue;
            engine.Cancel();
            return;
          }
        }) {}
  ~WithdrawalWatch() {
    done_.Notify();
    thread_.join();
  }

 private:
  absl::Notification done_;
  std::thread thread_;  // Last: it uses the others.
};

std::string VerdictKey(const VersionValidation::Subject& subject, const EngineInfo& engine) {
  Sha256 hash;
  hash.Field(subject.content_hash)
      .Field(engine.traits.engine)
      .Field(engine.name)
      .Field(engine.detail);
  hash.Field(subject.active == nullptr ? "" : subject.active->spec.content_hash);
  hash.Field(absl::StrCat(subject.task_time_limit.count()));
  for (const Example& example : *subject.examples) {
    hash.Field(absl::StrCat(example.relative_tolerance, " ", example.absolute_tolerance));
    for (const ExampleValue& value : example.values) {
      hash.Field(absl::StrCat(static_cast<int>(value.dtype), ShapeText(value.shape)));
      hash.Field(value.data);
    }
  }
  return hash.Hex();
}

}  // namespace

VersionValidation::VersionValidation(const Setup& setup, Subject subject)
    : setup_(setup), subject_(std::move(subject)) {
  for (const std::string& target : setup_.builder->targets()) {
    for (Device* device : setup_.devices) {
      const EngineInfo engine = device->snapshot().info;
      if (engine.traits.compile_target != target) continue;
      std::string key = VerdictKey(subject_, engine);
      if (!setup_.verdicts->Passed(key)) {
        trials_.push_back({target, std::move(key),
                           ValidationEngine::Start({.engine = setup_.engines[device->index()],
                                                    .threads_per_block = engine.threads_per_block,
                                                    .spare = device->spare(),
                                                    .engine_program = setup_.engine_program})});
      }
      break;  // One device for each target.
    }
  }
}

VersionValidation::~VersionValidation() = default;

absl::Status VersionValidation::Run(const BuiltVersion& built,
                                    const std::function<bool()>& withdrawn, Steps* steps) {
  for (Trial& trial : trials_) {
    if (withdrawn()) return errors::InstallWithdrawn();
    RETURN_IF_ERROR(RunOn(trial, built, withdrawn, steps));
    setup_.verdicts->NotePassed(trial.key);
  }
  return absl::OkStatus();
}

absl::Status VersionValidation::RunOn(Trial& trial, const BuiltVersion& built,
                                      const std::function<bool()>& withdrawn, Steps* steps) const {
  std::vector<VersionBuilder::Member> members = {{kValidationSlot, built.payload}};
  ValidationJob job;
  job.operator_name = subject_.operator_name;
  job.slot = kValidationSlot;
  if (built.checked != nullptr) {
    members.push_back({kCheckedSlot, built.checked});
    job.checked_slot = kCheckedSlot;
  }
  if (subject_.active != nullptr) {
    auto payload = std::dynamic_pointer_cast<const UnitPayload>(subject_.active->payload);
    // A version with the same content is the same.
    if (payload != nullptr && subject_.active->spec.content_hash != subject_.content_hash) {
      members.push_back({kActiveSlot, std::move(payload)});
      job.active_slot = kActiveSlot;
    }
  }
  ASSIGN_OR_RETURN(auto generation,
                   VersionBuilder::MakeGeneration(trial.target, kValidationGeneration, members));
  const std::string& target = trial.target;
  job.generation = std::move(generation);
  job.signature = subject_.signature;
  job.split = subject_.split;
  job.examples = *subject_.examples;
  job.task_time_limit = subject_.task_time_limit;
  WithdrawalWatch watch(*trial.engine, withdrawn);
  const ValidationReport report = trial.engine->Run(job);
  steps->emplace_back(absl::StrCat("await validation engine ", target), report.start_wait);
  steps->emplace_back(absl::StrCat("load validation ", target), report.load);
  steps->emplace_back(absl::StrCat("run ", report.tasks, " validation tasks ", target), report.run);
  if (report.status.ok()) return report.status;
  return absl::Status(report.status.code(),
                      absl::StrCat("validation on ", target, ": ", report.status.message()));
}

}  // namespace resident
