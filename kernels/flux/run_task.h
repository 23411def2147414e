// What the operators that run FLUX programs share: flux_run, which interprets them, and the
// operators that are generated from one program (native_program.h). Both have the arguments of
// run_arguments.h and the same layout of registers and stacks.
//
// Work is done by *lane groups*: a warp on a GPU, the one thread of a block on the
// CPU. A group takes as many runs as it has lanes, loads their initial registers and
// stores their results together, so that adjacent lanes access adjacent words.
//
// Memory layout (T = Block::kMaxThreads; with fewer threads some entries are unused):
//
//   block.memory()   registers [16][T]
//   block.scratch()  stacks [256][T]
//
// What lies behind them belongs to the operator.
#ifndef RESIDENT_KERNELS_FLUX_RUN_TASK_H_
#define RESIDENT_KERNELS_FLUX_RUN_TASK_H_

#include "kernels/flux/interpreter.h"
#include "kernels/flux/run_arguments.h"
#include "kernels/sdk/operator.h"

namespace resident::flux {

inline constexpr u32 kThreads = Block::kMaxThreads;
inline constexpr u32 kLanes = kThreads < 32 ? kThreads : 32;

inline constexpr u32 kRegisterBytes = kRegisters * kThreads * 4;
// Decoded words that fit behind the registers.
inline constexpr u32 kFastWords = (kBlockMemoryBytes - kRegisterBytes) / 4;

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

// Loads the initial registers of the group's runs [begin, begin + n).
RESIDENT_HOST_DEVICE void LoadInitial(const Args& args, const LaneGroup& group, FastWords to,
                                      i64 begin, u32 n) {
  const u32 width = static_cast<u32>(args.scalar<i64>(kRunInitialWidth));
  const bool shared = args.scalar<i64>(kRunInitialShared) != 0;
  const i32* from = args.tensor<const i32>(kRunInitial).data();
  for (u32 r = width; r < kRegisters; ++r) to.store(r * kThreads + group.lane, 0);
  if (shared) {
    for (u32 r = 0; r < width; ++r) {
      to.store(r * kThreads + group.lane, static_cast<u32>(from[r]));
    }
    return;
  }
  from += begin * width;
  for (u32 e = group.lane; e < n * width; e += kLanes) {
    to.store(e % width * kThreads + e / width, static_cast<u32>(from[e]));
  }
}

// Stores the wanted registers of the group's runs [begin, begin + n).
RESIDENT_HOST_DEVICE void StoreWanted(const Args& args, const LaneGroup& group, FastWords from,
                                      i64 begin, u32 n) {
  const u32 count = static_cast<u32>(args.scalar<i64>(kRunWantedCount));
  const u64 wanted = args.scalar<u64>(kRunWanted);
  i32* to = args.tensor<i32>(kRunRegisters).data() + begin * count;
  for (u32 e = group.lane; e < n * count; e += kLanes) {
    const u32 r = static_cast<u32>(wanted >> 4 * (e % count)) & 15;
    to[e] = static_cast<i32>(from.load(r * kThreads + e / count));
  }
}

// The registers and the stack of the run on the calling thread.
RESIDENT_HOST_DEVICE RegisterFile<kThreads> RegistersOf(const Block& block) {
  return {FastWords(block.memory<u32>()) + block.thread()};
}
RESIDENT_HOST_DEVICE Stack<kThreads> StackOf(const Block& block) {
  return {block.scratch<i32>() + block.thread()};
}

}  // namespace resident::flux

#endif  // RESIDENT_KERNELS_FLUX_RUN_TASK_H_
