// Installs each operator of the bad operators table through a real daemon. Each must be
// refused at the expected stage with the expected message. The daemon must continue to
// serve and no process may be left over.
//
// RESIDENT_TEST_DEVICES chooses the engine (tests/daemon/daemon.h).
#include "tests/operators/bad_operators.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/types.h>

#include <algorithm>
#include <map>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "absl/time/time.h"
#include "client/operators.h"
#include "client/residentd_client.h"
#include "tests/daemon/daemon.h"

namespace resident::testing {
namespace {

using client::Installation;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr char kGoodName[] = "good";
constexpr char kGoodSource[] =
    "#include \"kernels/sdk/operator.h\"\n"
    "RESIDENT_OPERATOR(good)(resident::Block& "
    "block, const resident::Args& args) {\n"
    "  auto x = args.tensor<const float>(0);\n"
    "  auto out = args.tensor<float>(1);\n"
    "  block.for_each(block.share(x.size()), "
    "[&](resident::i64 i) { out[i] = 2 * x[i]; });\n"
    "}\n";
constexpr char kGoodSignature[] = "x: in f32[*S], out: out f32[*S]";

client::Example TwiceExample(size_t n, float first) {
  std::vector<float> x(n), out(n);
  std::iota(x.begin(), x.end(), first);
  for (size_t i = 0; i < n; ++i) out[i] = 2 * x[i];
  client::Example example;
  example.Value(x).Value(out);
  return example;
}

Installation MakeInstallation(const BadOperator& row) {
  const std::string name = row.installed_as.empty() ? row.name : row.installed_as;
  const std::string main_file = row.name + ".cc";
  std::map<std::string, std::string> files = row.files;
  files[main_file] = row.source;
  Installation installation = !row.expression.empty()
                                  ? Installation::Expression(name, row.expression)
                              : row.object ? Installation::Object(name, main_file, row.source)
                                           : Installation::Source(name, main_file, files);
  if (row.expression.empty()) installation.Signature(row.signature).Split(row.split);
  if (row.example) installation.Add(TwiceExample(100, 1));
  if (row.second_example) installation.Add(TwiceExample(4, 13));
  installation.TaskTimeLimit(absl::Milliseconds(row.task_time_ms));
  return installation;
}

class BadOperatorsTest : public ::testing::TestWithParam<BadOperator> {
 protected:
  static void SetUpTestSuite() {
    daemon_ = std::make_unique<Daemon>(std::vector<std::string>{"--compile_wall_time=8s"});
    auto connected = client::Client::Connect(daemon_->address());
    ASSERT_TRUE(connected.ok()) << connected.status();
    client_ = *std::move(connected);
    // The first install starts processes that remain. It happens before the processes are
    // counted.
    const auto installed = client::Operators(*client_).Install(
        Installation::Source(kGoodName, "good.cc", {{"good.cc", kGoodSource}})
            .Signature(kGoodSignature)
            .Add(TwiceExample(100, 1))
            .WaitFor(v1::VERSION_STATE_ACTIVE));
    ASSERT_TRUE(installed.ok()) << installed.status();
    engine_pid_ = daemon_->engine_pid();
  }
  static void TearDownTestSuite() {
    client_.reset();
    daemon_.reset();
  }

  static void ExpectServes() {
    for (const auto& [name, factor] : {std::pair{kGoodName, 2.0f}, {"scale", 3.0f}}) {
      client::TaskBatch batch(name);
      batch.Input(std::vector<float>{1, 2, 3}).Return<float>({3});
      if (factor == 3.0f) batch.Scalar(3.0);
      const auto result = client_->Run(batch);
      ASSERT_TRUE(result.ok()) << name << ": " << result.status();
      EXPECT_THAT(result->Output<float>(0), ElementsAre(factor, 2 * factor, 3 * factor));
    }
  }

  static inline std::unique_ptr<Daemon> daemon_;
  static inline std::unique_ptr<client::Client> client_;
  static inline pid_t engine_pid_ = 0;
};

TEST_P(BadOperatorsTest, IsRefusedWhileTheDaemonKeepsServing) {
  const BadOperator& row = GetParam();
  const std::string& message = OnGpu() && !row.message_gpu.empty() ? row.message_gpu : row.message;

  std::vector<v1::VersionState> states;
  std::string log;
  const auto installed = client::Operators(*client_).Install(
      MakeInstallation(row), [&](const v1::InstallResponse& response) {
        states.push_back(response.state());
        log += response.log();
        return true;
      });
  ASSERT_FALSE(installed.ok()) << "it was installed";
  EXPECT_THAT(std::string(installed.status().message()), HasSubstr("Fix: "));
  EXPECT_THAT(std::string(installed.status().message()) + "\n" + log, HasSubstr(message));
  // The version reached the stage before the one that must refuse it.
  const auto reached = [&](v1::VersionState state) {
    return std::find(states.begin(), states.end(), state) != states.end();
  };
  EXPECT_EQ(reached(v1::VERSION_STATE_COMPILED), row.stage > Stage::kCompile)
      << StageName(row.stage);
  EXPECT_EQ(reached(v1::VERSION_STATE_INSPECTED), row.stage > Stage::kInspect)
      << StageName(row.stage);
  EXPECT_FALSE(reached(v1::VERSION_STATE_VALIDATED)) << installed.status();

  ExpectServes();
  EXPECT_EQ(daemon_->engine_pid(), engine_pid_) << "the live engine was replaced";
  EXPECT_TRUE(Eventually([] { return daemon_->LeftoverProcesses().empty(); }))
      << daemon_->LeftoverProcesses();
}

std::vector<BadOperator> RowsForThisEngine() {
  std::vector<BadOperator> rows;
  for (const BadOperator& row : BadOperators()) {
    if (row.on == On::kBoth || (row.on == On::kGpu) == OnGpu()) rows.push_back(row);
  }
  return rows;
}

INSTANTIATE_TEST_SUITE_P(Matrix, BadOperatorsTest, ::testing::ValuesIn(RowsForThisEngine()),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace resident::testing
