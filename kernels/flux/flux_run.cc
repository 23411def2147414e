// Operator flux_run: runs FLUX programs, one on each thread. run_arguments.h describes
// its arguments, docs/flux.md the machine.
//
// Work is done by *lane groups*: a warp on a GPU, the one thread of a block on the
// CPU. A group takes as many runs as it has lanes, loads their initial registers and
// stores their results together, so that adjacent lanes access adjacent words.
//
// Memory layout (T = Block::kMaxThreads; with fewer threads some entries are unused):
//
//   block.memory()   registers [16][T], then decoded words, as many as fit (6,144)
//   block.scratch()  stacks [256][T]; of the rest, one fifth is for staged bytes and four
//                    fifths are for decoded words
//
// Programs are passed to the interpreter in one of these ways (Placement):
//   kChunk*  All programs of the chunk are staged and decoded once. Used for one program
//            with many inputs, and for small programs.
//   kRound   In each round, each thread has one run. The programs of the round are staged, each in
//            a slot with the size of the largest one.
//   kRaw     Programs are not staged, and are decoded while they run. Used for programs that are
//            too large to stage.
#include "kernels/flux/interpreter.h"
#include "kernels/flux/run_arguments.h"
#include "kernels/sdk/operator.h"

namespace resident::flux {
namespace {

constexpr u32 kThreads = Block::kMaxThreads;
constexpr u32 kLanes = kThreads < 32 ? kThreads : 32;

constexpr u32 kRegisterBytes = kRegisters * kThreads * 4;
constexpr u32 kFastWords = (kBlockMemoryBytes - kRegisterBytes) / 4;
// The tables of kRound use this memory, because its decoded words are in scratch memory.
static_assert(2 * kThreads <= kFastWords, "the slot table does not fit");

constexpr u64 kStackBytes = u64{kStackDepth} * kThreads * 4;
constexpr u32 kStagedWords = static_cast<u32>((kScratchBytes - kStackBytes) / 5 / 64 * 16);
constexpr u32 kStagedBytes = kStagedWords * 4;
constexpr u32 kDecodedWords = kStagedWords * 4;
constexpr u64 kStagedAt = kStackBytes;
constexpr u64 kDecodedAt = kStagedAt + kStagedBytes;
static_assert(kDecodedAt + u64{kDecodedWords} * 4 <= kScratchBytes, "");
// A staged program keeps its alignment, which needs up to 3 more bytes on each side.
constexpr u32 kAlignmentBytes = 8;

using Registers = RegisterFile<kThreads>;
using Stacks = Stack<kThreads>;

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

// Decodes a program of `length` bytes that was staged at byte `at` of `staged`, to
// length + 1 words at `to`.
template <typename Words>
RESIDENT_HOST_DEVICE void DecodeStaged(const u32* staged, u32 at, u32 length, bool unknown_nop,
                                       Words to, u32 worker, u32 workers) {
  for (u32 pc = worker; pc <= length; pc += workers) {
    const u32 shift = 8 * ((at + pc) & 3);
    const u32* word = staged + (at + pc) / 4;
    u32 bytes = word[0] >> shift;
    // The next word belongs to the program only if the four bytes extend into it before
    // the end of the program.
    if (shift != 0 && length - pc > (32 - shift) / 8) bytes |= word[1] << (32 - shift);
    to.store(pc, Decode(bytes, length - pc, unknown_nop));
  }
}

// The location of the programs of the runs [begin, end).
struct Placement {
  enum Kind : u32 { kChunkFast, kChunkScratch, kRound, kRaw };
  Kind kind;
  // kRound: distance in words between the programs of adjacent runs.
  u32 stride;
  // kChunk*: the words of program p start at (its offset - origin) + (p - first).
  u64 origin;
  i64 first;
  i64 begin;
  i64 end;

  // First word of run i, which executes `program` at `text`.
  RESIDENT_HOST_DEVICE u32 FirstWord(i64 i, i64 program, Text text) const {
    if (kind == kRound) return static_cast<u32>(i - begin) * stride;
    return static_cast<u32>(text.begin - origin) + static_cast<u32>(program - first);
  }
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

// Stages programs [first, last) and decodes them to `words`, which is large enough. Returns
// false after it has failed the task if one of them is not inside bytecode. (collective)
template <typename Words>
RESIDENT_HOST_DEVICE bool StageChunk(const Block& block, const Programs& programs, i64 first,
                                     i64 last, Text whole, bool unknown_nop, Words words) {
  u32 bad = 0;
  for (i64 p = first + block.thread(); p < last; p += block.threads()) {
    Text text;
    if (!programs.FindText(block, p, &text) || text.begin < whole.begin ||
        text.begin + text.length > whole.begin + whole.length) {
      block.fail(CompletionStatus::kInvalidArgument, kRunOffsets);
      bad = 1;
    }
  }
  if (block.reduce_sum(bad) != 0) return false;

  u32* staged = block.scratch<u32>(kStagedAt);
  programs.Stage(whole, staged, block.thread(), block.threads());
  block.barrier();

  const LaneGroup group(block);
  const bool alone = last - first == 1;  // The whole block decodes a single program.
  const u32 skew = programs.Misalignment(whole.begin);
  for (i64 p = first + (alone ? 0 : group.group); p < last; p += alone ? 1 : group.groups) {
    Text text;
    programs.FindText(block, p, &text);
    const u32 at = static_cast<u32>(text.begin - whole.begin);
    DecodeStaged(staged, skew + at, text.length, unknown_nop,
                 words + (at + static_cast<u32>(p - first)), alone ? block.thread() : group.lane,
                 alone ? block.threads() : kLanes);
  }
  block.barrier();
  return true;
}

// Stages the programs of all runs of the chunk, if they fit and there are not more programs
// than runs. (collective)
RESIDENT_HOST_DEVICE bool PlaceChunk(const Block& block, const Programs& programs, Range range,
                                     bool unknown_nop, Placement* placement) {
  const bool own = !programs.indexed() && programs.size() != 1;
  const i64 first = own ? range.begin : 0;
  const i64 last = own ? range.end : programs.size();
  if (last - first != 1 && last - first > range.size()) return false;
  Text head;
  Text tail;
  if (!programs.FindText(block, first, &head) || !programs.FindText(block, last - 1, &tail)) {
    return false;
  }
  const u64 end = tail.begin + tail.length;
  if (end < head.begin) return false;
  const u64 bytes = end - head.begin;
  const u64 words = bytes + static_cast<u64>(last - first);
  if (bytes + kAlignmentBytes > kStagedBytes || words > kDecodedWords) return false;

  const Text whole = {head.begin, static_cast<u32>(bytes)};
  const bool fast = words <= kFastWords;
  const bool staged = fast ? StageChunk(block, programs, first, last, whole, unknown_nop,
                                        FastWords(block.memory<u32>(kRegisterBytes)))
                           : StageChunk(block, programs, first, last, whole, unknown_nop,
                                        DeviceWords(block.scratch<u32>(kDecodedAt)));
  if (!staged) return false;
  *placement = {fast ? Placement::kChunkFast : Placement::kChunkScratch,
                0,
                head.begin,
                first,
                range.begin,
                range.end};
  return true;
}

// Stages the programs of the first runs of the range. (collective)
RESIDENT_HOST_DEVICE void PlaceRound(const Block& block, const Programs& programs, Range range,
                                     bool unknown_nop, Placement* placement) {
  u32 n = static_cast<u32>(range.size() < block.threads() ? range.size() : block.threads());
  Text text = {0, 0};
  if (block.thread() < n) {
    i64 program;
    if (!programs.FindProgram(block, range.begin + block.thread(), &program) ||
        !programs.FindText(block, program, &text)) {
      text = {0, 0};  // The task has failed; this run is not executed.
    }
  }
  const u32 largest = block.reduce_max(text.length);
  // The number of runs is limited by the slots of this size. With fewer than a warp, do not stage.
  const u32 slots = largest < kStagedBytes ? kStagedBytes / (largest + kAlignmentBytes) : 0;
  if (slots < kLanes) {
    *placement = {Placement::kRaw, 0, 0, 0, range.begin, range.begin + n};
    return;
  }
  if (slots < n) n = slots;
  const u32 staged_stride = (largest + kAlignmentBytes) / 4;
  const u32 stride = largest + 1;
  *placement = {Placement::kRound, stride, 0, 0, range.begin, range.begin + n};

  const FastWords slot_begin(block.memory<u32>(kRegisterBytes));
  const FastWords slot_length = slot_begin + kThreads;
  slot_begin.store(block.thread(), static_cast<u32>(text.begin));
  slot_length.store(block.thread(), text.length);
  block.barrier();
  u32* staged = block.scratch<u32>(kStagedAt);
  const DeviceWords words(block.scratch<u32>(kDecodedAt));
  const LaneGroup group(block);
  for (u32 s = group.group; s < n; s += group.groups) {
    programs.Stage({slot_begin.load(s), slot_length.load(s)}, staged + s * staged_stride,
                   group.lane, kLanes);
  }
  block.barrier();
  for (u32 s = group.group; s < n; s += group.groups) {
    DecodeStaged(staged + s * staged_stride, programs.Misalignment(slot_begin.load(s)),
                 slot_length.load(s), unknown_nop, words + s * stride, group.lane, kLanes);
  }
  block.barrier();
}

// Loads the initial registers of the group's runs [begin, begin + n).
RESIDENT_HOST_DEVICE void LoadInitial(const Args& args, const LaneGroup& group, FastWords to,
                                      i64 begin, u32 n) {
  const u32 width = args.scalar<u32>(kRunInitialWidth);
  const bool shared = args.scalar<u32>(kRunInitialShared) != 0;
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
  const u32 count = args.scalar<u32>(kRunWantedCount);
  const u64 wanted = args.scalar<u64>(kRunWanted);
  i32* to = args.tensor<i32>(kRunRegisters).data() + begin * count;
  for (u32 e = group.lane; e < n * count; e += kLanes) {
    const u32 r = static_cast<u32>(wanted >> 4 * (e % count)) & 15;
    to[e] = static_cast<i32>(from.load(r * kThreads + e / count));
  }
}

// Executes run i on the calling thread.
RESIDENT_HOST_DEVICE void RunOne(const Block& block, const Args& args, const Placement& placement,
                                 bool unknown_nop, i64 i) {
  const Programs programs(args);
  i64 program;
  Text text;
  if (!programs.FindProgram(block, i, &program) || !programs.FindText(block, program, &text))
    return;

  const u32 word = placement.FirstWord(i, program, text);
  const RegisterFile<kThreads> registers{FastWords(block.memory<u32>()) + block.thread()};
  const Stack<kThreads> stack{block.scratch<i32>() + block.thread()};
  const u32 limit = args.scalar<u32>(kRunMaxCycles);
  Outcome outcome;
  if (placement.kind == Placement::kChunkFast) {
    const FastWords words(block.memory<u32>(kRegisterBytes));
    outcome = Execute(DecodedCode<FastWords>{words + word, text.length}, registers, stack, limit);
  } else if (placement.kind == Placement::kRaw) {
    outcome = Execute(RawCode{programs.bytes(text.begin), text.length, unknown_nop}, registers,
                      stack, limit);
  } else {
    const DeviceWords words(block.scratch<u32>(kDecodedAt));
    outcome = Execute(DecodedCode<DeviceWords>{words + word, text.length}, registers, stack, limit);
  }
  args.tensor<u8>(kRunErrors).data()[i] = static_cast<u8>(outcome.error);
  args.tensor<u32>(kRunCycles).data()[i] = outcome.cycles;
}

}  // namespace
}  // namespace resident::flux

RESIDENT_OPERATOR(flux_run)(resident::Block& block, const resident::Args& args) {
  using namespace resident;
  using namespace resident::flux;
  if (!CheckArguments(block, args, Programs(args))) return;
  const bool unknown_nop = args.scalar<u32>(kRunUnknownNop) != 0;
  Range range = block.share(args.scalar<i64>(kRunCount), kLanes);
  if (range.size() == 0) return;

  const LaneGroup group(block);
  const FastWords registers = FastWords(block.memory<u32>()) + group.group * kLanes;
  while (range.begin < range.end) {
    Placement placement;
    if (!PlaceChunk(block, Programs(args), range, unknown_nop, &placement)) {
      PlaceRound(block, Programs(args), range, unknown_nop, &placement);
    }
    for (i64 begin = range.begin + group.group * kLanes; begin < placement.end;
         begin += block.threads()) {
      const i64 rest = placement.end - begin;
      const u32 n = rest < kLanes ? static_cast<u32>(rest) : kLanes;
      LoadInitial(args, group, registers, begin, n);
      group.sync();
      if (group.lane < n) RunOne(block, args, placement, unknown_nop, begin + group.lane);
      group.sync();
      StoreWanted(args, group, registers, begin, n);
      group.sync();
    }
    block.barrier();  // All reads are done before the next round overwrites the data.
    range.begin = placement.end;
  }
}
