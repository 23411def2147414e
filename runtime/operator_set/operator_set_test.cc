#include "runtime/operator_set/operator_set.h"

#include <map>
#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"

namespace resident {
namespace {

const std::map<std::string, std::string> kFiles = {
    {"hinge.cc", "// signature: x: in f32[*S], out: out f32[*S]\n// split: out 4096\n"},
    {"bare.cc", "int x;\n"},
    {"util.h", "#pragma once\n"},
    {"hinge.json", "{}"},
    {"rule.s", "MOVI R0, 1\nHALT\n"},
    {"wrong.s", "NONSENSE\n"},
};

absl::StatusOr<OperatorSet> Read(const std::string& text) {
  return ReadOperatorSet(text, "f.yaml",
                         [](const std::string& path) -> absl::StatusOr<std::string> {
                           const auto found = kFiles.find(path);
                           if (found == kFiles.end()) return absl::NotFoundError("no file " + path);
                           return found->second;
                         });
}

TEST(OperatorSetTest, ReadsEveryKey) {
  const auto set = Read(
      "version: 1\n"
      "set: ranking\n"
      "release: 2026-11-27.1\n"
      "operators:\n"
      "- {name: swish, expr: x * sigmoid(x)}\n"
      "- {name: rank.hinge, file: hinge.cc, include: [util.h], examples: [hinge.json],\n"
      "   task_time: 50ms, allow_spills: true, scratch_bytes: 64, summary: a hinge,\n"
      "   isolation: stoppable}\n"
      "- {name: rank.rule, flux: rule.s, native: off}\n"
      "bake: {time: 90s, action: warn, max_error_rate: 1%, max_latency_ratio: 1.5}\n"
      "prune: true\n");
  ASSERT_TRUE(set.ok()) << set.status();
  EXPECT_EQ(set->set, "ranking");
  EXPECT_EQ(set->release, "2026-11-27.1");
  EXPECT_EQ(*set->bake_time, absl::Seconds(90));
  EXPECT_EQ(set->bake_action, OperatorSet::BakeAction::kWarn);
  EXPECT_EQ(set->max_error_rate, 0.01);
  EXPECT_EQ(set->max_latency_ratio, 1.5);
  EXPECT_TRUE(set->prune);
  EXPECT_EQ(set->paths, (std::vector<std::string>{"hinge.cc", "hinge.json", "rule.s", "util.h"}));
  ASSERT_EQ(set->operators.size(), 3u);
  const SetOperator& swish = set->operators[0];
  EXPECT_EQ(swish.spec.kind, OperatorKind::kExpression);
  EXPECT_EQ(swish.body, "x * sigmoid(x)");
  EXPECT_NE(swish.spec.signature, "");
  const SetOperator& hinge = set->operators[1];
  EXPECT_EQ(hinge.spec.kind, OperatorKind::kSource);
  EXPECT_EQ(hinge.body, "hinge.cc");
  EXPECT_EQ(hinge.files.size(), 2u);
  EXPECT_EQ(hinge.spec.split, "out 4096");
  EXPECT_EQ(hinge.spec.task_time_limit, std::chrono::milliseconds(50));
  EXPECT_EQ(hinge.spec.scratch_bytes, 64u);
  EXPECT_TRUE(hinge.spec.allow_spills);
  EXPECT_EQ(hinge.spec.isolation, Isolation::kStoppable);
  ASSERT_EQ(hinge.examples.size(), 1u);
  EXPECT_EQ(hinge.examples[0].first, "hinge.json");
  const SetOperator& rule = set->operators[2];
  EXPECT_EQ(rule.spec.kind, OperatorKind::kBytecode);
  EXPECT_TRUE(rule.spec.native_off);
}

TEST(OperatorSetTest, APlanIsThatOfTheContents) {
  const auto plan = [](const std::string& operators, const std::string& more = "") {
    const auto set = Read(absl::StrCat("version: 1\nset: s\noperators:\n", operators, more));
    EXPECT_TRUE(set.ok()) << set.status();
    return set.ok() ? set->Plan() : "";
  };
  const std::string a = "- {name: a, expr: x + 1}\n", b = "- {name: b, expr: x + 2}\n";
  EXPECT_EQ(plan(a + b).size(), kMaxHashDigits);
  EXPECT_EQ(plan(a + b), plan(b + a));
  EXPECT_EQ(plan(a + b), plan(a + b, "bake: {time: 1s}\nrelease: r\n"));
  EXPECT_NE(plan(a + b), plan(a));
  EXPECT_NE(plan(a), plan("- {name: a, expr: x + 3}\n"));
  EXPECT_NE(plan(a), plan(a, "prune: true\n"));
}

TEST(OperatorSetTest, RefusesWhatASetDoesNotHave) {
  const std::string head = "version: 1\nset: s\noperators:\n";
  const struct {
    std::string text;
    std::string place;
    std::string what;
  } kCases[] = {
      {"", "f.yaml:1: ", "empty"},
      {"- 1\n", "f.yaml:1: ", "a set is not a map"},
      {"version: 2\n", "f.yaml:1: ", "version of a set is not 1"},
      {"version: 1\nset: -s\n", "f.yaml:2: ", "'-s'"},
      {"version: 1\nset: s\nrelease: a/b\n", "f.yaml:3: ", "'a/b'"},
      {"version: 1\nset: s\n", "f.yaml:1: ", "operators of a set is not a list"},
      {"version: 1\nset: s\nset: t\n", "f.yaml:3: ", "occurs twice"},
      {"version: 1\nset: s\noperator: []\n", "f.yaml:3: ", "did you mean 'operators'"},
      {"version: 1\nset: s\nmodels: []\n", "f.yaml:3: ", "models of a set is not supported"},
      {"version: 1\nset: s\ngraphs: []\n", "f.yaml:3: ", "graphs of a set is not supported"},
      {"version: 1\nset: s\nweights: []\n", "f.yaml:3: ", "weights of a set is not supported"},
      {head + "- {name: a, expr: x}\n---\nversion: 1\n", "f.yaml:1: ", "second document"},
      {head + "- &it {name: a, expr: x}\n", "f.yaml:4: ", "an anchor"},
      {head + "- &it {name: a, expr: x}\n- *it\n", "f.yaml:4: ", "an anchor"},
      {head + "- {name: !!str a, expr: x}\n", "f.yaml:4: ", "the tag"},
      {head + "- [[[[[[[[[1]]]]]]]]]\n", "f.yaml:4: ", "more levels"},
      {head + "- {name: a, expr: x\n", "f.yaml:", "it is not YAML"},
      {head + "- a\n", "f.yaml:4: ", "an operator is not a map"},
      {head + "- {expr: x}\n", "f.yaml:4: ", "name of an operator is missing"},
      {head + "- {name: a}\n", "f.yaml:4: ", "exactly one of expr, file and flux"},
      {head + "- {name: a, expr: x, flux: rule.s}\n", "f.yaml:4: ", "exactly one"},
      {head + "- {name: a, expr: x}\n- {name: a, expr: x}\n", "f.yaml:5: ", "occurs twice"},
      {head + "- {name: a, expr: x, include: [util.h]}\n", "f.yaml:4: ", "belongs to file"},
      {head + "- {name: a, expr: x, native: off}\n", "f.yaml:4: ", "belongs to flux"},
      {head + "- {name: a, expr: x, isolation: safe}\n", "f.yaml:4: ", "'safe'"},
      {head + "- {name: a, flux: rule.s, isolation: trusted}\n", "f.yaml:4: ", "belongs to expr"},
      {head + "- {name: a, expr: x, task_time: 5}\n", "f.yaml:4: ", "'5'"},
      {head + "- {name: a, expr: x, task_time: 0s}\n", "f.yaml:4: ", "'0s'"},
      {head + "- {name: a, expr: x, allow_spills: yes}\n", "f.yaml:4: ", "'yes'"},
      {head + "- {name: a, expr: x, scratch_bytes: -1}\n", "f.yaml:4: ", "'-1'"},
      {head + "- {name: a, expr: [x]}\n", "f.yaml:4: ", "expr of an operator is not a text"},
      {head + "- {name: a, file: ../x.cc}\n", "f.yaml:4: ", "'../x.cc'"},
      {head + "- {name: a, file: \"x\\0.cc\"}\n", "f.yaml:4: ", "names"},
      {head + "- {name: a, file: /x.cc}\n", "f.yaml:4: ", "'/x.cc'"},
      {head + "- {name: a, file: none.cc}\n", "f.yaml:4: a: ", "no file none.cc"},
      {head + "- {name: a, file: bare.cc}\n", "f.yaml:4: ", "`// signature:`"},
      {head + "- {name: a, file: hinge.cc, include: [hinge.cc]}\n", "f.yaml:4: ", "twice"},
      {head + "- {name: a, file: hinge.cc, include: util.h}\n", "f.yaml:4: ", "not a list"},
      {head + "- {name: a, flux: wrong.s}\n", "f.yaml:4: a: ", "wrong.s: "},
      {head + "- {name: a, expr: x +}\n", "f.yaml:4: a: ", "column"},
      {head + "- {name: " + std::string(65, 'a') + ", expr: x}\n", "f.yaml:4: ", "64 bytes"},
      {head + "[]\nbake: {time: 0s}\n", "f.yaml:5: ", "'0s'"},
      {head + "[]\nbake: {action: stop}\n", "f.yaml:5: ", "'stop'"},
      {head + "[]\nbake: {max_error_rate: 2}\n", "f.yaml:5: ", "'2'"},
      {head + "[]\nbake: {max_latency_ratio: -1}\n", "f.yaml:5: ", "'-1'"},
      {head + "[]\nprune: maybe\n", "f.yaml:5: ", "'maybe'"},
      {std::string(kMaxSetFileBytes + 1, '#'), "f.yaml:1: ", "1048577 bytes"},
  };
  for (const auto& [text, place, what] : kCases) {
    const absl::Status status = Read(text).status();
    const std::string message(status.message());
    EXPECT_FALSE(status.ok()) << text.substr(0, 200);
    EXPECT_TRUE(absl::StartsWith(message, place)) << message;
    EXPECT_TRUE(absl::StrContains(message, what)) << message << "\n" << text.substr(0, 200);
    EXPECT_TRUE(!absl::IsInvalidArgument(status) || absl::StrContains(message, "Fix: ")) << message;
  }
}

TEST(OperatorSetTest, HasALimitOfOperators) {
  std::string text = "version: 1\nset: s\noperators:\n";
  for (size_t i = 0; i < kMaxSetEntries; ++i)
    absl::StrAppend(&text, "- {name: o", i, ", expr: x}\n");
  EXPECT_TRUE(Read(text).ok());
  const absl::Status status = Read(text + "- {name: more, expr: x}\n").status();
  EXPECT_TRUE(absl::StrContains(status.message(), "1025 entries")) << status;
}

}  // namespace
}  // namespace resident
