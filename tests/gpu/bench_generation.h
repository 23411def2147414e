// Measures the pause of a change of generation, as clients that wait for answers see it.
//
//   bench_resident --generation --out=FILE.json       (tests/gpu/run runs it)
//
// A device with its own engine process serves a client that sends one task at a time and a
// client with a stream of batches, while a generation of 64 installed operators is changed
// repeatedly, with one new operator each time. Every answer is checked: it must be from a
// version in its slot. For each change: the longest gap between answers around it, and its
// parts. Then the rate of tasks with a change every second, and without changes. Prints a
// table and writes the figures as JSON.
#ifndef RESIDENT_TESTS_GPU_BENCH_GENERATION_H_
#define RESIDENT_TESTS_GPU_BENCH_GENERATION_H_

#include <string>

namespace resident {

// Writes the figures to `out`, if it is not empty. Returns the exit status: not 0 if an answer is
// wrong, never because of low speed.
int BenchGeneration(const std::string& out);

}  // namespace resident

#endif  // RESIDENT_TESTS_GPU_BENCH_GENERATION_H_
