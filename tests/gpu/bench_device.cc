// The benchmarks of a device with an engine process of its own: bench_generation.h and
// bench_recovery.h, in one program, so that a bundle has its libraries once.
//
//   bench_device --generation | --recovery --out=FILE.json       (tests/gpu/run runs it)
#include <cstdio>
#include <string>

#include "absl/flags/flag.h"
#include "absl/flags/parse.h"
#include "tests/gpu/bench_generation.h"
#include "tests/gpu/bench_recovery.h"

ABSL_FLAG(std::string, out, "", "file for the figures, as JSON");
ABSL_FLAG(std::string, gtest_output, "", "ignored: tests/gpu/run gives it to every check");
ABSL_FLAG(bool, generation, false, "measure changes of generation");
ABSL_FLAG(bool, recovery, false, "measure kills of the engine");

int main(int argc, char** argv) {
  absl::ParseCommandLine(argc, argv);
  const std::string out = absl::GetFlag(FLAGS_out);
  const bool generation = absl::GetFlag(FLAGS_generation);
  if (generation == absl::GetFlag(FLAGS_recovery)) {
    std::fprintf(stderr, "bench_device: one of --generation and --recovery is required\n");
    return 2;
  }
  return generation ? resident::BenchGeneration(out) : resident::BenchRecovery(out);
}
