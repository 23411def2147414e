// Checks that enums of the runtime have the same values as those in the protos, so that a cast
// converts them.
#include "kernels/layout/task.h"
#include "resident/v1/admin.pb.h"
#include "resident/v1/operators.pb.h"
#include "resident/v1/types.pb.h"
#include "runtime/base/isolation.h"
#include "runtime/device/device.h"
#include "runtime/model/operator_event.h"
#include "runtime/model/signature.h"
#include "runtime/model/version_state.h"
#include "runtime/queue/batch.h"

namespace resident {
namespace {

template <typename Ours, typename Theirs>
constexpr bool Same(Ours ours, Theirs theirs) {
  return static_cast<int>(ours) == static_cast<int>(theirs);
}

static_assert(Same(DType::kInvalid, v1::DTYPE_UNSPECIFIED));
static_assert(Same(DType::kF32, v1::DTYPE_F32));
static_assert(Same(DType::kF16, v1::DTYPE_F16));
static_assert(Same(DType::kBF16, v1::DTYPE_BF16));
static_assert(Same(DType::kF64, v1::DTYPE_F64));
static_assert(Same(DType::kI32, v1::DTYPE_I32));
static_assert(Same(DType::kI64, v1::DTYPE_I64));
static_assert(Same(DType::kU8, v1::DTYPE_U8));
static_assert(Same(DType::kI8, v1::DTYPE_I8));
static_assert(Same(DType::kU32, v1::DTYPE_U32));
static_assert(v1::DType_ARRAYSIZE == static_cast<int>(DType::kU32) + 1);

static_assert(Same(TaskStatus::kOk, v1::TASK_STATUS_OK));
static_assert(Same(TaskStatus::kInvalidArgument, v1::TASK_STATUS_INVALID_ARGUMENT));
static_assert(Same(TaskStatus::kDeadlineExceeded, v1::TASK_STATUS_DEADLINE_EXCEEDED));
static_assert(Same(TaskStatus::kCancelled, v1::TASK_STATUS_CANCELLED));
static_assert(Same(TaskStatus::kAborted, v1::TASK_STATUS_ABORTED));
static_assert(Same(TaskStatus::kUnavailable, v1::TASK_STATUS_UNAVAILABLE));
static_assert(Same(TaskStatus::kInternal, v1::TASK_STATUS_INTERNAL));
static_assert(v1::TaskStatus_ARRAYSIZE == static_cast<int>(TaskStatus::kInternal) + 1);

static_assert(Same(ParameterKind::kInput, v1::Parameter::KIND_INPUT));
static_assert(Same(ParameterKind::kOutput, v1::Parameter::KIND_OUTPUT));
static_assert(Same(ParameterKind::kInOut, v1::Parameter::KIND_IN_OUT));
static_assert(Same(ParameterKind::kScalar, v1::Parameter::KIND_SCALAR));
static_assert(v1::Parameter::Kind_ARRAYSIZE == static_cast<int>(ParameterKind::kScalar) + 1);

static_assert(Same(VersionState::kSubmitted, v1::VERSION_STATE_SUBMITTED));
static_assert(Same(VersionState::kCompiled, v1::VERSION_STATE_COMPILED));
static_assert(Same(VersionState::kInspected, v1::VERSION_STATE_INSPECTED));
static_assert(Same(VersionState::kValidated, v1::VERSION_STATE_VALIDATED));
static_assert(Same(VersionState::kLoaded, v1::VERSION_STATE_LOADED));
static_assert(Same(VersionState::kActive, v1::VERSION_STATE_ACTIVE));
static_assert(Same(VersionState::kPrevious, v1::VERSION_STATE_PREVIOUS));
static_assert(Same(VersionState::kRetired, v1::VERSION_STATE_RETIRED));
static_assert(Same(VersionState::kQuarantined, v1::VERSION_STATE_QUARANTINED));
static_assert(Same(VersionState::kRejected, v1::VERSION_STATE_REJECTED));
static_assert(v1::VersionState_ARRAYSIZE == static_cast<int>(VersionState::kRejected) + 1);

static_assert(Same(Isolation::kUnspecified, v1::ISOLATION_UNSPECIFIED));
static_assert(Same(Isolation::kTrusted, v1::ISOLATION_TRUSTED));
static_assert(Same(Isolation::kStoppable, v1::ISOLATION_STOPPABLE));
static_assert(Same(Isolation::kConfined, v1::ISOLATION_CONFINED));
static_assert(v1::Isolation_ARRAYSIZE == static_cast<int>(Isolation::kConfined) + 1);

static_assert(Same(EventKind::kInstalled, v1::OperatorEvent::KIND_INSTALLED));
static_assert(Same(EventKind::kRejected, v1::OperatorEvent::KIND_REJECTED));
static_assert(Same(EventKind::kActivated, v1::OperatorEvent::KIND_ACTIVATED));
static_assert(Same(EventKind::kRolledBack, v1::OperatorEvent::KIND_ROLLED_BACK));
static_assert(Same(EventKind::kRemoved, v1::OperatorEvent::KIND_REMOVED));
static_assert(Same(EventKind::kPromoted, v1::OperatorEvent::KIND_PROMOTED));
static_assert(Same(EventKind::kQuarantined, v1::OperatorEvent::KIND_QUARANTINED));
static_assert(Same(EventKind::kRetired, v1::OperatorEvent::KIND_RETIRED));
static_assert(Same(EventKind::kGeneration, v1::OperatorEvent::KIND_GENERATION));
static_assert(Same(EventKind::kRegressed, v1::OperatorEvent::KIND_REGRESSED));
static_assert(v1::OperatorEvent::Kind_ARRAYSIZE == static_cast<int>(EventKind::kRegressed) + 1);

static_assert(Same(PlanState::kRunning, v1::PlanState::STATE_RUNNING));
static_assert(Same(PlanState::kFailed, v1::PlanState::STATE_FAILED));
static_assert(Same(PlanState::kDone, v1::PlanState::STATE_DONE));
static_assert(v1::PlanState::State_ARRAYSIZE == static_cast<int>(PlanState::kDone) + 1);

using State = Device::State;
static_assert(Same(State::kStarting, v1::DeviceStatus::STATE_STARTING));
static_assert(Same(State::kResident, v1::DeviceStatus::STATE_RESIDENT));
static_assert(Same(State::kIdleParked, v1::DeviceStatus::STATE_IDLE_PARKED));
static_assert(Same(State::kParked, v1::DeviceStatus::STATE_PARKED));
static_assert(Same(State::kRestarting, v1::DeviceStatus::STATE_RESTARTING));
static_assert(Same(State::kUnhealthy, v1::DeviceStatus::STATE_UNHEALTHY));
static_assert(v1::DeviceStatus::State_ARRAYSIZE == static_cast<int>(State::kUnhealthy) + 1);

}  // namespace
}  // namespace resident
