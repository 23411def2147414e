// This header has what the operators that run FLUX programs share: flux_run, which interprets
// them, and the operators that are generated from one program (native_program.h). Both have the
// arguments of run_arguments.h and the same layout of registers and stacks.
//
// Work is done by *lane groups*: a warp on a GPU, the one thread of a block on the
// CPU. A group takes as many runs as it has lanes, loads their initial registers and
// stores their results together, so that adjacent lanes access adjacent words.
//
// Memory layout (T = Block::kMaxThreads; with fewer threads some entries are unused):
//
//   block.memory()   registers [16][T][runs]
//   block.scratch()  stacks [256][T][runs]
//
// `runs` is the number of runs that a thread executes at a time, 1 or kRunsTogether.
// What lies behind them belongs to the operator.
#ifndef RESIDENT_KERNELS_FLUX_RUN_TASK_H_
#define RESIDENT_KERNELS_FLUX_RUN_TASK_H_

#include "kernels/flux/interpreter.h"
#include "kernels/flux/run_arguments.h"
#include "kernels/flux/runs_together.h"
#include "kernels/sdk/operator.h"

namespace resident::flux {

inline constexpr u32 kThreads = Block::kMaxThreads;
inline constexpr u32 kLanes = kThreads < 32 ? kThreads : 32;

// Runs of one program that a thread executes at a time (runs_together.h). On a GPU their registers
// must fit into a block's memory, and leave space for the program.
inline constexpr u32 kRunsTogether = kThreads == 1 ? 8 : 2;

// Bytes of the registers, and decoded words that fit behind them, if each thread executes `runs`
// runs at a time.
RESIDENT_HOST_DEVICE constexpr u32 RegisterBytes(u32 runs) {
  return kRegisters * kThreads * runs * 4;
}
RESIDENT_HOST_DEVICE constexpr u32 FastWordsBehind(u32 runs) {
  return (kBlockMemoryBytes - RegisterBytes(runs)) / 4;
}
inline constexpr u32 kRegisterBytes = RegisterBytes(1);
inline constexpr u32 kFastWords = FastWordsBehind(1);

// The lanes that work together, and the calling thread's position among them.
struct LaneGroup {
  u32 lane;
  u32 group;
  u32 groups;
  RESIDENT_HOST_DEVICE explicit LaneGroup(const Block& block)
      : lane(block.thread() % kLanes),
        group(block.thread() / kLanes),
        groups(block.threads() / kLanes) {}
  // What a lane wrote before it is visible to the other lanes after it.
  RESIDENT_HOST_DEVICE void sync() const {
#if defined(__CUDA_ARCH__)
    __syncwarp();
#endif
  }
  // The largest value of the lanes; the value of lane `from`, which each lane may choose. (All
  // lanes of the group.)
  RESIDENT_HOST_DEVICE u32 max(u32 value) const {
#if defined(__CUDA_ARCH__)
    return __reduce_max_sync(0xffffffffu, value);
#else
    return value;
#endif
  }
  RESIDENT_HOST_DEVICE u32 value_of(u32 value, u32 from) const {
#if defined(__CUDA_ARCH__)
    return __shfl_sync(0xffffffffu, value, static_cast<int>(from));
#else
    return value;
#endif
  }
};

// The bytes of one program in the bytecode.
struct Text {
  u64 begin;
  u32 length;
};

// The programs of a task: the program of each run, and the bytes of each program.
class Programs {
 public:
  RESIDENT_HOST_DEVICE explicit Programs(const Args& args)
      : bytecode_(args.tensor<const u8>(kRunBytecode)),
        offsets_(args.tensor<const u32>(kRunOffsets)),
        index_(args.tensor<const u32>(kRunIndex)) {}

  RESIDENT_HOST_DEVICE i64 size() const { return offsets_.size() == 0 ? 1 : offsets_.size() - 1; }
  RESIDENT_HOST_DEVICE bool indexed() const { return index_.size() != 0; }

  // Finds the program of run i. Fails the task if it does not exist.
  RESIDENT_HOST_DEVICE bool FindProgram(const Block& block, i64 i, i64* program) const {
    *program = indexed() ? index_.data()[i] : size() == 1 ? 0 : i;
    if (*program < size()) return true;
    block.fail(CompletionStatus::kInvalidArgument, indexed() ? kRunIndex : kRunOffsets);
    return false;
  }

  // Finds the bytes of program p. Fails the task if its offsets are not inside bytecode.
  RESIDENT_HOST_DEVICE bool FindText(const Block& block, i64 p, Text* text) const {
    const u64 begin = offsets_.size() == 0 ? 0 : offsets_.data()[p];
    const u64 end =
        offsets_.size() == 0 ? static_cast<u64>(bytecode_.size()) : offsets_.data()[p + 1];
    *text = {begin, static_cast<u32>(end - begin)};
    if (begin <= end && end <= static_cast<u64>(bytecode_.size()) &&
        end - begin <= kMaxProgramBytes) {
      return true;
    }
    block.fail(CompletionStatus::kInvalidArgument,
               offsets_.size() == 0 ? kRunBytecode : kRunOffsets);
    return false;
  }

  RESIDENT_HOST_DEVICE const u8* bytes(u64 at) const { return bytecode_.data() + at; }

  // The number of bytes by which an aligned staged copy starts before the byte at `at`.
  RESIDENT_HOST_DEVICE u32 Misalignment(u64 at) const {
    return static_cast<u32>(reinterpret_cast<u64>(bytes(at)) & 3);
  }

  // Copies text to `to`, starting at byte Misalignment(text.begin), word by word: thread
  // `worker` of `workers` copies every workers-th word.
  RESIDENT_HOST_DEVICE void Stage(Text text, u32* to, u32 worker, u32 workers) const {
    const u32 skew = Misalignment(text.begin);
    const u32 words = (skew + text.length + 3) / 4;
    const u8* from = bytes(text.begin) - skew;
    for (u32 w = worker; w < words; w += workers) {
      const bool whole = (w != 0 || skew == 0) && 4 * w + 4 <= skew + text.length;
      u32 value = 0;
      if (whole) {
        value = reinterpret_cast<const u32*>(from)[w];
      } else {
        for (u32 b = 0; b < 4; ++b) {
          const u32 at = 4 * w + b;
          if (at >= skew && at < skew + text.length) value |= static_cast<u32>(from[at]) << 8 * b;
        }
      }
      to[w] = value;
    }
  }

 private:
  Tensor<const u8> bytecode_;
  Tensor<const u32> offsets_;
  Tensor<const u32> index_;
};

// Repeats the checks of the host. Returns false after it has failed the task with the argument.
RESIDENT_HOST_DEVICE bool CheckArguments(const Block& block, const Args& args,
                                         const Programs& programs) {
  const i64 count = args.scalar<i64>(kRunCount);
  const i64 width = args.scalar<i64>(kRunInitialWidth);
  const i64 wanted = args.scalar<i64>(kRunWantedCount);
  const i64 limit = args.scalar<i64>(kRunMaxCycles);
  const bool shared = args.scalar<i64>(kRunInitialShared) != 0;
  u32 bad = kRunArguments;
  if (count < 0)
    bad = kRunCount;
  else if (width < 0 || width > kRegisters)
    bad = kRunInitialWidth;
  else if (wanted < 0 || wanted > kRegisters)
    bad = kRunWantedCount;
  else if (limit < 0 || limit > 0xffffffffll)
    bad = kRunMaxCycles;
  else if (args.tensor<u8>(kRunErrors).size() < count)
    bad = kRunErrors;
  else if (args.tensor<u32>(kRunCycles).size() < count)
    bad = kRunCycles;
  else if (args.tensor<i32>(kRunRegisters).size() < count * wanted)
    bad = kRunRegisters;
  else if (args.tensor<i32>(kRunInitial).size() < (shared ? 1 : count) * width)
    bad = kRunInitial;
  else if (programs.indexed() && args.tensor<u32>(kRunIndex).size() < count)
    bad = kRunIndex;
  // There must be a program, and enough programs if each run has its own.
  else if (programs.size() == 0 && count != 0)
    bad = kRunOffsets;
  else if (!programs.indexed() && programs.size() != 1 && programs.size() < count)
    bad = kRunOffsets;
  if (bad == kRunArguments) return true;
  block.fail(CompletionStatus::kInvalidArgument, static_cast<u16>(bad));
  return false;
}

// The elements of a table with `width` columns that a lane accesses: every kLanes-th one.
class TableWalk {
 public:
  // REQUIRES: width != 0.
  RESIDENT_HOST_DEVICE TableWalk(u32 lane, u32 width)
      : row_(lane / width),
        column_(lane % width),
        width_(width),
        rows_(kLanes / width),
        columns_(kLanes % width) {}
  RESIDENT_HOST_DEVICE u32 row() const { return row_; }
  RESIDENT_HOST_DEVICE u32 column() const { return column_; }
  // Without a division, which would take longer than a short program.
  RESIDENT_HOST_DEVICE void Next() {
    row_ += rows_;
    column_ += columns_;
    if (column_ < width_) return;
    column_ -= width_;
    ++row_;
  }

 private:
  u32 row_;
  u32 column_;
  u32 width_;
  u32 rows_;
  u32 columns_;
};

// Loads the initial registers of the group's runs [begin, begin + n), of which each lane has kRuns
// adjacent ones.
template <u32 kRuns = 1>
RESIDENT_HOST_DEVICE void LoadInitial(const Args& args, const LaneGroup& group, FastWords to,
                                      i64 begin, u32 n) {
  constexpr u32 kRow = kThreads * kRuns;
  const u32 width = static_cast<u32>(args.scalar<i64>(kRunInitialWidth));
  const bool shared = args.scalar<i64>(kRunInitialShared) != 0;
  const i32* from = args.tensor<const i32>(kRunInitial).data();
  for (u32 s = group.lane; s < n; s += kLanes) {
    for (u32 r = shared ? 0 : width; r < kRegisters; ++r) {
      to.store(r * kRow + s, r < width ? static_cast<u32>(from[r]) : 0);
    }
  }
  if (shared || width == 0) return;
  from += begin * width;
  TableWalk walk(group.lane, width);
  for (u32 e = group.lane; e < n * width; e += kLanes, walk.Next()) {
    to.store(walk.column() * kRow + walk.row(), static_cast<u32>(from[e]));
  }
}

// Stores the wanted registers of the group's runs [begin, begin + n).
template <u32 kRuns = 1>
RESIDENT_HOST_DEVICE void StoreWanted(const Args& args, const LaneGroup& group, FastWords from,
                                      i64 begin, u32 n) {
  constexpr u32 kRow = kThreads * kRuns;
  const u32 count = static_cast<u32>(args.scalar<i64>(kRunWantedCount));
  const u64 wanted = args.scalar<u64>(kRunWanted);
  if (count == 0) return;
  i32* to = args.tensor<i32>(kRunRegisters).data() + begin * count;
  TableWalk walk(group.lane, count);
  for (u32 e = group.lane; e < n * count; e += kLanes, walk.Next()) {
    const u32 r = static_cast<u32>(wanted >> 4 * walk.column()) & 15;
    to[e] = static_cast<i32>(from.load(r * kRow + walk.row()));
  }
}

// Stores how run i ended.
RESIDENT_HOST_DEVICE void StoreOutcome(const Args& args, i64 i, Outcome outcome) {
  args.tensor<u8>(kRunErrors).data()[i] = static_cast<u8>(outcome.error);
  args.tensor<u32>(kRunCycles).data()[i] = outcome.cycles;
}

// Stores how the group's runs [begin, begin + n) ended, of which each lane has kRuns adjacent ones.
// Adjacent lanes write adjacent values: each separate piece of mapped host memory would be a
// transfer of its own. (all lanes of the group)
template <u32 kRuns>
RESIDENT_HOST_DEVICE void StoreOutcomes(const Args& args, const LaneGroup& group, i64 begin, u32 n,
                                        const Several<kRuns>& errors,
                                        const Several<kRuns>& cycles) {
  RESIDENT_UNROLL(kRuns)
  for (u32 j = 0; j < kRuns; ++j) {
    const u32 s = j * kLanes + group.lane;
    Outcome outcome = {0, 0};
    RESIDENT_UNROLL(kRuns)
    for (u32 k = 0; k < kRuns; ++k) {
      const u32 error = group.value_of(errors.of[k], s / kRuns);
      const u32 executed = group.value_of(cycles.of[k], s / kRuns);
      if (s % kRuns == k) outcome = {error, executed};
    }
    if (s < n) StoreOutcome(args, begin + s, outcome);
  }
}

// The registers and the stack of the run, or of the runs, on the calling thread.
RESIDENT_HOST_DEVICE RegisterFile<kThreads> RegistersOf(const Block& block) {
  return {FastWords(block.memory<u32>()) + block.thread()};
}
RESIDENT_HOST_DEVICE Stack<kThreads> StackOf(const Block& block) {
  return {block.scratch<i32>() + block.thread()};
}
using RegisterFilesOfThread = RegisterFiles<kRunsTogether, kThreads * kRunsTogether>;
using StacksOfThread = Stacks<kRunsTogether, kThreads * kRunsTogether>;
RESIDENT_HOST_DEVICE RegisterFilesOfThread RegisterFilesOf(const Block& block) {
  return {FastWords(block.memory<u32>()) + block.thread() * kRunsTogether};
}
RESIDENT_HOST_DEVICE StacksOfThread StacksOf(const Block& block) {
  return {block.scratch<i32>() + block.thread() * kRunsTogether};
}

}  // namespace resident::flux

#endif  // RESIDENT_KERNELS_FLUX_RUN_TASK_H_
