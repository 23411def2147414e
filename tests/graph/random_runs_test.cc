// Runs of random graphs on a real daemon, against an interpreter that executes the nodes one after
// the other and knows nothing of schedules. A second run returns the same bits.
//
//   $RESIDENT_RANDOM_GRAPHS   number of graphs (default: 1,500)
//   $RESIDENT_RANDOM_SEED     seed of the first one; each further graph has the next seed
//
// //tests/graph:random_runs_10000_test runs 10,000 graphs, which takes about two minutes.
// A failure prints the seed: RESIDENT_RANDOM_GRAPHS=1 RESIDENT_RANDOM_SEED=... runs only that
// graph.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <iostream>
#include <random>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "resident/v1/graphs.grpc.pb.h"
#include "tests/daemon/messages.h"
#include "tests/graph/graph_runs.h"
#include "tests/graph/interpreter.h"
#include "tests/graph/runnable_graph.h"

namespace resident::testing {
namespace {

uint64_t FromEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  uint64_t value = 0;
  return text != nullptr && absl::SimpleAtoi(text, &value) ? value : otherwise;
}

class RandomRunsTest : public DaemonTest {
 protected:
  void Check(const v1::GraphValue& got, const ExpectedValue& expected) {
    EXPECT_EQ(FindDifference(got, expected), "");
    for (size_t i = 0; i < expected.values.size(); ++i) {
      exact_ += expected.errors[i] == 0;
      // Of values of at most 64.
      precise_ += expected.errors[i] < 1;
      ++elements_;
    }
  }

  void CheckRun(const v1::RunGraphRequest& request, bool repeat) {
    const GraphOutcome outcome = RunGraph(*daemon_, client_, request);
    ASSERT_TRUE(outcome.status.ok()) << outcome.status.error_message();
    const Interpretation expected = Interpret(request);
    ASSERT_EQ(outcome.result.steps(), expected.steps);
    EXPECT_EQ(outcome.result.end(), expected.end);
    ASSERT_EQ(static_cast<size_t>(outcome.result.outputs_size()), expected.outputs.size());
    for (size_t i = 0; i < expected.outputs.size(); ++i) {
      Check(outcome.result.outputs(static_cast<int>(i)), expected.outputs[i]);
    }
    ASSERT_EQ(outcome.steps.size(), expected.records.size());
    for (size_t s = 0; s < expected.records.size(); ++s) {
      ASSERT_EQ(static_cast<size_t>(outcome.steps[s].records_size()), expected.records[s].size());
      for (size_t i = 0; i < expected.records[s].size(); ++i) {
        Check(outcome.steps[s].records(static_cast<int>(i)), expected.records[s][i]);
      }
    }
    nodes_ += static_cast<uint64_t>(request.graph().nodes_size()) * expected.steps;
    if (repeat) CheckSameBits(outcome, RunGraph(*daemon_, client_, request));
  }

  static void CheckSameBits(const GraphOutcome& a, const GraphOutcome& b) {
    ASSERT_TRUE(b.status.ok()) << b.status.error_message();
    ASSERT_EQ(a.result.outputs_size(), b.result.outputs_size());
    for (int i = 0; i < a.result.outputs_size(); ++i) {
      EXPECT_EQ(a.result.outputs(i).data(), b.result.outputs(i).data())
          << a.result.outputs(i).tensor();
    }
    ASSERT_EQ(a.steps.size(), b.steps.size());
    for (size_t s = 0; s < a.steps.size(); ++s) {
      EXPECT_EQ(a.steps[s].SerializeAsString(), b.steps[s].SerializeAsString()) << "step " << s;
    }
  }

  uint64_t nodes_ = 0;
  uint64_t elements_ = 0;
  uint64_t exact_ = 0;
  uint64_t precise_ = 0;
};

TEST_F(RandomRunsTest, EqualAnInterpreterWithoutASchedule) {
  const uint64_t count = FromEnvironment("RESIDENT_RANDOM_GRAPHS", 1500);
  const uint64_t first = FromEnvironment("RESIDENT_RANDOM_SEED", std::random_device{}());
  std::cout << "seeds " << first << " to " << first + count - 1 << "\n";
  for (uint64_t i = 0; i < count && !HasFailure(); ++i) {
    const uint64_t seed = first + i;
    SCOPED_TRACE(absl::StrCat("seed ", seed));
    std::mt19937_64 random(seed);
    // Of 100 graphs 2 have up to 5,000 nodes, 10 up to 500 and the others up to 60.
    const uint64_t size = seed % 100;
    const int max_nodes = size < 2 ? 5000 : size < 12 ? 500 : 60;
    const int nodes = 5 + static_cast<int>(random() % static_cast<uint64_t>(max_nodes - 4));
    CheckRun(MakeRunnableGraph(random, nodes), /*repeat=*/seed % 4 == 0);
  }
  std::cout << count << " graphs, " << nodes_ << " nodes in all steps; of " << elements_
            << " returned elements " << exact_ << " are exact\n";
  // The comparison means something: nearly all results are known well.
  EXPECT_GT(exact_, elements_ / 2);
  EXPECT_GT(precise_, elements_ * 9 / 10);
}

TEST_F(RandomRunsTest, AGraphOfFiveThousandNodes) {
  const uint64_t seed = FromEnvironment("RESIDENT_RANDOM_SEED", std::random_device{}());
  std::cout << "seed " << seed << "\n";
  std::mt19937_64 random(seed);
  CheckRun(MakeRunnableGraph(random, 5000), /*repeat=*/true);
}

}  // namespace
}  // namespace resident::testing
