// The runs with which tests try a random program, and a result as text.
//
//   for (const RunOptions& options : MakeRuns(random, generator)) {
//     EXPECT_EQ(Run(random.bytecode, options), RunReference(random.bytecode, options));
//   }
//
// Thread safety: pure functions, except that they use the generator.
#ifndef RESIDENT_TESTS_FLUX_PROGRAM_RUNS_H_
#define RESIDENT_TESTS_FLUX_PROGRAM_RUNS_H_

#include <cstdint>
#include <string>
#include <vector>

#include "runtime/flux/run.h"
#include "tests/flux/random_program.h"

namespace resident::flux {

// The number of runs that RunsOf returns.
inline constexpr size_t kRunsOfProgram = 7;

// The inputs and limits with which a program runs: those of the case, the limits around the cycles
// that it takes, small limits, and other inputs.
std::vector<RunOptions> MakeRuns(const RandomCase& random, RandomProgramGenerator& generator);

// The inputs of `count` runs of one program in one task, with the limit of `options`: equal to
// those of the run before, different in one register, or arbitrary, so that some runs take the same
// path for long.
std::vector<RunOptions> RunsOfTask(const RunOptions& options, size_t count,
                                   RandomProgramGenerator& generator);

// "0 -1 ...".
std::string Describe(const RegisterValues& registers);
std::string Describe(const RunResult& result);

}  // namespace resident::flux

#endif  // RESIDENT_TESTS_FLUX_PROGRAM_RUNS_H_
