#include "server/workload/result_builder.h"

#include <cassert>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/base/errors/reason.h"
#include "runtime/model/operator_details.h"

namespace resident {
namespace {

std::string DescribeFailure(const RequestBatch& batch, TaskStatus status, uint16_t detail) {
  switch (status) {
    case TaskStatus::kOk:
      return "";
    case TaskStatus::kInvalidArgument:
      return absl::StrCat("operator ", batch.operator_name, " version ", batch.version,
                          " refused its arguments on the device: ",
                          errors::DetailText(batch.operator_name, detail));
    case TaskStatus::kDeadlineExceeded:
      if (detail != 0) {
        return "the deadline passed while the task was in the ring, and it was stopped; it may "
               "have "
               "run in part. Fix: allow more time";
      }
      return "the deadline passed before the task reached the device; it did not run. Fix: allow "
             "more time or send smaller batches";
    case TaskStatus::kCancelled:
      if (detail != 0) {
        return "the call was cancelled while the task was in the ring, and it was stopped; it may "
               "have run in part. Fix: none needed if that was intended";
      }
      return "the call was cancelled before the task reached the device; it did not run. Fix: none "
             "needed if that was intended";
    case TaskStatus::kAborted:
      if (detail == static_cast<uint16_t>(StopReason::kLanesApart)) {
        return absl::StrCat(
            "threads of operator ", batch.operator_name, " version ", batch.version,
            " waited at different operations, each for the others, and the task was "
            "stopped; its outputs are incomplete. Fix: let all threads of a warp "
            "call the same warp operation");
      }
      if (detail != 0) {
        return absl::StrCat("the task was stopped because it ran longer than operator ",
                            batch.operator_name, " version ", batch.version,
                            " may (the limit of its install, or --task_time_limit); its outputs "
                            "are incomplete. Fix: send smaller tasks, or raise the limit");
      }
      return absl::StrCat("the task's operator may have caused the end of the engine (",
                          batch.cause, "); the task may have run in part. Fix: check operator ",
                          batch.operator_name, " before sending it again");
    case TaskStatus::kUnavailable:
      return absl::StrCat("the engine ended or the daemon is stopping (", batch.cause,
                          "). Fix: send the task again if running it twice does no harm");
    case TaskStatus::kInternal:
      return absl::StrCat("operator ", batch.operator_name, " version ", batch.version,
                          " failed (detail ", detail, "). Fix: report it with its arguments");
  }
  return "";
}

}  // namespace

void AddTaskError(const RequestBatch& batch, uint32_t index, size_t task, v1::BatchResult* result) {
  v1::TaskError* error = result->add_errors();
  error->set_index(index);
  error->set_status(static_cast<v1::TaskStatus>(batch.status[task]));
  error->set_message(DescribeFailure(batch, batch.status[task], batch.detail[task]));
}

void AddOutcome(const RequestBatch& batch, v1::BatchResult* result) {
  result->add_device_ns(batch.device_ns[0]);
  if (batch.failed == 0) return;
  result->add_status(static_cast<v1::TaskStatus>(batch.status[0]));
  AddTaskError(batch, 0, 0, result);
}

void BuildResult(const RequestBatch& batch, v1::BatchResult* result) {
  assert(batch.finished == batch.count());
  result->set_id(batch.id);
  result->set_device(batch.device);
  result->set_version(batch.version);
  if (!batch.content_hash.empty()) result->set_content_hash(batch.content_hash);
  batch.work->BuildResult(batch, result);
}

void BuildRefusal(uint64_t id, const absl::Status& why, v1::BatchResult* result) {
  result->set_id(id);
  v1::Refusal& refused = *result->mutable_refused();
  refused.set_code(static_cast<int>(why.code()));
  refused.set_message(std::string(why.message()));
  const std::optional<errors::ErrorReason> reason = errors::FindReason(why);
  if (!reason.has_value()) return;
  refused.set_reason(reason->name);
  for (const auto& [key, value] : reason->details) (*refused.mutable_metadata())[key] = value;
}

}  // namespace resident
