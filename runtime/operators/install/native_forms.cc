#include "runtime/operators/install/native_forms.h"

#include <sys/prctl.h>

#include <algorithm>
#include <chrono>
#include <fstream>
#include <optional>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/time/clock.h"
#include "runtime/base/atomic_file.h"
#include "runtime/base/log.h"
#include "runtime/base/sha256.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/errors.h"
#include "runtime/flux/translator.h"
#include "runtime/operators/install/native_examples.h"

namespace resident {

FormQuarantine::FormQuarantine(std::string path) : path_(std::move(path)) {
  if (path_.empty()) return;
  std::ifstream file(path_);
  std::string line;
  while (std::getline(file, line)) {
    const size_t space = line.find(' ');
    if (space == std::string::npos || space == 0) continue;  // Damaged; the other lines are used.
    entries_.emplace_back(line.substr(0, space), line.substr(space + 1));
    if (entries_.size() > kMaxEntries) entries_.pop_front();
  }
}

std::string FormQuarantine::Reason(const std::string& hash) const {
  absl::MutexLock lock(&mu_);
  const auto found = std::find_if(entries_.begin(), entries_.end(),
                                  [&](const auto& entry) { return entry.first == hash; });
  return found == entries_.end() ? "" : found->second;
}

void FormQuarantine::Add(const std::string& hash, const std::string& reason) {
  absl::MutexLock lock(&mu_);
  std::erase_if(entries_, [&](const auto& entry) { return entry.first == hash; });
  entries_.emplace_back(hash, absl::StrReplaceAll(reason, {{"\n", " "}}));
  if (entries_.size() > kMaxEntries) entries_.pop_front();
  if (path_.empty()) return;
  std::string text;
  for (const auto& [entry, why] : entries_) absl::StrAppend(&text, entry, " ", why, "\n");
  const absl::Status status = WriteFileAtomically(path_, {text});
  if (!status.ok()) {
    LogError("cannot write ", path_, ": ", status.message(),
             ". The quarantine of a native form is lost when the daemon ends");
  }
}

namespace {

// Names in compiler messages; the same for all programs, so that equal programs share a unit.
constexpr char kFunction[] = "flux_native";
constexpr char kFile[] = "program.cc";

std::string FormHash(const std::string& bytecode, bool unknown_nop) {
  Sha256 hash;
  hash.Field(bytecode).Field(
      absl::StrCat("native form ", flux::kTranslatorVersion, unknown_nop ? " nop" : ""));
  return hash.Hex();
}

absl::Status QuarantinedBefore(const std::string& reason) {
  return absl::FailedPreconditionError(absl::StrCat("it was quarantined before: ", reason));
}

// ", compile 61 ms, ...".
std::string StepsText(const VersionValidation::Steps& steps) {
  std::string text;
  for (const auto& [name, took] : steps) {
    absl::StrAppend(&text, ", ", name, " ",
                    std::chrono::duration_cast<std::chrono::milliseconds>(took).count(), " ms");
  }
  return text;
}

// Programs that wait.
constexpr size_t kMaxWaiting = 256;

// The mode for which programs with unknown opcodes are translated: that of requests that do not say
// otherwise.
constexpr bool kUnknownNop = false;

}  // namespace

NativeForms::NativeForms(const Options& options, const Sources& sources)
    : options_(options),
      sources_(sources),
      quarantine_(options.quarantine_file),
      worker_([this] { Work(); }) {}

NativeForms::~NativeForms() {
  Stop();
  worker_.join();
}

void NativeForms::Stop() {
  absl::MutexLock lock(&mu_);
  stopping_ = true;
}

void NativeForms::Request(const std::shared_ptr<const OperatorVersion>& program,
                          std::vector<Example> examples) {
  if (!options_.enabled || program->native == nullptr || program->spec.native_off) return;
  absl::MutexLock lock(&mu_);
  if (stopping() || !program->native->Begin()) return;
  if (jobs_.size() >= kMaxWaiting) {
    program->native->Refuse("many other programs waited. Fix: activate the version again later");
    return;
  }
  jobs_.push_back({program, program->spec.bytecode, program->native, std::move(examples)});
}

void NativeForms::Work() {
  prctl(PR_SET_NAME, "resident-native");
  const auto has_work = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_) {
    return stopping() || !jobs_.empty();
  };
  while (true) {
    Job job;
    {
      absl::MutexLock lock(&mu_);
      mu_.Await(absl::Condition(&has_work));
      if (jobs_.empty()) return;
      job = std::move(jobs_.front());
      jobs_.pop_front();
    }
    absl::Status built = errors::InstallWithdrawn();
    if (!stopping() && !job.program.expired()) built = Build(job);
    if (!built.ok()) job.form->Refuse(std::string(built.message()));
  }
}

absl::Status NativeForms::Build(const Job& job) {
  const std::string hash = FormHash(*job.bytecode, kUnknownNop);
  if (const std::string reason = quarantine_.Reason(hash); !reason.empty()) {
    return QuarantinedBefore(reason);
  }
  ASSIGN_OR_RETURN(const flux::Translation translation,
                   flux::Translate(*job.bytecode, kUnknownNop));
  ASSIGN_OR_RETURN(
      const BuiltVersion built,
      CompileAndValidate(job, hash, flux::NativeOperatorSource(kFunction, translation)));
  return Load(job, hash, built,
              translation.one_mode ? std::optional<bool>(kUnknownNop) : std::nullopt);
}

absl::StatusOr<BuiltVersion> NativeForms::Compile(const std::string& hash,
                                                  const std::string& source) const {
  BuildRequest request;
  request.operator_name = kFunction;
  request.content_hash = hash;
  request.main_file = kFile;
  request.files = {{kFile, source}};
  request.allow_spills = true;
  // Its only accesses to memory are those of kernels/flux, which flux.run makes too.
  request.with_checked = false;
  request.cancelled = [this] { return stopping(); };
  std::string log;
  ASSIGN_OR_RETURN(BuiltVersion built, sources_.validation.builder->Build(request, &log));
  RETURN_IF_ERROR(built.inspected);
  return built;
}

absl::StatusOr<BuiltVersion> NativeForms::CompileAndValidate(const Job& job,
                                                             const std::string& hash,
                                                             const std::string& source) {
  ASSIGN_OR_RETURN(const ResolvedOperator flux_run,
                   sources_.registry->Resolve(kFluxRunOperator, 0));
  uint64_t seed = 0;
  if (!absl::SimpleHexAtoi(hash.substr(0, 16), &seed)) return absl::InternalError("not a hash");
  const std::vector<Example> cases =
      MakeNativeExamples(*job.bytecode, kUnknownNop, job.examples, seed);
  // Its engine starts while the compiler works.
  VersionValidation validation(sources_.validation,
                               VersionValidation::Case{.operator_name = kFunction,
                                                       .content_hash = hash,
                                                       .signature = flux_run.op->signature(),
                                                       .split = flux_run.version->split,
                                                       .examples = &cases,
                                                       .reference_slot = flux_run.version->slot});
  ASSIGN_OR_RETURN(BuiltVersion built, Compile(hash, source));
  VersionValidation::Steps steps;
  const absl::Status status = validation.Run(
      built, [this] { return stopping(); }, &steps);
  if (status.ok()) {
    LogInfo("the native code of the FLUX program with hash ", hash,
            " gives the results of flux.run: ", built.cached ? "from the cache" : "compiled",
            StepsText(built.compile_steps), StepsText(built.inspect_steps), StepsText(steps));
    return built;
  }
  if (status.code() == absl::StatusCode::kInvalidArgument) {
    ++mismatches_;
    LogError("the native code of the FLUX program with hash ", hash,
             " is not used, since it failed the comparison with flux.run: ", status.message());
  }
  return status;
}

absl::Status NativeForms::Load(const Job& job, const std::string& hash, const BuiltVersion& built,
                               std::optional<bool> mode) {
  std::shared_ptr<const OperatorVersion> program = job.program.lock();
  if (program == nullptr) return absl::CancelledError("the program was removed");
  ASSIGN_OR_RETURN(
      const std::shared_ptr<OperatorVersion> code,
      sources_.registry->ReserveNative(*program, built.payload,
                                       absl::Now() + absl::FromChrono(options_.park_deadline)));
  program.reset();
  RETURN_IF_ERROR(sources_.loader->Load(code));
  // From here on every generation has it.
  code->state = VersionState::kLoaded;
  {
    absl::MutexLock lock(&mu_);
    // An equal program's form was quarantined meanwhile. Quarantine looks for this form after it
    // has recorded the reason.
    if (const std::string reason = quarantine_.Reason(hash); !reason.empty()) {
      return QuarantinedBefore(reason);
    }
    job.form->Serve(code, mode);
    forms_.push_back({job.form, hash});
  }
  MakeRoom();
  return absl::OkStatus();
}

void NativeForms::MakeRoom() {
  absl::MutexLock lock(&mu_);
  std::shared_ptr<NativeForm> oldest;
  size_t serving = 0;
  std::erase_if(forms_, [&](const Made& made) {
    std::shared_ptr<NativeForm> form = made.form.lock();
    if (form == nullptr || form->view().state != NativeForm::State::kServing) return true;
    ++serving;
    if (oldest == nullptr || form->last_use() < oldest->last_use()) oldest = std::move(form);
    return false;
  });
  if (serving > options_.max_forms) oldest->Evict();
}

void NativeForms::Quarantine(const OperatorVersion& code, const std::string& reason) {
  code.state.store(VersionState::kQuarantined, std::memory_order_relaxed);
  const std::string hash = FormHash(*code.spec.bytecode, kUnknownNop);
  // First, so that none is built again.
  quarantine_.Add(hash, reason);
  LogError("the native code of ", code.op->name(), " version ", code.version, " (hash ", hash,
           ") is out of service, and the interpreter runs the program: ", reason);
  std::vector<std::shared_ptr<NativeForm>> forms = {code.native_of.lock()};
  {
    absl::MutexLock lock(&mu_);
    for (const Made& made : forms_) {
      if (made.hash == hash) forms.push_back(made.form.lock());
    }
  }
  for (const std::shared_ptr<NativeForm>& form : forms) {
    if (form != nullptr && form->Quarantine(reason)) ++quarantined_;
  }
}

void NativeForms::RecordComparison(const OperatorVersion& code, uint64_t mismatches) {
  ++comparisons_;
  if (mismatches == 0) return;
  ++mismatches_;
  Quarantine(code, "in service, its results differed from the interpreter's");
}

OperatorManager::NativeCounters NativeForms::counters() const {
  OperatorManager::NativeCounters counters;
  counters.comparisons = comparisons_;
  counters.mismatches = mismatches_;
  counters.quarantined = quarantined_;
  absl::MutexLock lock(&mu_);
  for (const Made& made : forms_) {
    const std::shared_ptr<NativeForm> form = made.form.lock();
    counters.serving += form != nullptr && form->view().state == NativeForm::State::kServing;
  }
  return counters;
}

}  // namespace resident
