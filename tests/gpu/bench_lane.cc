// Measures a local lane, with the client in a process of its own, beside gRPC and the bare ring in
// one run.
//
//   bench_lane --out=FILE.json                    (tests/gpu/run runs it)
//
// Environment: RESIDENTD (the daemon's program), RESIDENT_TEST_DEVICES, RESIDENT_TEST_ENGINE (cpu
// or cuda, for the bare ring), RESIDENT_TEST_LANE_FLAGS (further flags of the daemon, separated by
// spaces).
//
// The parts: the bare ring, in a process that ends before the daemon starts; then, with one daemon,
// lone adds through gRPC `Run` and through a lane (outputs on the device, and in shared memory), a
// chain of dependent adds, adds that are submitted without waiting (joined and not), ranges beside
// batches of 65,536 through gRPC, several client processes, the shares of two lanes and a gRPC
// client in one device, adds beside requests to a model and beside runs of the same graph, `Run`
// beside 64 open lanes, and the wake of a daemon that sleeps. Outputs
// are poisoned and compared with the CPU's results; a wrong one ends the program with status 1.
// Speed never does.
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "client/lane.h"
#include "client/models.h"
#include "client/residentd_client.h"
#include "client/shared_memory.h"
#include "tests/daemon/daemon.h"
#include "tests/gpu/device_tasks.h"
#include "tests/graph/graph_maker.h"
#include "tests/support/bench_report.h"
#include "tests/support/engine_harness.h"
#include "tests/support/temp_folder.h"

ABSL_FLAG(std::string, out, "", "file for the raw figures, as JSON");
ABSL_FLAG(std::string, gtest_output, "", "ignored: tests/gpu/run gives it to every check");
ABSL_FLAG(bool, quick, false, "a twentieth of the rounds, for a quick try");
ABSL_FLAG(bool, ring, true, "measure the bare ring first");
ABSL_FLAG(std::string, child, "",
          "internal: \"ring\", or the daemon's address of a client process");

namespace resident::testing {
namespace {

using client::Lane;
using client::LaneCall;
using client::PlaceIn;
using client::Varying;
using Clock = std::chrono::steady_clock;

constexpr uint64_t kN = 1024, kSmall = 64;
constexpr float kAlpha = 3;
constexpr uint64_t kSets = 1024;
constexpr uint32_t kLargeBatch = 65536;
constexpr uint32_t kSlots = 8192;
constexpr double kChildSeconds = 1.5;
constexpr uint32_t kShareBatch = 1024;
constexpr uint32_t kQuantum = 256;  // Of a client's turn.

uint64_t Rounds(uint64_t count) { return absl::GetFlag(FLAGS_quick) ? count / 20 + 1 : count; }
double UsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}
void MustBeOk(const absl::Status& status, const std::string& what) {
  if (!status.ok()) Fail(what + ": " + status.ToString());
}
void Check(int64_t code, Lane& lane, const std::string& what) {
  if (code < 0) Fail(what + ": " + lane.FromCode(code).ToString());
}

// Sets of tensors in buffers, and the words of each set's add.
struct Adds {
  std::vector<float> x, y;
  client::Buffer<float> x_buffer, y_buffer, out_buffer;
  std::vector<client::SharedMemory> memory;
  uint64_t elements, sets;

  Adds(client::Client& client, uint64_t n, uint64_t count, bool shared) : elements(n), sets(count) {
    const uint64_t total = n * count;
    x.resize(total);
    y.resize(total);
    for (uint64_t i = 0; i < total; ++i) {
      x[i] = static_cast<float>(i % 65521);
      y[i] = static_cast<float>(i % 251);
    }
    const client::BufferOptions on{.device = 0};
    x_buffer = Must(client.Upload(x, on), "upload");
    y_buffer = Must(client.Upload(y, on), "upload");
    if (shared) {
      memory.push_back(Must(client::SharedMemory::Create(total * sizeof(float)), "shared memory"));
      out_buffer = Must(client.ImportShared<float>(memory[0].fd(), {total}, on), "import");
    } else {
      out_buffer = Must(client.Allocate<float>({total}, on), "allocate");
    }
    Poison();
  }
  void Poison() { MustBeOk(out_buffer.Upload(std::vector<float>(elements * sets, -1)), "poison"); }
  // The first `count` sets have their results.
  void CheckResults(uint64_t count, const std::string& what) {
    const std::vector<float> out = Must(out_buffer.Download(), "download");
    for (uint64_t i = 0; i < std::min(count, sets) * elements; ++i) {
      if (out[i] != x[i] + kAlpha * y[i]) Fail(absl::StrCat(what, ": element ", i, " is ", out[i]));
    }
    Poison();
  }
  client::TaskBatch Batch(uint32_t count) const {
    client::TaskBatch batch("add", count);
    const client::View rows{.shape = {elements}, .stride = count > 1 ? elements : 0};
    batch.Use(x_buffer, rows).Use(y_buffer, rows).Use(out_buffer, rows).Scalar(kAlpha);
    batch.set_device(0);
    return batch;
  }
};

// A prepared add, and its words.
struct LaneAdds {
  LaneAdds(Lane& on, const Adds& adds, bool joined = true)
      : lane(on), bytes(adds.elements * sizeof(float)), sets(adds.sets) {
    client::TaskBatch batch = adds.Batch(1);
    if (!joined) batch.set_task_times();
    call = Must(lane.Prepare(batch, {Varying::Place(0), Varying::Place(1), Varying::Place(2)}),
                "prepare")
               .number();
    first[0] = residentd_lane_place_at(Must(lane.Bind(adds.x_buffer), "bind"), 0);
    first[1] = residentd_lane_place_at(Must(lane.Bind(adds.y_buffer), "bind"), 0);
    first[2] = residentd_lane_place_at(Must(lane.Bind(adds.out_buffer), "bind"), 0);
  }
  void Words(uint64_t i, uint64_t (&words)[3]) const {
    for (int w = 0; w < 3; ++w) words[w] = first[w] + i % sets * bytes;
  }
  // One add after the other; microseconds of each. `pause`: sleep before each.
  std::vector<double> Lone(uint64_t count, std::chrono::microseconds pause = {}) {
    std::vector<double> us;
    us.reserve(count);
    for (uint64_t i = 0; i < count + 200; ++i) {
      if (pause.count() > 0) std::this_thread::sleep_for(pause);
      uint64_t words[3];
      Words(i, words);
      residentd_lane_completion done;
      const auto start = Clock::now();
      const int code = residentd_lane_call(lane.handle(), call, words, 3, -1, &done);
      const double took = UsSince(start);
      Check(code, lane, "lone add");
      MustBeOk(lane.Ended(done), "lone add");
      if (i >= 200) us.push_back(took);
      if (pause.count() > 0 && i >= count) break;
    }
    return us;
  }
  // Adds without waiting; returns tasks in a second.
  double Many(uint64_t count) {
    residentd_lane* const handle = lane.handle();
    const auto start = Clock::now();
    for (uint64_t i = 0; i < count;) {
      uint64_t words[3];
      Words(i, words);
      const int64_t sequence = residentd_lane_submit(handle, call, words, 3, 0);
      if (sequence >= 0) {
        ++i;
        continue;
      }
      if (sequence != RESIDENTD_LANE_FULL) Check(sequence, lane, "submit");
      Check(
          residentd_lane_await(
              handle, residentd_lane_next(handle) - residentd_lane_slots(handle) / 2, -1, nullptr),
          lane, "await");
    }
    while (residentd_lane_completed(handle) < residentd_lane_next(handle)) {
    }
    return 1e6 * static_cast<double>(count) / UsSince(start);
  }
  // A chain of dependent adds; microseconds each.
  double Chain(uint64_t count) {
    residentd_lane* const handle = lane.handle();
    const auto start = Clock::now();
    for (uint64_t i = 0; i < count;) {
      uint64_t words[3];
      Words(0, words);
      const int64_t sequence =
          residentd_lane_submit(handle, call, words, 3, RESIDENTD_LANE_AFTER_ALL);
      if (sequence >= 0) {
        ++i;
        continue;
      }
      if (sequence != RESIDENTD_LANE_FULL) Check(sequence, lane, "submit");
      Check(
          residentd_lane_await(
              handle, residentd_lane_next(handle) - residentd_lane_slots(handle) / 2, -1, nullptr),
          lane, "await");
    }
    Check(residentd_lane_await(handle, residentd_lane_next(handle) - 1, -1, nullptr), lane,
          "await");
    return UsSince(start) / static_cast<double>(count);
  }
  // Ranges of `count` tasks; tasks in a second, 0 if the daemon does not take ranges.
  double Ranges(uint32_t count, uint64_t ranges, bool values) {
    residentd_lane* const handle = lane.handle();
    std::vector<uint64_t> places[3];
    residentd_lane_column columns[3];
    for (int w = 0; w < 3; ++w) {
      for (uint64_t i = 0; i < count; ++i) places[w].push_back(first[w] + i * bytes);
      columns[w] = values ? residentd_lane_column{0, 0, places[w].data()}
                          : residentd_lane_column{first[w], bytes, nullptr};
    }
    const auto start = Clock::now();
    for (uint64_t i = 0; i < ranges;) {
      const int64_t sequence = residentd_lane_submit_range(handle, call, count, columns, 3, 0);
      if (sequence >= 0) {
        ++i;
        continue;
      }
      if (sequence != RESIDENTD_LANE_FULL) Check(sequence, lane, "range");
      while (residentd_lane_completed(handle) < residentd_lane_next(handle) - 2) {
      }
    }
    const residentd_lane_completion done =
        Must(lane.Await(residentd_lane_next(handle) - 1), "range");
    if (done.status == RESIDENTD_LANE_STATUS_REFUSED && done.detail == RESIDENTD_LANE_REFUSED_KIND)
      return 0;
    MustBeOk(lane.Ended(done), "range");
    while (residentd_lane_completed(handle) < residentd_lane_next(handle)) {
    }
    return 1e6 * static_cast<double>(count) * static_cast<double>(ranges) / UsSince(start);
  }

  Lane& lane;
  uint16_t call = 0;
  uint64_t first[3];
  uint64_t bytes, sets;
};

std::vector<double> LoneRuns(client::Client& client, const Adds& adds, uint64_t count) {
  client::TaskBatch batch = adds.Batch(1);
  std::vector<double> us;
  for (uint64_t i = 0; i < count + 100; ++i) {
    const auto start = Clock::now();
    const auto result = client.Run(batch);
    const double took = UsSince(start);
    if (!result.ok()) Fail("Run: " + result.status().ToString());
    MustBeOk(result->status(), "Run");
    if (i >= 100) us.push_back(took);
  }
  return us;
}

// Batches of a stream of gRPC, with several in flight; tasks in a second.
double StreamBatches(client::Client& client, const Adds& adds, uint32_t count, uint64_t batches) {
  client::TaskBatch batch = adds.Batch(count);
  auto stream = Must(client.OpenStream({.max_in_flight = 4}), "stream");
  const auto start = Clock::now();
  for (uint64_t i = 0; i < batches; ++i) {
    MustBeOk(stream->Send(batch,
                          [](const absl::StatusOr<client::Result>& result) {
                            if (!result.ok() || !result->ok()) Fail("a streamed batch failed");
                          }),
             "send");
  }
  MustBeOk(stream->Finish(), "stream");
  return 1e6 * static_cast<double>(count) * static_cast<double>(batches) / UsSince(start);
}

// Lone adds on the bare ring, p50 in microseconds; 0: not measured.
struct RingTimes {
  double early = 0;  // Outputs on the device.
  double fenced = 0;
  // Early, and the host submits the next task so long after a completion; the poller knows it
  // (kTaskSlowAnswer) or does not.
  struct Answered {
    int delay_ns;
    double known = 0;
    double unknown = 0;
  };
  std::vector<Answered> answered = {{300}, {600}, {900}};
  std::vector<double*> fields() {
    std::vector<double*> all = {&early, &fenced};
    for (Answered& one : answered) all.insert(all.end(), {&one.known, &one.unknown});
    return all;
  }
};

// The bare ring: prints the fields of RingTimes. The kernel leaves the GPU only with its process;
// with two kernels there, each would wait for time slices of milliseconds.
[[noreturn]] void RunBareRing() {
  EngineHarness harness({.ring_slots = 8192, .staging_bytes = uint64_t{64} << 20, .engine = {}});
  const auto ring = harness.NewRing();
  DeviceTasks device(harness, ring);
  std::vector<float> x(kN, 2), y(kN, 5), out(kN, -1);
  const uint64_t xa = device.Upload(x.data(), kN * 4), ya = device.Upload(y.data(), kN * 4);
  const uint64_t oa = device.Upload(out.data(), kN * 4);
  const auto measure = [&](u8 flags, int delay_ns) {
    TaskDescriptor task = CompactTask(OperatorSlot("add"), kN, {xa, ya, oa, Bits(double{kAlpha})});
    task.flags |= flags;
    std::vector<double> us;
    for (uint64_t i = 0; i < Rounds(40'000); ++i) {
      const auto start = Clock::now();
      device.RunTask(task);
      us.push_back(UsSince(start));
      const auto ended = Clock::now();
      while (Clock::now() - ended < std::chrono::nanoseconds(delay_ns)) {
      }
    }
    return Percentile(us, 0.5);
  };
  RingTimes times;
  times.early = measure(kTaskDeviceOutputs, 0);
  times.fenced = measure(0, 0);
  for (RingTimes::Answered& one : times.answered) {
    one.unknown = measure(kTaskDeviceOutputs, one.delay_ns);
    one.known = measure(kTaskDeviceOutputs | kTaskSlowAnswer, one.delay_ns);
  }
  device.Download(out.data(), oa, kN * 4);
  for (const float value : out) {
    if (value != 17) Fail("the bare ring's add is wrong");
  }
  for (const double* const field : times.fields()) std::printf("%f\n", *field);
  std::fflush(stdout);
  _exit(0);
}

// A client process: lone adds for a while; prints p50, p99 and the number of them in a second.
int RunChild(const std::string& address) {
  auto client = Must(client::Client::Connect(address), "connect");
  Adds adds(*client, kN, 4, false);
  auto lane = Must(client->OpenLane({.slots = 256}), "lane");
  LaneAdds lane_adds(*lane, adds);
  (void)lane_adds.Lone(500);
  std::printf("ready\n");
  std::fflush(stdout);
  char byte;
  if (read(STDIN_FILENO, &byte, 1) != 1) return 1;
  std::vector<double> us;
  const auto start = Clock::now();
  while (UsSince(start) < kChildSeconds * 1e6) {
    for (const double took : lane_adds.Lone(200)) us.push_back(took);
  }
  const double rate =
      static_cast<double>(us.size()) * 2 / UsSince(start) * 1e6;  // Lone() runs 200 more.
  adds.CheckResults(4, "a client process");
  std::printf("%f %f %f\n", Percentile(us, 0.5), Percentile(us, 0.99), rate);
  return 0;
}

struct Child {
  pid_t pid;
  FILE* out;
  int in;
};

// Starts this program with --child.
Child StartChild(const std::string& value) {
  int out[2], in[2];
  if (pipe(out) != 0 || pipe(in) != 0) Fail("pipe");
  const std::string flag = "--child=" + value;
  const char* const quick = absl::GetFlag(FLAGS_quick) ? "--quick" : "--noquick";
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(out[1], STDOUT_FILENO);
    dup2(in[0], STDIN_FILENO);
    for (const int fd : {out[0], out[1], in[0], in[1]}) close(fd);
    execl("/proc/self/exe", "bench_lane", flag.c_str(), quick, nullptr);
    _exit(127);
  }
  close(out[1]);
  close(in[0]);
  return {pid, fdopen(out[0], "r"), in[1]};
}

void EndChild(const Child& child) {
  fclose(child.out);
  close(child.in);
  if (waitpid(child.pid, nullptr, 0) != child.pid) Fail("waitpid");
}

RingTimes BareRing() {
  const Child child = StartChild("ring");
  RingTimes times;
  for (double* const field : times.fields()) {
    if (fscanf(child.out, "%lf", field) != 1) Fail("the process of the bare ring failed");
  }
  EndChild(child);
  return times;
}

void Processes(const std::string& address, BenchReport& report) {
  for (const int count : {1, 2, 4, 8}) {
    std::vector<Child> children;
    for (int i = 0; i < count; ++i) {
      children.push_back(StartChild(address));
      char line[100];
      if (fgets(line, sizeof(line), children.back().out) == nullptr) {
        Fail("a client process did not start");
      }
    }
    for (const Child& child : children) {
      if (write(child.in, "g", 1) != 1) Fail("write");
    }
    double p50 = 0, p99 = 0, rate = 0;
    for (const Child& child : children) {
      double a = 0, b = 0, c = 0;
      if (fscanf(child.out, "%lf %lf %lf", &a, &b, &c) != 3) Fail("a client process failed");
      p50 = std::max(p50, a);
      p99 = std::max(p99, b);
      rate += c;
      EndChild(child);
    }
    const std::string name =
        absl::StrCat(count, count == 1 ? " process" : " processes", ", a lane each, lone adds: ");
    report.Add(name + "worst p50", p50, "us");
    report.Add(name + "worst p99", p99, "us");
    report.Add(name + "in all", rate, "tasks/s");
  }
}

uint64_t ProcessorNs(pid_t pid) {
  uint64_t total = 0;
  for (const auto& thread :
       std::filesystem::directory_iterator(absl::StrCat("/proc/", pid, "/task"))) {
    std::ifstream file(thread.path() / "schedstat");
    uint64_t ns = 0;
    file >> ns;
    total += ns;
  }
  return total;
}

void MeasureLone(client::Client& client, Lane& lane, const RingTimes& ring, BenchReport& report) {
  Adds device(client, kN, kSets, false), shared(client, kN, kSets, true);
  LaneAdds on_device(lane, device), in_shared(lane, shared);
  // Alternating, so that the conditions are equal.
  std::vector<double> run, us, shared_us;
  for (int round = 0; round < 5; ++round) {
    for (const double took : LoneRuns(client, device, Rounds(1000))) run.push_back(took);
    for (const double took : on_device.Lone(Rounds(40'000))) us.push_back(took);
    for (const double took : in_shared.Lone(Rounds(20'000))) shared_us.push_back(took);
  }
  device.CheckResults(Rounds(1000), "lone adds");
  shared.CheckResults(Rounds(1000), "lone adds in shared memory");
  const double run_p50 = Percentile(run, 0.5);
  report.Add("lone add of 1,024 through a lane, p50", Percentile(us, 0.5), "us", "gRPC Run, p50",
             run_p50);
  if (ring.early > 0)
    report.Add("lone add of 1,024 through a lane, p50", Percentile(us, 0.5), "us", "bare ring, p50",
               ring.early);
  report.Add("lone add of 1,024 through a lane, p90", Percentile(us, 0.9), "us", "gRPC Run, p90",
             Percentile(run, 0.9));
  report.Add("lone add of 1,024 through a lane, p99", Percentile(us, 0.99), "us", "gRPC Run, p99",
             Percentile(run, 0.99));
  report.Add("the same, outputs in shared memory, p50", Percentile(shared_us, 0.5), "us",
             "gRPC Run, p50", run_p50);
  if (ring.fenced > 0)
    report.Add("the same, outputs in shared memory, p50", Percentile(shared_us, 0.5), "us",
               "bare ring after the fence, p50", ring.fenced);
  report.Add("the same, outputs in shared memory, p99", Percentile(shared_us, 0.99), "us",
             "gRPC Run, p99", Percentile(run, 0.99));
  report.Add("chain of dependent adds, each", on_device.Chain(Rounds(200'000)), "us",
             "gRPC Run, p50", run_p50);
  device.CheckResults(1, "chain");
}

void MeasureMany(client::Client& client, Lane& lane, BenchReport& report) {
  for (const uint64_t elements : {kSmall, kN}) {
    const uint32_t large = elements == kSmall ? kLargeBatch : kLargeBatch / 4;
    Adds adds(client, elements, large, false);
    const double grpc = StreamBatches(client, adds, 1024, Rounds(2000));
    const double grpc_large = StreamBatches(client, adds, large, Rounds(60));
    adds.CheckResults(large, "gRPC");
    const std::string name = absl::StrCat("adds of ", elements, " through a lane, ");
    LaneAdds joined(lane, adds), single(lane, adds, false);
    report.Add(name + "one by one, joined", joined.Many(Rounds(8'000'000)), "tasks/s",
               "gRPC, batches of 1,024", grpc);
    adds.CheckResults(Rounds(large), name);
    report.Add(name + "one by one, not joined", single.Many(Rounds(4'000'000)), "tasks/s",
               "gRPC, batches of 1,024", grpc);
    adds.CheckResults(Rounds(large), name);
    for (const bool values : {false, true}) {
      const double rate = joined.Ranges(large, Rounds(100), values);
      if (rate == 0) continue;
      report.Add(name + (values ? "ranges by values" : "ranges by stride"), rate, "tasks/s",
                 absl::StrCat("gRPC, batches of ", large), grpc_large);
      adds.CheckResults(large, name);
    }
  }
}

// Tasks that take `us` microseconds each, as many as the client can submit. `ended`: how many have
// ended. Through a lane, or in batches of kShareBatch over gRPC.
client::TaskBatch SpinBatch(const client::Buffer<float>& out, int64_t us, uint32_t count) {
  client::TaskBatch batch("test.spin", count);
  batch.Use(out, client::View{.shape = {1}}).Integer(1000 * us);
  batch.set_device(0);
  return batch;
}
void FillLane(const std::string& address, int64_t us, const std::atomic<bool>& stop,
              std::atomic<uint64_t>& ended) {
  auto client = Must(client::Client::Connect(address), "connect");
  const auto out = Must(client->Allocate<float>({1}, {.device = 0}), "allocate");
  auto lane = Must(client->OpenLane({.slots = kSlots}), "lane");
  residentd_lane* const handle = lane->handle();
  const uint16_t call = Must(lane->Prepare(SpinBatch(out, us, 1), {}), "prepare").number();
  while (!stop) {
    const int64_t sequence = residentd_lane_submit(handle, call, nullptr, 0, RESIDENTD_LANE_QUIET);
    if (sequence >= 0) continue;
    if (sequence != RESIDENTD_LANE_FULL) Check(sequence, *lane, "submit");
    Check(
        residentd_lane_await(handle, residentd_lane_next(handle) - kSlots + kQuantum, -1, nullptr),
        *lane, "await");
    ended = static_cast<uint64_t>(residentd_lane_completed(handle));
  }
  residentd_lane_cancel_below(handle, residentd_lane_next(handle));
}
void FillStream(const std::string& address, int64_t us, const std::atomic<bool>& stop,
                std::atomic<uint64_t>& ended) {
  auto client = Must(client::Client::Connect(address), "connect");
  const auto out = Must(client->Allocate<float>({1}, {.device = 0}), "allocate");
  client::TaskBatch batch = SpinBatch(out, us, kShareBatch);
  auto stream = Must(client->OpenStream({.max_in_flight = kSlots / kShareBatch}), "stream");
  while (!stop) {
    MustBeOk(stream->Send(batch,
                          [&](const absl::StatusOr<client::Result>& result) {
                            if (stop) return;
                            if (!result.ok() || !result->ok()) Fail("a streamed batch failed");
                            ended += kShareBatch;
                          }),
             "send");
  }
  stream->Cancel();
}

// Two lanes and a gRPC client, each with a session of its own: the share of each in the tasks that
// end while all have tasks that wait.
void MeasureShares(const std::string& address, int64_t us, BenchReport& report) {
  std::atomic<bool> stop{false};
  std::array<std::atomic<uint64_t>, 3> ended{};
  std::vector<std::thread> clients;
  for (int i = 0; i < 2; ++i) {
    clients.emplace_back([&, i] { FillLane(address, us, stop, ended[i]); });
  }
  clients.emplace_back([&] { FillStream(address, us, stop, ended[2]); });
  for (const auto& count : ended) {
    while (count == 0) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  }
  std::array<uint64_t, 3> before, count;
  std::copy(ended.begin(), ended.end(), before.begin());
  const auto start = Clock::now();
  // What ends is seen by the batch, so that some must.
  const auto measured = [&] {
    const double us_since = UsSince(start);
    return us_since > 10e6 || (us_since > 1e6 && ended[2] - before[2] >= 32 * kShareBatch);
  };
  while (!measured()) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  std::copy(ended.begin(), ended.end(), count.begin());
  const double seconds = UsSince(start) / 1e6;
  stop = true;
  for (std::thread& client : clients) client.join();
  double total = 0, deviation = 0;
  for (int i = 0; i < 3; ++i) total += static_cast<double>(count[i] -= before[i]);
  const std::string name = absl::StrCat("two lanes and a gRPC client, tasks of ", us, " us: ");
  for (int i = 0; i < 3; ++i) {
    const double share = static_cast<double>(count[i]) / total;
    deviation = std::max(deviation, std::abs(3 * share - 1));
    report.Add(name + (i == 2 ? "share of gRPC" : absl::StrCat("share of lane ", i + 1)),
               100 * share, "%");
  }
  report.Add(name + "largest deviation from a third", 100 * deviation, "% of it");
  report.Add(name + "in all", total / seconds, "tasks/s");
}

// A perceptron of four layers of 512 for one row, in float32.
constexpr int64_t kWidth = 512;
constexpr int kLayers = 4;

v1::Graph PerceptronGraph() {
  GraphMaker g;
  g.Input("x", {D(int64_t{1}), D(kWidth)}).Weight("w", {D(kWidth), D(kWidth)});
  std::string from = "x";
  for (int i = 0; i < kLayers; ++i) {
    const std::string to = i + 1 == kLayers ? "y" : absl::StrCat("h", i);
    if (i + 1 == kLayers) {
      g.Output(to, {D(int64_t{1}), D(kWidth)});
    } else {
      g.Activation(to, {D(int64_t{1}), D(kWidth)});
    }
    g.Call("gemv", {from, "w", None(), to});
    from = to;
  }
  return g.graph;
}

// Clients that each send a request after the other, together at most kRequestRate a second, until
// it is destroyed. `prepare` returns what sends one.
class Requests {
 public:
  using Prepare = std::function<std::function<void()>(client::Client&)>;
  static constexpr double kRequestRate = 5000;

  Requests(const std::string& address, const Prepare& prepare) {
    for (int i = 0; i < kClients; ++i) {
      threads_.emplace_back([this, address, prepare] {
        const auto own = Must(client::Client::Connect(address), "connect");
        const auto send = prepare(*own);
        send();
        ++ready_;
        constexpr std::chrono::duration<double> kPeriod(kClients / kRequestRate);
        for (auto next = Clock::now(); !ended_;) {
          send();
          ++sent_;
          next =
              std::max(next + std::chrono::duration_cast<Clock::duration>(kPeriod), Clock::now());
          std::this_thread::sleep_until(next);
        }
      });
    }
    while (ready_ < kClients) std::this_thread::yield();
    sent_ = 0;
    start_ = Clock::now();
  }
  ~Requests() {
    ended_ = true;
    for (std::thread& thread : threads_) thread.join();
  }
  double rate() const { return 1e6 * static_cast<double>(sent_) / UsSince(start_); }

 private:
  static constexpr int kClients = 8;
  std::atomic<bool> ended_{false};
  std::atomic<int> ready_{0};
  std::atomic<uint64_t> sent_{0};
  Clock::time_point start_;
  std::vector<std::thread> threads_;
};

// Adds of this lane beside clients that send requests to a model, and beside ones that run the same
// graph without a model, in turn.
void MeasureModels(const Daemon& daemon, client::Client& client, Lane& lane, BenchReport& report) {
  const v1::Graph graph = PerceptronGraph();
  const std::vector<float> weights(kWidth * kWidth, 1.0F / kWidth), row(kWidth, 1);
  const auto bytes = [](const std::vector<float>& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  };
  const std::string weight_bytes = bytes(weights), row_bytes = bytes(row);
  client::Models models(client);
  v1::LoadModelHeader header;
  header.set_name("perceptron");
  header.set_activate(true);
  *header.mutable_graph() = graph;
  const auto loaded = Must(models.Load(header, {{"w", weight_bytes}}), "load the model");
  if (loaded.version() == 0) Fail("the model is refused");
  const std::string graph_id = Must(client.LoadGraph(graph), "load the graph").graph_id();
  const Requests::Prepare to_model = [&](client::Client& own) {
    v1::ModelCall call;
    call.set_model("perceptron");
    v1::ModelTensor& x = *call.add_inputs();
    x.set_name("x");
    x.set_dtype(v1::DTYPE_F32);
    x.add_shape(1);
    x.add_shape(kWidth);
    x.set_data(row_bytes);
    return [call, of = std::make_shared<client::Models>(own)] {
      Must(of->Run(call), "a request to the model");
    };
  };
  const Requests::Prepare to_graph = [&](client::Client& own) {
    const auto buffer =
        std::make_shared<client::Buffer<float>>(Must(own.Upload(weights), "upload"));
    v1::RunGraphRequest run;
    run.set_graph_id(graph_id);
    v1::GraphBinding& w = *run.add_bindings();
    w.set_tensor("w");
    w.set_buffer_id(buffer->id());
    v1::GraphBinding& x = *run.add_bindings();
    x.set_tensor("x");
    x.set_data(row_bytes);
    return [run, buffer, &own] { Must(own.RunGraph(run), "a run of the graph"); };
  };
  Adds adds(client, kN, kSets, false);
  LaneAdds on_lane(lane, adds);
  std::vector<double> lone[3], rates[3], sent[3];  // Alone, beside the model, beside the graph.
  for (int round = 0; round < 3; ++round) {
    for (const int kind : {0, 1, 2}) {
      std::unique_ptr<Requests> requests;
      if (kind > 0) {
        requests = std::make_unique<Requests>(daemon.address(), kind == 1 ? to_model : to_graph);
      }
      const std::vector<double> us = on_lane.Lone(Rounds(30'000));
      lone[kind].insert(lone[kind].end(), us.begin(), us.end());
      rates[kind].push_back(on_lane.Many(Rounds(2'000'000)));
      if (requests != nullptr) sent[kind].push_back(requests->rate());
      requests = nullptr;
      adds.CheckResults(kSets, "adds beside requests");
    }
  }
  report.Add("requests to a model, beside adds", Percentile(sent[1], 0.5), "requests/s",
             "runs of its graph, beside adds", Percentile(sent[2], 0.5));
  for (const double p : {0.5, 0.99}) {
    const std::string which = absl::StrCat("p", 100 * p);
    const double beside = Percentile(lone[1], p);
    report.Add("lone add beside the model, " + which, beside, "us", "beside runs of its graph",
               Percentile(lone[2], p));
    report.Add("lone add beside the model, " + which, beside, "us", "without requests",
               Percentile(lone[0], p));
  }
  const double rate = Percentile(rates[1], 0.5);
  report.Add("adds through a lane, beside the model", rate, "tasks/s", "beside runs of its graph",
             Percentile(rates[2], 0.5));
  report.Add("adds through a lane, beside the model", rate, "tasks/s", "without requests",
             Percentile(rates[0], 0.5));
}

// What lanes without work cost: `Run` beside them, the daemon's processor; and the wake.
void MeasureIdle(const Daemon& daemon, client::Client& client, Lane& lane, BenchReport& report) {
  Adds adds(client, kN, 4, false);
  LaneAdds lane_adds(lane, adds);
  const double alone = Percentile(LoneRuns(client, adds, Rounds(4000)), 0.5);
  std::vector<std::unique_ptr<client::Client>> clients;
  std::vector<std::unique_ptr<Lane>> lanes;
  for (int i = 0; i < 64; ++i) {
    if (i % 16 == 0) clients.push_back(Must(client::Client::Connect(daemon.address()), "connect"));
    lanes.push_back(Must(clients.back()->OpenLane({.slots = 64}), "lane"));
  }
  report.Add("gRPC Run with 64 open lanes, p50",
             Percentile(LoneRuns(client, adds, Rounds(4000)), 0.5), "us", "gRPC Run with one, p50",
             alone);
  const std::vector<double> wake = lane_adds.Lone(Rounds(1000), std::chrono::microseconds(2000));
  report.Add("lone add after a pause of 2 ms, p50", Percentile(wake, 0.5), "us", "gRPC Run, p50",
             alone);
  report.Add("lone add after a pause of 2 ms, p99", Percentile(wake, 0.99), "us");
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  const uint64_t before = ProcessorNs(daemon.pid());
  const auto start = Clock::now();
  std::this_thread::sleep_for(std::chrono::milliseconds(absl::GetFlag(FLAGS_quick) ? 500 : 3000));
  report.Add("daemon with 65 asleep lanes",
             static_cast<double>(ProcessorNs(daemon.pid()) - before) / (UsSince(start) * 1e3) * 100,
             "% of a core");
}

int Run() {
  RingTimes ring;
  // Workers of the CPU engine sleep, and DeviceTasks does not wake them.
  if (absl::GetFlag(FLAGS_ring) && OnGpu()) ring = BareRing();
  const TempFolder folder("lane", "/tmp");
  std::vector<std::string> flags = {"--local_address=" + folder.path() + "/local",
                                    "--staging_mib=256", "--device_memory_mib=1024"};
  if (const char* const more = getenv("RESIDENT_TEST_LANE_FLAGS")) {
    for (const auto& flag : absl::StrSplit(more, ' ', absl::SkipEmpty())) flags.emplace_back(flag);
  }
  const Daemon daemon(flags);
  auto client = Must(client::Client::Connect(daemon.address()), "connect");
  auto lane = Must(client->OpenLane({.slots = kSlots, .data_bytes = uint64_t{16} << 20}), "lane");
  BenchReport report;
  if (ring.early > 0) {
    report.Add("bare ring, lone add of 1,024, p50", ring.early, "us");
    report.Add("bare ring after the fence, p50", ring.fenced, "us");
    for (const RingTimes::Answered& one : ring.answered) {
      report.Add(absl::StrCat("bare ring, the host answers after ", one.delay_ns,
                              " ns and the poller knows it, p50"),
                 one.known, "us", "the poller does not know it, p50", one.unknown);
    }
  }
  MeasureLone(*client, *lane, ring, report);
  MeasureMany(*client, *lane, report);
  Processes(daemon.address(), report);
  for (const int64_t us : {5, 20, 200}) MeasureShares(daemon.address(), us, report);
  MeasureModels(daemon, *client, *lane, report);
  MeasureIdle(daemon, *client, *lane, report);
  const v1::DeviceStatus device = daemon.Device();
  report.Write(absl::GetFlag(FLAGS_out), {{"device", device.name()},
                                          {"engine", device.engine()},
                                          {"processors", std::thread::hardware_concurrency()}});
  return 0;
}

}  // namespace
}  // namespace resident::testing

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const std::string child = absl::GetFlag(FLAGS_child);
  if (child == "ring") resident::testing::RunBareRing();
  return child.empty() ? resident::testing::Run() : resident::testing::RunChild(child);
}
