// Measures a lone task of one client beside streams of another client that wait for queue space,
// and without them.
//
//   export RESIDENTD=bazel-bin/server/residentd
//   bazel-bin/tests/integration/stalled_streams_benchmark [--streams=200] [--tasks=500000]
//       [--calls=200] [--out=FILE.json]
//
// A batch of long tasks of the busy client keeps the device occupied and most of its queue filled,
// and it completes small batches all the time, after each of which waiting batches are tried again.
// The figures are medians; those without the streams are taken before and after, on the same
// daemon, with the same load otherwise. Exit status 1 if a task fails, if the streams do not wait
// during the whole measurement, or if the ratio is above 3. Needs 5 GiB of memory.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "tests/daemon/messages.h"
#include "tests/support/bench_report.h"

ABSL_FLAG(int, streams, 200, "streams that wait, each with one batch");
ABSL_FLAG(uint32_t, tasks, 500'000, "tasks of each batch that waits");
ABSL_FLAG(int, calls, 200, "lone tasks for each figure");
ABSL_FLAG(std::string, out, "", "file for the figures, as JSON");

namespace resident::testing {
namespace {

constexpr double kMaxRatio = 3;
// The long tasks, as many as a batch may have: on this number of workers they take half an hour.
// They fill the queue: there is no room for a batch that waits.
constexpr uint32_t kLongTasks = 4u << 20;
constexpr int64_t kLongTaskNs = 1'000'000;
constexpr int kWorkers = 2;
// The measurement of a figure ends after this time, so that a daemon that is too slow is reported
// before the long tasks have ended.
constexpr std::chrono::minutes kMaxMeasurement{2};

// A stream with one batch, which is cancelled at the end.
class Stream {
 public:
  Stream(const Client& client, const v1::Batch& batch)
      : context_(client.Context()), stream_(client.executor().Submit(context_.get())) {
    v1::SubmitRequest request;
    *request.mutable_batch() = batch;
    if (!stream_->Write(request)) Fail("a stream ended");
  }
  ~Stream() {
    context_->TryCancel();
    (void)stream_->Finish();
  }

 private:
  const std::unique_ptr<grpc::ClientContext> context_;
  const std::unique_ptr<grpc::ClientReaderWriter<v1::SubmitRequest, v1::SubmitResponse>> stream_;
};

// Completes batches until it is destroyed: of one task each, whose deadline passes at once, because
// the client's tasks before it would take minutes.
class Completions {
 public:
  explicit Completions(const Client& client)
      : thread_([this, &client] {
          v1::Batch late = SmallAdd();
          late.mutable_options()->set_device(0);
          late.mutable_options()->set_timeout_us(1);
          for (; !stop_; ++count_) {
            const RunOutcome outcome = client.Run(late);
            if (!outcome.call.ok()) Fail(outcome.message());
          }
        }) {}
  ~Completions() {
    stop_ = true;
    thread_.join();
  }

  uint64_t count() const { return count_; }

 private:
  std::atomic<bool> stop_{false};
  std::atomic<uint64_t> count_{0};
  std::thread thread_;
};

std::vector<double> MeasureMs(const Client& client) {
  std::vector<double> ms;
  const auto until = std::chrono::steady_clock::now() + kMaxMeasurement;
  for (int i = 0; i < absl::GetFlag(FLAGS_calls); ++i) {
    const auto begin = std::chrono::steady_clock::now();
    if (begin > until) break;
    const RunOutcome outcome = client.Run(SmallAdd());
    if (!outcome.all_ok()) Fail(outcome.message());
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin)
                     .count());
  }
  return ms;
}

double RequestBytes(const Daemon& daemon) {
  return static_cast<double>(
      daemon.Figure("resident_host_memory_used_bytes{purpose=\"requests\"}"));
}

void Main() {
  const int streams = absl::GetFlag(FLAGS_streams);
  const uint32_t tasks = absl::GetFlag(FLAGS_tasks);
  // Waiting requests of one client may use an eighth of the limit on memory.
  const Daemon daemon({absl::StrCat("--cpu_workers=", kWorkers), "--staging_mib=64",
                       absl::StrCat("--max_queued_tasks=", kLongTasks + tasks / 2),
                       "--max_host_mib=65536", "--max_client_host_mib=65536"});
  const Client busy(daemon, "busy"), lone(daemon, "lone");
  uint64_t buffer = 0;
  if (!busy.Allocate(1, &buffer).ok()) Fail("no buffer");
  v1::Batch batch = Tasks("copy", tasks);
  for (int i = 0; i < 2; ++i) Buffers(batch, {buffer})->mutable_offsets()->Resize(tasks, 0);

  v1::Batch occupying = Tasks("test.spin", kLongTasks);
  Returned(occupying, {1});
  Integer(occupying, {kLongTaskNs});
  const Stream occupied(busy, occupying);
  const auto long_tasks_run = [&] { return daemon.Device().queued_tasks() > tasks; };
  if (!Eventually(long_tasks_run)) Fail("the long tasks did not start");
  const Completions completions(busy);
  std::vector<double> without = MeasureMs(lone);
  double beside = 0;
  uint64_t completed = 0;
  {
    std::vector<std::unique_ptr<Stream>> waiting;
    for (int i = 0; i < streams; ++i) waiting.push_back(std::make_unique<Stream>(busy, batch));
    const double all = 2.0 * sizeof(uint64_t) * streams * tasks;
    const auto all_wait = [&] { return RequestBytes(daemon) > all; };
    if (!Eventually(all_wait)) Fail("the streams do not all wait");
    const uint64_t before = completions.count();
    beside = Percentile(MeasureMs(lone), 0.5);
    completed = completions.count() - before;
    if (!all_wait()) Fail("a stream that should wait was served");
    if (completed == 0) Fail("no batch of the busy client ended");
  }
  if (!Eventually([&] { return RequestBytes(daemon) < sizeof(uint64_t) * tasks; })) {
    Fail("the streams still wait");
  }
  const std::vector<double> after = MeasureMs(lone);
  if (!long_tasks_run()) Fail("the long tasks have ended");
  BenchReport report;
  report.Add("lone task before the streams, p50", Percentile(without, 0.5), "ms");
  report.Add("lone task after the streams, p50", Percentile(after, 0.5), "ms");
  without.insert(without.end(), after.begin(), after.end());
  const double control = Percentile(without, 0.5);
  report.Add(absl::StrCat("lone task beside ", streams, " streams of ", tasks, " tasks, p50"),
             beside, "ms", "without them", control);
  report.Add("batches of the busy client that ended meanwhile", static_cast<double>(completed), "");
  report.Write(absl::GetFlag(FLAGS_out), nlohmann::ordered_json::object());
  if (beside > kMaxRatio * control) Fail(absl::StrCat("the ratio is above ", kMaxRatio));
}

}  // namespace
}  // namespace resident::testing

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  resident::testing::Main();
}
