// The operators of the interpreter.
//
// Thread safety: pure functions.
//
//   ExecuteOperator("add", {{"x", x}, {"y", y}, {"out", out}}, {{"alpha", 2}});
#ifndef RESIDENT_TESTS_GRAPH_INTERPRETER_OPERATORS_H_
#define RESIDENT_TESTS_GRAPH_INTERPRETER_OPERATORS_H_

#include <map>
#include <string>
#include <vector>

#include "tests/graph/interpreter_memory.h"

namespace resident::testing {

// The names of its parameters, in their order. Empty: the interpreter does not know it.
const std::vector<std::string>& ParametersOf(const std::string& op);

// `places`: the tensors by parameter, without those that are left out. `scalars`: without those
// that have their default.
void ExecuteOperator(const std::string& op, const std::map<std::string, Place>& places,
                     const std::map<std::string, double>& scalars);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GRAPH_INTERPRETER_OPERATORS_H_
