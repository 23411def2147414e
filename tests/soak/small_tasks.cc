#include "tests/soak/small_tasks.h"

#include <algorithm>
#include <chrono>
#include <vector>

#include "absl/strings/str_cat.h"

namespace resident::soak {
namespace {

constexpr uint32_t kCounters = 1 << 17;
constexpr uint32_t kMaxTasks = 1024;
constexpr std::chrono::milliseconds kRetryInterval(5);

}  // namespace

SmallTasks::SmallTasks(const World& world, uint64_t seed) : world_(world), random_(seed) {
  thread_ = std::thread([this] { RunUntilStopped(); });
}

void SmallTasks::Finish() {
  stop_ = true;
  thread_.join();
  world_.findings->Count("small tasks", done());
}

void SmallTasks::RunUntilStopped() {
  while (!stop_) RunInOneSession();
}

void SmallTasks::RunInOneSession() {
  const testing::Client client(*world_.daemon, "small tasks");
  Span span;
  span.sent = Clock::now();
  grpc::Status imported;
  const testing::Counters counters(client, kCounters, /*device=*/0, &imported);
  span.received = Clock::now();
  if (!imported.ok()) {
    if (!world_.timeline->WasDisturbed(span)) {
      world_.findings->Violation("sharing memory: " + imported.error_message());
    }
    std::this_thread::sleep_for(kRetryInterval);
    return;
  }
  std::vector<bool> ran(kCounters);
  uint32_t first = 0;
  while (first < kCounters && !stop_) {
    const bool lone = random_() % 8 == 0;
    const uint32_t count =
        lone ? 1 : std::min(kCounters - first, 1 + static_cast<uint32_t>(random_() % kMaxTasks));
    span.sent = Clock::now();
    const testing::RunOutcome outcome = client.Run(counters.Batch(first, count));
    span.received = Clock::now();
    Check(outcome, counters, first, count, span);
    for (uint32_t i = 0; i < count; ++i) {
      ran[first + i] = outcome.status(static_cast<int>(i)) == v1::TASK_STATUS_OK;
    }
    if (!outcome.call.ok()) std::this_thread::sleep_for(kRetryInterval);
    first += count;
  }
  // Nothing has run a second time since.
  for (uint32_t i = 0; i < first; ++i) {
    if (counters.value(i) > 1 || (ran[i] && counters.value(i) != 1)) {
      world_.findings->Violation(
          absl::StrCat("a task has run ", counters.value(i), " times at the end"));
    }
  }
}

void SmallTasks::Check(const testing::RunOutcome& outcome, const testing::Counters& counters,
                       uint32_t first, uint32_t count, const Span& span) {
  uint64_t ok = 0;
  for (uint32_t i = 0; i < count; ++i) {
    const float times = counters.value(first + i);
    if (outcome.status(static_cast<int>(i)) != v1::TASK_STATUS_OK) continue;
    ++ok;
    if (times != 1) {
      world_.findings->Violation(absl::StrCat("a task that is OK has run ", times, " times"));
    }
  }
  done_.fetch_add(ok, std::memory_order_relaxed);
  world_.findings->Count("batches of small tasks");
  if (count == 1 && !world_.timeline->WasDisturbed(span)) {
    const auto took =
        std::chrono::duration_cast<std::chrono::milliseconds>(span.received - span.sent);
    slowest_lone_ms_ = std::max<int64_t>(slowest_lone_ms_, took.count());
  }
  if (ok == count) return;
  world_.findings->Count("small tasks lost with an engine", count - ok);
  if (!world_.timeline->WasDisturbed(span)) {
    world_.findings->Violation("a batch of small tasks failed: " + outcome.message());
  }
}

}  // namespace resident::soak
