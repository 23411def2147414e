// An interpreter of graphs: executes the nodes one after the other, in float64, and knows nothing
// of schedules. It shares no code with the daemon: it reads the messages, and has its own numbers.
//
// Every element has a bound of its error. It is 0 while the values are whole numbers that float32
// represents exactly, so that the daemon must compute the same bits; functions such as softmax make
// it larger, and what follows from them may differ by what the bound has become.
//
// Thread safety: pure functions.
//
//   const Interpretation expected = Interpret(request);
//   for (...) EXPECT_EQ(FindDifference(result.outputs(i), expected.outputs[i]), "");
#ifndef RESIDENT_TESTS_GRAPH_INTERPRETER_H_
#define RESIDENT_TESTS_GRAPH_INTERPRETER_H_

#include <cstdint>
#include <string>
#include <vector>

#include "resident/v1/graphs.pb.h"

namespace resident::testing {

// The elements of a tensor, in row-major order.
struct ExpectedValue {
  std::string tensor;
  v1::DType dtype = v1::DTYPE_UNSPECIFIED;
  std::vector<uint64_t> shape;
  std::vector<double> values;
  // 0: the value is exact.
  std::vector<double> errors;
};

struct Interpretation {
  uint64_t steps = 0;
  v1::GraphResult::End end = v1::GraphResult::END_UNSPECIFIED;
  // By step: one record of each stream.
  std::vector<std::vector<ExpectedValue>> records;
  std::vector<ExpectedValue> outputs;
};

// REQUIRES: the graph is accepted, all of its operators are among those of
// interpreter_operators.cc, all inputs are bound to data, and nothing is bound to a buffer.
Interpretation Interpret(const v1::RunGraphRequest& request);

// The first difference between what a run returned and what is expected; empty: none.
std::string FindDifference(const v1::GraphValue& got, const ExpectedValue& expected);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GRAPH_INTERPRETER_H_
