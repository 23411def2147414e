// An operator that multiplies, in versions that misbehave, and a fixture that installs it in a
// daemon and checks which version answers.
//
// Thread safety: one thread.
//
//   class MyTest : public LifecycleTest {};
//   TEST_F(MyTest, Serves) {
//     MustInstall(Times("times", 2));
//     ExpectServes("times", 1, 2);
//   }
#ifndef RESIDENT_TESTS_OPERATORS_LIFECYCLE_H_
#define RESIDENT_TESTS_OPERATORS_LIFECYCLE_H_

#include <cstdint>
#include <cstring>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "client/operators.h"
#include "gtest/gtest.h"
#include "tests/daemon/messages.h"

namespace resident::testing {

inline constexpr float kPoison = 42;  // Makes some versions misbehave.
// out = factor * x. `twist` is code that runs for each element before it is written.
inline std::string TimesSource(const std::string& name, int factor, const std::string& twist = "") {
  return absl::StrCat("RESIDENT_OPERATOR(", name,
                      ")(resident::Block& block, const resident::Args& args) {\n"
                      "  auto x = args.tensor<const float>(0);\n"
                      "  auto out = args.tensor<float>(1);\n"
                      "  block.for_each(block.share(x.size()), [&](resident::i64 i) {\n    ",
                      twist, "\n    out[i] = ", factor, ".0f * x[i];\n  });\n}\n");
}

// A twist that never returns and that compilers do not optimize away. A task that it hangs is
// stopped alone, unless the version is trusted: then it ends the engine.
inline constexpr char kForever[] =
    "volatile float* const forever = out.data(); while (true) *forever = 1;";

inline client::Installation Times(const std::string& name, int factor,
                                  const std::string& twist = "") {
  client::Installation installation = client::Installation::Source(
      name, "times.cc", {{"times.cc", TimesSource(name, factor, twist)}});
  installation.Signature("x: in f32[*S], out: out f32[*S]");
  return installation;
}

inline v1::Batch Call(const std::string& name, float x, uint32_t version = 0) {
  v1::Batch batch = Tasks(name, 1);
  batch.mutable_tasks()->set_version(version);
  Inline(batch, {1}, {x});
  Returned(batch, {1});
  return batch;
}

// A regular batch, which becomes a range of tasks unless it has a shadow: one call for each value.
inline v1::Batch Calls(const std::string& name, const std::vector<float>& values) {
  v1::Batch batch = Tasks(name, static_cast<uint32_t>(values.size()));
  Inline(batch, {1}, values);
  Returned(batch, {1});
  return batch;
}

// 1, 2, 3, ...
inline std::vector<float> Counted(size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 1.0f);
  return values;
}

inline std::vector<float> Multiplied(std::vector<float> values, float factor) {
  for (float& value : values) value *= factor;
  return values;
}

class LifecycleTest : public ::testing::Test {
 protected:
  explicit LifecycleTest(const std::vector<std::string>& flags = {})
      : daemon_(flags), client_(daemon_) {
    auto connected = client::Client::Connect(daemon_.address());
    EXPECT_TRUE(connected.ok()) << connected.status();
    connection_ = *std::move(connected);
    operators_ = std::make_unique<client::Operators>(*connection_);
  }

  v1::InstallResponse MustInstall(client::Installation installation,
                                  v1::VersionState until = v1::VERSION_STATE_ACTIVE) {
    installation.WaitFor(until);
    std::string log;
    auto installed = operators_->Install(installation, [&](const v1::InstallResponse& progress) {
      log += progress.log() + progress.message();
      return true;
    });
    EXPECT_TRUE(installed.ok()) << installed.status() << "\n" << log;
    return installed.ok() ? *installed : v1::InstallResponse();
  }

  // Calls the operator with x = 3. Expects 3 * factor from this version.
  void ExpectServes(const std::string& name, uint32_t version, float factor,
                    uint32_t requested = 0) {
    const RunOutcome outcome = client_.Run(Call(name, 3, requested));
    ASSERT_TRUE(outcome.all_ok()) << outcome.message();
    EXPECT_EQ(outcome.result.version(), version);
    EXPECT_EQ(Floats(outcome.result), std::vector<float>{3 * factor});
  }

  // Runs a regular batch. Expects factor * value of each task from this version. Returns whether
  // it ran as a range.
  bool ExpectBatchServes(const v1::Batch& batch, uint32_t version, float factor) {
    const RunOutcome outcome = client_.Run(batch);
    EXPECT_TRUE(outcome.all_ok()) << outcome.message();
    EXPECT_EQ(outcome.result.version(), version);
    const std::string& inputs = batch.tasks().arguments(0).inline_().data();
    std::vector<float> expected(inputs.size() / sizeof(float));
    std::memcpy(expected.data(), inputs.data(), inputs.size());
    EXPECT_EQ(Floats(outcome.result), Multiplied(expected, factor));
    return outcome.result.device_ns_size() == 1;  // A range has one value for all tasks.
  }

  v1::Operator Describe(const std::string& name) {
    auto op = connection_->DescribeOperator(name);
    EXPECT_TRUE(op.ok()) << op.status();
    return op.ok() ? *op : v1::Operator();
  }

  std::string ReadState(const std::string& name, uint32_t version) {
    const v1::Operator op = Describe(name);
    for (const v1::OperatorVersion& candidate : op.versions()) {
      if (candidate.version() == version) return candidate.state();
    }
    return "unknown";
  }

  // Returns whether the operator has an event of this kind, and stores the newest one in
  // `event`.
  bool HasEvent(const std::string& name, v1::OperatorEvent::Kind kind,
                v1::OperatorEvent* event = nullptr) {
    const auto events = operators_->Audit(name, 1000);
    if (!events.ok()) return false;
    for (const v1::OperatorEvent& candidate : events->events()) {
      if (candidate.kind() != kind) continue;
      if (event != nullptr) *event = candidate;
      return true;
    }
    return false;
  }

  Daemon daemon_;
  Client client_;
  std::unique_ptr<client::Client> connection_;
  std::unique_ptr<client::Operators> operators_;
};

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_OPERATORS_LIFECYCLE_H_
