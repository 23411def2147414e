#include "runtime/operators/validation/task_runner.h"

#include <signal.h>

#include <algorithm>
#include <optional>
#include <thread>

#include "absl/strings/str_cat.h"
#include "runtime/ring/doorbell.h"

namespace resident {
namespace {

// Completions are polled without a pause for this long, since a typical task takes
// microseconds; then with a pause, and with a check whether the engine still runs.
constexpr std::chrono::microseconds kSpin{50};
constexpr std::chrono::microseconds kPollInterval{100};

}  // namespace

bool IsKilled(const ChildExit& exit) { return exit.signal == SIGKILL || exit.signal == SIGTERM; }

TaskEnd TaskRunner::Run(const TaskDescriptor& task, const std::vector<Argument>& arguments,
                        std::chrono::nanoseconds timeout) {
  const std::optional<uint64_t> sequence = ring_.Reserve();
  if (!sequence) return {.how = TaskEnd::kTimedOut};  // The ring is full of tasks that did not end.
  std::copy(arguments.begin(), arguments.end(), ring_.arguments(*sequence)->arguments);
  ring_.Publish(*sequence, task);
  RingDoorbell();

  TaskEnd end;
  const auto consume = [&] {
    return ring_.Consume([&](uint64_t, const TaskCompletion& c) { end.completion = c; }) != 0;
  };
  const auto start = std::chrono::steady_clock::now();
  while (true) {
    if (consume()) return end;
    const auto waited = std::chrono::steady_clock::now() - start;
    if (waited < kSpin) continue;
    if (const auto exit = process_->child().Wait(std::chrono::nanoseconds(0))) {
      if (consume()) return end;  // The engine ended after the task did.
      return {.how = TaskEnd::kEngineEnded, .cause = DescribeEnd(*exit), .killed = IsKilled(*exit)};
    }
    if (waited >= timeout) {
      if (consume()) return end;  // The task ended while this thread did not run.
      return {.how = TaskEnd::kTimedOut};
    }
    std::this_thread::sleep_for(kPollInterval);
  }
}

void TaskRunner::Park() {
  if (ring_.PublishPark()) RingDoorbell();
}

void TaskRunner::RingDoorbell() { Doorbell::ForWorkers(process_->region()->control()).Ring(); }

std::string TaskRunner::DescribeEnd(const ChildExit& exit) const {
  const std::string reason = process_->exit_reason();
  return reason.empty() ? absl::StrCat("the engine ", exit.ToString()) : reason;
}

}  // namespace resident
