#include "server/services/run_call.h"

#include <algorithm>
#include <utility>

#include "runtime/errors.h"
#include "server/services/call.h"
#include "server/status.h"
#include "server/translation/result_builder.h"

namespace resident {
namespace {

// How long the handler's thread waits for its own batch: several times what a small
// task takes, and short enough that a slow one does not hold up other calls.
constexpr std::chrono::nanoseconds kAssist = std::chrono::microseconds(50);

bool AllEnded(const RequestBatch& batch, TaskStatus status) {
  return std::all_of(batch.status.begin(), batch.status.end(),
                     [&](TaskStatus s) { return s == status; });
}

}  // namespace

RunCall* RunCall::Start(Core& core, const grpc::CallbackServerContext& context,
                        const v1::RunRequest& request, v1::RunResponse& response) {
  auto* const call = new RunCall(core, response);
  core.counters->CountBatch();
  core.counters->Received(request.ByteSizeLong());
  const absl::Status launched = call->Launch(context, request);
  if (!launched.ok()) {
    core.counters->CountRefused(launched.code());
    call->Finish(ToGrpc(launched));
  }
  // gRPC destroys the call only after this handler has returned it.
  return call;
}

absl::Status RunCall::Launch(const grpc::CallbackServerContext& context,
                             const v1::RunRequest& request) {
  const absl::StatusOr<std::shared_ptr<Client>> client = ClientOf(context, core_);
  if (!client.ok()) return client.status();
  deadline_ = DeadlineOf(context);
  auto batch = core_.runner->Prepare(request.batch(), *client, deadline_,
                                     [this](RequestBatch& finished) { Answer(finished); });
  if (!batch.ok()) return batch.status();
  {
    absl::MutexLock lock(&mu_);
    batch_ = *batch;
    if (cancelled_) (*batch)->cancelled = true;
  }
  return core_.runner->Launch(*batch, **client, kAssist);
}

void RunCall::Answer(RequestBatch& batch) {
  {
    absl::MutexLock lock(&mu_);
    batch_.reset();
  }
  if (batch.failed == batch.status.size()) {
    if (AllEnded(batch, TaskStatus::kCancelled)) {
      Finish(ToGrpc(errors::Cancelled()));
      return;
    }
    if (batch.deadline == deadline_ && AllEnded(batch, TaskStatus::kDeadlineExceeded)) {
      Finish(ToGrpc(errors::DeadlineExceeded()));
      return;
    }
  }
  BuildResult(batch, response_.mutable_result());
  core_.counters->Sent(response_.ByteSizeLong());
  Finish(grpc::Status::OK);
}

void RunCall::OnCancel() {
  std::shared_ptr<RequestBatch> batch;
  {
    absl::MutexLock lock(&mu_);
    cancelled_ = true;
    batch = batch_;
  }
  if (batch != nullptr) core_.runner->Cancel(*batch);
}

}  // namespace resident
