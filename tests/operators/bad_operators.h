// Operators that must not come to serve: one row each, with its source, the stage that
// must catch it, and a piece of what must be said.
//
// Thread safety: the table is made once and never changes.
#ifndef RESIDENT_TESTS_OPERATORS_BAD_OPERATORS_H_
#define RESIDENT_TESTS_OPERATORS_BAD_OPERATORS_H_

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

namespace resident::testing {

// The step of an install that refuses the operator: the state that the version comes to
// before it is the one before.
enum class Stage { kRequest, kCompile, kInspect, kValidation };

const char* StageName(Stage stage);

enum class On { kBoth, kCpu, kGpu };

struct BadOperator {
  // Names the row and, unless `installed_as` does, the operator.
  std::string name;
  std::string source;
  Stage stage = Stage::kValidation;
  // A piece of the message on both engines, or on each.
  std::string message = {};
  std::string message_gpu = {};  // Empty: the same.
  On on = On::kBoth;

  std::string installed_as = {};
  std::string signature = "x: in f32[*S], out: out f32[*S]";
  std::string split = "";
  // With the example x = 1 ... 100, out = 2 x; and with a second one, x = 13 ... 16.
  bool example = true;
  bool second_example = false;
  uint32_t task_time_ms = 2000;
  // Files beside the main one.
  std::map<std::string, std::string> files = {};
  // Sent in place of a source.
  std::string expression = {};
  bool object = false;
};

const std::vector<BadOperator>& BadOperators();

// For test reports.
inline void PrintTo(const BadOperator& row, std::ostream* out) { *out << row.name; }

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_OPERATORS_BAD_OPERATORS_H_
