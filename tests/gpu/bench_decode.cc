#include "tests/gpu/bench_decode.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <optional>
#include <random>
#include <thread>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "client/importers/llama/import.h"
#include "tests/gpu/bench_small_graphs.h"
#include "tests/gpu/fused_step.h"
#include "tests/gpu/graph_breakdown.h"
#include "tests/gpu/llama_shape.h"

namespace resident::testing {
namespace {

using Edges = CudaGraphs::Edges;

constexpr uint32_t kDecodeSteps = 8;
constexpr uint64_t kContext = 2304;
constexpr uint64_t kLongContext = 16640;
// Keys of the cache in the steps that are compared with each other.
constexpr uint64_t kKeys = 160;
// Elements of the lone and the sustained tasks.
constexpr uint64_t kTaskElements = 1024;
constexpr uint64_t kTaskBytes = kTaskElements * sizeof(float);

class Decodes : public GraphBenchPart {
 public:
  explicit Decodes(GraphBench& bench) : GraphBenchPart(bench) {}

  std::string Run() {
    // Other weights and several texts are measured beside a step of one text.
    const bool steps =
        bench_.Selected("decode") || bench_.Selected("quantized") || bench_.Selected("texts");
    if (!steps && !bench_.Selected("beside")) return "";
    shape_ = options_.cpu ? LlamaShape{.hidden = 64,
                                       .layers = 2,
                                       .heads = 4,
                                       .kv_heads = 2,
                                       .head_dim = 16,
                                       .intermediate = 128,
                                       .vocab = 512}
                          : LlamaShape{};
    decode_ = MakeDecoder("", std::nullopt);
    if (steps && cuda_ != nullptr) MeasureRead(*decode_.graph);
    if (steps) Decode(decode_, kKeys);
    if (steps && cuda_ != nullptr) CompareWithFused();
    if (bench_.Selected("decode")) {
      Decode(decode_, 2048);
      Decoder long_text = MakeDecoder("", std::nullopt, 1, options_.cpu ? kContext : kLongContext);
      Decode(long_text, options_.cpu ? kContext - kDecodeSteps : 16384);
    }
    bench_.WriteReport();
    if (bench_.Selected("quantized")) {
      for (const uint32_t bits : {8u, 4u}) {
        Decoder quantized =
            MakeDecoder(absl::StrCat("int", bits, " weights, "), Quantization{.bits = bits});
        quantized.beside = "weights of bfloat16";
        Decode(quantized, kKeys);
        bench_.WriteReport();
      }
    }
    if (bench_.Selected("texts")) {
      for (const uint64_t texts : {4u, 8u, 16u}) {
        Decoder several = MakeDecoder(absl::StrCat(texts, " texts, "), std::nullopt, texts);
        several.beside = "one text";
        Decode(several, kKeys);
        bench_.WriteReport();
      }
    }
    if (bench_.Selected("beside")) Beside();
    bench_.WriteReport();
    return std::move(wrong_);
  }

 private:
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
                      uint64_t texts = 1, uint64_t context = kContext) {
    watchdog_.Begin("the weights of the decode");
    Decoder decoder;
    decoder.name = std::move(name);
    decoder.texts = texts;
    decoder.graph = std::make_unique<DeviceGraph>(
        harness_, device_, MakeLlamaGraph(shape_, context, quantization, texts), kDecodeSteps);
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
    bench_.WhileParked([&] {
      read_bytes_per_s_ = cuda_->MeasureReadBytesPerSecond(harness_.info().memory_address, bytes);
    });
    report_.Add("plain read of the bytes of the weights", read_bytes_per_s_, "bytes/s");
  }

  // The step of one text beside kernels that are written for this model alone.
  void CompareWithFused() {
    const uint64_t weights = device_.Memory(FusedStep::kWeightBytes);
    const std::string what = absl::StrCat("decode step, ", kKeys, " keys");
    bench_.WhileParked([&] {
      watchdog_.Begin("kernels for one model");
      if (!FusedStep::IsSupported(/*ordinal=*/0)) return;
      FusedStep fused(/*ordinal=*/0, weights);
      const auto add = [&](const char* baseline, double us) {
        report_.Add(what, decode_.step_us, "us", baseline, us);
      };
      add("kernels for this model, CUDA graph", fused.MeasureGraph(kKeys, /*programmatic=*/false));
      add("kernels for this model, CUDA graph with programmatic launch",
          fused.MeasureGraph(kKeys, /*programmatic=*/true));
      add("one kernel for steps of this model", fused.MeasureKernel(kKeys));
    });
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
    bench_.traces[what] = breakdown.ToJson();
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
    Way ways[] = {
        {"CUDA graph of the same operators, nodes in a chain", Edges::kChain, {}, {}},
        {"CUDA graph of the same operators, nodes by dependencies", Edges::kDependencies, {}, {}},
        {"CUDA graph of the same operators, programmatic launch", Edges::kProgrammatic, {}, {}}};
    const DeviceGraph::Memory logits = decode.MemoryOf("logits");
    if (decoder.cuda_records == 0) {
      decoder.cuda_records = device_.Memory(kDecodeSteps * decode.record_bytes());
    }
    bench_.WhileParked([&] {
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

  // Runs quanta of a graph, one after the other: the next one when the one before has ended, or,
  // with a period, when Poll is called so long after that one was submitted.
  class GraphLoop {
   public:
    GraphLoop(DeviceGraph& graph, HostRing& ring, uint32_t steps = kDecodeSteps,
              Clock::duration period = {})
        : graph_(graph), ring_(ring), steps_(steps), period_(period) {
      graph_.Prepare(steps);
      sequence_ = graph_.Submit(ring_);
    }
    // Returns whether the completion is that of a quantum.
    bool Take(uint64_t sequence, const TaskCompletion& completion) {
      if (sequence != sequence_) return false;
      graph_.Check(completion);
      if (!ends_) step_us_.push_back(completion.duration_ns / 1e3 / steps_);
      sequence_.reset();
      if (!ends_ && period_ == Clock::duration()) sequence_ = graph_.Submit(ring_);
      return true;
    }
    // From now on, quanta begin so long after each other, and the next one after that time.
    void SetPeriod(Clock::duration period) {
      period_ = period;
      next_ = Clock::now() + period;
    }
    // If the ring has no room, the quantum begins later.
    void Poll() {
      if (sequence_.has_value() || ends_ || Clock::now() < next_) return;
      sequence_ = graph_.TrySubmit(ring_);
      if (sequence_.has_value()) next_ = Clock::now() + period_;
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
    const uint32_t steps_;
    Clock::duration period_;
    Clock::time_point next_;  // When the next quantum is to begin.
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
      GraphLoop decode(*decode_.graph, *ring_);
      const auto until = Clock::now() + std::chrono::milliseconds(options_.quick ? 50 : 500);
      while (Clock::now() < until) {
        ring_->Consume([&](uint64_t s, const TaskCompletion& c) { decode.Take(s, c); });
      }
      decode.End();
      step_alone = decode.StepUs();
    }
    {
      GraphLoop decode(*decode_.graph, *ring_);
      beside = LoneTasks(tasks[0], &decode);
      decode.End();
      step_lone = decode.StepUs();
    }
    {
      GraphLoop decode(*decode_.graph, *ring_);
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
    BesideIdle(tasks);
    check();
    report_.Add("decode step beside lone tasks, on the device", step_lone, "us", "without tasks",
                step_alone);
    report_.Add("decode step beside sustained tasks, on the device", step_sustained, "us",
                "without tasks", step_alone);
  }

  // Small tasks on a device that is ready for graphs, but has hardly any to run: the blocks
  // of the graph kernel wait for the next one. Measured in turn with the same tasks, and the same
  // thread, while no graph comes; both kernels are resident in either case.
  void BesideIdle(const std::vector<TaskDescriptor>& tasks) {
    constexpr auto kPeriod = std::chrono::milliseconds(10);
    constexpr auto kNever = std::chrono::hours(24);
    DeviceGraph graph(harness_, device_, OneNode(), 1);
    Clear(graph.MemoryOf("y"));
    std::vector<double> lone[2];
    std::vector<double> rates[2];
    GraphLoop loop(graph, *ring_, 1, kNever);
    for (int round = 0; round < 4; ++round) {
      for (const bool graphs : {false, true}) {
        loop.SetPeriod(graphs ? Clock::duration(kPeriod) : Clock::duration(kNever));
        // Until no block waits for a graph.
        std::this_thread::sleep_for(5 * kPeriod);
        const std::vector<double> us = LoneTasks(tasks[0], &loop);
        lone[graphs].insert(lone[graphs].end(), us.begin(), us.end());
        rates[graphs].push_back(SustainedRate(tasks, &loop));
      }
    }
    loop.End();
    const std::string baseline = "no graphs";
    for (const double percent : {50.0, 99.0}) {
      report_.Add(absl::StrCat("lone add of 1,024, a graph of one node each 10 ms, p", percent),
                  Percentile(lone[1], percent / 100), "us", baseline,
                  Percentile(lone[0], percent / 100));
    }
    report_.Add("sustained adds of 1,024, a graph of one node each 10 ms",
                Percentile(rates[1], 0.5), "tasks/s", baseline, Percentile(rates[0], 0.5));
  }

  // Times of tasks that are submitted one after the other, beside `loop` if it is not null.
  std::vector<double> LoneTasks(const TaskDescriptor& task, GraphLoop* loop) {
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
          if (loop != nullptr && loop->Take(sequence, completion)) return;
          CheckOk(completion);
          done = true;
        });
      }
      if (i >= warm_up) us.push_back(Micros(Clock::now() - start).count());
      if (loop != nullptr) loop->Poll();
    }
    return us;
  }

  // Tasks per second from a ring that is kept full: the median of some rounds.
  double SustainedRate(const std::vector<TaskDescriptor>& tasks, GraphLoop* loop) {
    const auto total = static_cast<uint64_t>(Rounds(options_.cpu ? 100'000 : 2'000'000));
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
              if (loop != nullptr && loop->Take(sequence, completion)) return;
              CheckOk(completion);
              ++done;
            },
            1024, 1);
        if (loop != nullptr) loop->Poll();
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

  double read_bytes_per_s_ = 0;
  LlamaShape shape_;
  Decoder decode_;  // Of one text, with weights of bfloat16.
  std::string wrong_;
};

}  // namespace

std::string BenchDecode(GraphBench& bench) { return Decodes(bench).Run(); }

}  // namespace resident::testing
