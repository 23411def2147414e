// LoadedGraphTest: calls of resident.v1.Graphs about loaded graphs and graph sessions, for tests
// with a real daemon.
//
// Thread safety: that of gRPC's stubs.
//
//   const std::string id = Load(maker);
//   const v1::GraphSession session = Open(id);
//   EXPECT_EQ(RunIn(session, 3).result.steps(), 3u);
#ifndef RESIDENT_TESTS_GRAPH_LOADED_GRAPHS_H_
#define RESIDENT_TESTS_GRAPH_LOADED_GRAPHS_H_

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "resident/v1/graphs.grpc.pb.h"
#include "tests/daemon/messages.h"
#include "tests/graph/graph_maker.h"
#include "tests/graph/graph_runs.h"

namespace resident::testing {

// The calls of one client.
class GraphCalls {
 public:
  GraphCalls(const Daemon& daemon, const Client& client);

  grpc::Status Load(const v1::Graph& graph, v1::LoadGraphResponse* response) const;
  // The id of a graph that must be accepted.
  std::string MustLoad(const GraphMaker& maker) const;
  std::vector<v1::LoadedGraph> List() const;
  grpc::Status Describe(const std::string& id, v1::DescribeGraphResponse* response) const;
  v1::LoadedGraph MustDescribe(const std::string& id) const;
  grpc::Status Unload(const std::string& id, bool* removed = nullptr, bool for_all = false) const;

  grpc::Status Open(const v1::OpenGraphSessionRequest& request, v1::GraphSession* session) const;
  v1::GraphSession MustOpen(const std::string& id) const;
  grpc::Status Fork(const std::string& session, v1::GraphSession* fork) const;
  grpc::Status Close(const std::string& session) const;
  grpc::Status DescribeSession(const std::string& id, v1::GraphSession* session) const;
  v1::GraphSession MustDescribeSession(const std::string& id) const;
  std::vector<v1::GraphSession> ListSessions() const;

  GraphOutcome Run(const v1::RunGraphRequest& request, const OnGraphStep& on_step = nullptr) const;
  GraphOutcome RunLoaded(const std::string& id) const;
  GraphOutcome RunIn(const std::string& session, uint64_t steps) const;

  v1::Graphs::Stub& stub() const { return *stub_; }

 private:
  const Client& client_;
  const std::unique_ptr<v1::Graphs::Stub> stub_;
};

// A loop that adds `pos` (0, 1, 2, ...) to the state `sum` in each step, and sends the new sum in
// the stream `sums`: 0, 1, 3, 6, ... The output is `pos`.
GraphMaker SummingLoop(uint64_t max_steps, double max = 1e9);

}  // namespace resident::testing

#endif  // RESIDENT_TESTS_GRAPH_LOADED_GRAPHS_H_
