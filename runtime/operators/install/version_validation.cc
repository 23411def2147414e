
#include "runtime/operators/install/version_validation.h"

#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/notification.h"
#include "absl/time/time.h"
#include "runtime/base/sha256.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/errors.h"
#include "runtime/operators/install/version_builder.h"

namespace resident {
namespace {

// Slots of the validation's own generation; the built-in operators have low numbers.
constexpr uint32_t kValidationSlot = kMaxOperatorSlots - 1;
constexpr uint32_t kCheckedSlot = kMaxOperatorSlots - 2;
constexpr uint32_t kActiveSlot = kMaxOperatorSlots - 3;
// A validation's generation is the second of its engine.
constexpr uint64_t kValidationGeneration = 2;

// Terminates the engine, and so its Run, once the install is withdrawn.
class WithdrawalWatch {
 public:
  WithdrawalWatch(ValidationEngine& engine, const std::function<bool()>& withdrawn)
      : thread_([this, &engine, &withdrawn] {
          while (!done_.WaitForNotificationWithTimeout(kWithdrawnPollInterval)) {
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
  std::thread thread_;  // Last: it uses the members above.
};

std::string VerdictKey(const VersionValidation::Case& test_case, const EngineInfo& engine) {
  Sha256 hash;
  hash.Field(test_case.content_hash)
      .Field(engine.traits.engine)
      .Field(engine.name)
      .Field(engine.detail);
  hash.Field(test_case.active == nullptr ? "" : test_case.active->spec.content_hash);
  hash.Field(absl::StrCat(test_case.task_time_limit.count()));
  for (const Example& example : *test_case.examples) {
    hash.Field(absl::StrCat(example.relative_tolerance, " ", example.absolute_tolerance));
    for (const ExampleValue& value : example.values) {
      hash.Field(absl::StrCat(static_cast<int>(value.dtype), ShapeText(value.shape)));
      hash.Field(value.data);
    }
  }
  return hash.Hex();
}

}  // namespace

VersionValidation::VersionValidation(const Setup& setup, Case version)
    : setup_(setup), version_(std::move(version)) {
  for (const std::string& target : setup_.builder->targets()) {
    for (Device* device : setup_.devices) {
      const EngineInfo engine = device->snapshot().info;
      if (engine.traits.compile_target != target) continue;
      std::string key = VerdictKey(version_, engine);
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
    setup_.verdicts->RecordPassed(trial.key);
  }
  return absl::OkStatus();
}

absl::Status VersionValidation::RunOn(Trial& trial, const BuiltVersion& built,
                                      const std::function<bool()>& withdrawn, Steps* steps) const {
  std::vector<VersionBuilder::Member> members = {{kValidationSlot, built.payload}};
  ValidationJob job;
  job.operator_name = version_.operator_name;
  job.slot = kValidationSlot;
  if (built.checked != nullptr) {
    members.push_back({kCheckedSlot, built.checked});
    job.checked_slot = kCheckedSlot;
  }
  job.active_slot = version_.reference_slot;
  if (version_.active != nullptr) {
    auto payload = std::dynamic_pointer_cast<const UnitPayload>(version_.active->payload);
    // A version with the same content does not need to be compared.
    if (payload != nullptr && version_.active->spec.content_hash != version_.content_hash) {
      members.push_back({kActiveSlot, std::move(payload)});
      job.active_slot = kActiveSlot;
    }
  }
  ASSIGN_OR_RETURN(auto generation,
                   VersionBuilder::MakeGeneration(trial.target, kValidationGeneration, members));
  const std::string& target = trial.target;
  job.generation = std::move(generation);
  job.signature = version_.signature;
  job.split = version_.split;
  job.examples = *version_.examples;
  job.task_time_limit = version_.task_time_limit;
  WithdrawalWatch watch(*trial.engine, withdrawn);
  const ValidationReport report = trial.engine->Run(job);
  steps->emplace_back(absl::StrCat("wait for validation engine ", target), report.start_wait);
  steps->emplace_back(absl::StrCat("load validation ", target), report.load);
  steps->emplace_back(absl::StrCat("run ", report.tasks, " validation tasks ", target), report.run);
  if (report.status.ok()) return report.status;
  return absl::Status(report.status.code(),
                      absl::StrCat("validation on ", target, ": ", report.status.message()));
}

}  // namespace resident
