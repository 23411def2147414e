

#include "runtime/operators/install/install_run.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "runtime/base/status_macros.h"
#include "runtime/compile/errors.h"
#include "runtime/compile/expression/expression.h"
#include "runtime/compile/ptx/ptx_rules.h"
#include "runtime/compile/unit.h"
#include "runtime/operators/errors.h"
#include "runtime/operators/install/bytecode_validation.h"
#include "runtime/operators/validation/example.h"

namespace resident {
namespace {

// File name of an expression's generated source in compiler messages.
constexpr char kExpressionFile[] = "expression.cc";
// Name of a FLUX program in the state folder.
constexpr char kBytecodePart[] = "program";

// Whether the version caused the error, and not the daemon or the caller's timing.
// Exceeding a limit is the version's error while it is compiled and validated. Before that,
// and while it is loaded, the limits are shared by all callers.
bool IsVersionError(const absl::Status& status, bool trying) {
  return status.code() == absl::StatusCode::kInvalidArgument ||
         (trying && (status.code() == absl::StatusCode::kDeadlineExceeded ||
                     status.code() == absl::StatusCode::kResourceExhausted));
}

}  // namespace

absl::Status InstallRun::Run() {
  const absl::Status status = RunSteps();
  if (!status.ok() && IsVersionError(status, trying_)) ReportRejected(status);
  return status;
}

absl::Status InstallRun::RunSteps() {
  RETURN_IF_ERROR(CheckWithdrawn());
  RETURN_IF_ERROR(Prepare());
  trying_ = true;
  absl::Status status = request_.kind == OperatorKind::kBytecode ? RunBytecode() : RunNative();
  if (!status.ok()) return status;
  trying_ = false;
  if (request_.wait_for == VersionState::kValidated) return absl::OkStatus();
  if (status = CheckWithdrawn(); status.ok()) status = Load();
  if (status.ok() && request_.wait_for == VersionState::kActive) status = Activate();
  return status;
}

absl::Status InstallRun::Prepare() {
  spec_.kind = request_.kind;
  spec_.summary = request_.summary;
  spec_.signature = request_.signature;
  spec_.split = request_.split;
  spec_.task_time_limit = request_.task_time_limit;
  spec_.scratch_bytes = request_.scratch_bytes;
  spec_.allow_spills = request_.allow_spills;
  spec_.isolation = request_.isolation;
  spec_.native_off = request_.native == InstallRequest::Native::kOff;
  spec_.installed_by = request_.actor;
  spec_.set = request_.context.set;
  spec_.installed_ms = absl::ToUnixMillis(absl::Now());
  build_ = {.operator_name = request_.name,
            .content_hash = "",
            .kind = request_.kind,
            .main_file = {},
            .files = request_.files,
            .allow_spills = request_.allow_spills,
            .isolation = request_.isolation,
            .default_isolation = manager_.options_.isolation,
            .scratch_bytes = request_.scratch_bytes,
            .cancelled = withdrawn_};
  switch (request_.kind) {
    case OperatorKind::kBuiltin:
      return absl::InternalError("a built-in operator cannot be installed");
    case OperatorKind::kExpression: {
      ASSIGN_OR_RETURN(auto generated, expression::Generate(request_.name, request_.body));
      if (spec_.signature.empty()) spec_.signature = generated.signature;
      if (spec_.signature != generated.signature) {
        return errors::ExpressionSignature(spec_.signature, generated.signature);
      }
      if (spec_.split.empty()) spec_.split = generated.split;
      if (spec_.summary.empty()) spec_.summary = generated.summary;
      // Register pressure is not a concern of an expression's author.
      spec_.allow_spills = build_.allow_spills = true;
      build_.kind = OperatorKind::kSource;
      build_.main_file = kExpressionFile;
      build_.files = {{kExpressionFile, generated.source}};
      break;
    }
    case OperatorKind::kBytecode:
      spec_.bytecode = std::make_shared<const std::string>(request_.body);
      break;
    case OperatorKind::kObject:
      if (!manager_.options_.allow_objects) return errors::ObjectsNotAllowed();
      [[fallthrough]];
    case OperatorKind::kSource:
      RETURN_IF_ERROR(CheckMainFile(request_.files, request_.body));
      build_.main_file = request_.body;
      break;
  }
  if (spec_.task_time_limit > manager_.options_.task_time_limit &&
      manager_.options_.task_time_limit.count() != 0) {
    return errors::TaskTimeAboveLimit(spec_.task_time_limit, manager_.options_.task_time_limit);
  }
  spec_.content_hash = ContentHash(request_.name, request_.body, request_.files, spec_);
  build_.content_hash = spec_.content_hash;
  if (request_.wait_for != VersionState::kValidated) {
    RETURN_IF_ERROR(
        manager_.claims_.CheckListed(request_.name, spec_.content_hash, request_.context));
  }
  // Load checks it again, when the change is made.
  RETURN_IF_ERROR(manager_.claims_.Check(request_.name, request_.context));
  const Registry& registry = *manager_.sources_.registry;
  expected_ = request_.expected_revision.value_or(registry.Revision(request_.name));
  return registry.CheckInstall(request_.name, spec_, expected_);
}

absl::Status InstallRun::RunNative() {
  ASSIGN_OR_RETURN(const auto signature, Signature::Parse(spec_.signature));
  ASSIGN_OR_RETURN(const auto split, ParseSplit(spec_.split, signature));
  absl::Status status = CheckExamples(request_.name, signature, request_.examples);
  if (!status.ok()) return status;
  std::shared_ptr<const OperatorVersion> active;
  if (auto serving = manager_.sources_.registry->Resolve(request_.name, 0); serving.ok()) {
    active = serving->version;
  }
  validation_ = std::make_unique<VersionValidation>(
      VersionValidation::Setup{&manager_.builder_, &manager_.verdicts_, manager_.sources_.devices,
                               manager_.sources_.engines, manager_.options_.engine_program},
      VersionValidation::Case{request_.name, spec_.content_hash, signature, split,
                              &request_.examples, spec_.task_time_limit, std::move(active)});
  status = Compile();
  if (status.ok()) status = CheckWithdrawn();
  if (status.ok()) status = Validate();
  return status;
}

absl::Status InstallRun::RunBytecode() {
  RETURN_IF_ERROR(TryBytecode(*spec_.bytecode, request_.examples));
  Report({.state = VersionState::kValidated});
  return absl::OkStatus();
}

absl::Status InstallRun::Compile() {
  auto built = manager_.builder_.Build(build_, &built_.log);
  if (built.status().code() == absl::StatusCode::kCancelled) return errors::InstallWithdrawn();
  if (!built.ok()) return built.status();
  built_ = *std::move(built);
  spec_.isolation = built_.isolation;
  spec_.isolation_reason = built_.isolation_reason;
  spec_.rewritten = built_.rewritten;
  // One that has to be stoppable is refused for the reason.
  const std::string reason =
      built_.inspected.ok() ? built_.isolation_reason : std::string(built_.inspected.message());
  if (!reason.empty() && (built_.inspected.ok() || !FindRefusingPtxRule(reason).empty())) {
    manager_.CountIsolationRefusal(reason);
  }
  Report({.state = VersionState::kCompiled,
          .steps = built_.compile_steps,
          .cached = built_.cached,
          .log = built_.log});
  if (!built_.inspected.ok()) return built_.inspected;
  InstallProgress inspected{.state = VersionState::kInspected, .steps = built_.inspect_steps};
  for (const auto& [target, unit] : built_.payload->units) {
    inspected.resources[target] = unit.resources;
  }
  inspected.message =
      absl::StrCat("isolation ", IsolationName(spec_.isolation),
                   spec_.isolation_reason.empty() ? "" : ", because ", spec_.isolation_reason);
  Report(std::move(inspected));
  return absl::OkStatus();
}

absl::Status InstallRun::Validate() {
  InstallProgress validated{.state = VersionState::kValidated};
  validated.cached = validation_->cached();
  const absl::Status status = validation_->Run(built_, withdrawn_, &validated.steps);
  validation_.reset();
  if (status.code() == absl::StatusCode::kCancelled) return errors::InstallWithdrawn();
  if (!status.ok()) return status;
  Report(std::move(validated));
  return absl::OkStatus();
}

absl::Status InstallRun::Load() {
  Registry& registry = *manager_.sources_.registry;
  ASSIGN_OR_RETURN(
      auto reserved,
      registry.Reserve(request_.name, spec_, expected_,
                       absl::Now() + absl::FromChrono(manager_.options_.park_deadline)));
  reserved->payload = built_.payload;
  if (request_.kind != OperatorKind::kBytecode) {
    RETURN_IF_ERROR(manager_.loader_.Load(reserved));
  }
  StateStore::Origin origin{.actor = request_.actor, .context = request_.context};
  if (!request_.label.empty()) origin.message = absl::StrCat("label ", request_.label);
  RETURN_IF_ERROR(KeepContent(&origin.content));
  const std::shared_ptr<const OperatorVersion> version = reserved;
  ASSIGN_OR_RETURN(auto change, registry.Load(std::move(reserved), expected_,
                                              manager_.CommitFor(origin), request_.label));
  expected_ = change.revision;
  version_ = change.version;
  RETURN_IF_ERROR(manager_.sources_.state->Sync());
  InstallProgress loaded{
      .state = VersionState::kLoaded, .version = version_, .revision = expected_};
  if (request_.kind == OperatorKind::kBytecode) {
    manager_.natives_.Request(version, request_.examples);
    native_ = version->native;
  }
  if (request_.wait_for == VersionState::kLoaded) loaded.message = AwaitNativeForm();
  Report(std::move(loaded));
  return absl::OkStatus();
}

std::string InstallRun::AwaitNativeForm() {
  if (native_ == nullptr || request_.native != InstallRequest::Native::kWait) return "";
  while (!native_->WaitUntilDecided(absl::Now() + kWithdrawnPollInterval)) {
    if (withdrawn_()) return "";
  }
  const NativeForm::View form = native_->view();
  switch (form.state) {
    case NativeForm::State::kServing:
      return "native code serves";
    case NativeForm::State::kOff:
      return "no native code: the daemon has --flux_native=off";
    case NativeForm::State::kEvicted:
      return "native code was made, and evicted: --max_native_forms others were used meanwhile";
    case NativeForm::State::kCompiling:
    case NativeForm::State::kRefused:
    case NativeForm::State::kQuarantined:
      break;
  }
  return absl::StrCat("no native code: ", form.reason);
}

absl::Status InstallRun::KeepContent(VersionContent* content) const {
  std::map<std::string, std::string> parts = build_.files;
  content->body = build_.main_file;
  if (request_.kind == OperatorKind::kBytecode) parts = {{kBytecodePart, request_.body}};
  for (const auto& [name, bytes] : parts) {
    ASSIGN_OR_RETURN(auto blob, manager_.sources_.state->PutBlob(bytes));
    content->blobs[name] = std::move(blob);
  }
  return absl::OkStatus();
}

absl::Status InstallRun::Activate() {
  SwitchRequest activate;
  activate.name = request_.name;
  activate.version = version_;
  activate.expected_revision = expected_;
  activate.actor = request_.actor;
  activate.context = request_.context;
  ASSIGN_OR_RETURN(const auto active, manager_.Activate(activate));
  Report({.state = VersionState::kActive,
          .version = version_,
          .revision = active.revision,
          .message = AwaitNativeForm()});
  return absl::OkStatus();
}

absl::Status InstallRun::CheckWithdrawn() const {
  return withdrawn_() ? errors::InstallWithdrawn() : absl::OkStatus();
}

void InstallRun::Report(InstallProgress progress) {
  const Clock::time_point now = Clock::now();
  progress.duration = now - std::exchange(step_began_, now);
  progress_(progress);
}

void InstallRun::ReportRejected(const absl::Status& why) {
  OperatorEvent event;
  event.kind = EventKind::kRejected;
  event.operator_name = request_.name;
  event.actor = request_.actor;
  event.content_hash = spec_.content_hash;
  event.message = std::string(why.message());
  event.plan = request_.context.plan;
  event.set = request_.context.set;
  manager_.RecordEvent(std::move(event));
  Report(
      {.state = VersionState::kRejected, .log = built_.log, .message = std::string(why.message())});
}

}  // namespace resident
