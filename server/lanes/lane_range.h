// LaneRange: many tasks of one prepared call in the form of a range (runtime/queue/task_range.h):
// submissions that waited and were joined, or a submission of the kind kLaneRange.
//
// The values of words that differ from task to task are in staging memory, because the device reads
// them there. Each one was checked in a register, from which it is stored; the memory of the client
// is loaded once.
//
// Thread safety: LaneRange: one thread at a time. RangeBlocks: any thread.
//
// Invariants of LaneRange: those of PreparedCall, for each of its tasks.
//
//   LaneRange range(*call, memory, /*max_tasks=*/512);
//   while (range.Add(task)) ...            // Or: range.Read(source, count, buffers).
//   batch->range = range.Build(target);
#ifndef RESIDENT_SERVER_LANES_LANE_RANGE_H_
#define RESIDENT_SERVER_LANES_LANE_RANGE_H_

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/device/engine_session.h"
#include "runtime/lane/lane_layout.h"
#include "runtime/queue/task_range.h"
#include "server/admission/admission.h"
#include "server/lanes/prepared_call.h"

namespace resident {

// The records and values of a submission of the kind kLaneRange, in the client's memory.
struct RangeSource {
  const uint8_t* data = nullptr;  // The data area.
  uint64_t data_bytes = 0;
  uint64_t records = 0;  // Offset of the first lane_range_column in the data area.
};

// Why a range is refused.
struct RangeRefusal {
  Refusal refusal;
  uint32_t task = 0;
  uint64_t word = 0;  // The value of the word that was refused.
  std::string text;   // Of kLaneRefusedRange; otherwise PreparedCall::Explain has it.

  explicit operator bool() const { return static_cast<bool>(refusal); }
};

class LaneRange {
 public:
  // Bytes of staging memory for the outcomes of so many tasks, and the values of their words.
  static uint64_t StagingBytes(uint64_t tasks, size_t words) {
    return Rounded(tasks) * (sizeof(RangeOutcome) + words * sizeof(uint64_t));
  }

  // `memory`: StagingBytes(max_tasks, call.words()). Both must outlive the object, and the memory
  // what Build returns.
  LaneRange(const PreparedCall& call, const StagingMemory& memory, uint32_t max_tasks)
      : call_(call), memory_(memory), max_tasks_(max_tasks) {}

  uint32_t count() const { return count_; }
  uint32_t max_tasks() const { return max_tasks_; }

  // Appends a task. False: there is no space, or its number of elements is another one.
  bool Add(const CheckedTask& task);
  // Reads all tasks of a range, instead of Add. REQUIRES: 0 < count <= max_tasks().
  RangeRefusal Read(const RangeSource& source, uint32_t count,
                    const std::vector<BoundBuffer>& buffers);

  // REQUIRES: count() > 0, target.ranges.
  std::unique_ptr<const TaskRange> Build(const CallTarget& target) const;
  // Task i as a task of its own. REQUIRES: added with Add.
  CheckedTask Task(uint32_t i) const;

 private:
  // What a column of values looks like.
  enum class Form : uint8_t { kConstant, kStride, kValues };
  struct Column {
    Form form = Form::kValues;
    uint64_t base = 0;
    uint64_t stride = 0;
  };

  static uint64_t Rounded(uint64_t tasks) { return (tasks + 7) & ~uint64_t{7}; }
  uint64_t* values(size_t word) const {
    return reinterpret_cast<uint64_t*>(memory_.host + StagingBytes(max_tasks_, word));
  }
  // Reads the column of one argument; `from` is a private copy of its record.
  RangeRefusal ReadColumn(const RangeSource& source, const lane_range_column& from, size_t argument,
                          uint32_t count, const std::vector<BoundBuffer>& buffers);
  RangeRefusal ReadStride(const lane_range_column& from, size_t argument, uint32_t count,
                          const std::vector<BoundBuffer>& buffers);
  RangeRefusal RefuseRange(size_t word, const std::string& what) const;

  const PreparedCall& call_;
  const StagingMemory memory_;
  const uint32_t max_tasks_;
  uint32_t count_ = 0;
  uint64_t elements_ = 0;
  DeviceMemoryBits device_memory_ = UINT64_MAX;  // CheckedTask::device_memory of all tasks.
  std::array<Column, kLaneWords> columns_ = {};  // By word.
};

// Staging memory of a lane for ranges that are taken at once, without a ticket of their own: a few
// blocks, each of which one range uses at a time.
class RangeBlocks : public std::enable_shared_from_this<RangeBlocks> {
 public:
  // One range waits for the device while the next one is filled.
  static constexpr uint32_t kBlocks = 2;

  // The staging memory of `ticket` has StagingBytes(tasks, words) bytes for each block.
  RangeBlocks(Ticket ticket, uint32_t tasks, size_t words);
  static uint64_t Bytes(uint32_t tasks, size_t words) {
    return kBlocks * LaneRange::StagingBytes(tasks, words);
  }

  uint32_t tasks() const { return tasks_; }
  size_t words() const { return words_; }
  // Null: all are in use. The block is free again when the last reference ends.
  std::shared_ptr<const StagingMemory> Take();

 private:
  struct Block {
    StagingMemory memory{};
    std::atomic<bool> taken{false};
  };
  const Ticket ticket_;
  const uint32_t tasks_;
  const size_t words_;
  std::array<Block, kBlocks> blocks_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_LANES_LANE_RANGE_H_
