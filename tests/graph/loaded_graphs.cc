#include "tests/graph/loaded_graphs.h"

#include <utility>

namespace resident::testing {

GraphCalls::GraphCalls(const Daemon& daemon, const Client& client)
    : client_(client), stub_(v1::Graphs::NewStub(daemon.Connect())) {}

grpc::Status GraphCalls::Load(const v1::Graph& graph, v1::LoadGraphResponse* response) const {
  v1::LoadGraphRequest request;
  *request.mutable_graph() = graph;
  return stub_->Load(client_.Context().get(), request, response);
}

std::string GraphCalls::MustLoad(const GraphMaker& maker) const {
  v1::LoadGraphResponse response;
  const grpc::Status status = Load(maker.graph, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_TRUE(response.report().accepted()) << FindingsText(response.report());
  EXPECT_EQ(response.graph_id().size(), 64u);
  return response.graph_id();
}

std::vector<v1::LoadedGraph> GraphCalls::List() const {
  v1::ListGraphsResponse response;
  const grpc::Status status = stub_->List(client_.Context().get(), {}, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return {response.graphs().begin(), response.graphs().end()};
}

grpc::Status GraphCalls::Describe(const std::string& id,
                                  v1::DescribeGraphResponse* response) const {
  v1::DescribeGraphRequest request;
  request.set_graph_id(id);
  return stub_->Describe(client_.Context().get(), request, response);
}

v1::LoadedGraph GraphCalls::MustDescribe(const std::string& id) const {
  v1::DescribeGraphResponse response;
  const grpc::Status status = Describe(id, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return response.loaded();
}

grpc::Status GraphCalls::Unload(const std::string& id, bool* removed, bool for_all) const {
  v1::UnloadGraphRequest request;
  request.set_graph_id(id);
  request.set_for_all(for_all);
  v1::UnloadGraphResponse response;
  const grpc::Status status = stub_->Unload(client_.Context().get(), request, &response);
  if (removed != nullptr) *removed = response.removed();
  return status;
}

grpc::Status GraphCalls::Open(const v1::OpenGraphSessionRequest& request,
                              v1::GraphSession* session) const {
  v1::OpenGraphSessionResponse response;
  const grpc::Status status = stub_->OpenSession(client_.Context().get(), request, &response);
  *session = std::move(*response.mutable_session());
  return status;
}

v1::GraphSession GraphCalls::MustOpen(const std::string& id) const {
  v1::OpenGraphSessionRequest request;
  request.set_graph_id(id);
  v1::GraphSession session;
  const grpc::Status status = Open(request, &session);
  EXPECT_TRUE(status.ok()) << status.error_message();
  EXPECT_EQ(session.graph_id(), id);
  return session;
}

grpc::Status GraphCalls::Fork(const std::string& session, v1::GraphSession* fork) const {
  v1::ForkGraphSessionRequest request;
  request.set_session_id(session);
  v1::ForkGraphSessionResponse response;
  const grpc::Status status = stub_->ForkSession(client_.Context().get(), request, &response);
  *fork = std::move(*response.mutable_session());
  return status;
}

grpc::Status GraphCalls::Close(const std::string& session) const {
  v1::CloseGraphSessionRequest request;
  request.set_session_id(session);
  v1::CloseGraphSessionResponse response;
  return stub_->CloseSession(client_.Context().get(), request, &response);
}

grpc::Status GraphCalls::DescribeSession(const std::string& id, v1::GraphSession* session) const {
  v1::DescribeGraphSessionRequest request;
  request.set_session_id(id);
  v1::DescribeGraphSessionResponse response;
  const grpc::Status status = stub_->DescribeSession(client_.Context().get(), request, &response);
  *session = std::move(*response.mutable_session());
  return status;
}

v1::GraphSession GraphCalls::MustDescribeSession(const std::string& id) const {
  v1::GraphSession session;
  const grpc::Status status = DescribeSession(id, &session);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return session;
}

std::vector<v1::GraphSession> GraphCalls::ListSessions() const {
  v1::ListGraphSessionsResponse response;
  const grpc::Status status = stub_->ListSessions(client_.Context().get(), {}, &response);
  EXPECT_TRUE(status.ok()) << status.error_message();
  return {response.sessions().begin(), response.sessions().end()};
}

GraphOutcome GraphCalls::Run(const v1::RunGraphRequest& request, const OnGraphStep& on_step) const {
  return RunGraph(*stub_, client_, request, on_step);
}

GraphOutcome GraphCalls::RunLoaded(const std::string& id) const {
  v1::RunGraphRequest request;
  request.set_graph_id(id);
  return Run(request);
}

GraphOutcome GraphCalls::RunIn(const std::string& session, uint64_t steps) const {
  v1::RunGraphRequest request;
  request.set_graph_session(session);
  request.set_max_steps(steps);
  return Run(request);
}

GraphMaker SummingLoop(uint64_t max_steps, double max) {
  using Kind = v1::GraphTensor;
  GraphMaker maker;
  maker.Scalar("pos", 0, max);
  maker.graph.mutable_scalars(0)->set_initial(0);
  maker.graph.mutable_scalars(0)->set_dtype(v1::DTYPE_F32);
  for (const char* name : {"now", "new"}) {
    maker.Tensor(Kind::KIND_ACTIVATION, name, {D(1)}, v1::DTYPE_F64);
  }
  maker.Tensor(Kind::KIND_STATE, "sum", {D(1)}, v1::DTYPE_F64);
  maker.Tensor(Kind::KIND_STREAM, "sums", {D(static_cast<int64_t>(max_steps)), D(1)},
               v1::DTYPE_F64);
  maker.Output("last", {1});
  maker.Call("fill", {"now", S("pos")})
      .Call("add", {"sum", "now", "new"})
      .Call("copy", {"new", "sum"})
      .Call("copy", {"new", "sums"})
      .Call("fill", {"last", S("pos")});
  v1::GraphLoop& loop = *maker.graph.mutable_loop();
  loop.set_max_steps(max_steps);
  loop.add_updates()->set_scalar("pos");
  loop.mutable_updates(0)->set_addend(1);
  return maker;
}

}  // namespace resident::testing
