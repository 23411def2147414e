// Fuzz target: a local lane whose memory another thread rewrites while the daemon reads it.
//
// The input is the seed of submissions that a client might publish: nearly valid ones, so that
// every check is reached. A second thread stores random words all the time: stamps of this and
// other laps, calls, places, values, the words of the client page, and what the daemon wrote. For
// every batch that the lane gives to the queue, each tensor of each task must lie within a bound
// buffer, each bounded value within its limits, each number of elements within the maximum, and
// each submission must be taken exactly once. The same holds for each task of a range, whether it
// was joined, read at once, or read by the thread of a ticket. Run it with a sanitizer: an access
// outside of the lane is found, too.
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include "runtime/device/buffer_table.h"
#include "runtime/device/fake_device.h"
#include "runtime/lane/lane_layout.h"
#include "runtime/operators/registry/registry.h"
#include "runtime/queue/batch_outcome.h"
#include "server/admission/admission.h"
#include "server/admission/drain_gate.h"
#include "server/lanes/lane.h"

namespace {

using namespace resident;

constexpr ClientId kClient = 1;
constexpr uint32_t kSlots = 1024;
constexpr uint64_t kDataBytes = 4 * kLanePageBytes;
constexpr uint32_t kBlockTasks = 512;
constexpr uint32_t kMaxRange = 1500;
constexpr uint32_t kSubmissions = 2048;  // Of one input.
constexpr uint64_t kMaxElements = 16;
constexpr int64_t kMaxValue = 3;
// The calls.
constexpr uint16_t kAdd = 0;       // Compact: three places and a value.
constexpr uint16_t kElements = 1;  // Compact: the same with a number of elements.
constexpr uint16_t kStrided = 2;   // Arguments in a block, elements before the address.
constexpr uint16_t kBounded = 3;   // A bounded integer.
constexpr uint16_t kCalls = 4;

[[noreturn]] void Fail(const char* what) {
  std::fprintf(stderr, "fuzz_lane: %s\n", what);
  std::abort();
}
void Expect(bool holds, const char* what) {
  if (!holds) Fail(what);
}

class World {
 public:
  World() {
    buffers_.AddOwner(kClient);
    admission_.AddDevice(1 << 20);
    admission_.Start([](const std::function<void()>& work) { work(); });
    auto bindings = std::make_shared<LaneBindings>();
    bindings->session = session_;
    Needs blocks;
    blocks.session = session_;
    blocks.staging_bytes = RangeBlocks::Bytes(kBlockTasks, kLaneWords);
    auto ticket = admission_.TryAcquire(accounts_, blocks);
    Expect(ticket.ok(), "no staging memory");
    bindings->blocks = std::make_shared<RangeBlocks>(*std::move(ticket), kBlockTasks, kLaneWords);
    for (const uint64_t floats : {16, 32, 7, 64}) {
      BufferSpec spec;
      spec.shape = {static_cast<int64_t>(floats)};
      const auto buffer = buffers_.Allocate(spec, kClient, *session_);
      Expect(buffer.ok(), "no buffer");
      bindings->buffers.push_back(MakeBound(*buffer, session_->epoch()));
    }
    bindings->buffers.insert(bindings->buffers.begin() + 2, BoundBuffer{});  // A free index.
    bindings->calls = {Prepare(kAdd), Prepare(kElements), Prepare(kStrided), Prepare(kBounded)};
    Lane::Options options;
    options.slots = kSlots;
    options.data_bytes = kDataBytes;
    options.max_batch_tasks = kMaxRange;
    options.max_refusals = UINT32_MAX;
    options.max_faults = UINT32_MAX;
    const Lane::Host host{
        .registry = *registry_,
        .gate = gate_,
        .counters = counters_,
        .admission = admission_,
        .accounts = accounts_,
        .standing_tasks = [] { return uint64_t{kSlots}; },
        .post = [this](std::function<void()> work) { posted_.push_back(std::move(work)); },
        .note_work = [](const Lane&) {},
        .refuse = [](const Lane&, const absl::Status&) { Fail("refused"); },
        .note_await = [](const Lane&) {}};
    auto lane = Lane::Create(options, host, {});
    Expect(lane.ok(), "no lane");
    lane_ = *std::move(lane);
    lane_->SetBindings(bindings);
    bindings_ = std::move(bindings);
    const UniqueFd memory = lane_->TakeMemory();
    base_ = static_cast<uint8_t*>(mmap(nullptr, lane_bytes(kSlots, kDataBytes),
                                       PROT_READ | PROT_WRITE, MAP_SHARED, memory.get(), 0));
    Expect(base_ != MAP_FAILED, "no memory");
    hostile_ = std::thread([this] { Rewrite(); });
  }
  ~World() {
    stop_ = true;
    hostile_.join();
    EndAll();
    lane_->Close();
    RunPosted();
    std::printf(
        "fuzz_lane: %lu submissions, of which %lu were refused; %lu tasks, of which %lu were "
        "joined and %lu were in %lu ranges; %lu words rewritten meanwhile\n",
        consumed_, counters_.refused.load(), tasks_, counters_.joined.load(), range_tasks_, ranges_,
        rewritten_.load());
    lane_.reset();
    bindings_.reset();
    admission_.Stop();
  }

  void Run(uint32_t seed) {
    std::mt19937 random(seed);
    // Some inputs let many submissions wait, so that they are joined.
    const bool many = random() % 4 == 0;
    calm_.store(many, std::memory_order_relaxed);
    for (uint32_t i = 0; i < kSubmissions; ++i) {
      Publish(random, many);
      if (random() % (many ? 600 : 4) == 0) Visit(1 + random() % 256);
      if (random() % 8 == 0) End(random);
      if (random() % 8 == 0) RunPosted();
    }
  }

 private:
  std::shared_ptr<const PreparedCall> Prepare(uint16_t call) {
    v1::PrepareLaneRequest request;
    v1::OperatorTasks& tasks = *request.mutable_tasks();
    tasks.set_count(1);
    const auto add_buffer = [&](uint64_t elements) {
      v1::BufferColumn& column = *tasks.add_arguments()->mutable_buffer();
      column.add_buffer_ids(2);  // 32 elements.
      column.add_shape(elements);
      if (call == kBounded) column.set_dtype(v1::DTYPE_F16);  // Not compact.
      request.add_words()->mutable_place()->set_argument(
          static_cast<uint32_t>(tasks.arguments_size() - 1));
      return &column;
    };
    tasks.set_operator_(call == kBounded ? "gelu" : "add");
    const uint64_t elements = call == kStrided || call == kBounded ? 4 : kMaxElements;
    for (int a = 0; a < (call == kBounded ? 2 : 3); ++a) {
      v1::BufferColumn* const column = add_buffer(elements);
      if (call == kStrided && a == 0) {
        column->add_strides(-2);
        column->add_offsets(6 * sizeof(float));
      }
    }
    if (call == kElements) {
      request.add_words()->mutable_elements()->set_max(kMaxElements);
    } else if (call == kBounded) {
      tasks.add_arguments()->mutable_scalar()->add_i64(0);
      v1::LaneWord::Value& value = *request.add_words()->mutable_value();
      value.set_argument(2);
      value.set_min(0);
      value.set_max(kMaxValue);
    } else {
      tasks.add_arguments()->mutable_scalar()->add_f64(1);
      request.add_words()->mutable_value()->set_argument(3);
    }
    auto prepared = PreparedCall::Prepare(
        {.registry = *registry_, .buffers = buffers_, .client = kClient, .session = session_},
        request);
    if (!prepared.ok()) Fail(std::string(prepared.status().message()).c_str());
    return *prepared;
  }

  static uint64_t RandomPlace(std::mt19937& random) {
    return lane_place(static_cast<uint16_t>(random() % 6), random() % 300);
  }

  // As an honest client: only into slots whose submission has ended. If the lane is full, the next
  // one again: the other thread may have overwritten its stamp.
  void Publish(std::mt19937& random, bool many) {
    const bool full = published_ - consumed_ >= kSlots * 3 / 4;
    const uint64_t sequence = full ? consumed_ + random() % (kSlots / 2) : published_;
    auto* const slot = Slot(sequence);
    const bool valid = random() % (many ? 2000 : 4) != 0;
    for (size_t w = 0; w < kLaneWords; ++w) {
      uint64_t word =
          valid ? lane_place(many ? 1 : static_cast<uint16_t>(random() % 2), random() % 4 * 4)
                : RandomPlace(random);
      if ((w == 2 && !many) || w == 3) {
        word = valid && w == 2 && random() % 2 ? word : random() % 18;
      }
      __atomic_store_n(&slot->words[w], word, __ATOMIC_RELAXED);
    }
    const auto call = static_cast<uint16_t>(many ? kAdd : random() % (valid ? kCalls : kCalls + 1));
    auto kind = static_cast<uint8_t>(valid ? 0 : random() % 6);
    auto flags = static_cast<uint8_t>(valid ? random() % 2 * kLaneQuiet : random() % 10);
    if (!many && random() % 16 == 0) {
      kind = kLaneRange;
      flags &= kLaneQuiet;
      WriteRange(random, slot);
    } else if (kind == kLaneAwait || kind == kLaneSignal) {
      flags = 0;
      // Words that have come: otherwise the lane would wait.
      __atomic_store_n(&slot->words[0], random() % 33, __ATOMIC_RELAXED);
      __atomic_store_n(&slot->words[1], uint64_t{UINT32_MAX}, __ATOMIC_RELAXED);
    }
    __atomic_store_n(&slot->head, lane_slot_head(sequence, call, kind, flags), __ATOMIC_RELEASE);
    if (!full) ++published_;
  }

  // Records and values of a range, most of them good, anywhere in the data area.
  void WriteRange(std::mt19937& random, lane_slot* slot) {
    auto* const data = base_ + lane_data_offset(kSlots);
    const auto store = [&](uint64_t offset, uint64_t value) {
      if (offset + 8 <= kDataBytes) {
        __atomic_store_n(reinterpret_cast<uint64_t*>(data + offset), value, __ATOMIC_RELAXED);
      }
    };
    const uint64_t count =
        random() % 8 == 0 ? random() % (2 * kMaxRange) : 1 + random() % (random() % 4 ? 40 : 600);
    const uint64_t records = random() % 16 == 0 ? random() % (2 * kDataBytes) : random() % 8 * 256;
    for (uint64_t w = 0; w < 4; ++w) {
      const uint64_t record = records + w * sizeof(lane_range_column);
      const bool by_values = w < 3 && random() % 2 == 0;
      const uint64_t values = random() % 16 == 0 ? random() : 4096 + random() % 1024 * 8;
      store(record, by_values ? 0 : w == 3 ? random() % 4 + 1 : lane_place(0, random() % 4 * 4));
      store(record + 8, by_values || w == 3 ? 0 : random() % 3 * 4 - random() % 2 * 4);
      store(record + 16, by_values ? values : 0);
      for (uint64_t i = 0; by_values && i < std::min<uint64_t>(count, 700); ++i) {
        store(values + 8 * i, lane_place(static_cast<uint16_t>(random() % 2), random() % 4 * 4));
      }
    }
    __atomic_store_n(&slot->words[0], count, __ATOMIC_RELAXED);
    __atomic_store_n(&slot->words[1], records, __ATOMIC_RELAXED);
  }

  // What another thread would do: tickets, and the reading of large ranges.
  void RunPosted() {
    while (!posted_.empty()) {
      const std::function<void()> work = std::move(posted_.front());
      posted_.pop_front();
      work();
    }
  }

  lane_slot* Slot(uint64_t sequence) {
    return reinterpret_cast<lane_slot*>(base_ + lane_slots_offset()) + sequence % kSlots;
  }

  // As the dispatch loop.
  void Visit(uint32_t max_tasks) {
    if (!lane_->Ready()) return;
    LaneSource::Visit visit = lane_->Take(max_tasks, session_->epoch());
    Expect(visit.consumed <= max_tasks + kBlockTasks, "too many submissions were taken");
    lane_->Notify();
    uint32_t tasks = 0;
    if (visit.batch != nullptr) {
      auto batch = std::static_pointer_cast<LaneBatch>(visit.batch);
      tasks = batch->count();
      Expect(tasks > 0 && batch->submissions() <= visit.consumed, "a batch of another size");
      Expect(batch->first + batch->submissions() == consumed_ + visit.consumed,
             "a submission was taken twice");
      Expect(batch->quiet.size() == batch->submissions(), "a submission without its flag");
      Check(*batch);
      batch->enqueued_at = Clock::now();
      PrepareOutcomes(*batch);
      batch->submitted = tasks;
      running_.push_back(std::move(batch));
    }
    consumed_ += visit.consumed;
    tasks_ += tasks;
    published_ = std::max(published_, consumed_);
    progress_.store(consumed_, std::memory_order_relaxed);
    if (running_.size() > 8) EndAll();
  }

  void Check(const LaneBatch& batch) {
    Expect(batch.version != nullptr && batch.bindings == bindings_, "a batch without its buffers");
    Expect(batch.call < kCalls, "another call");
    if (batch.range != nullptr) return CheckRange(batch);
    const bool compact = batch.call == kAdd || batch.call == kElements;
    const uint32_t arguments = batch.call == kBounded ? 3 : 4;
    Expect(batch.arguments_per_task == (compact ? 0 : arguments), "another number of arguments");
    Expect(batch.arguments.size() == size_t{batch.count()} * batch.arguments_per_task,
           "missing arguments");
    for (uint32_t i = 0; i < batch.count(); ++i) {
      const TaskDescriptor& task = batch.tasks[i];
      Expect((task.flags & ~(kTaskCompact | kTaskDeviceOutputs)) == 0, "unknown flags");
      Expect(((task.flags & kTaskCompact) != 0) == compact, "the other form");
      Expect(task.operator_slot == batch.version->slot, "another operator");
      if (compact) {
        CheckCompact(task);
      } else {
        CheckArguments(batch.call, &batch.arguments[size_t{i} * arguments]);
      }
    }
  }

  void CheckRange(const LaneBatch& batch) {
    const TaskRange& range = *batch.range;
    Expect(batch.tasks.empty() && batch.arguments.empty(), "a range that has tasks, too");
    Expect(range.count <= (batch.whole ? kMaxRange : kBlockTasks), "a range that is too long");
    const bool compact = batch.call == kAdd || batch.call == kElements;
    const size_t arguments = batch.call == kBounded ? 3 : 4;
    Expect(range.arguments.size() == arguments && range.columns.size() == arguments &&
               range.values.size() == arguments,
           "another number of arguments");
    Expect(range.descriptor.operator_slot == batch.version->slot, "another operator");
    // The device reads these; the host's view is the same memory.
    const StagingMemory& memory = batch.memory != nullptr ? *batch.memory : *batch.ticket.staging();
    const auto in_memory = [&](uint64_t address, uint64_t bytes) {
      return address >= memory.address && address + bytes <= memory.address + memory.size_bytes;
    };
    Expect(in_memory(range.descriptor.outcomes, range.count * sizeof(RangeOutcome)),
           "outcomes outside of staging memory");
    for (size_t a = 0; a < arguments; ++a) {
      const RangeColumn& column = range.columns[a];
      Expect((column.values == 0) == (range.values[a] == nullptr), "another form of a column");
      if (column.values == 0) continue;
      Expect(in_memory(column.values, range.count * sizeof(uint64_t)),
             "values outside of staging memory");
      Expect(reinterpret_cast<const uint8_t*>(range.values[a]) - memory.host ==
                 static_cast<std::ptrdiff_t>(column.values - memory.address),
             "the device reads other values");
    }
    std::vector<Argument> of_task;
    for (uint32_t i = 0; i < range.count; ++i) {
      const TaskDescriptor task = range.Describe(i, &of_task);
      Expect(((task.flags & kTaskCompact) != 0) == compact, "the other form");
      if (compact) {
        CheckCompact(task);
      } else {
        CheckArguments(batch.call, of_task.data());
      }
    }
    if (!batch.whole) return;
    ++ranges_;
    range_tasks_ += range.count;
  }

  void CheckCompact(const TaskDescriptor& task) {
    const uint64_t elements = task.elements();
    Expect(elements >= 1 && elements <= kMaxElements, "too many elements");
    for (uint32_t a = 0; a < 3; ++a) {
      const uint64_t address = task.compact_argument(a);
      Expect(address % sizeof(float) == 0, "an address between elements");
      Expect(Within(address, 0, elements * sizeof(float)),
             "an address outside of the bound buffers");
    }
  }

  void CheckArguments(uint16_t call, const Argument* arguments) {
    const DType dtype = call == kBounded ? DType::kF16 : DType::kF32;
    for (uint32_t a = 0; a < (call == kBounded ? 2u : 3u); ++a) {
      const TensorArgument& tensor = arguments[a].tensor;
      const bool backwards = call == kStrided && a == 0;
      Expect(tensor.rank == 1 && tensor.shape[0] == 4 && tensor.dtype == dtype &&
                 tensor.strides[0] == (backwards ? -2 : 1),
             "another shape");
      Expect(tensor.address % SizeOf(dtype) == 0, "an address between elements");
      Expect(Within(tensor.address, backwards ? 6 * sizeof(float) : 0,
                    (backwards ? 1 : 4) * SizeOf(dtype)),
             "an address outside of the bound buffers");
    }
    if (call == kBounded) Expect(arguments[2].scalar_bits <= kMaxValue, "a value over its limit");
  }

  bool Within(uint64_t address, uint64_t before, uint64_t from) const {
    return std::any_of(bindings_->buffers.begin(), bindings_->buffers.end(),
                       [&](const BoundBuffer& bound) {
                         return bound.buffer != nullptr && address >= bound.address + before &&
                                address + from <= bound.address + bound.bytes;
                       });
  }

  void End(std::mt19937& random) {
    if (running_.empty()) return;
    const size_t at = random() % running_.size();
    const std::shared_ptr<LaneBatch> batch = running_[at];
    running_.erase(running_.begin() + static_cast<std::ptrdiff_t>(at));
    if (random() % 2 == 0) PrepareFailures(*batch);
    for (TaskStatus& status : batch->status) {
      if (random() % 16 != 0) continue;
      status = static_cast<TaskStatus>(random() % 7);
      batch->failed += status != TaskStatus::kOk;
    }
    batch->finished = batch->count();
    batch->done(*batch);
  }
  void EndAll() {
    std::mt19937 random(1);
    while (!running_.empty()) End(random);
  }

  // The second thread.
  void Rewrite() {
    std::mt19937 random(std::random_device{}());
    const uint64_t words = lane_bytes(kSlots, kDataBytes) / sizeof(uint64_t);
    const uint64_t data = lane_data_offset(kSlots) / sizeof(uint64_t);
    auto* const memory = reinterpret_cast<uint64_t*>(base_);
    while (!stop_) {
      for (int i = 0; i < 64; ++i) {
        const bool calm = calm_.load(std::memory_order_relaxed);
        const uint64_t sequence =
            progress_.load(std::memory_order_relaxed) + random() % (calm ? 512 : 8);
        lane_slot* const slot = Slot(sequence);
        switch (calm && random() % 512 != 0 ? 15 : random() % 16) {
          case 0:  // Any word, with any value.
            __atomic_store_n(memory + random() % words, uint64_t{random()} << 32 | random(),
                             __ATOMIC_RELAXED);
            break;
          case 1:  // The stamp of another lap, or this one's too early.
            __atomic_store_n(&slot->head,
                             lane_slot_head(sequence + random() % 3 * kSlots,
                                            static_cast<uint16_t>(random() % 5),
                                            static_cast<uint8_t>(random() % 3 == 0 ? random() : 0),
                                            static_cast<uint8_t>(random() % 3 == 0 ? random() : 0)),
                             __ATOMIC_RELEASE);
            break;
          case 2:  // The client page: nothing is cancelled for ever.
            __atomic_store_n(memory, sequence - std::min<uint64_t>(sequence, random() % 16),
                             __ATOMIC_RELAXED);
            __atomic_store_n(memory + 1, uint64_t{random() % 2}, __ATOMIC_RELAXED);
            break;
          case 3:  // The data area: records, counts of what follows, places of values.
            __atomic_store_n(memory + data + random() % (words - data),
                             random() % 2 == 0 ? random() % 8 * 8 : RandomPlace(random),
                             __ATOMIC_RELAXED);
            break;
          case 4:  // Stream words: nothing waits for ever.
            __atomic_store_n(memory + 8 + random() % kLaneStreamWords, uint64_t{random()},
                             __ATOMIC_RELAXED);
            break;
          default:
            // Submissions that wait are joined only if most are good.
            if (calm && random() % 512 != 0) break;
            __atomic_store_n(
                &slot->words[random() % kLaneWords],
                random() % 2 == 0 ? RandomPlace(random) : uint64_t{random()} << 32 | random(),
                __ATOMIC_RELAXED);
        }
      }
      rewritten_.fetch_add(64, std::memory_order_relaxed);
    }
  }

  const std::unique_ptr<Registry> registry_ = *Registry::Create({.devices = 1});
  BufferTable buffers_{Limits{}};
  const std::shared_ptr<FakeSession> session_ =
      std::make_shared<FakeSession>(/*epoch=*/1, 1 << 20, 1 << 20);
  DrainGate gate_;
  Admission admission_{Limits{}, &gate_, TimeSource::Steady()};
  const std::shared_ptr<ClientAccounts> accounts_ =
      std::make_shared<ClientAccounts>(std::make_shared<Account>("fuzz", Rights{}), 1);
  std::deque<std::function<void()>> posted_;
  LaneCounters counters_;
  std::shared_ptr<const LaneBindings> bindings_;
  std::shared_ptr<Lane> lane_;
  uint8_t* base_ = nullptr;
  uint64_t published_ = 0;
  uint64_t consumed_ = 0;
  uint64_t tasks_ = 0;
  uint64_t ranges_ = 0;
  uint64_t range_tasks_ = 0;
  std::vector<std::shared_ptr<LaneBatch>> running_;
  std::atomic<uint64_t> progress_{0};
  std::atomic<uint64_t> rewritten_{0};
  std::atomic<bool> stop_{false};
  std::atomic<bool> calm_{false};
  std::thread hostile_;  // Uses the members above.
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static World world;
  uint32_t seed = 0;
  for (size_t i = 0; i < size; ++i) seed = seed * 31 + data[i];
  world.Run(seed);
  return 0;
}
