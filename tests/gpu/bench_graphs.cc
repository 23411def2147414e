#include "tests/gpu/bench_graphs.h"

#include <algorithm>
#include <atomic>
#include <bit>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/cli/llama_import.h"
#include "nlohmann/json.hpp"
#include "tests/gpu/cuda_graphs.h"
#include "tests/gpu/device_graph.h"
#include "tests/gpu/device_tasks.h"
#include "tests/gpu/graph_breakdown.h"
#include "tests/gpu/llama_shape.h"
#include "tests/graph/graph_maker.h"
#include "tests/support/bench_report.h"
#include "tests/support/engine_harness.h"

namespace resident::testing {
namespace {

using Clock = std::chrono::steady_clock;
using Micros = std::chrono::duration<double, std::micro>;
using Kind = v1::GraphTensor;
using Edges = CudaGraphs::Edges;

constexpr auto kWatchdogTimeout = std::chrono::seconds(100);
constexpr auto kParkTimeout = std::chrono::seconds(10);
// Elements of the vectors of small graphs.
constexpr int64_t kVector = 16;
// Nodes of a chain whose nodes are measured, and steps of its quanta.
constexpr int kChainNodes = 100;
constexpr uint32_t kChainSteps = 50;
constexpr uint32_t kDecodeSteps = 8;
constexpr uint64_t kContext = 2304;
// Keys of the cache in the steps that are compared with each other.
constexpr uint64_t kKeys = 160;
// Elements of the lone and the sustained tasks.
constexpr uint64_t kTaskElements = 1024;
constexpr uint64_t kTaskBytes = kTaskElements * sizeof(float);

// Ends the program if a part takes too long: a GPU that hangs never answers.
class Watchdog {
 public:
  Watchdog() {
    std::thread([this] {
      while (true) {
        std::this_thread::sleep_for(std::chrono::seconds(1));
        if (Clock::now() - Clock::time_point(Clock::duration(began_)) < kWatchdogTimeout) continue;
        Fail(absl::StrCat("'", part_.load(), "' has not ended within ", kWatchdogTimeout.count(),
                          " seconds; the GPU or the kernel hangs"));
      }
    }).detach();
  }
  // `part`: a literal.
  void Begin(const char* part) {
    part_ = part;
    began_ = Clock::now().time_since_epoch().count();
  }

 private:
  std::atomic<const char*> part_{"start"};
  std::atomic<Clock::rep> began_{Clock::now().time_since_epoch().count()};
};

// The tensors that a node of a chain reads and writes: add and gemv do not work in place.
struct Link {
  const char* from;
  const char* to;
};
Link LinkOf(int node) { return node % 2 == 0 ? Link{"x", "between"} : Link{"between", "x"}; }

// `nodes` additions of y to x, one after the other; a single one leaves x as it is. With `record`,
// x is sent after each step.
v1::Graph AddChain(int nodes, bool record) {
  GraphMaker maker;
  maker.graph.set_name(absl::StrCat("chain of ", nodes));
  maker.State("x", {D(kVector)}).Input("y", {D(kVector)}).Activation("between", {D(kVector)});
  if (record) maker.Tensor(Kind::KIND_STREAM, "record", {D(kDecodeSteps), D(kVector)});
  for (int i = 0; i < nodes; ++i) maker.Call("add", {LinkOf(i).from, "y", LinkOf(i).to, F(1)});
  if (record) maker.Call("copy", {"x", "record"});
  maker.graph.mutable_loop()->set_max_steps(record ? kDecodeSteps : kChainSteps);
  return std::move(maker.graph);
}

// A chain of products of `chunks` chunks: each takes the first elements of the one before it, and
// adds y to them.
v1::Graph WideChain(int64_t chunks) {
  constexpr int64_t kChunk = 8;  // Outputs of gemv in a chunk.
  const int64_t outputs = chunks * kChunk;
  GraphMaker maker;
  maker.graph.set_name(absl::StrCat("chain of ", chunks, " chunks"));
  maker.State("x", {D(1), D(outputs)}).Activation("between", {D(1), D(outputs)});
  maker.Input("w", {D(outputs), D(kVector)}).Input("y", {D(outputs)});
  static_assert(kChainNodes % 2 == 0, "the last node writes x");
  for (int i = 0; i < kChainNodes; ++i) {
    maker.Call("gemv", {View(LinkOf(i).from, {D(1), D(kVector)}), "w", "y", LinkOf(i).to});
  }
  maker.graph.mutable_loop()->set_max_steps(kChainSteps);
  return std::move(maker.graph);
}

class Bench {
 public:
  Bench(const GraphBenchOptions& options, EngineHarness* harness, BenchReport* report,
        Watchdog* watchdog)
      : options_(options),
        harness_(*harness),
        report_(*report),
        watchdog_(*watchdog),
        ring_(harness->NewRing()) {}

  void Run() {
    if (!options_.cpu) {
      watchdog_.Begin("loading the baselines");
      WhileParked([&] { cuda_ = std::make_unique<CudaGraphs>(/*ordinal=*/0); });
    }
    if (Selected("empty")) EmptyGraphs();
    if (Selected("chain")) Chains();
    WriteReport();
    if (!Selected("decode") && !Selected("quantized") && !Selected("texts") &&
        !Selected("beside")) {
      return;
    }
    shape_ = options_.cpu ? LlamaShape{.hidden = 64,
                                       .layers = 2,
                                       .heads = 4,
                                       .kv_heads = 2,
                                       .head_dim = 16,
                                       .intermediate = 128,
                                       .vocab = 512}
                          : LlamaShape{};
    decode_ = MakeDecoder("", std::nullopt);
    // Other weights and several texts are measured beside this step.
    const bool steps = Selected("decode") || Selected("quantized") || Selected("texts");
    if (steps && cuda_ != nullptr) MeasureRead(*decode_.graph);
    if (steps) Decode(decode_, kKeys);
    if (Selected("decode")) Decode(decode_, 2048);
    WriteReport();
    if (Selected("quantized")) {
      for (const uint32_t bits : {8u, 4u}) {
        Decoder quantized =
            MakeDecoder(absl::StrCat("int", bits, " weights, "), Quantization{.bits = bits});
        quantized.beside = "weights of bfloat16";
        Decode(quantized, kKeys);
        WriteReport();
      }
    }
    if (Selected("texts")) {
      for (const uint64_t texts : {4u, 8u, 16u}) {
        Decoder several = MakeDecoder(absl::StrCat(texts, " texts, "), std::nullopt, texts);
        several.beside = "one text";
        Decode(several, kKeys);
        WriteReport();
      }
    }
    if (Selected("beside")) Beside();
    WriteReport();
  }

  // What was wrong; empty: nothing.
  const std::string& wrong() const { return wrong_; }

 private:
  bool Selected(const std::string& part) const {
    return options_.only.empty() || absl::StrContains(options_.only, part);
  }
  int Rounds(int rounds) const { return options_.quick ? rounds / 10 + 1 : rounds; }

  // Called after each part, because a later one may end the program.
  void WriteReport() const {
    report_.Write(options_.out, {{"device", harness_.info().name},
                                 {"detail", harness_.info().detail},
                                 {"traces", traces_}});
  }

  // Calls `measure` while no kernel is on the device.
  template <typename Measure>
  void WhileParked(const Measure& measure) {
    if (!ring_->PublishPark()) Fail("the ring is full");
    if (const auto parked = harness_.engine().AwaitPark(kParkTimeout); !parked.ok()) {
      Fail(absl::StrCat("the kernel does not leave: ", parked.ToString()));
    }
    measure();
    if (const auto resumed = harness_.engine().Resume(); !resumed.ok()) {
      Fail(absl::StrCat("the kernel cannot be launched again: ", resumed.ToString()));
    }
    ring_->NoteResumed();
  }

  template <typename T>
  void Write(uint64_t to, const std::vector<T>& values) {
    const auto staging = staging_scratch_;
    if (values.size() * sizeof(T) > kScratchBytes) Fail("too many values for one write");
    std::memcpy(staging.host, values.data(), values.size() * sizeof(T));
    device_.Copy(to, staging.address, values.size() * sizeof(T));
  }
  void Clear(const DeviceGraph::Memory& memory) {
    device_.RunTask(
        ArgumentTask(OperatorSlot("zero"), 1, 1),
        {DenseTensor(memory.address, DType::kU8, {static_cast<int64_t>(memory.bytes)})});
  }
  void CheckVector(uint64_t address, double expected, const std::string& what) {
    std::vector<float> got(kVector);
    device_.Download(got.data(), address, got.size() * sizeof(float));
    for (const float value : got) {
      if (value != expected) Fail(absl::StrCat(what, ": ", value, " and not ", expected));
    }
  }

  // The times of quanta, from submission to completion. Rounds of a warm-up are left out.
  std::vector<double> MeasureQuanta(DeviceGraph& graph, uint32_t steps, int rounds) {
    graph.Prepare(steps);
    const int warm_up = rounds / 10 + 1;
    std::vector<double> us;
    for (int i = 0; i < warm_up + rounds; ++i) {
      const auto start = Clock::now();
      graph.Run(*ring_);
      if (i >= warm_up) us.push_back(Micros(Clock::now() - start).count());
    }
    return us;
  }
  // The same for CUDA graphs that are launched one after the other. REQUIRES: parked.
  std::vector<double> MeasureLaunches(const std::vector<size_t>& graphs, int rounds) {
    const int warm_up = rounds / 10 + 1;
    std::vector<double> us;
    for (int i = 0; i < warm_up + rounds; ++i) {
      const auto start = Clock::now();
      for (const size_t graph : graphs) cuda_->Launch(graph);
      cuda_->Synchronize();
      if (i >= warm_up) us.push_back(Micros(Clock::now() - start).count());
    }
    return us;
  }

  void EmptyGraphs() {
    for (const int nodes : {1, 10, 100}) {
      watchdog_.Begin("small graphs");
      DeviceGraph graph(harness_, device_, AddChain(nodes, /*record=*/false), kChainSteps);
      const uint64_t x = graph.MemoryOf("x").address;
      const uint64_t last = graph.MemoryOf(LinkOf(nodes - 1).to).address;
      Write(graph.MemoryOf("y").address, std::vector<float>(kVector, 1));
      Clear(graph.MemoryOf("x"));
      const int rounds = Rounds(3000);
      const std::vector<double> ours = MeasureQuanta(graph, 1, rounds);
      // Whole numbers are exact.
      const double sum = nodes == 1 ? 1 : (rounds + rounds / 10 + 1) * nodes;
      const std::string what =
          absl::StrCat("graph of ", nodes, nodes == 1 ? " node" : " nodes in a chain");
      CheckVector(last, sum, what);
      if (nodes == 1) {
        std::vector<double> after_a_pause;
        for (int i = 0; i < Rounds(30); ++i) {
          std::this_thread::sleep_for(std::chrono::milliseconds(30));
          const auto start = Clock::now();
          graph.Run(*ring_);
          after_a_pause.push_back(Micros(Clock::now() - start).count());
        }
        report_.Add(absl::StrCat(what, ", after 30 ms without graphs, p50"),
                    Percentile(after_a_pause, 0.5), "us");
      }
      const std::string figure = absl::StrCat(what, ", submit to completion");
      if (cuda_ == nullptr) {
        report_.AddPercentiles(figure, ours);
        continue;
      }
      std::vector<double> launches;
      WhileParked([&] {
        cuda_->Clear(x, graph.MemoryOf("x").bytes);
        cuda_->Clear(last, graph.MemoryOf("x").bytes);
        launches = MeasureLaunches({cuda_->Add(graph.Calls(0, 0), Edges::kChain).value()}, rounds);
      });
      CheckVector(last, sum, "CUDA graph of additions");
      for (const auto& [name, p] : {std::pair{"p50", 0.5}, std::pair{"p99", 0.99}}) {
        report_.Add(absl::StrCat(figure, ", ", name), Percentile(ours, p), "us",
                    "CUDA graph, launch + synchronize", Percentile(launches, p));
      }
    }
    FirstRecord();
  }

  // From the submission of a quantum of one step until its record can be read, beyond the time of
  // the step itself.
  void FirstRecord() {
    constexpr int kNodes = 2;
    DeviceGraph graph(harness_, device_, AddChain(kNodes, /*record=*/true), kDecodeSteps);
    Write(graph.MemoryOf("y").address, std::vector<float>(kVector, 1));
    Clear(graph.MemoryOf("x"));
    const int rounds = Rounds(3000);
    const double many = Percentile(MeasureQuanta(graph, kDecodeSteps, rounds), 0.5);
    Clear(graph.MemoryOf("x"));
    const double one = Percentile(MeasureQuanta(graph, 1, rounds), 0.5);
    float got = 0;
    std::memcpy(&got, graph.records(0), sizeof(got));
    if (got != kNodes * (rounds + rounds / 10 + 1)) Fail(absl::StrCat("the record has ", got));
    report_.Add("submit to the record of a small graph, beyond its step, p50",
                one - (many - one) / (kDecodeSteps - 1), "us");
  }

  void Chains() {
    watchdog_.Begin("chains");
    {
      DeviceGraph graph(harness_, device_, AddChain(kChainNodes, /*record=*/false), kChainSteps);
      Write(graph.MemoryOf("y").address, std::vector<float>(kVector, 1));
      Chain(graph, "a node of a chain on one block");
    }
    // The second is as many as the schedule of a GPU has members at most.
    const auto wide = static_cast<int64_t>(std::max(harness_.info().workers / 2, 3u));
    for (const int64_t chunks : {int64_t{2}, wide}) {
      watchdog_.Begin("chains across blocks");
      DeviceGraph graph(harness_, device_, WideChain(chunks), kChainSteps);
      std::vector<float> identity(graph.MemoryOf("w").bytes / sizeof(float));
      for (size_t i = 0; i < identity.size(); ++i) {
        identity[i] = i / kVector % kVector == i % kVector ? 1.0f : 0.0f;
      }
      Write(graph.MemoryOf("w").address, identity);
      Write(graph.MemoryOf("y").address,
            std::vector<float>(graph.MemoryOf("y").bytes / sizeof(float), 1));
      Chain(graph, absl::StrCat("a node of a chain across ",
                                graph.gang() == 0 ? chunks : graph.gang(), " blocks"));
    }
  }

  // How much of a node's time is that of its operator.
  void AddParts(const std::vector<GraphTraceEvent>& events) {
    std::map<std::pair<uint32_t, uint32_t>, std::pair<uint64_t, uint64_t>> nodes;
    for (const GraphTraceEvent& event : events) {
      const auto [node, is_new] =
          nodes.try_emplace({event.step, event.node}, event.begin_ns, event.end_ns);
      node->second.first = std::min<uint64_t>(node->second.first, event.begin_ns);
      node->second.second = std::max<uint64_t>(node->second.second, event.end_ns);
    }
    double inside = 0;
    double between = 0;
    uint64_t previous_end = 0;
    for (const auto& [node, times] : nodes) {
      inside += static_cast<double>(times.second - times.first);
      // The clocks of two SMs may differ by some nanoseconds.
      if (previous_end != 0) {
        between += static_cast<double>(static_cast<int64_t>(times.first - previous_end));
      }
      previous_end = times.second;
    }
    const auto count = static_cast<double>(std::max<size_t>(nodes.size(), 1));
    report_.Add("  from the begin of its first chunk to the end of its last", inside / count / 1e3,
                "us");
    report_.Add("  from there to the begin of the next node", between / count / 1e3, "us");
  }

  void Chain(DeviceGraph& graph, const std::string& what) {
    constexpr double kNodes = kChainNodes;
    const DeviceGraph::Memory x = graph.MemoryOf("x");
    Clear(x);
    const int rounds = Rounds(100);
    const double ours = Percentile(MeasureQuanta(graph, kChainSteps, rounds), 0.5);
    const double all = (rounds + rounds / 10 + 1) * kNodes * kChainSteps;
    CheckVector(x.address, all, what);
    AddParts(graph.Trace(*ring_));
    std::optional<double> chain, programmatic;
    if (cuda_ != nullptr) {
      WhileParked([&] {
        const auto measure = [&](Edges edges) -> std::optional<double> {
          const std::optional<size_t> launch = cuda_->Add(graph.Calls(0, 0), edges);
          if (!launch.has_value()) return std::nullopt;
          cuda_->Clear(x.address, x.bytes);
          const double us =
              Percentile(MeasureLaunches(std::vector<size_t>(kChainSteps, *launch), rounds), 0.5);
          float got = 0;
          cuda_->Download(&got, x.address, sizeof(got));
          if (got != all) Fail(absl::StrCat(what, ", as a CUDA graph: ", got, " and not ", all));
          return us;
        };
        chain = measure(Edges::kChain);
        programmatic = measure(Edges::kProgrammatic);
      });
    }
    const double nodes = kNodes * kChainSteps;
    if (!chain.has_value()) report_.Add(what, ours / nodes, "us");
    if (chain.has_value()) report_.Add(what, ours / nodes, "us", "CUDA graph", *chain / nodes);
    if (programmatic.has_value()) {
      report_.Add(what, ours / nodes, "us", "the same, programmatic launch", *programmatic / nodes);
    }
  }

  // A graph that decodes.
  struct Decoder {
    // Of its weights, or the number of its texts, in front of the number of keys; empty: bfloat16
    // and one text.
    std::string name;
    uint64_t texts = 1;
    std::unique_ptr<DeviceGraph> graph;
    // Of the CUDA graphs' steps.
    uint64_t cuda_records = 0;
    // The time of a step with kKeys keys.
    double step_us = 0;
    // What decode_ has in its place; null: this is decode_.
    const char* beside = nullptr;

    // The tensors or scalars of all texts.
    std::vector<std::string> OfTexts(const char* of_one) const {
      if (texts == 1) return {of_one};
      std::vector<std::string> names;
      for (uint64_t text = 0; text < texts; ++text) names.push_back(absl::StrCat(of_one, text));
      return names;
    }
  };

  Decoder MakeDecoder(std::string name, std::optional<Quantization> quantization,
                      uint64_t texts = 1) {
    watchdog_.Begin("the weights of the decode");
    Decoder decoder;
    decoder.name = std::move(name);
    decoder.texts = texts;
    decoder.graph = std::make_unique<DeviceGraph>(
        harness_, device_, MakeLlamaGraph(shape_, kContext, quantization, texts), kDecodeSteps);
    DeviceGraph& decode = *decoder.graph;
    std::printf("decode: %s%u nodes, a gang of %u, %llu bytes of weights a step\n",
                decoder.name.c_str(), decode.nodes(), decode.gang(),
                static_cast<unsigned long long>(WeightBytes(decode)));
    std::fflush(stdout);
    // Pieces of a block of random numbers, each from another place.
    constexpr uint64_t kBlock = uint64_t{8} << 20;
    std::mt19937_64 random(20260101);
    std::normal_distribution<float> normal(0, 0.02f);
    std::vector<uint16_t> block(kBlock);
    for (uint16_t& bits : block) {
      bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(random)) >> 16);
    }
    const uint64_t source = device_.Upload(block.data(), block.size() * sizeof(uint16_t));
    // Weights of few bits are equally distributed, with scales that give them the same deviation.
    for (uint16_t& bits : block) bits = static_cast<uint16_t>(random());
    const uint64_t source_of_bits =
        quantization.has_value() ? device_.Upload(block.data(), block.size() * sizeof(uint16_t))
                                 : 0;
    const double scale = quantization.has_value() && quantization->bits == 4 ? 4.3e-3 : 2.7e-4;
    const auto fill = [&](const DeviceGraph::Memory& memory, DType dtype, double value) {
      device_.RunTask(ArgumentTask(OperatorSlot("fill"), 2, 1),
                      {DenseTensor(memory.address, dtype,
                                   {static_cast<int64_t>(memory.bytes / sizeof(uint16_t))}),
                       Scalar(Bits(value))});
    };
    const graph::Graph& graph = decode.graph();
    for (uint32_t i = 0; i < graph.tensors.size(); ++i) {
      if (graph.tensors[i].root != i) continue;
      const DeviceGraph::Memory memory = decode.MemoryOf(i);
      const std::string name(graph.tensors[i].name);
      if (absl::StrContains(name, "norm.weight")) {
        fill(memory, DType::kBF16, 1.0);
      } else if (absl::EndsWith(name, cli::LlamaGraph::kScalesSuffix)) {
        fill(memory, DType::kF16, scale);
      } else if (graph.tensors[i].kind == graph::TensorKind::kWeight ||
                 absl::StartsWith(name, "cache")) {
        for (uint64_t at = 0; at < memory.bytes; at += kBlock) {  // Half of the block's bytes.
          const uint64_t start = random() % (kBlock / 16) * 16;
          const bool few_bits = SizeOf(graph.tensors[i].view.dtype) == 1;
          device_.Copy(memory.address + at, (few_bits ? source_of_bits : source) + start,
                       std::min(kBlock, memory.bytes - at));
        }
      } else {
        Clear(memory);
      }
    }
    for (const std::string& scalar : decoder.OfTexts("prompt_len")) decode.SetScalar(scalar, 1);
    return decoder;
  }

  void SetPosition(Decoder& decoder, uint64_t keys) {
    // The first step attends to `keys` keys.
    for (const char* const of_one : {"pos", "position"}) {
      for (const std::string& scalar : decoder.OfTexts(of_one)) {
        decoder.graph->SetScalar(scalar, static_cast<double>(keys - 1));
      }
    }
    if (decoder.texts == 1) return;
    // The first step reads the last token of the prompt, which is another one for each text.
    int64_t token = 0;
    for (const std::string& prompt : decoder.OfTexts("prompt")) {
      device_.Copy(decoder.graph->MemoryOf(prompt).address + (keys - 1) * sizeof(token),
                   device_.Upload(&token, sizeof(token)), sizeof(token));
      ++token;
    }
    for (const std::string& scalar : decoder.OfTexts("prompt_len")) {
      decoder.graph->SetScalar(scalar, static_cast<double>(keys));
    }
  }

  // Of the weights that a step reads: of the table of embeddings it reads one row.
  static uint64_t WeightBytes(const DeviceGraph& decode) {
    const graph::Graph& graph = decode.graph();
    uint64_t bytes = 0;
    for (uint32_t i = 0; i < graph.tensors.size(); ++i) {
      if (graph.tensors[i].kind != graph::TensorKind::kWeight || graph.tensors[i].root != i)
        continue;
      if (graph.tensors[i].name == "model.embed_tokens.weight") continue;
      bytes += decode.MemoryOf(i).bytes;
    }
    return bytes;
  }
  uint64_t KeyBytes(uint64_t keys) const {
    return static_cast<uint64_t>(shape_.layers * 2 * shape_.kv_heads * shape_.head_dim) * keys *
           sizeof(uint16_t);
  }

  void MeasureRead(const DeviceGraph& decode) {
    // The largest range of memory that is certainly there: the engine's, which begins with the
    // tensors of the graphs.
    const uint64_t bytes = std::min(WeightBytes(decode), harness_.info().memory_bytes);
    WhileParked([&] {
      read_bytes_per_s_ = cuda_->MeasureReadBytesPerSecond(harness_.info().memory_address, bytes);
    });
    report_.Add("plain read of the bytes of the weights", read_bytes_per_s_, "bytes/s");
  }

  struct Tokens {
    std::vector<int64_t> tokens;
    std::vector<float> logits;  // Of the last step.
  };

  void Decode(Decoder& decoder, uint64_t keys) {
    watchdog_.Begin("decode");
    DeviceGraph& decode = *decoder.graph;
    SetPosition(decoder, keys);
    const std::string with = absl::StrCat(decoder.name, keys, " keys");
    const std::string what = absl::StrCat("decode step, ", with);
    const DeviceGraph::Memory logits = decode.MemoryOf("logits");

    for (const std::string& text : decoder.OfTexts("text")) Clear(decode.MemoryOf(text));
    decode.Prepare(kDecodeSteps);
    decode.Run(*ring_);
    Tokens ours;
    ours.tokens.resize(kDecodeSteps * decoder.texts);
    for (uint32_t step = 0; step < kDecodeSteps; ++step) {
      std::memcpy(&ours.tokens[step * decoder.texts], decode.records(step),
                  decoder.texts * sizeof(int64_t));
    }
    bool same = decoder.texts > 1;
    for (size_t i = 0; i < ours.tokens.size(); ++i) {
      same &= ours.tokens[i] == ours.tokens[i / decoder.texts * decoder.texts];
    }
    if (same) Fail("all texts have the same tokens");
    ours.logits.resize(logits.bytes / sizeof(float));
    device_.Download(ours.logits.data(), logits.address, logits.bytes);
    if (!std::isfinite(ours.logits[0])) Fail("the logits are not finite");

    const double many = Percentile(MeasureQuanta(decode, kDecodeSteps, Rounds(100)), 0.5);
    const double one = Percentile(MeasureQuanta(decode, 1, Rounds(200)), 0.5);
    const double step_us = many / kDecodeSteps;
    if (keys == kKeys) decoder.step_us = step_us;
    if (cuda_ == nullptr) {
      report_.Add(what, step_us, "us");
    } else {
      DecodeBaselines(decoder, what, step_us, ours);
      const auto bytes = static_cast<double>(WeightBytes(decode) + decoder.texts * KeyBytes(keys));
      report_.Add(what, step_us, "us", "plain read of its bytes", 1e6 * bytes / read_bytes_per_s_);
    }
    if (decoder.beside != nullptr) {
      report_.Add(what, step_us, "us", decoder.beside, decode_.step_us);
    }
    report_.Add(absl::StrCat("submit to the first token, beyond the step, ", with, ", p50"),
                one - (many - one) / (kDecodeSteps - 1), "us");

    watchdog_.Begin("trace of a decode");
    decode.Prepare(kDecodeSteps);
    const std::vector<GraphTraceEvent> events = decode.Trace(*ring_);
    if (events.empty()) return;
    const GraphBreakdown breakdown =
        BreakDown(decode.Operators(), decode.Predecessors(), events, kDecodeSteps / 2);
    breakdown.Print();
    traces_[what] = breakdown.ToJson();
  }

  void DecodeBaselines(Decoder& decoder, const std::string& what, double step_us,
                       const Tokens& ours) {
    const DeviceGraph& decode = *decoder.graph;
    struct Way {
      const char* name;
      Edges edges;
      std::optional<double> us;
      Tokens tokens;
    };
    Way ways[] = {{"CUDA graph, nodes in a chain", Edges::kChain, {}, {}},
                  {"CUDA graph, nodes by dependencies", Edges::kDependencies, {}, {}},
                  {"CUDA graph, programmatic launch", Edges::kProgrammatic, {}, {}}};
    const DeviceGraph::Memory logits = decode.MemoryOf("logits");
    if (decoder.cuda_records == 0) {
      decoder.cuda_records = device_.Memory(kDecodeSteps * decode.record_bytes());
    }
    WhileParked([&] {
      for (Way& way : ways) {
        watchdog_.Begin(way.name);
        std::vector<size_t> steps;
        for (uint32_t step = 0; step < kDecodeSteps; ++step) {
          const uint64_t record = decoder.cuda_records + step * decode.record_bytes();
          const std::optional<size_t> launch = cuda_->Add(decode.Calls(step, record), way.edges);
          if (!launch.has_value()) break;
          steps.push_back(*launch);
        }
        if (steps.size() < kDecodeSteps) continue;
        for (const std::string& name : decoder.OfTexts("text")) {
          const DeviceGraph::Memory text = decode.MemoryOf(name);
          cuda_->Clear(text.address, text.bytes);
        }
        // Nothing of the way before is taken for this one's.
        cuda_->Clear(logits.address, logits.bytes);
        cuda_->Clear(decoder.cuda_records, kDecodeSteps * decode.record_bytes());
        for (const size_t step : steps) cuda_->Launch(step);
        cuda_->Synchronize();
        way.tokens.tokens.resize(ours.tokens.size());
        for (uint32_t step = 0; step < kDecodeSteps; ++step) {
          cuda_->Download(&way.tokens.tokens[step * decoder.texts],
                          decoder.cuda_records + step * decode.record_bytes(),
                          decoder.texts * sizeof(int64_t));
        }
        way.tokens.logits.resize(ours.logits.size());
        cuda_->Download(way.tokens.logits.data(), logits.address, logits.bytes);
        way.us = Percentile(MeasureLaunches(steps, Rounds(100)), 0.5) / kDecodeSteps;
      }
    });
    for (const Way& way : ways) {
      if (way.us.has_value()) report_.Add(what, step_us, "us", way.name, *way.us);
    }
    for (const Way& way : ways) {
      if (way.us.has_value()) Compare(absl::StrCat(what, ", ", way.name), ours, way.tokens);
    }
  }

  void Compare(const std::string& what, const Tokens& ours, const Tokens& theirs) {
    size_t equal = 0;
    for (size_t i = 0; i < ours.tokens.size(); ++i) equal += ours.tokens[i] == theirs.tokens[i];
    double difference = 0;
    for (size_t i = 0; i < ours.logits.size(); ++i) {
      const double each =
          std::abs(static_cast<double>(ours.logits[i]) - static_cast<double>(theirs.logits[i]));
      if (!(each <= difference) && !std::isnan(difference)) difference = each;  // Also NaN.
    }
    std::printf("  %s: %zu of %zu tokens are equal, largest difference of logits %g; tokens",
                what.c_str(), equal, ours.tokens.size(), difference);
    for (const int64_t token : ours.tokens) std::printf(" %lld", static_cast<long long>(token));
    std::printf("\n");
    if (equal == ours.tokens.size() && std::isfinite(difference)) return;
    absl::StrAppend(&wrong_, what, ": only ", equal, " of ", ours.tokens.size(),
                    " tokens are equal, or a logit is not finite; ");
  }

  // Keeps a quantum of the decode in flight.
  class DecodeLoop {
   public:
    DecodeLoop(DeviceGraph& graph, HostRing& ring) : graph_(graph), ring_(ring) {
      graph_.Prepare(kDecodeSteps);
      sequence_ = graph_.Submit(ring_);
    }
    // Returns whether the completion is that of a quantum.
    bool Take(uint64_t sequence, const TaskCompletion& completion) {
      if (sequence != sequence_) return false;
      graph_.Check(completion);
      if (!ends_) step_us_.push_back(completion.duration_ns / 1e3 / kDecodeSteps);
      sequence_.reset();
      if (!ends_) sequence_ = graph_.Submit(ring_);
      return true;
    }
    void End() {
      ends_ = true;
      while (sequence_.has_value()) {
        ring_.Consume([&](uint64_t sequence, const TaskCompletion& c) { Take(sequence, c); });
      }
    }
    double StepUs() const { return Percentile(step_us_, 0.5); }

   private:
    DeviceGraph& graph_;
    HostRing& ring_;
    std::optional<uint64_t> sequence_;
    bool ends_ = false;
    std::vector<double> step_us_;
  };

  // Small tasks beside a decode.
  void Beside() {
    watchdog_.Begin("small tasks beside a decode");
    SetPosition(decode_, kKeys);
    const uint64_t sets =
        options_.cpu ? 64 : 8192;  // 96 MiB of distinct buffers: more than the L2 cache.
    std::vector<float> x(sets * kTaskElements), y(x.size());
    for (size_t i = 0; i < x.size(); ++i) {
      x[i] = static_cast<float>(i % 509);
      y[i] = static_cast<float>(i % 251);
    }
    const uint64_t xa = device_.Upload(x.data(), x.size() * sizeof(float));
    const uint64_t ya = device_.Upload(y.data(), y.size() * sizeof(float));
    const uint64_t out = device_.Memory(x.size() * sizeof(float));
    std::vector<TaskDescriptor> tasks;
    for (uint64_t i = 0; i < sets; ++i) {
      const uint64_t at = i * kTaskBytes;
      tasks.push_back(
          CompactTask(OperatorSlot("add"), kTaskElements, {xa + at, ya + at, out + at, Bits(2.0)}));
      tasks.back().flags |= kTaskDeviceOutputs;
    }
    const auto check = [&] {
      std::vector<float> got(x.size());
      device_.Download(got.data(), out, got.size() * sizeof(float));
      for (size_t i = 0; i < got.size(); ++i) {
        if (got[i] != x[i] + 2 * y[i]) Fail(absl::StrCat("add beside a decode: element ", i));
      }
      Clear({out, got.size() * sizeof(float)});
    };

    const std::vector<double> alone = LoneTasks(tasks[0], nullptr);
    const double rate_alone = SustainedRate(tasks, nullptr);
    check();
    double step_alone = 0, step_lone = 0, step_sustained = 0, rate = 0;
    std::vector<double> beside;
    {
      DecodeLoop decode(*decode_.graph, *ring_);
      const auto until = Clock::now() + std::chrono::milliseconds(options_.quick ? 50 : 500);
      while (Clock::now() < until) {
        ring_->Consume([&](uint64_t s, const TaskCompletion& c) { decode.Take(s, c); });
      }
      decode.End();
      step_alone = decode.StepUs();
    }
    {
      DecodeLoop decode(*decode_.graph, *ring_);
      beside = LoneTasks(tasks[0], &decode);
      decode.End();
      step_lone = decode.StepUs();
    }
    {
      DecodeLoop decode(*decode_.graph, *ring_);
      rate = SustainedRate(tasks, &decode);
      decode.End();
      step_sustained = decode.StepUs();
    }
    check();
    const std::string of_task = absl::StrCat("lone add of 1,024 beside a decode, ");
    report_.Add(of_task + "p50", Percentile(beside, 0.5), "us", "without a decode",
                Percentile(alone, 0.5));
    report_.Add(of_task + "p99", Percentile(beside, 0.99), "us", "without a decode",
                Percentile(alone, 0.99));
    report_.Add("sustained adds of 1,024 beside a decode", rate, "tasks/s", "without a decode",
                rate_alone);
    report_.Add("decode step beside lone tasks, on the device", step_lone, "us", "without tasks",
                step_alone);
    report_.Add("decode step beside sustained tasks, on the device", step_sustained, "us",
                "without tasks", step_alone);
  }

  // Times of tasks that are submitted one after the other, beside `decode` if it is not null.
  std::vector<double> LoneTasks(const TaskDescriptor& task, DecodeLoop* decode) {
    const int rounds = Rounds(50'000);
    const int warm_up = rounds / 100;
    std::vector<double> us;
    for (int i = 0; i < warm_up + rounds; ++i) {
      const auto start = Clock::now();
      const uint64_t own = *ring_->Reserve();
      ring_->Publish(own, task);
      bool done = false;
      while (!done) {
        ring_->Consume([&](uint64_t sequence, const TaskCompletion& completion) {
          if (decode != nullptr && decode->Take(sequence, completion)) return;
          CheckOk(completion);
          done = true;
        });
      }
      if (i >= warm_up) us.push_back(Micros(Clock::now() - start).count());
    }
    return us;
  }

  // Tasks per second from a ring that is kept full: the median of some rounds.
  double SustainedRate(const std::vector<TaskDescriptor>& tasks, DecodeLoop* decode) {
    const auto total = static_cast<uint64_t>(Rounds(options_.cpu ? 100'000 : 2'000'000));
    // A quantum in flight does not end a scan for completions (HostRing::Consume).
    const uint32_t uncompleted = decode == nullptr ? 1 : 2;
    std::vector<double> per_s;
    for (int round = 0; round < 7; ++round) {
      uint64_t submitted = 0, done = 0;
      const auto start = Clock::now();
      while (done < total) {
        // Submits a few at a time, so that completions are consumed while the ring fills. Slots are
        // left for the next quantum, and for markers in place of the one in flight.
        for (int i = 0; i < 64 && submitted < total; ++i) {
          if (ring_->in_flight() + 16 > ring_->slots()) break;
          const std::optional<uint64_t> sequence = ring_->Reserve();
          if (!sequence.has_value()) break;
          ring_->Publish(*sequence, tasks[submitted % tasks.size()]);
          ++submitted;
        }
        ring_->Consume(
            [&](uint64_t sequence, const TaskCompletion& completion) {
              if (decode != nullptr && decode->Take(sequence, completion)) return;
              CheckOk(completion);
              ++done;
            },
            1024, uncompleted);
      }
      if (round >= 2) {
        per_s.push_back(1e6 * static_cast<double>(total) / Micros(Clock::now() - start).count());
      }
    }
    return Percentile(per_s, 0.5);
  }

  static void CheckOk(const TaskCompletion& completion) {
    if (completion.status == CompletionStatus::kOk) return;
    Fail(absl::StrCat("an add ended with status ", static_cast<int>(completion.status)));
  }

  static constexpr uint64_t kScratchBytes = uint64_t{2} << 20;

  const GraphBenchOptions& options_;
  EngineHarness& harness_;
  BenchReport& report_;
  Watchdog& watchdog_;
  std::shared_ptr<HostRing> ring_;
  DeviceTasks device_{harness_, ring_};
  const EngineHarness::Span staging_scratch_ = harness_.Staging(kScratchBytes);
  std::unique_ptr<CudaGraphs> cuda_;  // Null: no baselines.
  double read_bytes_per_s_ = 0;
  LlamaShape shape_;
  Decoder decode_;  // Of one text, with weights of bfloat16.
  nlohmann::ordered_json traces_ = nlohmann::ordered_json::object();
  std::string wrong_;
};

}  // namespace

void BenchGraphs(const GraphBenchOptions& bench_options) {
  const bool cpu = bench_options.cpu;
  setenv("RESIDENT_TEST_ENGINE", cpu ? "cpu" : "cuda", 1);
  Watchdog watchdog;
  EngineHarness::Options options;
  options.ring_slots = 8192;
  options.staging_bytes = uint64_t{64} << 20;
  // The weights of all decoders: nothing is freed.
  options.engine.memory_bytes = cpu ? uint64_t{1} << 30 : uint64_t{20} << 30;
  EngineHarness harness(options);
  std::printf("%s; %s\n", harness.info().name.c_str(), harness.info().detail.c_str());
  if (!harness.info().traits.executes_graphs) Fail("this engine executes no graphs");
  if (cpu) {
    // This program does not wake the workers of the CPU engine, which may sleep.
    std::thread([&harness] {
      while (true) {
        harness.Ring();
        std::this_thread::sleep_for(std::chrono::microseconds(200));
      }
    }).detach();
  }
  BenchReport report;
  Bench bench(bench_options, &harness, &report, &watchdog);
  bench.Run();
  if (!bench.wrong().empty()) Fail(bench.wrong());
  // The kernel never ends by itself; exiting without stopping it is what a killed engine
  // does.
  std::fflush(stdout);
  std::_Exit(0);
}

}  // namespace resident::testing
