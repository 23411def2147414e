// GangWalk with members that are threads: random graphs and schedules, members that start late,
// quanta that end anywhere. Each chunk is executed once in each step, after all predecessors of its
// node, and the quantum reports what was executed.
#include "kernels/graph/gang_walk.h"

#include <algorithm>
#include <array>
#include <atomic>
#include <chrono>
#include <cstring>
#include <optional>
#include <random>
#include <set>
#include <thread>
#include <tuple>
#include <vector>

#include "gtest/gtest.h"
#include "tests/graph/host_gang.h"
#include "tests/graph/walk_image.h"

namespace resident::testing {
namespace {

constexpr u64 kNoLimit = u64{1} << 60;
constexpr u32 kMaxGang = 7;

struct QuantumOptions {
  u64 last_step = kNoLimit;
  u32 max_steps = kMaxQuantumSteps;
  u64 budget_ns = kNoLimit;
  // Whether members start at random times.
  bool late = false;
  u32 trace_capacity = 0;
};

// A call that fails.
struct Failure {
  u32 node = 0;
  u64 step = 0;
  u32 index = 0;  // Of the member among those of the node.
  u32 status_and_detail = 0;
};

// A random graph with a schedule, the state of its run, and what was executed.
class GangRun {
 public:
  GangRun(std::mt19937& random, const WalkImageOptions& options)
      : random_(random), image_(random, options), operators_(image_.operators()) {
    const u64 bytes = GangStateBytes(operators_.size(), options.gang, image_.nodes());
    state_.resize(bytes / sizeof(GangState) + 1);
    // The engine finds there what was there before.
    std::memset(static_cast<void*>(state_.data()), 0xa5, state_.size() * sizeof(GangState));
    descriptor_.image = image_.address();
    descriptor_.state = reinterpret_cast<u64>(state_.data());
    descriptor_.quantum = reinterpret_cast<u64>(&quantum_);
    descriptor_.gang = options.gang;
  }

  WalkImage& image() { return image_; }
  GraphDescriptor& descriptor() { return descriptor_; }
  GraphQuantum& quantum() { return quantum_; }
  GangState& state() { return state_[0]; }
  u32 gang() const { return image_.header().gang; }
  // Steps that have ended.
  u64 steps() const { return steps_; }
  void FailAt(const Failure& failure) { failures_.push_back(failure); }
  // Writes `value` to the element that stops the loop in this step.
  void StopIn(u64 step, DType dtype, i64 value) {
    stop_step_ = step;
    stop_value_ = value;
    image_.SetStopValue(value);
    image_.header().stop_dtype = dtype;
    image_.header().stop_address = reinterpret_cast<u64>(&stop_element_);
  }
  const std::vector<GraphTraceEvent>& trace() const { return trace_; }
  const ExecutionRecord& record() const { return record_; }

  // Pages of streams that members have taken in all quanta.
  u64 pages() const { return pages_; }

  // Prepares the next quantum.
  void Prepare(const QuantumOptions& options) {
    quantum_ = GraphQuantum{};
    quantum_.fresh = in_step_ ? 0 : 1;
    quantum_.first_step = steps_;
    quantum_.last_step = options.last_step;
    quantum_.max_steps = options.max_steps;
    quantum_.budget_ns = options.budget_ns;
    operators_ = image_.operators();
    quantum_.operators = reinterpret_cast<u64>(operators_.data());
    quantum_.records = u64{1} << 32;
    quantum_.record_bytes = WalkImage::kRecordBytes;
    // A further event shows whether the walk writes more than there is room for.
    trace_.assign(options.trace_capacity + 1, GraphTraceEvent{});
    if (options.trace_capacity != 0) quantum_.trace = reinterpret_cast<u64>(trace_.data());
    quantum_.trace_capacity = options.trace_capacity;
    // A quantum that continues a step has the scalars in its state.
    if (!in_step_) WalkImage::SetScalars(steps_, quantum_.scalars);
    calls_ = 0;
    pages_taken_.assign(gang(), 0);
    for (auto& tasks : tasks_) tasks = 0;
  }

  // Executes the quantum that was prepared, checks what it reports, and returns it.
  const GraphQuantum& RunPrepared(bool late = false) {
    const u32 seed = static_cast<u32>(random_());
    const u32 status_and_detail = RunGang(
        descriptor_, WalkImage::kWorkers,
        [&](u32 rank) {
          if (late) Delay(seed + rank);
        },
        [&](const GangCall& call) { return Execute(call); }, /*takes_pages=*/true);
    if (quantum_.end == static_cast<u32>(GraphEnd::kBadImage)) {
      EXPECT_EQ(status_and_detail, static_cast<u32>(CompletionStatus::kInternal));
      return quantum_;
    }
    EXPECT_EQ(status_and_detail, quantum_.failure);
    EndQuantum();
    return quantum_;
  }
  const GraphQuantum& Run(const QuantumOptions& options) {
    Prepare(options);
    return RunPrepared(options.late);
  }

  // Executes a quantum that ends within a step, nearly always the first one.
  void RunIntoStep() {
    while (Run({.budget_ns = 0}).in_step == 0) {
    }
  }

  // Checks what a quantum reports.
  void EndQuantum() {
    EXPECT_NE(quantum_.end, static_cast<u32>(GraphEnd::kNone));
    EXPECT_EQ(quantum_.failure != 0, quantum_.end == static_cast<u32>(GraphEnd::kFailed));
    steps_ += quantum_.steps;
    in_step_ = quantum_.in_step != 0;
    if (!in_step_) ExpectExecuted();
    for (u32 row = 0; row < operators_.size(); ++row) {
      EXPECT_EQ(operators_[row].tasks, tasks_[row]) << "row " << row;
      EXPECT_EQ(operators_[row].slot, image_.operators()[row].slot);
      if (tasks_[row] != 0) {
        EXPECT_GT(operators_[row].ns, 0u);
      }
    }
    EXPECT_EQ(quantum_.trace_events, quantum_.trace == 0 ? 0 : calls_.load());
  }

  // Checks that all steps that have ended were executed, and nothing else.
  void ExpectExecuted() const { record_.ExpectSteps(steps_); }

  u32 Execute(const GangCall& call) {
    const u64 step = quantum_.first_step + call.step;
    const u32 node = call.node;
    const GangNode& members = image_.gang_node(node);
    EXPECT_EQ((members.first + call.first_chunk) % gang(), call.rank) << "node " << node;
    EXPECT_EQ(call.stride, members.ranks);
    const GraphOperator& op = image_.operators()[image_.node(node).op];
    EXPECT_EQ(call.operator_slot, op.slot);
    EXPECT_EQ(call.early,
              members.starts_early != 0 && op.starts_early != 0 && call.first_chunk < call.chunks);
    ExpectPages(call);
    image_.ExpectArguments(node, step, quantum_.records + call.step * quantum_.record_bytes,
                           call.arguments);
    calls_.fetch_add(1, std::memory_order_relaxed);
    for (const Failure& failure : failures_) {
      if (std::tie(failure.node, failure.step, failure.index) ==
          std::tie(node, step, call.first_chunk)) {
        return failure.status_and_detail;
      }
    }
    if ((call.rank + node + call.step) % 8 == 0) std::this_thread::yield();
    for (u32 chunk = call.first_chunk; chunk < call.chunks; chunk += call.stride) {
      record_.Execute(node, chunk, call.chunks, step);
    }
    if (call.first_chunk == 0) {
      tasks_[image_.node(node).op].fetch_add(1, std::memory_order_relaxed);
      if (node == image_.nodes() - 1 && step == stop_step_) WriteStopValue();
    }
    return 0;
  }

 private:
  // A member takes its share of the pages of each stream behind those of the ones before.
  void ExpectPages(const GangCall& call) {
    EXPECT_EQ(call.stream, image_.node(call.node).stream) << "node " << call.node;
    if (call.stream == 0) return;
    const GraphStream& stream = image_.stream(call.stream - 1);
    const StreamShare share = ShareOf(stream, call.rank, gang());
    EXPECT_EQ(call.pages.first, share.first);
    EXPECT_EQ(call.pages.count, share.count);
    EXPECT_EQ(call.pages_before, pages_taken_[call.rank]);
    pages_taken_[call.rank] += share.count;
    pages_.fetch_add(share.count, std::memory_order_relaxed);
  }

  static void Delay(u32 seed) {
    std::minstd_rand random(seed);
    for (u32 i = 0; i < 4; ++i) random();
    if (random() % 2 == 0) {
      std::this_thread::sleep_for(std::chrono::microseconds(random() % 200));
    }
  }

  void WriteStopValue() {
    if (image_.header().stop_dtype == DType::kI32) {
      const auto value = static_cast<i32>(stop_value_);
      std::memcpy(&stop_element_, &value, sizeof(value));
    } else {
      stop_element_ = stop_value_;
    }
  }

  std::mt19937& random_;
  WalkImage image_;
  ExecutionRecord record_{image_};
  // Begins with the GangState, of whose size and alignment the elements are.
  std::vector<GangState> state_;
  std::vector<GraphOperator> operators_;
  GraphDescriptor descriptor_{};
  GraphQuantum quantum_{};
  std::vector<GraphTraceEvent> trace_;
  std::vector<Failure> failures_;
  u64 stop_step_ = kNoLimit;
  i64 stop_value_ = 0;
  i64 stop_element_ = 0;

  u64 steps_ = 0;
  bool in_step_ = false;
  // Of the quantum: calls, and those of members with index 0 that ended, by row.
  std::atomic<u32> calls_{0};
  // By rank; only its member uses it during a quantum.
  std::vector<u32> pages_taken_;
  std::atomic<u64> pages_{0};
  std::atomic<u64> tasks_[3]{};
};

GraphEnd EndOf(const GraphQuantum& quantum) { return static_cast<GraphEnd>(quantum.end); }

u32 RandomGang(std::mt19937& random) { return 1 + static_cast<u32>(random()) % kMaxGang; }

// Equal chunks are at most as many as the members that execute them; others are not changed.
TEST(GangWalkTest, ChunksOfAGang) {
  EXPECT_EQ(CountGangChunks(/*chunks=*/526, /*limit=*/1024, /*ranks=*/132), 132u);
  EXPECT_EQ(CountGangChunks(/*chunks=*/16, /*limit=*/1024, /*ranks=*/132), 16u);
  EXPECT_EQ(CountGangChunks(/*chunks=*/4008, kMaxTaskChunks, /*ranks=*/132), 4008u);
}

TEST(GangWalkTest, EachChunkIsExecutedOnceInEachStepInOrder) {
  std::mt19937 random(7);
  for (u32 round = 0; round < 20 * kMaxGang && !HasFailure(); ++round) {
    GangRun run(random, {.gang = 1 + round % kMaxGang, .all_signal = round % 4 == 0});
    const GraphQuantum& quantum = run.Run({.last_step = 20, .late = round % 2 == 0});
    EXPECT_EQ(EndOf(quantum), GraphEnd::kSteps);
    EXPECT_EQ(quantum.steps, 20u);
    EXPECT_EQ(quantum.in_step, 0u);
    run.ExpectExecuted();
  }
}

// Each page of a stream is one member's.
TEST(GangWalkTest, SharesOfAStream) {
  for (const u32 gang : {1u, 3u, 132u}) {
    for (const u32 pages : {0u, 1u, 131u, 132u, 1000u}) {
      GraphStream stream{};
      stream.base = pages / gang;
      stream.extra = pages % gang;
      stream.rotation = pages % 7 % gang;
      std::vector<u32> members(pages);
      for (u32 rank = 0; rank < gang; ++rank) {
        const StreamShare share = ShareOf(stream, rank, gang);
        for (u32 i = 0; i < share.count; ++i) ++members.at(share.first + i * gang);
      }
      EXPECT_EQ(members, std::vector<u32>(pages, 1));
    }
  }
}

// Members that take pages, in quanta that end anywhere.
TEST(GangWalkTest, MembersTakePages) {
  std::mt19937 random(9);
  u64 pages = 0;
  for (u32 round = 0; round < 20 * kMaxGang && !HasFailure(); ++round) {
    GangRun run(random, {.gang = 1 + round % kMaxGang, .all_signal = true, .streams = true});
    while (true) {
      const u64 looks = random() % 4 == 0 ? kNoLimit / kTickNs : random() % 300;
      const GraphQuantum& quantum = run.Run(
          {.last_step = 15, .max_steps = 4, .budget_ns = looks * kTickNs, .late = round % 2 == 0});
      if (HasFailure() || EndOf(quantum) == GraphEnd::kSteps) break;
      ASSERT_EQ(EndOf(quantum), GraphEnd::kQuantum);
    }
    EXPECT_EQ(run.steps(), 15u);
    run.ExpectExecuted();
    pages += run.pages();
  }
  EXPECT_GT(pages, 1000u);
}

TEST(GangWalkTest, QuantaMayEndAnywhere) {
  std::mt19937 random(8);
  u64 within_steps = 0;
  for (u32 round = 0; round < 20 * kMaxGang && !HasFailure(); ++round) {
    GangRun run(random, {.gang = 1 + round % kMaxGang, .all_signal = round % 4 == 0});
    while (true) {
      // Members that start late execute nothing in a short quantum: one of four is not short.
      const u64 looks = random() % 4 == 0 ? kNoLimit / kTickNs : random() % 300;
      const GraphQuantum& quantum = run.Run(
          {.last_step = 15, .max_steps = 4, .budget_ns = looks * kTickNs, .late = round % 2 == 0});
      within_steps += quantum.in_step;
      if (HasFailure() || EndOf(quantum) == GraphEnd::kSteps) break;
      ASSERT_EQ(EndOf(quantum), GraphEnd::kQuantum);
      ASSERT_LE(quantum.steps, 4u);
    }
    EXPECT_EQ(run.steps(), 15u);
    run.ExpectExecuted();
  }
  EXPECT_GT(within_steps, 100u);
}

// Two members in one thread, whose node both execute.
class TwoMembers {
 public:
  explicit TwoMembers(GangRun& run) : run_(run) {}

  // Begins a quantum, with the leader.
  void Open() {
    run_.Prepare({.budget_ns = kLooks * kTickNs});
    for (u32 rank : {0, 1}) {
      walks_[rank].emplace(host_, run_.descriptor(), rank, WalkImage::kWorkers, &memory_[rank]);
    }
    ASSERT_TRUE(walks_[0]->Open());
  }
  void Join(u32 rank) {
    walks_[rank]->Join();
    walks_[rank]->Prepare();
  }
  bool ExecuteNext(u32 rank) {
    return testing::ExecuteNext(*walks_[rank], host_, memory_[rank], rank,
                                [&](const GangCall& call) { return run_.Execute(call); });
  }
  // The time is over while the leader waits for the other one, which then comes to the end of the
  // step as well.
  const GraphQuantum& Close() {
    for (u64 i = 0; i < kLooks; ++i) HostMember::Clock();
    for (u32 rank : {0, 1}) {
      EXPECT_FALSE(ExecuteNext(rank));
      walks_[rank]->Save();
    }
    walks_[1]->Conclude();
    run_.EndQuantum();
    return run_.quantum();
  }

 private:
  static constexpr u64 kLooks = 1000;

  GangRun& run_;
  HostMember host_;
  std::array<GangMemory, 2> memory_;
  std::array<std::optional<GangWalk<HostMember>>, 2> walks_;
};

// All members have come to the end of a step when the quantum ends. In the next quantum the leader
// begins the next step at once, before the other member has started.
TEST(GangWalkTest, AMemberThatStartsAfterTheLeaderHasBegunTheNextStep) {
  std::mt19937 random(9);
  std::optional<GangRun> run;
  do {
    run.emplace(random, WalkImageOptions{.gang = 2, .max_nodes = 1});
  } while (run->image().gang_node(0).ranks != 2);
  TwoMembers members(*run);
  members.Open();
  for (u32 rank : {0, 1}) {
    members.Join(rank);
    EXPECT_TRUE(members.ExecuteNext(rank));
  }
  const GraphQuantum& quantum = members.Close();
  EXPECT_EQ(EndOf(quantum), GraphEnd::kQuantum);
  EXPECT_EQ(quantum.steps, 0u);
  EXPECT_EQ(quantum.in_step, 1u);

  members.Open();
  for (u32 rank : {0, 1}) {
    members.Join(rank);
    EXPECT_TRUE(members.ExecuteNext(rank));
    EXPECT_EQ(run->state().begun, 1u);
  }
  EXPECT_EQ(members.Close().steps, 1u);
  EXPECT_EQ(EndOf(run->Run({.last_step = 5})), GraphEnd::kSteps);
  EXPECT_EQ(run->steps(), 5u);
  run->ExpectExecuted();
}

// Counters of a run that has continued within steps for very long.
TEST(GangWalkTest, CountersOverflow) {
  std::mt19937 random(10);
  for (u32 round = 0; round < 5 * kMaxGang && !HasFailure(); ++round) {
    GangRun run(random, {.gang = 1 + round % kMaxGang});
    run.RunIntoStep();
    // As if so many steps had been executed, without those before the first one.
    const u32 before = ~u32{0} - 7;
    GangState& state = run.state();
    u32* const positions = reinterpret_cast<u32*>(reinterpret_cast<GraphOperator*>(&state + 1) +
                                                  run.image().operators().size());
    state.begun = before;
    state.arrived += run.gang() * before;
    for (u32 node = 0; node < run.image().nodes(); ++node) {
      positions[run.gang() + node] += run.image().gang_node(node).ranks * before;
    }
    EXPECT_EQ(EndOf(run.Run({.last_step = 20})), GraphEnd::kSteps);
    EXPECT_EQ(run.steps(), 20u);
    run.ExpectExecuted();
  }
}

TEST(GangWalkTest, TheLastStepOfTheRunAndOfTheQuantum) {
  std::mt19937 random(11);
  for (int round = 0; round < 30 && !HasFailure(); ++round) {
    GangRun run(random, {.gang = RandomGang(random)});
    const u32 max_steps = 1 + static_cast<u32>(random()) % 3;
    for (u64 step = 0; step < 7; step += max_steps) {
      const bool last = step + max_steps >= 7;
      const GraphQuantum& quantum = run.Run({.last_step = 7, .max_steps = max_steps});
      EXPECT_EQ(EndOf(quantum), last ? GraphEnd::kSteps : GraphEnd::kQuantum);
      EXPECT_EQ(quantum.steps, last ? 7 - step : max_steps);
      EXPECT_EQ(quantum.in_step, 0u);
    }
    run.ExpectExecuted();
  }
}

TEST(GangWalkTest, AStopValue) {
  std::mt19937 random(12);
  for (int round = 0; round < 40 && !HasFailure(); ++round) {
    GangRun run(random, {.gang = RandomGang(random)});
    const u64 step = random() % 6;
    const bool narrow = round % 2 == 0;
    const i64 value = narrow ? -5 : i64{5} << 40;
    run.StopIn(step, narrow ? DType::kI32 : DType::kI64, value);
    // The step with the stop value may be the last one of the run.
    const GraphQuantum& quantum = run.Run({.last_step = round % 4 == 0 ? step + 1 : 100});
    EXPECT_EQ(EndOf(quantum), GraphEnd::kStop);
    EXPECT_EQ(quantum.steps, step + 1);
    EXPECT_EQ(quantum.in_step, 0u);
    run.ExpectExecuted();
  }
}

TEST(GangWalkTest, AScalarWouldLeaveItsRange) {
  std::mt19937 random(13);
  for (int round = 0; round < 40 && !HasFailure(); ++round) {
    GangRun run(random, {.gang = RandomGang(random)});
    const u64 step = random() % 6;
    run.image().update().max = 2 * static_cast<double>(step);
    const GraphQuantum& quantum = run.Run({.last_step = round % 2 == 0 ? 100 : step + 2});
    EXPECT_EQ(EndOf(quantum), GraphEnd::kScalarRange);
    EXPECT_EQ(quantum.steps, step + 1);
    EXPECT_EQ(quantum.in_step, 0u);
    // No scalar has changed, neither that one nor the other.
    double scalars[2];
    WalkImage::SetScalars(step, scalars);
    EXPECT_EQ(run.state().scalars[0], scalars[0]);
    EXPECT_EQ(run.state().scalars[1], scalars[1]);
  }
}

TEST(GangWalkTest, AnAbortAtAnyTime) {
  std::mt19937 random(14);
  u64 within_steps = 0;
  for (int round = 0; round < 100 && !HasFailure(); ++round) {
    GangRun run(random, {.gang = RandomGang(random)});
    if (round % 2 == 0) run.Run({.max_steps = 3, .budget_ns = random() % 200 * kTickNs});
    run.Prepare({});
    std::thread host([&, microseconds = random() % 300] {
      std::this_thread::sleep_for(std::chrono::microseconds(microseconds));
      __atomic_store_n(&run.quantum().abort, 1u, __ATOMIC_RELAXED);
    });
    const GraphQuantum& quantum = run.RunPrepared(/*late=*/round % 3 == 0);
    host.join();
    // EndQuantum has checked that nothing is executed partly if it ended between two steps.
    within_steps += quantum.in_step;
    EXPECT_TRUE(EndOf(quantum) == GraphEnd::kAborted ||
                (EndOf(quantum) == GraphEnd::kQuantum && quantum.steps == kMaxQuantumSteps));
  }
  EXPECT_GT(within_steps, 10u);
}

// A run that is aborted before its first step is not within a step; a run that is aborted before
// its quantum continues a step is.
TEST(GangWalkTest, AnAbortBeforeTheQuantum) {
  std::mt19937 random(15);
  for (int round = 0; round < 40 && !HasFailure(); ++round) {
    GangRun run(random, {.gang = RandomGang(random)});
    const bool within_step = round % 2 == 0;
    if (within_step) run.RunIntoStep();
    run.Prepare({});
    run.quantum().abort = 1;
    const GraphQuantum& quantum = run.RunPrepared();
    EXPECT_EQ(EndOf(quantum), GraphEnd::kAborted);
    EXPECT_EQ(quantum.steps, 0u);
    EXPECT_EQ(quantum.in_step, within_step ? 1u : 0u);
  }
}

TEST(GangWalkTest, ANodeFails) {
  std::mt19937 random(16);
  for (int round = 0; round < 150 && !HasFailure(); ++round) {
    GangRun run(random, {.gang = RandomGang(random), .all_signal = round % 4 == 0});
    // One node, or several in the same step, of which the first one counts.
    std::vector<Failure> failures(1 + (round % 3 == 0 ? random() % 3 : 0));
    const u64 step = random() % 8;
    for (Failure& failure : failures) {
      failure.node = static_cast<u32>(random()) % run.image().nodes();
      failure.step = step;
      const u32 members = std::min<u32>(run.image().gang_node(failure.node).ranks,
                                        run.image().CountChunks(failure.node, step));
      failure.index = static_cast<u32>(random()) % members;
      failure.status_and_detail = static_cast<u32>(CompletionStatus::kInvalidArgument) |
                                  (1 + static_cast<u32>(random()) % 1000) << 16;
      run.FailAt(failure);
    }
    GraphEnd end = GraphEnd::kQuantum;
    while (end == GraphEnd::kQuantum) {
      const bool is_short = random() % 4 != 0;
      end = EndOf(run.Run({.last_step = 20,
                           .budget_ns = is_short ? random() % 1000 * kTickNs : kNoLimit,
                           .late = round % 2 == 0}));
    }
    EXPECT_EQ(end, GraphEnd::kFailed);
    EXPECT_EQ(run.steps(), step);
    const GraphQuantum& quantum = run.quantum();
    EXPECT_EQ(quantum.in_step, 1u);
    EXPECT_EQ(quantum.failed_step, step);
    // That no node was executed that depends on it, Execute has checked.
    bool expected = false;
    for (const Failure& failure : failures) {
      EXPECT_FALSE(run.record().HasEnded(failure.node, step));
      expected |=
          failure.node == quantum.failed_node && failure.status_and_detail == quantum.failure;
    }
    EXPECT_TRUE(expected) << "node " << quantum.failed_node;
  }
}

TEST(GangWalkTest, TheFirstFailureIsReported) {
  std::mt19937 random(19);
  std::optional<GangRun> run;
  do {
    run.emplace(random, WalkImageOptions{.gang = 2, .max_nodes = 1});
  } while (run->image().gang_node(0).ranks != 2);
  TwoMembers members(*run);
  const auto status_of = [](u32 rank) {
    return static_cast<u32>(CompletionStatus::kInvalidArgument) | (7 + rank) << 16;
  };
  for (u32 index : {0, 1}) {
    run->FailAt({0, 0, index, status_of((run->image().gang_node(0).first + index) % 2)});
  }
  members.Open();
  for (u32 rank : {0, 1}) members.Join(rank);
  for (u32 rank : {1, 0}) EXPECT_TRUE(members.ExecuteNext(rank));
  const GraphQuantum& quantum = members.Close();
  EXPECT_EQ(EndOf(quantum), GraphEnd::kFailed);
  EXPECT_EQ(quantum.failure, status_of(1));
}

TEST(GangWalkTest, TheTraceHasEachCall) {
  std::mt19937 random(17);
  for (int round = 0; round < 60 && !HasFailure(); ++round) {
    GangRun run(random, {.gang = RandomGang(random)});
    // Steps before, so that those of the quantum have other numbers.
    run.Run({.max_steps = 2});
    u32 calls = 0;
    for (u32 node = 0; node < run.image().nodes(); ++node) {
      calls += 3 * run.image().gang_node(node).ranks;
    }
    const u32 capacity = round % 3 == 0 ? 1 + static_cast<u32>(random()) % calls : calls;
    const GraphQuantum& quantum = run.Run({.max_steps = 3, .trace_capacity = capacity});
    EXPECT_EQ(quantum.trace_events, calls);
    std::set<std::tuple<u32, u32, u32>> events;
    for (u32 i = 0; i < capacity; ++i) {
      const GraphTraceEvent& event = run.trace()[i];
      ASSERT_LT(event.node, run.image().nodes());
      const GangNode& members = run.image().gang_node(event.node);
      EXPECT_LT(event.step, 3u);
      EXPECT_LT(event.chunk, members.ranks);
      EXPECT_EQ(event.worker, (members.first + event.chunk) % run.gang());
      EXPECT_LE(event.wait_ns, event.begin_ns);
      EXPECT_LT(event.begin_ns, event.end_ns);
      EXPECT_TRUE(events.emplace(event.node, event.step, event.chunk).second) << "twice";
    }
    // Nothing was written behind the last one.
    EXPECT_EQ(run.trace()[capacity].end_ns, 0u);
  }
}

TEST(GangWalkTest, AnImageOfAnotherGangOrAnotherBuild) {
  std::mt19937 random(18);
  for (int round = 0; round < 20 && !HasFailure(); ++round) {
    GangRun run(random, {.gang = 2 + static_cast<u32>(random()) % 4});
    GraphImage& image = run.image().header();
    if (round % 4 == 0) ++image.gang;
    if (round % 4 == 1) image.gang = 0;
    if (round % 4 == 2) image.layout_hash ^= 1;
    if (round % 4 == 3) image.magic ^= 1;
    const GraphQuantum& quantum = run.Run({});
    EXPECT_EQ(EndOf(quantum), GraphEnd::kBadImage);
    EXPECT_EQ(quantum.steps, 0u);
  }
}

}  // namespace
}  // namespace resident::testing
