#include "tests/flux/program_runs.h"

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "tests/flux/reference.h"

namespace resident::flux {

std::vector<RunOptions> MakeRuns(const RandomCase& random, RandomProgramGenerator& generator) {
  std::vector<RunOptions> runs = {random.options};
  const uint32_t cycles = RunReference(random.bytecode, random.options).cycles;
  for (const uint64_t limit :
       {uint64_t{cycles}, uint64_t{cycles} - (cycles != 0), uint64_t{generator.Below(cycles + 1)},
        uint64_t{generator.Below(12)}}) {
    runs.push_back(random.options);
    runs.back().max_cycles = limit;
  }
  while (runs.size() < kRunsOfProgram) {
    runs.push_back(generator.Next().options);
    runs.back().unknown_nop = random.options.unknown_nop;
    runs.back().max_cycles = 3000;
  }
  return runs;
}

std::vector<RunOptions> RunsOfTask(const RunOptions& options, size_t count,
                                   RandomProgramGenerator& generator) {
  std::vector<RunOptions> runs = {options};
  const uint32_t kind = generator.Below(4);
  while (runs.size() < count) {
    RunOptions run = runs.back();
    int32_t& one = run.initial[generator.Below(16)];
    if (kind == 1) one = static_cast<int32_t>(static_cast<uint32_t>(one) + generator.Below(3));
    if (kind >= 2 && generator.Below(kind == 2 ? 1 : 8) == 0) {
      run.initial = generator.Next().options.initial;
    }
    runs.push_back(run);
  }
  return runs;
}

std::string Describe(const RegisterValues& registers) { return absl::StrJoin(registers, " "); }

std::string Describe(const RunResult& result) {
  std::string text = absl::StrCat("error ", result.error, ", cycles ", result.cycles,
                                  ", registers ", Describe(result.registers));
  if (result.status != CompletionStatus::kOk) {
    absl::StrAppend(&text, ", status ", static_cast<int>(result.status));
  }
  return text;
}

}  // namespace resident::flux
