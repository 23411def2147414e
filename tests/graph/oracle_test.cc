// Random graphs: the checks agree with the oracle, in both directions. What is accepted never goes
// wrong in any order that was tried, and for what is refused the oracle finds an order that goes
// wrong.
//
//   $RESIDENT_GRAPHS       number of graphs of each test (default: 3,000)
//   $RESIDENT_GRAPH_SEED   seed (default: 1)
//
// //tests/graph:oracle_100000_test tries 100,000 random graphs and as many mutants of explicit
// orders, which takes about three minutes.
#include "tests/graph/oracle.h"

#include <algorithm>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "gtest/gtest.h"
#include "runtime/graph/check.h"
#include "server/graphs/graph_messages.h"
#include "tests/graph/builtin_catalog.h"
#include "tests/graph/graph_maker.h"
#include "tests/graph/random_graph.h"

namespace resident::testing {
namespace {

uint64_t ReadEnvironment(const char* name, uint64_t otherwise) {
  const char* const text = std::getenv(name);
  return text == nullptr ? otherwise : std::strtoull(text, nullptr, 10);
}
uint64_t GraphCount() { return ReadEnvironment("RESIDENT_GRAPHS", 3000); }
uint64_t Seed() { return ReadEnvironment("RESIDENT_GRAPH_SEED", 1); }

// Orders that are tried for an accepted graph, and before a refusal counts as wrong.
constexpr int kOrders = 12;
constexpr int kOrdersForRefusal = 4000;
// Choices of values that are tried where the scalars may differ from node to node.
constexpr int kValuesOfNodes = 2000;

struct Checked {
  graph::Graph graph;
  graph::GraphCheck check;
  graph::Findings findings;
  std::set<int> codes;  // Of errors.

  bool Has(int low, int high) const { return codes.lower_bound(low) != codes.upper_bound(high); }
  std::string Text() const {
    std::string text;
    for (const graph::Finding& finding : findings.list()) {
      text += graph::CodeName(finding.code) + " " + finding.node + ": " + finding.message + "\n";
    }
    return text;
  }
};

Checked Check(const v1::Graph& message) {
  static const BuiltinCatalog* const catalog = new BuiltinCatalog;
  Checked checked;
  checked.graph = ReadGraph(message, *catalog, &checked.findings);
  checked.check = CheckGraph(checked.graph, &checked.findings);
  for (const graph::Finding& finding : checked.findings.list()) {
    if (!finding.warning) checked.codes.insert(static_cast<int>(finding.code));
  }
  return checked;
}

// Values of the scalars: the ends of their ranges first, then random ones.
std::vector<double> Values(const graph::Graph& graph, int trial, std::mt19937_64& random) {
  std::vector<double> values;
  for (const graph::Scalar& scalar : graph.scalars) {
    const uint64_t width = static_cast<uint64_t>(scalar.max - scalar.min) + 1;
    values.push_back(trial == 0   ? scalar.min
                     : trial == 1 ? scalar.max
                                  : scalar.min + static_cast<double>(random() % width));
  }
  return values;
}

// Values that differ from node to node.
std::vector<std::vector<double>> ValuesOfNodes(const graph::Graph& graph, std::mt19937_64& random) {
  std::vector<std::vector<double>> values(graph.nodes.size() + 1);
  for (std::vector<double>& of_node : values) {
    of_node = Values(graph, static_cast<int>(random() % 3), random);
  }
  return values;
}

TEST(GraphOracleTest, DerivedOrderAndMissingValues) {
  std::mt19937_64 random(Seed());
  uint64_t accepted = 0;
  uint64_t missing = 0;
  uint64_t dependencies = 0;
  for (uint64_t i = 0; i < GraphCount(); ++i) {
    const v1::Graph message = MakeRandomGraph(random);
    const Checked checked = Check(message);
    // Outside of its form, or a read ahead of its row, which is a rule about time.
    if (checked.Has(100, 399) || checked.Has(402, 402) || checked.Has(405, 407)) continue;
    bool found_missing = false;
    const int trials = checked.graph.scalars.empty() ? 1 : 6;
    for (int trial = 0; trial < trials; ++trial) {
      const Oracle oracle(checked.graph, Values(checked.graph, trial, random));
      found_missing |= !oracle.missing().empty();
      if (checked.check.accepted) {
        ASSERT_EQ(oracle.missing(), "") << message.DebugString();
        ASSERT_EQ(oracle.TryDerived(*checked.check.order, kOrders, random), "")
            << message.DebugString();
      }
    }
    if (!checked.check.accepted) {
      ASSERT_TRUE(found_missing) << checked.Text() << message.DebugString();
      ++missing;
      continue;
    }
    ++accepted;
    // Each dependency has a reason: a conflict, if rows depend on scalars for some values of them.
    std::vector<std::pair<uint32_t, uint32_t>> open;
    for (uint32_t n = 0; n < checked.graph.nodes.size(); ++n) {
      for (const graph::Dependency& dependency : checked.check.order->Of(n)) {
        open.emplace_back(dependency.after, n);
        ++dependencies;
      }
    }
    const int tried = checked.graph.scalars.empty() ? 1 : kValuesOfNodes;
    for (int trial = 0; !open.empty() && trial < tried; ++trial) {
      const Oracle oracle(checked.graph, ValuesOfNodes(checked.graph, random));
      std::erase_if(open,
                    [&](const auto& pair) { return oracle.Conflict(pair.first, pair.second); });
    }
    ASSERT_TRUE(open.empty()) << "node " << open[0].second << " waits for node " << open[0].first
                              << "\n"
                              << message.DebugString();
  }
  std::printf("%llu graphs accepted, %llu refused because of missing values, %llu dependencies\n",
              static_cast<unsigned long long>(accepted), static_cast<unsigned long long>(missing),
              static_cast<unsigned long long>(dependencies));
  EXPECT_GT(accepted, GraphCount() / 10);
  EXPECT_GT(missing, GraphCount() / 10);
}

TEST(GraphOracleTest, ExplicitOrder) {
  std::mt19937_64 random(Seed() + 1000);
  uint64_t accepted = 0;
  uint64_t refused = 0;
  uint64_t rules = 0;      // Refused by a rule about form, whatever the effect is.
  uint64_t different = 0;  // Refused, and right if the scalars have the same values in all nodes.
  std::set<int> codes;
  for (uint64_t i = 0; i < GraphCount();) {
    v1::Graph message = MakeRandomGraph(random);
    const Checked plain = Check(message);
    if (!plain.check.accepted) continue;
    ++i;
    AddExplicitOrder(*plain.check.order, random, &message);
    const Checked checked = Check(message);
    codes.insert(checked.codes.begin(), checked.codes.end());
    const Oracle oracle(checked.graph, Values(checked.graph, 1, random));
    if (checked.check.accepted) {
      ++accepted;
      ASSERT_EQ(oracle.TryExplicit(kOrders, random), "") << message.DebugString();
      continue;
    }
    // A wait for some of the producers, or for none, is against the rules even if it does no harm.
    std::vector<uint32_t> producers(checked.graph.counters.size(), 0);
    for (const graph::Node& node : checked.graph.nodes) {
      if (node.signals != graph::kNone) ++producers[node.signals];
    }
    const bool partial = std::ranges::any_of(checked.graph.waits, [&](const graph::Wait& wait) {
      return wait.threshold == 0 || wait.threshold < producers[wait.counter];
    });
    if (partial || checked.Has(504, 504) || checked.Has(506, 506) || checked.Has(511, 512)) {
      ++rules;
      continue;
    }
    ++refused;
    std::string wrong = oracle.TryExplicit(kOrdersForRefusal, random);
    const bool has_scalars = !checked.graph.scalars.empty();
    // Rows at a scalar position conflict for some positions only.
    for (int trial = 2; wrong.empty() && trial < 12 && has_scalars; ++trial) {
      const Oracle other(checked.graph, Values(checked.graph, trial, random));
      wrong = other.TryExplicit(kOrdersForRefusal / 10, random);
    }
    // The order must be right whatever the positions are, also if they are never the same.
    different += wrong.empty();
    for (int trial = 0; wrong.empty() && trial < kValuesOfNodes && has_scalars; ++trial) {
      const Oracle other(checked.graph, ValuesOfNodes(checked.graph, random));
      wrong = other.TryExplicit(kOrdersForRefusal / 100, random);
    }
    ASSERT_NE(wrong, "") << checked.Text() << message.DebugString();
  }
  std::printf(
      "%llu graphs accepted, %llu refused (%llu because of scalars), %llu refused by form; codes:",
      static_cast<unsigned long long>(accepted), static_cast<unsigned long long>(refused),
      static_cast<unsigned long long>(different), static_cast<unsigned long long>(rules));
  for (const int code : codes) std::printf(" %d", code);
  std::printf("\n");
  EXPECT_GT(accepted, GraphCount() / 10);
  EXPECT_GT(refused, GraphCount() / 20);
  // Nearly all refusals have a reason that a run can show.
  EXPECT_LE(different, 1 + refused / 100);
}

}  // namespace
}  // namespace resident::testing
