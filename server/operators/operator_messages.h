// Converts between resident.v1's messages about operators and the types of registry and manager.
//
// Text from compilers and state folders may contain any bytes, but a message accepts only UTF-8.
// Invalid bytes are replaced by U+FFFD.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_OPERATORS_OPERATOR_MESSAGES_H_
#define RESIDENT_SERVER_OPERATORS_OPERATOR_MESSAGES_H_

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "absl/status/statusor.h"
#include "resident/v1/operators.pb.h"
#include "runtime/device/device.h"
#include "runtime/model/operator_event.h"
#include "runtime/model/signature.h"
#include "runtime/operators/install/operator_manager.h"
#include "runtime/operators/registry/registry.h"
#include "server/core/core.h"
#include "server/core/viewer.h"

namespace resident {

// `text` with each byte that is not part of a UTF-8 character replaced.
std::string ToUtf8(std::string_view text);

void DescribeParameter(const Parameter& parameter, const Signature& signature, v1::Parameter* out);
void FillProgress(const InstallProgress& progress, v1::InstallResponse* out);
void FillEvent(const OperatorEvent& event, v1::OperatorEvent* out);

// INVALID_ARGUMENT: a value is out of range. The actor is left empty.
absl::StatusOr<BakeOptions> ParseBake(const v1::BakeOptions& message);
absl::StatusOr<SwitchRequest> ParseSwitch(const v1::ActivateRequest& message);
absl::StatusOr<SwitchRequest> ParseSwitch(const v1::RollbackRequest& message);
absl::StatusOr<PromoteRequest> ParsePromote(const v1::PromoteRequest& message);
absl::StatusOr<ChangeContext> ParseContext(const v1::ChangeContext& message);
absl::StatusOr<PlanClaim> ParseClaim(const v1::ClaimRequest& message);
void FillClaim(const ClaimedPlan& claimed, v1::ClaimResponse* out);
// nullopt: STATE_UNSPECIFIED.
absl::StatusOr<std::optional<PlanState>> ParsePlanState(v1::PlanState::State state,
                                                        const char* field);

// Messages of Operators.List, Describe and Watch, and of the console.

// The resources of each slot, from the first engine that reports them.
std::vector<OperatorResources> CollectResources(const Core& core);
void FillOperator(const OperatorView& op, const Core& core,
                  const std::vector<OperatorResources>& resources, const Viewer& viewer,
                  v1::Operator* out);
// Describes the installed operators.
void FillSummary(const Core& core, v1::SummaryResponse* out);

// Removes what the viewer may not see of an event.
void HideFrom(const Viewer& viewer, OperatorEvent* event);

}  // namespace resident

#endif  // RESIDENT_SERVER_OPERATORS_OPERATOR_MESSAGES_H_
