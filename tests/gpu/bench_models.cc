// Measures requests to models over gRPC, on a real daemon.
//
//   bench_models --out=FILE.json                    (tests/gpu/run runs it)
//
// Environment: RESIDENTD (the daemon's program), RESIDENT_TEST_DEVICES.
//
// The models are one `add`, and a perceptron with four layers of 512 (the first of 512 inputs),
// each in float32. Each is measured beside what does the same without a model: `add` as a task of
// Executor.Run, and the perceptron as a run of the loaded graph, whose weights are in buffers.
// Then: rows in one request, clients that send at the same time, a load and its first request, and
// changes of the version under load. Outputs are compared with results in double precision, or with
// those of the run of the graph; a wrong one, and a request that fails, ends the program with
// status 1. Speed never does.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstring>
#include <map>
#include <memory>
#include <random>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "absl/strings/str_cat.h"
#include "client/models.h"
#include "client/residentd_client.h"
#include "tests/daemon/daemon.h"
#include "tests/graph/graph_maker.h"
#include "tests/support/bench_report.h"

ABSL_FLAG(std::string, out, "", "file for the raw figures, as JSON");
ABSL_FLAG(std::string, gtest_output, "", "ignored: tests/gpu/run gives it to every check");
ABSL_FLAG(bool, quick, false, "a twentieth of the rounds, for a quick try");

namespace resident::testing {
namespace {

using Clock = std::chrono::steady_clock;
using Values = std::vector<float>;

constexpr int64_t kWidth = 512;
constexpr int kLayers = 4;
constexpr int64_t kMaxRows = 64;

uint64_t Rounds(uint64_t count) { return absl::GetFlag(FLAGS_quick) ? count / 20 + 1 : count; }
double UsSince(Clock::time_point start) {
  return std::chrono::duration<double, std::micro>(Clock::now() - start).count();
}
std::string ToBytes(const Values& values) {
  return {reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float)};
}
Values ToFloats(const std::string& bytes) {
  Values values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}
Values RandomValues(std::mt19937& random, int64_t count, float scale) {
  std::uniform_real_distribution<float> value(-scale, scale);
  Values values;
  for (int64_t i = 0; i < count; ++i) values.push_back(value(random));
  return values;
}

// The time of each call in microseconds, after a warm-up.
template <typename Call>
std::vector<double> Measure(uint64_t count, const Call& call) {
  for (uint64_t i = 0; i < count / 10 + 3; ++i) call();
  std::vector<double> us;
  for (uint64_t i = 0; i < count; ++i) {
    const auto start = Clock::now();
    call();
    us.push_back(UsSince(start));
  }
  return us;
}

struct Perceptron {
  explicit Perceptron(uint32_t seed) {
    std::mt19937 random(seed);
    for (int i = 0; i < kLayers; ++i) {
      weights.push_back(RandomValues(random, kWidth * kWidth, 0.06f));
      biases.push_back(RandomValues(random, kWidth, 0.5f));
    }
  }

  static v1::Graph Graph(int64_t max_rows = kMaxRows) {
    GraphMaker g;
    g.Scalar("rows", 1, max_rows).Input("x", {D("rows"), D(kWidth)});
    std::string from = "x";
    for (int i = 0; i < kLayers; ++i) {
      const std::string layer = absl::StrCat(i);
      g.Weight("w" + layer, {D(kWidth), D(kWidth)}).Weight("b" + layer, {D(kWidth)});
      const bool last = i + 1 == kLayers;
      const std::string to = last ? "y" : "h" + layer;
      last ? g.Output(to, {D("rows"), D(kWidth)}) : g.Activation(to, {D("rows"), D(kWidth)});
      g.Call("gemv", {from, "w" + layer, "b" + layer, to});
      from = to;
      if (last) break;
      g.Activation("r" + layer, {D("rows"), D(kWidth)}).Call("relu", {from, "r" + layer});
      from = "r" + layer;
    }
    return g.graph;
  }

  std::vector<double> Reference(const float* row) const {
    std::vector<double> x(row, row + kWidth);
    for (int i = 0; i < kLayers; ++i) {
      std::vector<double> y(kWidth);
      for (int64_t n = 0; n < kWidth; ++n) {
        y[n] = biases[i][n];
        for (int64_t k = 0; k < kWidth; ++k) y[n] += double{weights[i][n * kWidth + k]} * x[k];
        if (i + 1 < kLayers) y[n] = std::max(y[n], 0.0);
      }
      x = std::move(y);
    }
    return x;
  }

  std::vector<Values> weights, biases;
};

v1::ModelTensor* AddInput(v1::ModelCall& call, const std::string& name,
                          std::initializer_list<uint64_t> shape, const Values& values) {
  v1::ModelTensor* const tensor = call.add_inputs();
  tensor->set_name(name);
  tensor->set_dtype(v1::DTYPE_F32);
  for (const uint64_t size : shape) tensor->add_shape(size);
  tensor->set_data(ToBytes(values));
  return tensor;
}

class Bench {
 public:
  Bench()
      : client_(Must(client::Client::Connect(daemon_.address()), "connect")), models_(*client_) {}

  int Run() {
    MeasureAdd();
    MeasurePerceptron();
    MeasureClients();
    MeasureChanges();
    report_.Write(absl::GetFlag(FLAGS_out), {{"device", daemon_.Device().name()},
                                             {"engine", daemon_.Device().engine()},
                                             {"width", kWidth},
                                             {"layers", kLayers}});
    return 0;
  }

 private:
  uint32_t Load(const std::string& name, const v1::Graph& graph,
                const std::map<std::string, std::string_view>& weights, uint32_t instances,
                uint32_t max_combined_rows = 0) {
    v1::LoadModelHeader header;
    header.set_name(name);
    *header.mutable_graph() = graph;
    header.set_instances(instances);
    header.set_max_combined_rows(max_combined_rows);
    header.set_activate(true);
    const auto loaded = Must(models_.Load(header, weights), "load " + name);
    if (loaded.version() == 0) Fail(FindingsText(loaded.report()));
    return loaded.version();
  }
  uint32_t LoadPerceptron(const Perceptron& model, uint32_t instances,
                          uint32_t max_combined_rows = 0, int64_t max_rows = kMaxRows) {
    std::map<std::string, std::string> bytes;
    for (int i = 0; i < kLayers; ++i) {
      bytes[absl::StrCat("w", i)] = ToBytes(model.weights[i]);
      bytes[absl::StrCat("b", i)] = ToBytes(model.biases[i]);
    }
    return Load("perceptron", Perceptron::Graph(max_rows), {bytes.begin(), bytes.end()}, instances,
                max_combined_rows);
  }
  static v1::ModelCall PerceptronCall(const Values& x) {
    v1::ModelCall call;
    call.set_model("perceptron");
    AddInput(call, "x", {x.size() / kWidth, static_cast<uint64_t>(kWidth)}, x);
    return call;
  }
  static void CheckRows(const Perceptron& model, const Values& x, const std::string& bytes,
                        size_t rows_to_check) {
    const Values y = ToFloats(bytes);
    if (y.size() != x.size()) Fail("an answer has another size");
    for (size_t row = 0; row < std::min(rows_to_check, x.size() / kWidth); ++row) {
      const std::vector<double> expected = model.Reference(&x[row * kWidth]);
      for (int64_t n = 0; n < kWidth; ++n) {
        if (!(std::abs(y[row * kWidth + n] - expected[n]) <= 1e-4 * (1 + std::abs(expected[n])))) {
          Fail(absl::StrCat("row ", row, ", element ", n, " is ", y[row * kWidth + n], " and not ",
                            expected[n]));
        }
      }
    }
  }

  void MeasureAdd() {
    GraphMaker g;
    g.Input("x", {D(kWidth)}).Input("y", {D(kWidth)}).Output("out", {D(kWidth)});
    g.Call("add", {"x", "y", "out"});
    Load("add.model", g.graph, {}, 1);
    const Values x = RandomValues(random_, kWidth, 1), y = RandomValues(random_, kWidth, 1);
    v1::ModelCall call;
    call.set_model("add.model");
    AddInput(call, "x", {static_cast<uint64_t>(kWidth)}, x);
    AddInput(call, "y", {static_cast<uint64_t>(kWidth)}, y);
    client::TaskBatch batch("add");
    batch.Input(x, {static_cast<uint64_t>(kWidth)})
        .Input(y, {static_cast<uint64_t>(kWidth)})
        .Return<float>({static_cast<uint64_t>(kWidth)});
    const auto check = [&](const auto& out) {
      for (int64_t i = 0; i < kWidth; ++i) {
        if (out[i] != x[i] + y[i]) Fail("a sum is wrong");
      }
    };
    // In turn, so that both see the same machine.
    std::vector<double> task, model, on_device;
    for (int turn = 0; turn < 5; ++turn) {
      const auto of_task =
          Measure(Rounds(2000), [&] { check(Must(client_->Run(batch), "add").Output<float>(0)); });
      const auto of_model = Measure(Rounds(2000), [&] {
        const auto result = Must(models_.Run(call), "add.model");
        on_device.push_back(result.device_ns(0) * 1e-3);
        check(ToFloats(result.outputs(0)));
      });
      task.insert(task.end(), of_task.begin(), of_task.end());
      model.insert(model.end(), of_model.begin(), of_model.end());
    }
    report_.Add("model of one add, Executor.Run, p50", Percentile(model, 0.5), "us",
                "task of add, p50", Percentile(task, 0.5));
    report_.Add("model of one add, p99", Percentile(model, 0.99), "us", "task of add, p99",
                Percentile(task, 0.99));
    report_.Add("model of one add, on the device, p50", Percentile(on_device, 0.5), "us");
  }

  void MeasurePerceptron() {
    const Perceptron model(random_());
    const auto start = Clock::now();
    LoadPerceptron(model, 1);
    report_.Add("load of the perceptron (4.2 MB)", UsSince(start) * 1e-3, "ms");
    // The same as a run of the loaded graph.
    std::vector<client::Buffer<float>> buffers;
    v1::RunGraphRequest run;
    run.set_graph_id(Must(client_->LoadGraph(Perceptron::Graph()), "load the graph").graph_id());
    for (int i = 0; i < kLayers; ++i) {
      for (const auto& [name, values] :
           {std::pair{"w", &model.weights[i]}, {"b", &model.biases[i]}}) {
        buffers.push_back(Must(client_->Upload(*values), "upload"));
        v1::GraphBinding& binding = *run.add_bindings();
        binding.set_tensor(absl::StrCat(name, i));
        binding.set_buffer_id(buffers.back().id());
      }
    }
    for (const int64_t rows : {int64_t{1}, int64_t{16}, kMaxRows}) {
      const Values x = RandomValues(random_, rows * kWidth, 1);
      const v1::ModelCall call = PerceptronCall(x);
      (*run.mutable_scalars())["rows"] = static_cast<double>(rows);
      v1::RunGraphRequest request = run;
      request.add_bindings()->set_tensor("x");
      Values all = x;
      all.resize(kMaxRows * kWidth);
      request.mutable_bindings(request.bindings_size() - 1)->set_data(ToBytes(all));
      std::vector<double> on_device;
      std::string answer;
      const auto of_run = Measure(Rounds(300), [&] {
        const auto result = Must(client_->RunGraph(request), "run");
        if (result.outputs(0).data().empty()) Fail("the run has no output");
      });
      const auto of_model = Measure(Rounds(2000), [&] {
        const auto result = Must(models_.Run(call), "perceptron");
        on_device.push_back(result.device_ns(0) * 1e-3);
        answer = result.outputs(0);
      });
      CheckRows(model, x, answer, 4);
      const std::string what = absl::StrCat("perceptron, ", rows, rows == 1 ? " row" : " rows");
      report_.Add(what + ", request to the model, p50", Percentile(of_model, 0.5), "us",
                  "run of the loaded graph, p50", Percentile(of_run, 0.5));
      report_.Add(what + ", on the device, p50", Percentile(on_device, 0.5), "us");
    }
    MeasureOneRow(model);
  }

  // What a plan of its own for one row would gain.
  void MeasureOneRow(const Perceptron& model) {
    const Values x = RandomValues(random_, kWidth, 1);
    std::map<int64_t, std::vector<double>> on_device;  // By the rows for which it was loaded.
    for (int turn = 0; turn < 3; ++turn) {
      for (const int64_t rows : {int64_t{1}, kMaxRows}) {
        LoadPerceptron(model, 1, /*max_combined_rows=*/0, rows);
        Measure(Rounds(1000), [&] {
          const auto result = Must(models_.Run(PerceptronCall(x)), "perceptron");
          on_device[rows].push_back(result.device_ns(0) * 1e-3);
        });
      }
    }
    report_.Add("perceptron, 1 row, loaded for 1 row, on the device, p50",
                Percentile(on_device[1], 0.5), "us", "loaded for 64 rows",
                Percentile(on_device[kMaxRows], 0.5));
  }

  // Requests of one row by many clients; per second.
  double MeasureRate(const Perceptron& model, int clients) {
    std::atomic<uint64_t> served{0};
    std::atomic<bool> ended{false};
    std::vector<std::thread> threads;
    const auto start = Clock::now();
    for (int c = 0; c < clients; ++c) {
      threads.emplace_back([&, seed = random_()] {
        std::mt19937 random(seed);
        const Values x = RandomValues(random, kWidth, 1);
        const v1::ModelCall call = PerceptronCall(x);
        const auto own = Must(client::Client::Connect(daemon_.address()), "connect");
        client::Models models(*own);
        while (!ended) {
          const auto result = Must(models.Run(call), "perceptron");
          if (served++ % 997 == 0) CheckRows(model, x, result.outputs(0), 1);
        }
      });
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(absl::GetFlag(FLAGS_quick) ? 200 : 2000));
    ended = true;
    for (std::thread& thread : threads) thread.join();
    return static_cast<double>(served) / UsSince(start) * 1e6;
  }

  void MeasureClients() {
    const Perceptron model(random_());
    for (const uint32_t instances : {1u, 2u, 8u}) {
      LoadPerceptron(model, instances, /*max_combined_rows=*/1);
      std::map<int, double> single;
      for (const int clients : {1, 8, 32}) single[clients] = MeasureRate(model, clients);
      Must(models_.Remove("perceptron"), "remove");
      const uint32_t version = LoadPerceptron(model, instances);
      for (const int clients : {1, 8, 32}) {
        report_.Add(absl::StrCat(clients, " clients, ", instances, " instances, with batching"),
                    MeasureRate(model, clients), "requests/s", "without", single[clients]);
      }
      const auto list = Must(models_.List("perceptron"), "list");
      for (const v1::ModelVersion& each : list.at(0).versions()) {
        if (each.version() != version) continue;
        report_.Add(absl::StrCat("rows of an execution, ", instances, " instances"),
                    static_cast<double>(each.rows()) / static_cast<double>(each.executions()),
                    "rows");
      }
      Must(models_.Remove("perceptron"), "remove");
    }
  }

  // Requests while the version changes.
  void MeasureChanges() {
    const Perceptron first(random_()), second(random_());
    const uint32_t one = LoadPerceptron(first, 4);
    const uint32_t two = LoadPerceptron(second, 4);
    std::atomic<uint64_t> served{0};
    std::atomic<bool> ended{false};
    std::vector<std::thread> threads;
    for (int c = 0; c < 8; ++c) {
      threads.emplace_back([&, seed = random_()] {
        std::mt19937 random(seed);
        const Values x = RandomValues(random, kWidth, 1);
        const v1::ModelCall call = PerceptronCall(x);
        const auto own = Must(client::Client::Connect(daemon_.address()), "connect");
        client::Models models(*own);
        while (!ended) {
          const auto result = Must(models.Run(call), "a request while versions change");
          if (served++ % 97 != 0) continue;
          if (result.version() != one && result.version() != two) Fail("another version served");
          CheckRows(result.version() == one ? first : second, x, result.outputs(0), 1);
        }
      });
    }
    std::vector<double> us;
    const uint64_t wanted = Rounds(100'000);
    while (served < wanted) {
      const auto start = Clock::now();
      Must(models_.Rollback("perceptron"), "rollback");
      us.push_back(UsSince(start));
    }
    ended = true;
    for (std::thread& thread : threads) thread.join();
    report_.Add("requests while versions change", static_cast<double>(served.load()), "requests");
    report_.Add("failed or wrong", 0, "requests");
    report_.Add("changes of the version", static_cast<double>(us.size()), "changes");
    report_.Add("a change, as a call, p50", Percentile(us, 0.5), "us");
  }

  const Daemon daemon_;
  const std::unique_ptr<client::Client> client_;
  client::Models models_;
  std::mt19937 random_{std::random_device{}()};
  BenchReport report_;
};

}  // namespace
}  // namespace resident::testing

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  return resident::testing::Bench().Run();
}
