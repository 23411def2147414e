// Operator flux_run: runs FLUX programs, one or several runs at a time on each thread.
// run_arguments.h describes its arguments, docs/flux.md the machine.
//
// Memory layout (T = Block::kMaxThreads; with fewer threads some entries are unused):
//
//   block.memory()   registers [16][T][runs], then decoded words, as many as fit
//   block.scratch()  stacks [256][T][runs]; of what lies behind [256][T], one fifth is for staged
//                    bytes and four fifths are for decoded words, in equal parts for the groups if
//                    these stage by themselves
//
// Programs are passed to the interpreter in one of these ways (Placement):
//   kTogether  All runs of the chunk execute one program, which is staged and decoded once to fast
//              memory. Each thread executes kRunsTogether runs at a time.
//   kChunk*    The programs that the chunk's runs select are few; all are staged and decoded once.
//
// If each run has its own program, or the selected programs are many, each lane group does its runs
// by itself: it stages their programs, each lane decodes its own, to [address][lane], so that lanes
// at the same address of different programs read adjacent words. Programs too large for that are
// not staged, and are decoded while they run.
#include "kernels/flux/interpreter.h"
#include "kernels/flux/run_arguments.h"
#include "kernels/flux/run_task.h"
#include "kernels/sdk/operator.h"

namespace resident::flux {
namespace {

constexpr u64 kStackBytes = u64{kStackDepth} * kThreads * 4;
constexpr u32 kStagedWords = static_cast<u32>((kScratchBytes - kStackBytes) / 5 / 64 * 16);
constexpr u32 kStagedBytes = kStagedWords * 4;
constexpr u32 kDecodedWords = kStagedWords * 4;
constexpr u64 kStagedAt = kStackBytes;
constexpr u64 kDecodedAt = kStagedAt + kStagedBytes;
static_assert(kDecodedAt + u64{kDecodedWords} * 4 <= kScratchBytes, "");
// A staged program keeps its alignment, which needs up to 3 more bytes on each side.
constexpr u32 kAlignmentBytes = 8;

// Programs that are selected by index are staged for the whole chunk if they have this many runs on
// average.
constexpr i64 kRunsOfSharedProgram = 4;
// A group whose programs are so large that fewer of its lanes could run at a time does not stage
// them.
constexpr u32 kFewestLanes = kLanes < 4 ? kLanes : 4;
// With kRunsTogether the stacks also cover the staged bytes, which are decoded by then.
static_assert(kStackBytes * kRunsTogether <= kScratchBytes, "");

// The four bytes at byte `at` of staged text; bytes from `end` on may have any value.
RESIDENT_HOST_DEVICE u32 FourBytesAt(const u32* staged, u32 at, u32 end) {
  const u32 shift = 8 * (at & 3);
  const u32* const word = staged + at / 4;
  u32 bytes = word[0] >> shift;
  // The next word was staged only if the text extends into it.
  if (shift != 0 && end - at > (32 - shift) / 8) bytes |= word[1] << (32 - shift);
  return bytes;
}

// Decodes a program of `length` bytes that was staged at byte `at` of `staged`, to
// length + 1 words at `to`.
template <typename Words>
RESIDENT_HOST_DEVICE void DecodeRow(const u32* staged, u32 at, u32 length, bool unknown_nop,
                                    Words to, u32 worker, u32 workers) {
  for (u32 pc = worker; pc <= length; pc += workers) {
    const u32 bytes = pc == length ? 0 : FourBytesAt(staged, at + pc, at + length);
    to.store(pc, Prepare(Decode(bytes, length - pc, unknown_nop)));
  }
}

// The location of the programs of the runs [begin, end).
struct Placement {
  enum Kind : u32 { kTogether, kChunkFast, kChunkScratch };
  Kind kind;
  // The words of program p start at (its offset - origin) + (p - first).
  u64 origin;
  i64 first;
  i64 begin;
  i64 end;

  // First word of `program` at `text`.
  RESIDENT_HOST_DEVICE u32 FirstWord(i64 program, Text text) const {
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
    DecodeRow(staged, skew + at, text.length, unknown_nop,
              words + (at + static_cast<u32>(p - first)), alone ? block.thread() : group.lane,
              alone ? block.threads() : kLanes);
  }
  block.barrier();
  return true;
}

// The programs [*first, *last) that the runs of the range select, if they should be staged
// together. Fails the task if one does not exist. (collective)
RESIDENT_HOST_DEVICE bool FindSelected(const Block& block, const Programs& programs, Range range,
                                       i64* first, i64* last) {
  *first = 0;
  *last = programs.size();
  if (!programs.indexed() && programs.size() == 1) return true;
  if (!programs.indexed()) {
    // One thread has no use for adjacent words of several programs, and few programs would leave
    // lanes idle: these are staged all at once.
    *first = range.begin;
    *last = range.end;
    return kThreads == 1 || range.size() < kLanes;
  }
  u64 lowest = ~0ull;
  u64 highest = 0;
  for (i64 i = range.begin + block.thread(); i < range.end; i += block.threads()) {
    i64 program;
    if (!programs.FindProgram(block, i, &program)) program = programs.size();
    const u64 p = static_cast<u64>(program);
    lowest = p < lowest ? p : lowest;
    highest = p > highest ? p : highest;
  }
  *first = static_cast<i64>(~block.reduce_max(~lowest));
  *last = static_cast<i64>(block.reduce_max(highest)) + 1;
  return *last <= programs.size();
}

// Stages the programs that the runs of the chunk select, if they fit and there are not more
// than runs. (collective)
RESIDENT_HOST_DEVICE bool PlaceChunk(const Block& block, const Programs& programs, Range range,
                                     bool unknown_nop, Placement* placement) {
  i64 first;
  i64 last;
  if (!FindSelected(block, programs, range, &first, &last)) return false;
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

  // With one run for each thread, several for some would leave others idle.
  const bool together = last - first == 1 && range.size() > block.threads() &&
                        words <= FastWordsBehind(kRunsTogether);
  const bool fast = words <= kFastWords;
  // If most runs have a program of their own, columns are faster than rows in scratch memory.
  const bool shared = last - first <= range.size() / kRunsOfSharedProgram;
  if (kThreads > 1 && !fast && programs.indexed() && !shared) return false;
  const Text whole = {head.begin, static_cast<u32>(bytes)};
  const u32 fast_at = together ? RegisterBytes(kRunsTogether) : kRegisterBytes;
  const bool staged = fast ? StageChunk(block, programs, first, last, whole, unknown_nop,
                                        FastWords(block.memory<u32>(fast_at)))
                           : StageChunk(block, programs, first, last, whole, unknown_nop,
                                        DeviceWords(block.scratch<u32>(kDecodedAt)));
  if (!staged) return false;
  *placement = {together ? Placement::kTogether
                : fast   ? Placement::kChunkFast
                         : Placement::kChunkScratch,
                head.begin, first, range.begin, range.end};
  return true;
}

// Finds the program of run i and its bytes. Fails the task if they do not exist.
RESIDENT_HOST_DEVICE bool FindRun(const Block& block, const Programs& programs, i64 i, i64* program,
                                  Text* text) {
  return programs.FindProgram(block, i, program) && programs.FindText(block, *program, text);
}

// Executes run i, whose program is placed, on the calling thread.
RESIDENT_HOST_DEVICE void RunOne(const Block& block, const Args& args, const Placement& placement,
                                 i64 i) {
  i64 program;
  Text text;
  if (!FindRun(block, Programs(args), i, &program, &text)) return;
  const u32 word = placement.FirstWord(program, text);
  const RegisterFile<kThreads> registers = RegistersOf(block);
  const Stack<kThreads> stack = StackOf(block);
  const u32 limit = args.scalar<u32>(kRunMaxCycles);
  Outcome outcome;
  if (placement.kind == Placement::kChunkFast) {
    const FastWords words(block.memory<u32>(kRegisterBytes));
    outcome = Execute(RowCode<FastWords>{words + word, text.length}, registers, stack, limit);
  } else {
    const DeviceWords words(block.scratch<u32>(kDecodedAt));
    outcome = Execute(RowCode<DeviceWords>{words + word, text.length}, registers, stack, limit);
  }
  StoreOutcome(args, i, outcome);
}

// Executes the runs of the placement, one at a time on each thread. (collective)
RESIDENT_HOST_DEVICE void RunPlaced(const Block& block, const Args& args,
                                    const Placement& placement) {
  const LaneGroup group(block);
  const FastWords registers = FastWords(block.memory<u32>()) + group.group * kLanes;
  for (i64 begin = placement.begin + group.group * kLanes; begin < placement.end;
       begin += block.threads()) {
    const i64 rest = placement.end - begin;
    const u32 n = rest < kLanes ? static_cast<u32>(rest) : kLanes;
    LoadInitial(args, group, registers, begin, n);
    group.sync();
    if (group.lane < n) RunOne(block, args, placement, begin + group.lane);
    group.sync();
    StoreWanted(args, group, registers, begin, n);
    group.sync();
  }
}

// Executes the runs of the placement, all of one program, kRunsTogether at a time on each thread.
// (collective)
RESIDENT_HOST_DEVICE void RunPlacedTogether(const Block& block, const Args& args,
                                            const Placement& placement) {
  constexpr u32 kRuns = kLanes * kRunsTogether;  // Of a group.
  Text text;
  Programs(args).FindText(block, placement.first, &text);
  const RowCode<FastWords> code = {FastWords(block.memory<u32>(RegisterBytes(kRunsTogether))),
                                   text.length};
  const RegisterFilesOfThread registers = RegisterFilesOf(block);
  const StacksOfThread stacks = StacksOf(block);
  const u32 limit = args.scalar<u32>(kRunMaxCycles);
  const LaneGroup group(block);
  const FastWords of_group = FastWords(block.memory<u32>()) + group.group * kRuns;
  const u32 first = group.lane * kRunsTogether;
  for (i64 begin = placement.begin + group.group * kRuns; begin < placement.end;
       begin += block.threads() * kRunsTogether) {
    const i64 rest = placement.end - begin;
    const u32 n = rest < kRuns ? static_cast<u32>(rest) : kRuns;
    LoadInitial<kRunsTogether>(args, group, of_group, begin, n);
    group.sync();
    // The last lane may have fewer runs; it then executes them one after the other.
    Position position = {0, 0, limit};
    if (first + kRunsTogether <= n) position = RunTogether(code, registers, stacks, limit);
    Several<kRunsTogether> errors = {};
    Several<kRunsTogether> cycles = {};
    RESIDENT_UNROLL(1)
    for (u32 k = 0; k < kRunsTogether && first + k < n; ++k) {
      const Outcome outcome =
          Continue(code, registers.of_run(k), stacks.of_run(k), position, limit);
      // With constant indices, so that the values stay in registers.
      RESIDENT_UNROLL(kRunsTogether)
      for (u32 at = 0; at < kRunsTogether; ++at) {
        if (at != k) continue;
        errors.of[at] = outcome.error;
        cycles.of[at] = outcome.cycles;
      }
    }
    group.sync();
    StoreOutcomes(args, group, begin, n, errors, cycles);
    StoreWanted<kRunsTogether>(args, group, of_group, begin, n);
    group.sync();
  }
}

// Where a group's own programs were decoded: the word at `pc` of lane l is words[pc * lanes + l].
struct Columns {
  DeviceWords words;
  u32 lanes;  // The first ones; 0: the programs are too large.
};

// Stages and decodes the programs of the first lanes of a group, `text` on each; it is empty on
// lanes without a run. (all lanes of the group)
RESIDENT_HOST_DEVICE Columns DecodeOwn(const Block& block, const LaneGroup& group,
                                       const Programs& programs, Text text, u32 n,
                                       bool unknown_nop) {
  // What a group has of both.
  const u32 staged_words = kStagedWords / group.groups;
  const u32 decoded_words = kDecodedWords / group.groups;
  const DeviceWords words =
      DeviceWords(block.scratch<u32>(kDecodedAt)) + group.group * decoded_words;
  u32* const staged = block.scratch<u32>(kStagedAt) + group.group * staged_words;
  const u32 at = static_cast<u32>(text.begin);
  const u32 largest = group.max(text.length);
  const u32 lowest = ~group.max(text.length == 0 ? 0 : ~at);
  const u32 highest = group.max(text.length == 0 ? 0 : at + text.length);
  const u32 wanted = n;
  const u32 of_words = decoded_words / (largest + 1);
  if (of_words < n) n = of_words;

  // Programs that lie close together are staged with what lies between them. (`highest` is below
  // `lowest` if all are empty.)
  const bool close = largest == 0 || highest - lowest <= staged_words * 4 - kAlignmentBytes;
  const u32 slot = (largest + kAlignmentBytes) / 4;
  if (!close && staged_words / slot < n) n = staged_words / slot;
  if (n < kFewestLanes && n < wanted) return {words, 0};
  if (close && largest != 0) {
    programs.Stage({lowest, highest - lowest}, staged, group.lane, kLanes);
  }
  for (u32 s = 0; s < n && !close; ++s) {
    programs.Stage({group.value_of(at, s), group.value_of(text.length, s)}, staged + s * slot,
                   group.lane, kLanes);
  }
  group.sync();
  if (group.lane < n) {
    const u32* const own = close ? staged : staged + group.lane * slot;
    const u32 skew =
        close ? at - lowest + programs.Misalignment(lowest) : programs.Misalignment(at);
    DecodeColumn(words + group.lane, n, text.length, unknown_nop,
                 [&](u32 pc) { return FourBytesAt(own, skew + pc, skew + text.length); });
  }
  return {words, n};
}

// Executes the runs of the range, each of which has its own program. (all lanes of each group)
RESIDENT_HOST_DEVICE void RunOwn(const Block& block, const Args& args, Range range,
                                 bool unknown_nop) {
  const Programs programs(args);
  const LaneGroup group(block);
  const FastWords of_group = FastWords(block.memory<u32>()) + group.group * kLanes;
  const u32 limit = args.scalar<u32>(kRunMaxCycles);
  for (i64 begin = range.begin + group.group * kLanes; begin < range.end;
       begin += block.threads()) {
    const i64 rest = range.end - begin;
    const i64 end = begin + (rest < kLanes ? rest : kLanes);
    for (i64 first = begin; first < end;) {
      u32 n = static_cast<u32>(end - first);
      const i64 run = first + group.lane;
      i64 program;
      Text text = {0, 0};
      const bool exists = group.lane < n && FindRun(block, programs, run, &program, &text);
      if (!exists) text = {0, 0};  // The task has failed, or there is no run for this lane.
      const Columns columns = DecodeOwn(block, group, programs, text, n, unknown_nop);
      if (columns.lanes != 0) n = columns.lanes;
      LoadInitial(args, group, of_group, first, n);
      group.sync();
      if (exists && group.lane < n) {
        const RawCode raw = {programs.bytes(text.begin), text.length, unknown_nop};
        const RegisterFile<kThreads> registers = RegistersOf(block);
        const Stack<kThreads> stack = StackOf(block);
        const Outcome outcome =
            columns.lanes == 0
                ? Execute(raw, registers, stack, limit)
                : Execute(ColumnCode<DeviceWords>{columns.words + group.lane, columns.lanes, raw},
                          registers, stack, limit);
        StoreOutcome(args, run, outcome);
      }
      group.sync();
      StoreWanted(args, group, of_group, first, n);
      group.sync();
      first += n;
    }
  }
}

}  // namespace
}  // namespace resident::flux

RESIDENT_OPERATOR(flux_run)(resident::Block& block, const resident::Args& args) {
  using namespace resident;
  using namespace resident::flux;
  if (!CheckArguments(block, args, Programs(args))) return;
  const bool unknown_nop = args.scalar<u32>(kRunUnknownNop) != 0;
  const Range range = block.share(args.scalar<i64>(kRunCount), kLanes);
  if (range.size() == 0) return;

  Placement placement;
  if (!PlaceChunk(block, Programs(args), range, unknown_nop, &placement)) {
    RunOwn(block, args, range, unknown_nop);
  } else if (placement.kind == Placement::kTogether) {
    RunPlacedTogether(block, args, placement);
  } else {
    RunPlaced(block, args, placement);
  }
}
