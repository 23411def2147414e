// Operator flux_run: runs FLUX programs, one on each thread. run_arguments.h describes
// its arguments, docs/flux.md the machine.
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
#include "kernels/flux/run_task.h"
#include "kernels/sdk/operator.h"

namespace resident::flux {
namespace {

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

// Executes run i on the calling thread.
RESIDENT_HOST_DEVICE void RunOne(const Block& block, const Args& args, const Placement& placement,
                                 bool unknown_nop, i64 i) {
  const Programs programs(args);
  i64 program;
  Text text;
  if (!programs.FindProgram(block, i, &program) || !programs.FindText(block, program, &text))
    return;

  const u32 word = placement.FirstWord(i, program, text);
  const RegisterFile<kThreads> registers = RegistersOf(block);
  const Stack<kThreads> stack = StackOf(block);
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
