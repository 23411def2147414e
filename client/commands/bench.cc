// bench: latency and throughput through gRPC, each with its baseline.
//
//   residentctl bench --out=bench.json
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "client/bench/echo_server.h"
#include "client/bench/lane_run.h"
#include "client/bench/measurements.h"
#include "client/cli/common_options.h"
#include "client/cli/format.h"
#include "client/cli/output.h"
#include "client/cli/progress.h"
#include "client/commands/command.h"
#include "client/lane.h"
#include "client/version.h"
#include "runtime/base/limits.h"
#include "runtime/base/status_macros.h"

namespace resident::cli {
namespace {

constexpr uint32_t kLoneElements = 1024;
constexpr double kMaxPartSeconds = 86400;

// The largest batches that are measured, and how many of them are in flight.
constexpr uint32_t kLargeBatch = 65536;
constexpr uint32_t kLargeInFlight = 4;

// Draws the progress of one part of the measurement.
class Part {
 public:
  explicit Part(std::string label) : progress_(std::move(label), kProgressSteps) {}
  std::function<void(double)> Callback() {
    return [this](double part) {
      progress_.Set(static_cast<uint64_t>(std::min(part, 1.0) * kProgressSteps));
    };
  }

 private:
  Progress progress_;
};

struct Settings {
  bool quick = false;
  bool lane = false;
  double seconds = 2;
  std::optional<uint32_t> device;
  uint32_t batch = 1024;
  uint32_t elements = 64;
  uint32_t in_flight = 32;
  uint32_t streams = 1;
  uint32_t pauses = 0;
  std::string out;

  // Duration of each part.
  absl::Duration duration() const {
    return quick ? absl::Milliseconds(200) : absl::Seconds(seconds);
  }
  uint32_t flux_runs() const { return quick ? 4096 : 65536; }
};

Json SummaryJson(const LatencySummary& summary) {
  return {{"samples", summary.samples}, {"p50_us", summary.p50_us},   {"p90_us", summary.p90_us},
          {"p99_us", summary.p99_us},   {"p999_us", summary.p999_us}, {"min_us", summary.min_us},
          {"max_us", summary.max_us},   {"mean_us", summary.mean_us}};
}

std::string Us(double us) { return HumanDuration(absl::Nanoseconds(us * 1e3)); }

std::string SignedUs(double us) { return absl::StrCat(us < 0 ? "-" : "+", Us(std::abs(us))); }

// The output as text, the output of --json, and the additional contents of --out.
struct Measured {
  std::string text;
  Json json;
  Json raw;
  uint64_t wrong = 0;
};

absl::StatusOr<std::unique_ptr<client::Client>> ConnectToEcho(const bench::EchoServer& server) {
  client::Options options;
  options.session = false;  // A bare echo has no sessions.
  return client::Client::Connect(server.address(), options);
}

// `paused_calls`: see LoneRunOptions.
absl::StatusOr<Measured> LoneRun(client::Client& daemon, const Settings& settings, bool send_data,
                                 uint32_t paused_calls = 0) {
  ASSIGN_OR_RETURN(std::unique_ptr<bench::EchoServer> server, bench::EchoServer::Start());
  ASSIGN_OR_RETURN(std::unique_ptr<client::Client> echo, ConnectToEcho(*server));
  Part part(paused_calls > 0 ? "lone Run after a pause"
            : send_data      ? "lone Run, data in the message"
                             : "lone Run, data on the device");
  ASSIGN_OR_RETURN(bench::LoneRunReport report,
                   bench::MeasureLoneRun(daemon, *echo,
                                         {.elements = kLoneElements,
                                          .send_data = send_data,
                                          .duration = settings.duration(),
                                          .paused_calls = paused_calls,
                                          .device = settings.device},
                                         part.Callback()));
  const LatencySummary run = Summarize(report.residentd_us);
  const LatencySummary floor = Summarize(report.echo_us);
  std::vector<double> device_us = report.device_ns;
  for (double& value : device_us) value /= 1e3;
  const LatencySummary device = Summarize(device_us);

  Measured outcome;
  outcome.wrong = report.wrong;
  Table table({"", "p50", "p90", "p99", "calls"},
              {Table::kLeft, Table::kRight, Table::kRight, Table::kRight, Table::kRight});
  const auto row = [&](const char* name, const LatencySummary& summary) {
    table.Add({name, Us(summary.p50_us), Us(summary.p90_us), Us(summary.p99_us),
               FormatExact(summary.samples)});
  };
  row("  bare gRPC echo", floor);
  row("  residentd", run);
  table.Add({"  difference", SignedUs(run.p50_us - floor.p50_us),
             SignedUs(run.p90_us - floor.p90_us), SignedUs(run.p99_us - floor.p99_us), ""});
  table.Add({"  ratio", absl::StrFormat("%.2f", run.p50_us / floor.p50_us),
             absl::StrFormat("%.2f", run.p90_us / floor.p90_us),
             absl::StrFormat("%.2f", run.p99_us / floor.p99_us), ""});
  if (device.samples > 0) row("  part on the device", device);
  outcome.text =
      absl::StrCat("Lone Run: one add of ", FormatExact(kLoneElements), " float32, ",
                   send_data ? "sent and returned with the call" : "in buffers on the device",
                   paused_calls > 0 ? ", after a pause of 1 to 2 s" : "", "\n", table.ToString());
  outcome.json = {{"elements", kLoneElements},
                  {"data", send_data ? "message" : "device"},
                  {"echo", SummaryJson(floor)},
                  {"residentd", SummaryJson(run)},
                  {"device", SummaryJson(device)},
                  {"p50_difference_us", run.p50_us - floor.p50_us},
                  {"p50_ratio", run.p50_us / floor.p50_us},
                  {"wrong_elements", report.wrong}};
  outcome.raw = {{"echo_us", report.echo_us},
                 {"residentd_us", report.residentd_us},
                 {"device_ns", report.device_ns}};
  return outcome;
}

// Each stream has its own client, and therefore its own connection and session.
absl::StatusOr<Measured> Tasks(const Settings& settings, uint32_t batch, uint32_t in_flight) {
  std::vector<absl::StatusOr<bench::TaskStreamReport>> reports(settings.streams,
                                                               absl::UnknownError("not run"));
  ASSIGN_OR_RETURN(std::unique_ptr<bench::EchoServer> server, bench::EchoServer::Start());
  std::vector<std::unique_ptr<client::Client>> clients, echoes;
  for (uint32_t i = 0; i < settings.streams; ++i) {
    ASSIGN_OR_RETURN(std::unique_ptr<client::Client> client, Connect());
    ASSIGN_OR_RETURN(std::unique_ptr<client::Client> echo, ConnectToEcho(*server));
    clients.push_back(std::move(client));
    echoes.push_back(std::move(echo));
  }
  {
    Part part("streamed tasks");
    std::vector<std::thread> threads;
    for (uint32_t i = 0; i < settings.streams; ++i) {
      threads.emplace_back([&, i] {
        const auto progress = i == 0 ? part.Callback() : [](double) {};
        reports[i] = bench::StreamTasks(*clients[i],
                                        {.batch = batch,
                                         .elements = settings.elements,
                                         .in_flight = in_flight,
                                         .duration = settings.duration(),
                                         .device = settings.device,
                                         .echo = echoes[i].get()},
                                        progress);
      });
    }
    for (std::thread& thread : threads) thread.join();
  }
  Measured outcome;
  std::vector<double> batch_us;
  double tasks_per_second = 0, echo_tasks_per_second = 0;
  uint64_t tasks = 0;
  std::string difference;
  for (const absl::StatusOr<bench::TaskStreamReport>& report : reports) {
    if (!report.ok()) return report.status();
    tasks += report->tasks;
    tasks_per_second += static_cast<double>(report->tasks) / report->seconds;
    echo_tasks_per_second +=
        static_cast<double>(report->echo_batches * batch) / report->echo_seconds;
    batch_us.insert(batch_us.end(), report->batch_us.begin(), report->batch_us.end());
    outcome.wrong += report->wrong;
    if (difference.empty()) difference = report->first_difference;
  }
  const LatencySummary latency = Summarize(batch_us);
  outcome.text = absl::StrCat(
      "Submit: batches of ", FormatExact(batch), " adds of ", settings.elements, " float32, ",
      in_flight, " in flight, ", settings.streams,
      settings.streams == 1 ? " client\n" : " clients\n", "  ",
      batch < kMinRangeTasks ? "one by one: " : "as ranges: ", FormatCount(tasks_per_second),
      " tasks/s; a batch is answered after ", Us(latency.p50_us), " (p50), ", Us(latency.p99_us),
      " (p99)\n", "  the same messages to a bare gRPC echo: ", FormatCount(echo_tasks_per_second),
      " tasks/s; ratio ", absl::StrFormat("%.2f", tasks_per_second / echo_tasks_per_second), "\n");
  if (!difference.empty()) absl::StrAppend(&outcome.text, "  WRONG: ", difference, "\n");
  outcome.json = {{"batch", batch},
                  {"elements", settings.elements},
                  {"in_flight", in_flight},
                  {"clients", settings.streams},
                  {"tasks", tasks},
                  {"tasks_per_second", tasks_per_second},
                  {"echo_tasks_per_second", echo_tasks_per_second},
                  {"batch_latency", SummaryJson(latency)},
                  {"wrong_elements", outcome.wrong}};
  outcome.raw = {{"batch_us", batch_us}};
  return outcome;
}

// `lone`, `submit`: the figures of Run and of Submit in the same run.
absl::StatusOr<Measured> LaneRun(client::Client& daemon, const Settings& settings, const Json& lone,
                                 const Json& submit) {
  Part part("local lane");
  ASSIGN_OR_RETURN(bench::LaneRunReport report,
                   bench::MeasureLane(daemon,
                                      {.lone_elements = kLoneElements,
                                       .elements = settings.elements,
                                       .duration = settings.duration(),
                                       .device = settings.device.value_or(0)},
                                      part.Callback()));
  const LatencySummary latency = Summarize(report.lone_us);
  const double run_us = lone["residentd"]["p50_us"].get<double>();
  const double rate = static_cast<double>(report.tasks) / report.seconds;
  const double submit_rate = submit["tasks_per_second"].get<double>();
  Measured outcome;
  outcome.wrong = report.wrong;
  outcome.text = absl::StrCat(
      "Local lane: one add of ", FormatExact(kLoneElements),
      " float32, in buffers on the device\n  ", Us(latency.p50_us), " (p50), ", Us(latency.p90_us),
      " (p90), ", Us(latency.p99_us), " (p99); Run: ", Us(run_us), " (p50), ratio ",
      absl::StrFormat("%.3f", latency.p50_us / run_us), "\n  adds of ", settings.elements,
      " float32, submitted one by one: ", FormatCount(rate),
      " tasks/s; Submit: ", FormatCount(submit_rate), " tasks/s, ratio ",
      absl::StrFormat("%.2f", rate / submit_rate), "\n");
  if (report.wrong > 0) absl::StrAppend(&outcome.text, "  WRONG: ", report.first_difference, "\n");
  outcome.json = {{"lone", SummaryJson(latency)},  {"p50_ratio_to_run", latency.p50_us / run_us},
                  {"elements", settings.elements}, {"tasks", report.tasks},
                  {"tasks_per_second", rate},      {"ratio_to_submit", rate / submit_rate},
                  {"wrong_elements", report.wrong}};
  outcome.raw = {{"lone_us", report.lone_us}};
  return outcome;
}

absl::StatusOr<Measured> Flux(client::Client& daemon, const Settings& settings) {
  Part part("FLUX");
  ASSIGN_OR_RETURN(bench::FluxStreamReport report,
                   bench::StreamFlux(daemon,
                                     {.runs = settings.flux_runs(),
                                      .duration = settings.duration(),
                                      .device = settings.device},
                                     part.Callback()));
  const double instructions = static_cast<double>(report.instructions) / report.seconds;
  const double runs = static_cast<double>(report.runs) / report.seconds;
  Measured outcome;
  outcome.wrong = report.wrong;
  outcome.text = absl::StrCat("FLUX: one program over ", FormatExact(settings.flux_runs()),
                              " inputs a batch\n  ", FormatCount(instructions), " instructions/s, ",
                              FormatCount(runs), " runs/s\n");
  if (report.wrong > 0) {
    absl::StrAppend(&outcome.text, "  WRONG: ", report.first_difference, "\n");
  }
  outcome.json = {{"runs_in_batch", settings.flux_runs()},
                  {"runs", report.runs},
                  {"instructions", report.instructions},
                  {"seconds", report.seconds},
                  {"instructions_per_second", instructions},
                  {"runs_per_second", runs},
                  {"wrong_runs", report.wrong}};
  outcome.raw = Json::object();
  return outcome;
}

// Describes the setup of the measurement.
Json Setup(const v1::StatusResponse& status, const std::string& address) {
  Json devices = Json::array();
  for (const v1::DeviceStatus& device : status.devices()) {
    devices.push_back({{"device", device.device()},
                       {"name", device.name()},
                       {"engine", device.engine()},
                       {"blocks", device.blocks()},
                       {"threads_per_block", device.threads_per_block()}});
  }
  return {{"time", absl::FormatTime(absl::RFC3339_sec, absl::Now(), absl::UTCTimeZone())},
          {"server", address},
          {"residentd", status.version()},
          {"residentctl", kClientVersion},
          {"cpu_threads", std::thread::hardware_concurrency()},
          {"devices", devices}};
}

int Measure(client::Client& daemon, const Settings& settings) {
  absl::StatusOr<v1::StatusResponse> status = daemon.Status();
  if (!status.ok()) return CallError(status.status());
  if (settings.lane) {
    // Says at once that the daemon has none.
    const auto lane = daemon.OpenLane({.device = settings.device.value_or(0)});
    if (!lane.ok()) return CallError(lane.status());
  }
  const bool json = Common().json;
  Json summary = {{"setup", Setup(*status, daemon.address())}};
  Json raw = Json::object();
  uint64_t wrong = 0;
  absl::Status failed;
  const auto add = [&](const char* name, const absl::StatusOr<Measured>& outcome) {
    if (!outcome.ok()) {
      failed = outcome.status();
      return false;
    }
    summary[name] = outcome->json;
    raw[name] = outcome->raw;
    wrong += outcome->wrong;
    if (!json) {
      Print(outcome->text);
      Print("\n");
      std::fflush(stdout);
    }
    return true;
  };
  const auto paused = [&] {
    return settings.pauses == 0 ||
           add("lone_run_paused", LoneRun(daemon, settings, /*send_data=*/false, settings.pauses));
  };
  const auto lane = [&] {
    return !settings.lane ||
           add("lane", LaneRun(daemon, settings, summary["lone_run_device"], summary["submit"]));
  };
  const bool done = add("lone_run_device", LoneRun(daemon, settings, /*send_data=*/false)) &&
                    add("lone_run_message", LoneRun(daemon, settings, /*send_data=*/true)) &&
                    paused() &&
                    add("submit_single", Tasks(settings, kMinRangeTasks - 1, settings.in_flight)) &&
                    add("submit", Tasks(settings, settings.batch, settings.in_flight)) &&
                    add("submit_large", Tasks(settings, kLargeBatch, kLargeInFlight)) && lane() &&
                    add("flux", Flux(daemon, settings));
  if (!done) return CallError(failed);
  summary["wrong"] = wrong;
  if (json) {
    PrintJson(summary);
  } else {
    Print(wrong == 0 ? "every result was checked and is correct\n"
                     : absl::StrCat(FormatExact(wrong), " results are wrong\n"));
  }
  // The file is written last, so that the figures are printed even if writing fails.
  absl::Status written;
  if (!settings.out.empty()) {
    Json file = summary;
    file["raw"] = raw;
    written = WriteFile(settings.out, file.dump() + "\n");
  }
  return CheckedExit(wrong, written);
}

}  // namespace

void AddBench(Command& program) {
  Command& bench = program.Add(
      "bench", "latency and throughput through gRPC, against a bare gRPC echo",
      "Measures, in one run: a lone Run and the same call to a bare gRPC echo server in a "
      "separate\n"
      "process (alternating, so that the conditions are equal); streams of batches of small\n"
      "tasks, which run one by one or, in larger batches, as ranges, and the same messages sent "
      "to\n"
      "the echo server; FLUX programs. Results are checked; exit status 1 if one is wrong.\n");
  auto settings = std::make_shared<Settings>();
  bench.Flag("quick", &settings->quick, "a fifth of a second for each part: a smoke test");
  bench.Flag("lane", &settings->lane,
             "also a local lane, beside Run and Submit; needs a daemon on this machine with "
             "--local_address");
  bench.Flag("seconds", &settings->seconds, "duration of each part",
             {.high = kMaxPartSeconds,
              .holds = [](double seconds) { return seconds > 0; },
              .fix = "give more than 0 and at most 86400"});
  bench.Flag("batch", &settings->batch, "tasks in a streamed batch", {.low = 1});
  bench.Flag("elements", &settings->elements, "elements of a streamed task", {.low = 1});
  bench.Flag("in_flight", &settings->in_flight, "streamed batches in flight", {.low = 1});
  bench.Flag("streams", &settings->streams, "number of concurrent clients",
             {.low = 1, .high = 256});
  bench.Flag("pauses", &settings->pauses,
             "number of lone Runs after a pause of 1 to 2 s each; 0: that part is left out",
             {.high = 100'000});
  AddOutFlag(bench, &settings->out);
  AddDeviceFlag(bench, &settings->device);
  bench.Run("", [settings](const Words&) {
    if (absl::Status status = CheckWritable(settings->out); !status.ok()) return UsageError(status);
    absl::StatusOr<std::unique_ptr<client::Client>> client = Connect();
    return client.ok() ? Measure(**client, *settings) : CallError(client.status());
  });
}

}  // namespace resident::cli
