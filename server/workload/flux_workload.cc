// FluxWorkload: a batch of FLUX programs (workload.h).
//
// Thread safety: one thread at a time.
#include "server/workload/flux_workload.h"

#include <algorithm>
#include <cassert>
#include <cstring>
#include <optional>
#include <string>
#include <utility>

#include "kernels/flux/run_arguments.h"
#include "runtime/base/status_macros.h"
#include "runtime/operators/registry/registry.h"
#include "server/workload/errors.h"
#include "server/workload/flux_programs.h"
#include "server/workload/placement.h"
#include "server/workload/planner.h"
#include "server/workload/result_builder.h"
#include "server/workload/workload.h"

namespace resident {
namespace {

// A batch of native code also runs on the interpreter only if that takes about this long at most.
constexpr uint64_t kShadowMs = 1;

class FluxWorkload final : public Workload {
 public:
  FluxWorkload(const PlanSources& sources, const v1::Batch& message)
      : sources_(sources), message_(message) {}

  absl::Status Check() override {
    absl::Status status = FindInstalled();
    if (!status.ok()) return status;
    const bool installed = counted_.version != nullptr;
    programs_.emplace(message_.programs(),
                      installed ? counted_.version->spec.bytecode.get() : nullptr);
    status = programs_->Check(*sources_.limits);
    if (!status.ok()) return status;
    std::optional<uint32_t> wanted;
    if (message_.options().has_device()) wanted = message_.options().device();
    ASSIGN_OR_RETURN(auto place, Place(sources_.devices, wanted));
    place_ = std::move(place);
    ASSIGN_OR_RETURN(auto flux_run, sources_.registry->Resolve(kFluxRunOperator, 0));
    flux_run_ = std::move(flux_run);
    ASSIGN_OR_RETURN(auto copy_bytes, sources_.registry->Resolve(kCopyBytesOperator, 0));
    copy_bytes_ = std::move(copy_bytes);
    if (!installed) counted_ = flux_run_;
    UseNativeForm();
    const EngineInfo& engine = place_.session->info();
    split_ = programs_->Split(engine, sources_.task_time_limit);
    shadow_instructions_ = split_.instructions_per_ms * engine.workers * kShadowMs;
    shadow_instructions_of_run_ = engine.traits.run_instructions_per_ms * kShadowMs;
    return programs_->CheckSplit(split_);
  }

  Needs ResourcesNeeded() const override {
    Needs needs;
    needs.device = place_.device;
    needs.session = place_.session;
    needs.tasks = programs_->max_tasks(split_);
    needs.staging_bytes = programs_->staging_bytes();
    needs.host_bytes = programs_->descriptor_bytes(split_) + needs.tasks * kTaskOutcomeBytes +
                       programs_->answer_bytes() + programs_->order_bytes();
    return needs;
  }

  void Fill(const Ticket& ticket, RequestBatch& batch) override {
    assert(place_.session != nullptr);  // Check has returned OK.
    batch.device = place_.device;
    batch.epoch = place_.session->epoch();
    batch.operator_name = counted_.op->name();
    batch.version = counted_.version->version;
    batch.content_hash = ContentHashFor(message_.programs(), *counted_.version);
    batch.stats = counted_.stats(place_.device);
    batch.keep_alive.push_back(counted_.version);
    batch.keep_alive.push_back(flux_run_.version);
    // The copy in device memory is only an optimization: without it the programs read staging
    // memory.
    const DeviceMemory* staged = nullptr;
    if (programs_->wants_staging()) {
      auto memory = place_.session->AllocateMemory(programs_->bytecode_bytes());
      if (memory.ok()) {
        staged = memory->get();
        batch.keep_alive.push_back(*std::move(memory));
      }
    }
    // The twin of a task that copies the bytecode would write it a second time.
    if (interpreter_ != nullptr && staged == nullptr) {
      batch.shadow = std::move(interpreter_);
      batch.shadow_outputs = {flux::kRunRegisters, flux::kRunErrors, flux::kRunCycles};
      batch.judged = flux_run_.version;
    }
    outputs_ = programs_->Fill(flux_run_, copy_bytes_, split_, *ticket.staging(), staged, batch);
    programs_.reset();
    place_.session = nullptr;
    counted_ = flux_run_ = copy_bytes_ = {};
  }

  bool WantsShadow(const RequestBatch& batch) const override {
    const bool all_ok = std::all_of(batch.status.begin(), batch.status.end(),
                                    [](TaskStatus status) { return status == TaskStatus::kOk; });
    if (!all_ok) return false;
    uint64_t instructions = 0;
    for (uint32_t run = 0; run < outputs_.runs; ++run) {
      uint32_t cycles = 0;
      std::memcpy(&cycles, outputs_.cycles + sizeof(cycles) * run, sizeof(cycles));
      if (cycles > shadow_instructions_of_run_) return false;
      instructions += cycles;
    }
    return instructions <= shadow_instructions_;
  }

  void BuildResult(const RequestBatch& batch, v1::BatchResult* result) const override {
    uint64_t device_ns = 0;
    for (const uint32_t ns : batch.device_ns) device_ns += ns;
    result->add_device_ns(static_cast<uint32_t>(std::min<uint64_t>(device_ns, UINT32_MAX)));
    const size_t runs = outputs_.runs;
    v1::FluxResults* flux = result->mutable_flux();
    const auto column = [&](const uint8_t* values, size_t bytes_of_run, std::string* to) {
      if (outputs_.order.empty()) {
        to->assign(reinterpret_cast<const char*>(values), runs * bytes_of_run);
      } else if (bytes_of_run != 0) {
        to->resize(runs * bytes_of_run);
        ScatterRows(outputs_.order, values, bytes_of_run, to->data());
      }
    };
    column(outputs_.registers, size_t{4} * outputs_.wanted, flux->mutable_registers());
    column(outputs_.cycles, 4, flux->mutable_cycles());
    // If the first byte is 0 and memcmp with the array shifted by one finds no difference, there
    // are no errors, and none are sent.
    const uint8_t* const errors = outputs_.errors;
    const bool clean = errors[0] == 0 && std::memcmp(errors, errors + 1, runs - 1) == 0;
    if (!clean) column(errors, 1, flux->mutable_errors());
    if (batch.failed != 0) AddStatuses(batch, result);
  }

 private:
  // Looks up the installed program, if the message names one.
  absl::Status FindInstalled() {
    const v1::FluxPrograms& programs = message_.programs();
    const std::string& name = programs.operator_();
    if (name.empty()) {
      if (programs.version() != 0) return errors::FluxVersionAlone(programs.version());
      const bool named = !programs.content_hash().empty() || !programs.label().empty();
      return named ? errors::FluxVersionNameAlone() : absl::OkStatus();
    }
    if (!programs.bytecode().empty() || programs.offsets_size() > 0 ||
        programs.program_index_size() > 0) {
      return errors::FluxOperatorAndPrograms(name);
    }
    ASSIGN_OR_RETURN(const VersionRef version, ReadVersion(programs));
    ASSIGN_OR_RETURN(auto op, sources_.registry->ResolveProgram(name, version));
    counted_ = std::move(op);
    return absl::OkStatus();
  }

  // Lets the native form of an installed program run it, if one serves.
  void UseNativeForm() {
    if (counted_.version->native == nullptr) return;
    NativeForm::Used used = counted_.version->native->Use(message_.programs().unknown_opcode() ==
                                                          v1::FluxPrograms::UNKNOWN_OPCODE_NOP);
    if (used.code == nullptr) return;
    if (used.compare) interpreter_ = flux_run_.version;
    flux_run_.version = std::move(used.code);
  }

  // The statuses of the runs; those that are not OK have no results.
  void AddStatuses(const RequestBatch& batch, v1::BatchResult* result) const {
    // The task that copies the bytecode is before the others. Without it no run is valid.
    const size_t copies = batch.count() - (outputs_.runs - 1) / outputs_.runs_of_task - 1;
    const bool copied = copies == 0 || batch.status[0] == TaskStatus::kOk;
    std::vector<uint32_t> task_of_run(outputs_.runs);
    for (uint32_t p = 0; p < outputs_.runs; ++p) {
      const size_t task = copied ? copies + p / outputs_.runs_of_task : 0;
      task_of_run[outputs_.order.empty() ? p : outputs_.order[p]] = static_cast<uint32_t>(task);
    }
    result->mutable_status()->Resize(static_cast<int>(outputs_.runs), 0);
    // What was not written may contain another client's data.
    const auto clear = [](std::string* column, uint32_t run, size_t bytes) {
      if (!column->empty()) std::memset(column->data() + run * bytes, 0, bytes);
    };
    v1::FluxResults& flux = *result->mutable_flux();
    for (uint32_t run = 0; run < outputs_.runs; ++run) {
      const TaskStatus status = batch.status[task_of_run[run]];
      if (status == TaskStatus::kOk) continue;
      result->set_status(static_cast<int>(run), static_cast<v1::TaskStatus>(status));
      if (result->errors_size() < static_cast<int>(kMaxTaskErrors)) {
        AddTaskError(batch, run, task_of_run[run], result);
      }
      clear(flux.mutable_registers(), run, size_t{4} * outputs_.wanted);
      clear(flux.mutable_cycles(), run, 4);
      clear(flux.mutable_errors(), run, 1);
    }
  }

  const PlanSources& sources_;
  const v1::Batch& message_;   // Until Fill.
  ResolvedOperator counted_;   // The operator whose statistics count the tasks.
  ResolvedOperator flux_run_;  // Or the native form. Until Fill, as those below.
  // The interpreter, for a batch of native code that also runs on it.
  std::shared_ptr<const OperatorVersion> interpreter_;
  ResolvedOperator copy_bytes_;
  std::optional<FluxPrograms> programs_;
  FluxSplit split_;
  Placement place_;
  FluxOutputs outputs_;  // From Fill on.
  // Instructions that the interpreter executes in kShadowMs: all runs together, and one of them.
  uint64_t shadow_instructions_ = 0;
  uint64_t shadow_instructions_of_run_ = 0;
};

}  // namespace

std::string FindFluxOperatorName(const v1::FluxPrograms& message) {
  return message.operator_().empty() ? kFluxRunOperator : message.operator_();
}

std::unique_ptr<Workload> MakeFluxWorkload(const PlanSources& sources, const v1::Batch& message) {
  return std::make_unique<FluxWorkload>(sources, message);
}

}  // namespace resident
