// Fuzz target: the file of a set of operators, as text, or a valid set with pieces replaced by
// bytes of the input or by pieces of YAML that parsers have trouble with. What is accepted obeys
// the limits and has content hashes; what is refused says where, and what to do. The work is
// bounded: the reader asks for each file at most once for each place that names it, and a text has
// few places.
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <iterator>
#include <set>
#include <string>
#include <string_view>

#include "absl/strings/match.h"
#include "absl/strings/str_split.h"
#include "runtime/operator_set/operator_set.h"
#include "runtime/operator_set/set_messages.h"

namespace {

constexpr const char* kSeeds[] = {
    R"(version: 1
set: ranking
release: 2026-11-27.1
operators:
- {name: swish, expr: x * sigmoid(x)}
- {name: rank.hinge, file: hinge.cc, include: [util.h], examples: [hinge.json], task_time: 50ms}
- {name: rank.rule, flux: rule.s, native: wait}
bake: {time: 60s, action: roll_back, max_error_rate: 0.01, max_latency_ratio: 1.5}
prune: true
)",
    R"({"version": "1", "set": "a", "operators": [{"name": "b", "expr": "x", "summary": "é"}]}
)",
    R"(---
version: 1
set: a
operators:
  -
    name: >-
      b
    expr: |
      x + 1
  - name: 'c'
    file: hinge.cc
    signature: "x: in f32[*S], out: out f32[*S]"
    split: out 4096
    scratch_bytes: 64
    allow_spills: false
...
)",
};

constexpr const char* kPieces[] = {
    "&a ", "*a", "!!binary ", "!t ",          "<<: ", "? ",  ": ",  "[[[[", "{{{{", "]",
    "}",   "- ", "---\n",     "...\n",        "%TAG", "#",   "|\n", ">\n",  "\t",   "\"\\u0000",
    "\\x", "~",  "0x1",       "\xEF\xBB\xBF", "\r\n", "../", "/",   "''"};

std::string Mutate(std::string_view input) {
  if (input.size() < 2) return std::string(input);
  std::string text = kSeeds[static_cast<uint8_t>(input[0]) % std::size(kSeeds)];
  // Three bytes each: where, how much is removed, and what is put there.
  for (size_t i = 1; i + 2 < input.size() && text.size() < 4096; i += 3) {
    const auto byte = [&](size_t at) { return static_cast<uint8_t>(input[at]); };
    const size_t at = (byte(i) * 7 + i) % (text.size() + 1);
    const uint8_t what = byte(i + 2);
    const std::string piece =
        what < 2 * std::size(kPieces) ? kPieces[what / 2] : std::string(1, static_cast<char>(what));
    text.replace(at, byte(i + 1) % 8, piece);
  }
  return text;
}

absl::StatusOr<std::string> ReadFile(const std::string& path) {
  if (absl::StartsWith(path, "/") || path.find('\0') != std::string::npos) std::abort();
  for (const absl::string_view part : absl::StrSplit(path, '/')) {
    if (part == "..") std::abort();
  }
  if (path == "hinge.cc") return "// signature: x: in f32[*S], out: out f32[*S]\n";
  if (path == "util.h") return "#pragma once\n";
  if (path == "hinge.json") return R"({"inputs": {"x": [1, 2]}, "outputs": {"out": [1, 2]}})";
  if (path == "rule.s") return "MOVI R0, 1\nHALT\n";
  return absl::NotFoundError("no such file. Fix: name another one");
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view input(reinterpret_cast<const char*>(data) + 1, size - 1);
  const std::string text = data[0] % 4 == 0 ? std::string(input) : Mutate(input);
  size_t reads = 0;
  const auto began = std::chrono::steady_clock::now();
  const auto set = resident::ReadOperatorSet(text, "f.yaml", [&](const std::string& path) {
    ++reads;
    return ReadFile(path);
  });
  // Each read is of a name in the text. The time is far above what a slow machine needs.
  if (reads > text.size()) std::abort();
  if (std::chrono::steady_clock::now() - began > std::chrono::seconds(20)) std::abort();
  if (!set.ok()) {
    const std::string message(set.status().message());
    if (!absl::StartsWith(message, "f.yaml:") || !absl::StrContains(message, "Fix: ")) std::abort();
    return 0;
  }
  if (set->operators.size() > resident::kMaxSetEntries || !resident::IsSetName(set->set)) {
    std::abort();
  }
  std::set<std::string> names;
  for (const resident::SetOperator& op : set->operators) {
    if (op.name.empty() || !names.insert(op.name).second) std::abort();
    if (op.spec.content_hash.size() != resident::kMaxHashDigits) std::abort();
    (void)resident::MakeInstall(op, *set);
  }
  if (set->Plan().size() != resident::kMaxHashDigits) std::abort();
  return 0;
}
