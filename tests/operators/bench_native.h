// BenchNative: measures native code of installed FLUX programs beside the interpreter, through a
// real daemon (`bench_operators --native`):
//
//   device    FLUX instructions per second of device time, for one program over many inputs
//   client    the same by the client's clock, for programs of 20,000 instructions
//   ready     time from the request of an install until native code serves
//
// Each figure stands beside the interpreter's on the same inputs, measured alternately in the same
// run.
#ifndef RESIDENT_TESTS_OPERATORS_BENCH_NATIVE_H_
#define RESIDENT_TESTS_OPERATORS_BENCH_NATIVE_H_

#include <string>

namespace resident::testing {

// Writes the figures to `out`. Ends the program with status 1 if the results of the two differ, but
// never because of low speed.
int BenchNative(const std::string& out);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_OPERATORS_BENCH_NATIVE_H_
