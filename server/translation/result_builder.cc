#include "server/translation/result_builder.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/strings/str_cat.h"
#include "runtime/base/limits.h"

namespace resident {
namespace {

std::string MessageOf(const RequestBatch& batch, TaskStatus status, uint16_t detail) {
  switch (status) {
    case TaskStatus::kOk:
      return "";
    case TaskStatus::kInvalidArgument:
      return absl::StrCat("operator ", batch.operator_name, " version ", batch.version,
                          " refused its arguments on the device (detail ", detail,
                          "). Fix: check the values it reads");
    case TaskStatus::kDeadlineExceeded:
      return "the deadline passed before the task reached the device; it did not run. Fix: allow "
             "more time or send smaller batches";
    case TaskStatus::kCancelled:
      return "the call was cancelled before the task reached the device; it did not run. Fix: none "
             "needed if that was intended";
    case TaskStatus::kAborted:
      return absl::StrCat("the task's operator is a suspect in the end of the engine (",
                          batch.cause, "); it may have run in part. Fix: check operator ",
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

void AddError(const RequestBatch& batch, uint32_t index, size_t task, v1::BatchResult* result) {
  v1::TaskError* error = result->add_errors();
  error->set_index(index);
  error->set_status(static_cast<v1::TaskStatus>(batch.status[task]));
  error->set_message(MessageOf(batch, batch.status[task], batch.detail[task]));
}

void BuildFlux(const RequestBatch& batch, v1::BatchResult* result) {
  // One status for the batch, that of the first task that failed, and one time.
  size_t decisive = 0;
  while (decisive + 1 < batch.status.size() && batch.status[decisive] == TaskStatus::kOk)
    ++decisive;
  uint64_t device_ns = 0;
  for (const uint32_t ns : batch.device_ns) device_ns += ns;
  result->add_device_ns(static_cast<uint32_t>(std::min<uint64_t>(device_ns, UINT32_MAX)));
  if (batch.status[decisive] != TaskStatus::kOk) {
    result->add_status(static_cast<v1::TaskStatus>(batch.status[decisive]));
    AddError(batch, 0, decisive, result);
    return;
  }
  v1::FluxResults* flux = result->mutable_flux();
  const size_t runs = batch.flux_runs;
  flux->mutable_registers()->assign(reinterpret_cast<const char*>(batch.flux_registers),
                                    runs * batch.flux_wanted * 4);
  flux->mutable_cycles()->assign(reinterpret_cast<const char*>(batch.flux_cycles), runs * 4);
  // memcmp of a run of zeros with itself, shifted by one: no errors, nothing sent.
  const uint8_t* const errors = batch.flux_errors;
  const bool clean = errors[0] == 0 && std::memcmp(errors, errors + 1, runs - 1) == 0;
  if (!clean) flux->mutable_errors()->assign(reinterpret_cast<const char*>(errors), runs);
}

}  // namespace

void BuildResult(const RequestBatch& batch, v1::BatchResult* result) {
  result->set_id(batch.id);
  result->set_device(batch.device);
  result->set_version(batch.version);
  if (batch.flux) {
    BuildFlux(batch, result);
    return;
  }
  const size_t count = batch.status.size();
  result->mutable_device_ns()->Resize(static_cast<int>(count), 0);
  std::memcpy(result->mutable_device_ns()->mutable_data(), batch.device_ns.data(),
              count * sizeof(uint32_t));
  for (const RequestBatch::Returned& returned : batch.returned) {
    std::string* output = result->add_outputs();
    if (returned.host == nullptr) continue;
    output->assign(reinterpret_cast<const char*>(returned.host), count * returned.task_bytes);
  }
  if (batch.failed == 0) return;

  result->mutable_status()->Resize(static_cast<int>(count), 0);
  for (size_t i = 0; i < count; ++i) {
    if (batch.status[i] == TaskStatus::kOk) continue;
    result->set_status(static_cast<int>(i), static_cast<v1::TaskStatus>(batch.status[i]));
    if (result->errors_size() < static_cast<int>(kMaxTaskErrors)) {
      AddError(batch, static_cast<uint32_t>(i), i, result);
    }
    // Window memory that no task has written may hold another client's data.
    for (size_t c = 0; c < batch.returned.size(); ++c) {
      const uint64_t bytes = batch.returned[c].task_bytes;
      if (bytes == 0) continue;
      std::memset(result->mutable_outputs(static_cast<int>(c))->data() + i * bytes, 0, bytes);
    }
  }
}

void BuildRefusal(uint64_t id, const absl::Status& why, v1::BatchResult* result) {
  result->set_id(id);
  result->mutable_refused()->set_code(static_cast<int>(why.code()));
  result->mutable_refused()->set_message(std::string(why.message()));
}

}  // namespace resident
