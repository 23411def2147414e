// FluxWorkload: a batch of FLUX programs (workload.h).
//
// Thread safety: one thread at a time.
#ifndef RESIDENT_SERVER_WORKLOAD_FLUX_WORKLOAD_H_
#define RESIDENT_SERVER_WORKLOAD_FLUX_WORKLOAD_H_

#include <optional>
#include <string>

#include "runtime/operators/registry/registry.h"
#include "server/workload/flux_programs.h"
#include "server/workload/placement.h"
#include "server/workload/planner.h"
#include "server/workload/workload.h"

namespace resident {

class FluxWorkload final : public Workload {
 public:
  FluxWorkload(const PlanSources& sources, const v1::Batch& message)
      : sources_(sources), message_(message) {}

  // Returns flux.run for programs without a name.
  static std::string FindOperatorName(const v1::FluxPrograms& message);

  absl::Status Check() override;
  Needs ResourcesNeeded() const override;
  void Fill(const Ticket& ticket, RequestBatch& batch) override;
  bool WantsShadow(const RequestBatch& batch) const override;
  void BuildResult(const RequestBatch& batch, v1::BatchResult* result) const override;

 private:
  // Looks up the installed program, if the message names one.
  absl::Status FindInstalled();
  // Lets the native form of an installed program run it, if one serves.
  void UseNativeForm();
  // The statuses of the runs; those that are not OK have no results.
  void AddStatuses(const RequestBatch& batch, v1::BatchResult* result) const;

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

}  // namespace resident

#endif  // RESIDENT_SERVER_WORKLOAD_FLUX_WORKLOAD_H_
