// libFuzzer target: the translator to native code on any bytes. Checks its limits, and that the
// source has each label once and no jump without a label.
//
// `make fuzz` builds and runs it. To run the binary that it leaves:
//
//   ./fuzz_translator -max_total_time=60
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>

#include "runtime/flux/translator.h"

namespace {

bool IsName(char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; }

void Check(bool holds) {
  if (!holds) std::abort();
}

void CheckLabels(const std::string& source) {
  std::set<std::string> labels;
  std::set<std::string> jumps;
  for (size_t line = 0; line < source.size(); line = source.find('\n', line) + 1) {
    // A label is indented by two.
    if (source.compare(line, 2, "  ") != 0 || !IsName(source[line + 2])) continue;
    size_t end = line + 2;
    while (IsName(source[end])) ++end;
    if (source[end] == ':') Check(labels.insert(source.substr(line + 2, end - line - 2)).second);
  }
  constexpr std::string_view kGoto = "goto ";
  for (size_t at = source.find(kGoto); at != std::string::npos; at = source.find(kGoto, at + 1)) {
    size_t end = at + kGoto.size();
    while (IsName(source[end])) ++end;
    jumps.insert(source.substr(at + kGoto.size(), end - at - kGoto.size()));
  }
  for (const std::string& jump : jumps) Check(labels.count(jump) == 1);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace resident::flux;
  if (size == 0) return 0;
  const std::string_view code(reinterpret_cast<const char*>(data + 1), size - 1);
  const TranslationLimits limits;
  const auto translation = Translate(code, /*unknown_nop=*/data[0] & 1, limits);
  if (!translation.ok()) {
    Check(translation.status().code() == absl::StatusCode::kResourceExhausted);
    return 0;
  }
  Check(translation->instructions <= limits.flow.max_nodes);
  Check(translation->blocks <= limits.max_blocks);
  // The registers' loads and stores are not counted.
  Check(translation->program.size() <= limits.max_source_bytes + 4096);
  CheckLabels(translation->program);
  return 0;
}
