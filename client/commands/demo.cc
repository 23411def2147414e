// demo: a short run of checked work, with explanations for new users. `make demo` runs it
// with a new daemon (deploy/demo.sh).
#include "absl/strings/str_cat.h"
#include "client/bench/lane_run.h"
#include "client/bench/measurements.h"
#include "client/cli/common_options.h"
#include "client/cli/format.h"
#include "client/cli/output.h"
#include "client/cli/progress.h"
#include "client/commands/command.h"

namespace resident::cli {
namespace {

// Runs of the FLUX program: few enough for one core, and enough for a measurement.
constexpr uint32_t kFluxRuns = 16384;
constexpr uint64_t kFluxBatches = 8;
constexpr uint32_t kTasksInBatch = 1024;
constexpr uint64_t kTaskBatches = 400;
constexpr int kLoneRuns = 500;
constexpr uint64_t kLaneLoneRuns = 2000;
constexpr uint64_t kLaneTasks = 200'000;

std::function<void(double)> Show(Progress& progress) {
  return [&progress](double part) { progress.Set(static_cast<uint64_t>(part * kProgressSteps)); };
}

void Explain(std::string_view text) {
  if (Common().json) return;
  Print(text);
  std::fflush(stdout);
}

std::string Verdict(uint64_t wrong, const std::string& difference) {
  if (wrong == 0) return "all correct";
  return absl::StrCat(FormatExact(wrong), " WRONG, the first: ", difference);
}

// Latency of one task at a time, microseconds.
absl::StatusOr<LatencySummary> LoneRuns(client::Client& client, std::optional<uint32_t> use) {
  client::TaskBatch batch("add");
  batch.Input(std::vector<float>{1, 2, 3}).Input(std::vector<float>{10, 20, 30});
  batch.Return<float>({3}).Scalar(2);
  if (use.has_value()) batch.set_device(*use);
  std::vector<double> us;
  for (int i = 0; i < kLoneRuns; ++i) {
    const int64_t start = absl::GetCurrentTimeNanos();
    absl::StatusOr<client::Result> result = client.Run(batch);
    us.push_back(static_cast<double>(absl::GetCurrentTimeNanos() - start) / 1e3);
    if (!result.ok()) return result.status();
    if (!result->ok()) return result->status();
  }
  return Summarize(std::move(us));
}

struct DemoOptions {
  std::string out;
  std::optional<uint32_t> device;
};

// What the demo shows of local lanes; null and 0 where the daemon has none.
struct LanePart {
  Json summary = nullptr;
  uint64_t wrong = 0;
};

absl::StatusOr<LanePart> DemonstrateLane(client::Client& client, uint32_t device) {
  bench::LaneRunOptions options;
  options.lone_tasks = kLaneLoneRuns;
  options.tasks = kLaneTasks;
  options.device = device;
  const absl::StatusOr<bench::LaneRunReport> lane =
      bench::MeasureLane(client, options, [](double) {});
  if (absl::IsFailedPrecondition(lane.status())) {
    Explain(absl::StrCat("   No local lane: ", lane.status().message(), "\n"));
    return LanePart();
  }
  if (!lane.ok()) return lane.status();
  const LatencySummary latency = Summarize(lane->lone_us);
  const double rate = static_cast<double>(lane->tasks) / lane->seconds;
  Explain(absl::StrCat(
      "   Through a local lane: ", HumanDuration(absl::Nanoseconds(latency.p50_us * 1e3)),
      " (median), ", FormatCount(rate),
      " tasks/s one by one: ", Verdict(lane->wrong, lane->first_difference), "\n"));
  return LanePart{{{"p50_us", latency.p50_us}, {"tasks_per_second", rate}, {"wrong", lane->wrong}},
                  lane->wrong};
}

// Explains on what the demonstration runs; returns the devices for the summary.
Json ShowDevices(const v1::StatusResponse& status) {
  Json devices = Json::array();
  for (const v1::DeviceStatus& device : status.devices()) {
    Explain(absl::StrCat("device ", device.device(), ": ", device.name(), ", ", device.engine(),
                         " engine, ", device.blocks(),
                         device.threads_per_block() > 1
                             ? absl::StrCat(" blocks of ", device.threads_per_block(), " threads")
                             : " workers",
                         "\n"));
    devices.push_back(
        {{"device", device.device()}, {"name", device.name()}, {"engine", device.engine()}});
  }
  if (!status.gpu_unavailable_reason().empty()) {
    Explain(absl::StrCat("no GPU: ", status.gpu_unavailable_reason(), "\n"));
  }
  return devices;
}

int Demonstrate(client::Client& client, const DemoOptions& options) {
  absl::StatusOr<v1::StatusResponse> status = client.Status();
  if (!status.ok()) return CallError(status.status());
  const Json devices = ShowDevices(*status);

  Explain("\n1. FLUX: one bytecode program, many inputs (the sum of the squares from 1 to n)\n\n");
  Explain(bench::kSumOfSquaresSource);
  bench::FluxStreamOptions flux_options;
  flux_options.runs = kFluxRuns;
  flux_options.batches = kFluxBatches;
  flux_options.device = options.device;
  absl::StatusOr<bench::FluxStreamReport> flux;
  {
    Progress progress("FLUX", kProgressSteps);
    flux = bench::StreamFlux(client, flux_options, Show(progress));
  }
  if (!flux.ok()) return CallError(flux.status());
  const double instructions = static_cast<double>(flux->instructions) / flux->seconds;
  Explain(absl::StrCat("\n   ", FormatExact(flux->runs), " runs, ", FormatCount(instructions),
                       " instructions/s; checked against n(n+1)(2n+1)/6: ",
                       Verdict(flux->wrong, flux->first_difference), "\n"));

  Explain("\n2. Elementwise tasks: out = x + alpha * y, 64 numbers each, in batches of 1,024\n\n");
  bench::TaskStreamOptions task_options;
  task_options.batch = kTasksInBatch;
  task_options.batches = kTaskBatches;
  task_options.device = options.device;
  absl::StatusOr<bench::TaskStreamReport> tasks;
  {
    Progress progress("tasks", kProgressSteps);
    tasks = bench::StreamTasks(client, task_options, Show(progress));
  }
  if (!tasks.ok()) return CallError(tasks.status());
  const double tasks_per_second = static_cast<double>(tasks->tasks) / tasks->seconds;
  const LatencySummary batch = Summarize(tasks->batch_us);
  Explain(absl::StrCat("   ", FormatExact(tasks->tasks), " tasks, ", FormatCount(tasks_per_second),
                       " tasks/s; a batch is answered after ",
                       HumanDuration(absl::Nanoseconds(batch.p50_us * 1e3)),
                       " (median); checked against the CPU's results: ",
                       Verdict(tasks->wrong, tasks->first_difference), "\n"));

  Explain("\n3. One task at a time, each a gRPC call\n\n");
  absl::StatusOr<LatencySummary> lone = LoneRuns(client, options.device);
  if (!lone.ok()) return CallError(lone.status());
  Explain(absl::StrCat("   ", FormatExact(lone->samples), " calls, ",
                       HumanDuration(absl::Nanoseconds(lone->p50_us * 1e3)), " (median), ",
                       HumanDuration(absl::Nanoseconds(lone->p99_us * 1e3)),
                       " (99th percentile)\n"));

  const absl::StatusOr<LanePart> lane = DemonstrateLane(client, options.device.value_or(0));
  if (!lane.ok()) return CallError(lane.status());

  const uint64_t wrong = flux->wrong + tasks->wrong + lane->wrong;
  const Json summary = {
      {"devices", devices},
      {"flux",
       {{"runs", flux->runs}, {"instructions_per_second", instructions}, {"wrong", flux->wrong}}},
      {"tasks",
       {{"tasks", tasks->tasks},
        {"tasks_per_second", tasks_per_second},
        {"batch_p50_us", batch.p50_us},
        {"wrong", tasks->wrong}}},
      {"lone_run", {{"p50_us", lone->p50_us}, {"p99_us", lone->p99_us}}},
      {"lane", lane->summary},
      {"wrong", wrong}};
  if (Common().json) PrintJson(summary);
  absl::Status written;
  if (!options.out.empty()) written = WriteFile(options.out, summary.dump() + "\n");
  return CheckedExit(wrong, written);
}

}  // namespace

void AddDemo(Command& program) {
  Command& demo =
      program.Add("demo", "stream work through the daemon, check the results and explain them");
  auto options = std::make_shared<DemoOptions>();
  AddOutFlag(demo, &options->out);
  AddDeviceFlag(demo, &options->device);
  demo.Run("", [options](const Words&) {
    if (absl::Status status = CheckWritable(options->out); !status.ok()) return UsageError(status);
    absl::StatusOr<std::unique_ptr<client::Client>> client = Connect();
    return client.ok() ? Demonstrate(**client, *options) : CallError(client.status());
  });
}

}  // namespace resident::cli
