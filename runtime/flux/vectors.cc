#include "runtime/flux/vectors.h"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>
#include <limits>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "runtime/base/shallow_json.h"
#include "runtime/base/status_macros.h"
#include "runtime/flux/instruction_table.h"

namespace resident::flux {
namespace {

using Json = nlohmann::json;

// Reads the fields of one line. Keeps only the first error.
class Reader {
 public:
  Reader(const Json& object, size_t line) : object_(object) { vector_.line = line; }

  absl::StatusOr<Vector> Read() {
    if (!object_.is_object()) {
      Fail("is not a JSON object. Fix: write {\"name\": ..., \"bytecode\": ...}");
    }
    CheckNames();
    vector_.name = Text("name").value_or("");
    ReadBytecode();
    if (object_.contains("initial")) {
      const std::vector<int32_t> initial = Registers("initial");
      std::copy(initial.begin(), initial.end(), vector_.options.initial.begin());
    }
    constexpr int64_t kMaxCycles = std::numeric_limits<uint32_t>::max();
    if (object_.contains("max_cycles")) {
      vector_.options.max_cycles = static_cast<uint64_t>(Integer("max_cycles", 0, kMaxCycles));
    }
    if (object_.contains("unknown_opcode")) ReadUnknownOpcode();
    vector_.registers = Registers("registers");
    if (status_.ok() && vector_.registers.empty()) {
      Fail("has no value in \"registers\". Fix: give at least R0");
    }
    vector_.error = static_cast<uint32_t>(Integer("error", 0, 8));
    vector_.cycles = static_cast<uint32_t>(Integer("cycles", 0, kMaxCycles));
    if (!status_.ok()) return status_;
    return std::move(vector_);
  }

 private:
  void Fail(const std::string& message) {
    if (!status_.ok()) return;
    status_ =
        absl::InvalidArgumentError(absl::StrCat("line ", vector_.line, ": the vector ", message));
  }

  void CheckNames() {
    static constexpr std::string_view kNames[] = {"name",       "bytecode",       "initial",
                                                  "max_cycles", "unknown_opcode", "registers",
                                                  "error",      "cycles",         "source"};
    if (!status_.ok()) return;
    for (const auto& [name, value] : object_.items()) {
      if (std::find(std::begin(kNames), std::end(kNames), name) == std::end(kNames)) {
        Fail(absl::StrCat("has an unknown field \"", name,
                          "\". Fix: remove it; runtime/flux/vectors.h lists the fields"));
      }
    }
  }

  const Json* Field(const char* name) {
    if (!status_.ok()) return nullptr;
    const auto it = object_.find(name);
    if (it == object_.end()) {
      Fail(absl::StrCat("has no \"", name, "\". Fix: add it"));
      return nullptr;
    }
    return &*it;
  }

  std::optional<std::string> Text(const char* name) {
    const Json* field = Field(name);
    if (field == nullptr) return std::nullopt;
    if (!field->is_string()) {
      Fail(absl::StrCat("has a \"", name, "\" that is not a string. Fix: put it in quotes"));
      return std::nullopt;
    }
    return field->get<std::string>();
  }

  int64_t ToInteger(const Json& value, const char* name, int64_t low, int64_t high) {
    // A JSON integer above the range of int64 is unsigned.
    const bool fits =
        value.is_number_integer() &&
        (!value.is_number_unsigned() || value.get<uint64_t>() <= static_cast<uint64_t>(high)) &&
        value.get<int64_t>() >= low && value.get<int64_t>() <= high;
    if (fits) return value.get<int64_t>();
    Fail(absl::StrCat("has \"", name,
                      "\": ", value.dump(-1, ' ', true, Json::error_handler_t::replace),
                      ". Fix: use an integer from ", low, " to ", high));
    return 0;
  }

  int64_t Integer(const char* name, int64_t low, int64_t high) {
    const Json* field = Field(name);
    return field == nullptr ? 0 : ToInteger(*field, name, low, high);
  }

  std::vector<int32_t> Registers(const char* name) {
    std::vector<int32_t> values;
    const Json* field = Field(name);
    if (field == nullptr) return values;
    if (!field->is_array() || field->size() > 16) {
      Fail(absl::StrCat("has a \"", name,
                        "\" that is not a list of at most 16 values. Fix: list the registers, "
                        "starting at R0"));
      return values;
    }
    for (const Json& value : *field) {
      values.push_back(static_cast<int32_t>(ToInteger(
          value, name, std::numeric_limits<int32_t>::min(), std::numeric_limits<int32_t>::max())));
    }
    return values;
  }

  void ReadBytecode() {
    const std::optional<std::string> hex = Text("bytecode");
    if (!hex.has_value()) return;
    if (hex->size() % 2 != 0) {
      Fail(absl::StrCat("has a \"bytecode\" of ", hex->size(),
                        " digits. Fix: write two digits for each byte"));
      return;
    }
    for (size_t i = 0; i < hex->size(); i += 2) {
      int byte = 0;
      for (size_t k = i; k < i + 2; ++k) {
        const unsigned char c = static_cast<unsigned char>((*hex)[k]);
        if (!std::isxdigit(c)) {
          Fail(absl::StrCat("has a \"bytecode\" whose character ", k + 1,
                            " is not a hexadecimal digit. Fix: use 0 to 9 and a to f"));
          return;
        }
        byte = byte * 16 + (std::isdigit(c) ? c - '0' : std::tolower(c) - 'a' + 10);
      }
      vector_.bytecode.push_back(static_cast<uint8_t>(byte));
    }
  }

  void ReadUnknownOpcode() {
    const std::optional<std::string> text = Text("unknown_opcode");
    if (!text.has_value()) return;
    std::string upper = *text;
    for (char& c : upper) c = static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
    if (upper != "NOP" && upper != "ERROR") {
      Fail("has an \"unknown_opcode\" that does not exist. Fix: use \"NOP\" or \"ERROR\"");
    }
    vector_.options.unknown_nop = upper == "NOP";
  }

  const Json& object_;
  Vector vector_;
  absl::Status status_;
};

}  // namespace

absl::StatusOr<std::vector<Vector>> ParseVectors(std::string_view text) {
  std::vector<Vector> vectors;
  for (size_t line = 1; !text.empty(); ++line) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view content = text.substr(0, end);
    text.remove_prefix(std::min(end + 1, text.size()));
    if (content.find_first_not_of(" \t\r") == std::string_view::npos) continue;
    const Json object = ParseShallowJson<Json>(content);
    if (object.is_discarded()) {
      return absl::InvalidArgumentError(absl::StrCat(
          "line ", line,
          ": this is not JSON, or nested too deeply. Fix: write one object on each line"));
    }
    ASSIGN_OR_RETURN(Vector vector, Reader(object, line).Read());
    vectors.push_back(std::move(vector));
  }
  return vectors;
}

absl::StatusOr<std::vector<Vector>> ReadVectors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) {
    return absl::NotFoundError(absl::StrCat("cannot read ", path, ": ", std::strerror(errno),
                                            ". Fix: name a file of test vectors"));
  }
  const std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  absl::StatusOr<std::vector<Vector>> vectors = ParseVectors(text);
  if (!vectors.ok()) {
    return absl::Status(vectors.status().code(),
                        absl::StrCat(path, ": ", vectors.status().message()));
  }
  return vectors;
}

std::string Difference(const Vector& expected, const RunResult& actual) {
  std::string difference;
  const auto add = [&](const std::string& part) {
    absl::StrAppend(&difference, difference.empty() ? "" : "; ", part);
  };
  for (size_t r = 0; r < expected.registers.size(); ++r) {
    if (actual.registers[r] != expected.registers[r]) {
      add(absl::StrCat("R", r, " is ", actual.registers[r], ", expected ", expected.registers[r]));
    }
  }
  if (actual.error != expected.error) {
    add(absl::StrCat("error is ", actual.error, " (", std::string(ErrorName(actual.error)),
                     "), expected ", expected.error, " (", std::string(ErrorName(expected.error)),
                     ")"));
  }
  if (actual.cycles != expected.cycles) {
    add(absl::StrCat("cycles are ", actual.cycles, ", expected ", expected.cycles));
  }
  return difference;
}

}  // namespace resident::flux
