// Measures what clients notice when something goes wrong: when the engine is killed, and when tasks
// that run are stopped.
//
// BenchRecovery: how long a client of lone tasks waits for its next answer when the engine is
// killed, with and without a spare engine, in one run.
//
//   bench_resident --recovery --out=FILE.json       (tests/gpu/run runs it)
//
// Each kill is the first failure of a new device, with the daemon's default sizes, so that
// there is no back-off. The client sends one task at a time, in staging memory; a task that
// fails is sent again as soon as there is an engine. Every answer is checked. The gap is
// the time from the last answer before the kill to the first one of the next engine. Before
// each kill, the duration of lone tasks and the rate of a large batch show whether a spare
// engine that waits has an effect on them. Prints a table and writes the figures as JSON.
//
// BenchStops: how long a task of an operator that loops for ever, and looks whether it has to stop,
// still runs after it was cancelled, and after its time limit; and the time of a client's lone
// tasks beside 1,000 such stops, and without.
//
//   bench_resident --stops --out=FILE.json
#ifndef RESIDENT_TESTS_GPU_BENCH_RECOVERY_H_
#define RESIDENT_TESTS_GPU_BENCH_RECOVERY_H_

#include <string>

namespace resident {

// Writes the figures to `out`, if it is not empty. Returns the exit status: not 0 if an answer is
// wrong, never because of low speed.
int BenchRecovery(const std::string& out);
int BenchStops(const std::string& out);

}  // namespace resident

#endif  // RESIDENT_TESTS_GPU_BENCH_RECOVERY_H_
