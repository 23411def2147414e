// A table of operators that must never serve. Each row has a source, the stage that must
// refuse it, and a part of the expected message.
//
// Thread safety: the table is created once and never changes.
#ifndef RESIDENT_TESTS_OPERATORS_BAD_OPERATORS_H_
#define RESIDENT_TESTS_OPERATORS_BAD_OPERATORS_H_

#include <cstdint>
#include <map>
#include <ostream>
#include <string>
#include <vector>

namespace resident::testing {

// The step of an install that refuses the operator. The version does not pass this step.
enum class Stage { kRequest, kCompile, kInspect, kValidation };

const char* StageName(Stage stage);

enum class On { kBoth, kCpu, kGpu };

struct BadOperator {
  // The name of the row and, if `installed_as` is empty, of the operator.
  std::string name;
  std::string source;
  Stage stage = Stage::kValidation;
  // A part of the message, for both engines or only for the CPU's.
  std::string message = {};
  std::string message_gpu = {};  // If empty, the message is the same.
  On on = On::kBoth;

  std::string installed_as = {};
  std::string signature = "x: in f32[*S], out: out f32[*S]";
  std::string split = "";
  // `example`: x = 1 ... 100, out = 2 x. `second_example`: x = 13 ... 16.
  bool example = true;
  bool second_example = false;
  uint32_t task_time_ms = 2000;
  // Files in addition to the main one.
  std::map<std::string, std::string> files = {};
  // Sent instead of a source.
  std::string expression = {};
  bool object = false;
};

const std::vector<BadOperator>& BadOperators();

// For test reports.
inline void PrintTo(const BadOperator& row, std::ostream* out) { *out << row.name; }

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_OPERATORS_BAD_OPERATORS_H_
