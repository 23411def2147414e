// PreparedCall: what the submissions of a lane (lane.h) that name one call have in common, checked
// once by the code that checks batches; and the check of what differs from one to the next.
//
// A call has a template, a task of one operator, and says what each word of a submission changes in
// it: the place of a tensor, the value of a scalar, or the number of elements. Its target is the
// version that serves at the moment; it is resolved again when the registry has changed.
//
// Thread safety: objects are immutable.
//
// Invariants:
//   1. Check sets every value of a task from the words' copy that it was given, which it does not
//      read again, or from the template.
//   2. A tensor whose address Check returns lies within a buffer of the bindings, with all of its
//      elements, or is that of the template.
//
//   ASSIGN_OR_RETURN(auto call, PreparedCall::Prepare(sources, request));
//   const CallTarget target = call->Resolve(registry, {device, engine, task_time});
//   CheckedTask task;
//   if (const Refusal refusal = call->Check(words, bindings.buffers, &task)) ...
#ifndef RESIDENT_SERVER_LANES_PREPARED_CALL_H_
#define RESIDENT_SERVER_LANES_PREPARED_CALL_H_

#include <array>
#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "absl/container/inlined_vector.h"
#include "absl/status/statusor.h"
#include "kernels/layout/task.h"
#include "resident/v1/lanes.pb.h"
#include "runtime/device/buffer_table.h"
#include "runtime/device/engine_session.h"
#include "runtime/lane/lane_layout.h"
#include "runtime/operators/registry/registry.h"
#include "server/workload/columns.h"
#include "server/workload/work_bound.h"

namespace resident {

// The words of a submission, copied out of the shared memory.
using LaneWordCopy = std::array<uint64_t, kLaneWords>;

// In which memory of the device tensors are: bit a for tensor a in memory of the daemon, bit 32 + a
// for tensor a in memory of the daemon or of a client's process.
using DeviceMemoryBits = uint64_t;
inline constexpr DeviceMemoryBits kImportedMemory = uint64_t{1} << 32;
inline constexpr DeviceMemoryBits kDaemonMemory = kImportedMemory | 1;
inline uint32_t InDaemonMemory(DeviceMemoryBits bits) { return static_cast<uint32_t>(bits); }
inline uint32_t OnDevice(DeviceMemoryBits bits) { return static_cast<uint32_t>(bits >> 32); }

// A buffer of a lane's table. Without a buffer, the index is free.
struct BoundBuffer {
  std::shared_ptr<const Buffer> buffer;
  uint64_t address = 0;  // 0: the buffer was lost with its engine.
  uint64_t bytes = 0;
  DeviceMemoryBits device_memory = 0;  // Those of tensor 0.
};
BoundBuffer MakeBound(std::shared_ptr<const Buffer> buffer, uint64_t epoch);

// Why a submission is refused; `reason` 0: it is not.
struct Refusal {
  uint16_t reason = 0;
  uint8_t word = 0;  // Of kLaneRefusedBuffer to kLaneRefusedValue.

  explicit operator bool() const { return reason != 0; }
};

// What a task runs on.
struct CheckedTask {
  uint64_t elements = 0;  // Of each tensor, in compact form.
  DeviceMemoryBits device_memory = 0;
  // The address of a tensor, or a scalar's bits, by argument.
  std::array<uint64_t, kMaxArguments> values;
};

// The version that a call's submissions run on.
struct CallTarget {
  // Registry::changes() before it was resolved; 0: never.
  uint64_t changes = 0;
  std::shared_ptr<const OperatorVersion> version;  // Null: refused.
  OperatorStats* stats = nullptr;
  uint16_t refused = 0;  // lane_refusal.
  std::string reason;    // Of a refusal.
  bool on_trial = false;
  // As all tasks have it, except for elements, addresses and bits.
  TaskDescriptor task{};
  bool compact = false;
  // Whether many tasks can be one range: they are not divided, and have few arguments.
  bool ranges = false;
};

class PreparedCall {
 public:
  enum class Role : uint8_t { kFixed, kPlace, kValue };
  // An argument, and how a submission changes it.
  struct CallArgument {
    Role role = Role::kFixed;
    uint8_t word = 0;
    bool tensor = false;
    bool written = false;
    bool lost = false;                   // Fixed: the buffer was lost with its engine.
    DeviceMemoryBits device_memory = 0;  // Fixed: those of tensor 0.
    bool is_signed = false;
    uint32_t element_bytes = 0;
    uint64_t bytes_before = 0;
    uint64_t bytes_from = 0;
    // Of an integer value.
    bool bounded = false;
    int64_t min = 0;
    int64_t max = 0;
    // Of a fixed tensor.
    std::shared_ptr<const Buffer> buffer;
    uint64_t offset = 0;
    Argument argument;
  };

  struct Sources {
    const Registry& registry;
    const BufferTable& buffers;
    ClientId client = 0;
    uint32_t device = 0;
    std::shared_ptr<EngineSession> session;
    std::chrono::milliseconds task_time_limit{0};
  };

  // Errors: those of Executor.Run for the template, and of Lanes.Prepare. The caller checks whether
  // the client may run the operator.
  static absl::StatusOr<std::shared_ptr<const PreparedCall>> Prepare(
      const Sources& sources, const v1::PrepareLaneRequest& request);

  const std::string& operator_name() const { return operator_->name(); }
  // None: each submission runs the active version.
  VersionRef version() const;
  size_t arguments() const { return arguments_.size(); }
  const CallArgument& argument(size_t index) const { return arguments_[index]; }
  size_t words() const { return words_; }
  // The word with the number of elements; -1: none.
  int elements_word() const { return elements_word_; }
  uint64_t max_elements() const { return max_elements_; }
  // Each submission has a device time of its own.
  bool task_times() const { return task_times_; }
  // Bit a: the tasks read tensor a.
  uint32_t inputs() const { return inputs_; }
  // A tensor that does not change was lost with its engine.
  bool lost() const { return lost_; }
  // Bytes of the arguments of one task, in the form that needs more.
  uint64_t argument_bytes() const {
    return task_.compact ? 0 : arguments_.size() * sizeof(Argument);
  }

  // The call with the fixed tensors' buffers as they are on the session's engine.
  std::shared_ptr<const PreparedCall> MoveTo(const Sources& sources) const;

  // The version that a submission runs on now; nullopt: the registry is being changed, try again.
  std::optional<CallTarget> Resolve(const Registry& registry, const WorkLimits& limits) const;

  Refusal Check(const LaneWordCopy& words, const std::vector<BoundBuffer>& buffers,
                CheckedTask* task) const;
  // Checks the word of one argument that is not fixed. `elements`: of each tensor, if they change.
  // Sets the argument's address or bits, and its memory as if it were tensor 0.
  Refusal CheckArgument(const CallArgument& argument, uint64_t word, uint64_t elements,
                        const std::vector<BoundBuffer>& buffers, uint64_t* value,
                        DeviceMemoryBits* device_memory) const;
  // All that the task writes is device memory of the daemon.
  bool DeviceOutputs(const CheckedTask& task) const {
    return (outputs_ & ~InDaemonMemory(task.device_memory)) == 0;
  }
  // The arguments of a task that is not in compact form.
  void AppendArguments(const CheckedTask& task, std::vector<Argument>* to) const;
  // What was wrong, and what to do.
  std::string Explain(const Refusal& refusal, const LaneWordCopy& words,
                      const std::vector<BoundBuffer>& buffers) const;

 private:
  absl::Status ReadWords(const v1::PrepareLaneRequest& request);
  absl::Status ReadWord(int index, const v1::LaneWord& word);
  absl::Status ReadValue(int index, const v1::LaneWord::Value& value);
  absl::Status ReadElements(int index, const v1::LaneWord::Elements& elements);
  absl::Status HoldFixed(const Sources& sources);
  absl::StatusOr<CallArgument*> FindArgument(int index, uint32_t argument, bool tensor);
  TaskWork CountMaxWork(const OperatorVersion& version) const;

  std::shared_ptr<const Operator> operator_;
  // At most one is set.
  uint32_t version_ = 0;
  std::string content_hash_;
  std::string label_;
  TaskTemplate task_;
  std::vector<CallArgument> arguments_;
  size_t words_ = 0;
  int elements_word_ = -1;  // -1: none.
  uint64_t max_elements_ = 0;
  bool lost_ = false;  // A fixed tensor was lost.
  bool task_times_ = false;
  uint32_t inputs_ = 0;   // See inputs().
  uint32_t outputs_ = 0;  // Bit a: the tasks write tensor a.
};

// The value of an integer scalar in the low bytes of a word.
inline int64_t ReadLaneInteger(uint64_t word, uint32_t bytes, bool is_signed) {
  const uint32_t unused = 64 - 8 * bytes;
  const uint64_t high = word << unused;
  return is_signed ? static_cast<int64_t>(high) >> unused : static_cast<int64_t>(high >> unused);
}

inline Refusal PreparedCall::CheckArgument(const CallArgument& argument, uint64_t word,
                                           uint64_t elements,
                                           const std::vector<BoundBuffer>& buffers, uint64_t* value,
                                           DeviceMemoryBits* device_memory) const {
  if (argument.role == Role::kValue) {
    const uint32_t unused = 64 - 8 * argument.element_bytes;
    if (argument.bounded) {
      const int64_t number = ReadLaneInteger(word, argument.element_bytes, argument.is_signed);
      if (number < argument.min || number > argument.max) {
        return {kLaneRefusedValue, argument.word};
      }
    }
    *value = word << unused >> unused;
    return {};
  }
  const uint16_t index = lane_place_buffer(word);
  if (index >= buffers.size() || buffers[index].buffer == nullptr) {
    return {kLaneRefusedBuffer, argument.word};
  }
  const BoundBuffer& bound = buffers[index];
  if (bound.address == 0) return {kLaneRefusedLostBuffer, argument.word};
  const uint64_t offset = lane_place_offset(word);
  if (offset % argument.element_bytes != 0) return {kLaneRefusedAlignment, argument.word};
  const uint64_t from =
      elements_word_ >= 0 ? elements * argument.element_bytes : argument.bytes_from;
  if (from > bound.bytes || offset > bound.bytes - from || offset < argument.bytes_before) {
    return {kLaneRefusedBounds, argument.word};
  }
  *value = bound.address + offset;
  *device_memory = bound.device_memory;
  return {};
}

}  // namespace resident

#endif  // RESIDENT_SERVER_LANES_PREPARED_CALL_H_
