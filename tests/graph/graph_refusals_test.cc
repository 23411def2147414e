// Calls of resident.v1.Graphs that are refused, or whose graph is, each with a precise status; the
// next request is served. Malformed messages: tests/integration/bad_requests_test.cc.
#include <string>
#include <vector>

#include "gtest/gtest.h"
#include "resident/v1/graphs.grpc.pb.h"
#include "tests/daemon/messages.h"

namespace resident::testing {
namespace {

using grpc::StatusCode;

class GraphRefusalsTest : public DaemonTest {};

TEST_F(GraphRefusalsTest, ValidateWithoutAGraph) {
  const auto stub = v1::Graphs::NewStub(daemon_->Connect());
  grpc::ClientContext context;
  v1::ValidateGraphResponse response;
  ExpectRefused(stub->Validate(&context, {}, &response), StatusCode::INVALID_ARGUMENT,
                {"no graph"});
}

TEST_F(GraphRefusalsTest, CallsAboutGraphsThatDoNotExist) {
  const auto stub = v1::Graphs::NewStub(daemon_->Connect());
  const std::string id(64, 'a');
  const std::vector<std::string> no_graph = {"no graph with the id", id, "is loaded"};
  v1::LoadGraphResponse loaded;
  ExpectRefused(stub->Load(client_.Context().get(), {}, &loaded), StatusCode::INVALID_ARGUMENT,
                {"no graph"});
  v1::DescribeGraphRequest describe;
  describe.set_graph_id(id);
  v1::DescribeGraphResponse described;
  ExpectRefused(stub->Describe(client_.Context().get(), describe, &described),
                StatusCode::NOT_FOUND, no_graph);
  for (const bool for_all : {false, true}) {
    v1::UnloadGraphRequest unload;
    unload.set_graph_id(id);
    unload.set_for_all(for_all);
    v1::UnloadGraphResponse unloaded;
    ExpectRefused(stub->Unload(client_.Context().get(), unload, &unloaded), StatusCode::NOT_FOUND,
                  no_graph);
  }
  v1::OpenGraphSessionRequest open;
  open.set_graph_id(id);
  v1::OpenGraphSessionResponse opened;
  ExpectRefused(stub->OpenSession(client_.Context().get(), open, &opened), StatusCode::NOT_FOUND,
                no_graph);
  const std::vector<std::string> no_session = {"no graph session 'gs7'"};
  v1::ForkGraphSessionRequest fork;
  fork.set_session_id("gs7");
  v1::ForkGraphSessionResponse forked;
  ExpectRefused(stub->ForkSession(client_.Context().get(), fork, &forked), StatusCode::NOT_FOUND,
                no_session);
  v1::CloseGraphSessionRequest close;
  close.set_session_id("gs7");
  v1::CloseGraphSessionResponse closed;
  ExpectRefused(stub->CloseSession(client_.Context().get(), close, &closed), StatusCode::NOT_FOUND,
                no_session);
  v1::DescribeGraphSessionRequest seek;
  seek.set_session_id("gs7");
  v1::DescribeGraphSessionResponse found;
  ExpectRefused(stub->DescribeSession(client_.Context().get(), seek, &found), StatusCode::NOT_FOUND,
                no_session);
  const auto run = [&](const v1::RunGraphRequest& request) {
    const auto context = client_.Context();
    const auto stream = stub->Run(context.get(), request);
    v1::RunGraphResponse response;
    EXPECT_FALSE(stream->Read(&response));
    return stream->Finish();
  };
  v1::RunGraphRequest request;
  ExpectRefused(run(request), StatusCode::INVALID_ARGUMENT, {"no graph"});
  request.set_graph_id(id);
  ExpectRefused(run(request), StatusCode::NOT_FOUND, no_graph);
  request.set_graph_session("gs7");
  ExpectRefused(run(request), StatusCode::NOT_FOUND, no_session);
  ExpectServes();
}

TEST_F(GraphRefusalsTest, RenderOfWhatCannotBeDrawn) {
  const auto stub = v1::Graphs::NewStub(daemon_->Connect());
  const auto render = [&](const v1::RenderGraphRequest& request) {
    grpc::ClientContext context;
    v1::RenderGraphResponse response;
    return stub->Render(&context, request, &response);
  };
  v1::RenderGraphRequest request;
  request.set_format(v1::RenderGraphRequest::FORMAT_SVG);
  ExpectRefused(render(request), StatusCode::INVALID_ARGUMENT, {"no graph"});
  request.mutable_graph()->set_format(1);
  request.clear_format();
  ExpectRefused(render(request), StatusCode::INVALID_ARGUMENT, {"format 0", "FORMAT_SVG"});
  for (int i = 0; i <= 2000; ++i) request.mutable_graph()->add_nodes();
  request.set_format(v1::RenderGraphRequest::FORMAT_SVG);
  ExpectRefused(render(request), StatusCode::INVALID_ARGUMENT,
                {"2001 nodes", "SVG has at most 2000"});
  for (int i = 0; i < 8000; ++i) request.mutable_graph()->add_nodes();
  request.set_format(v1::RenderGraphRequest::FORMAT_DOT);
  ExpectRefused(render(request), StatusCode::INVALID_ARGUMENT,
                {"10001 nodes", "DOT has at most 10000"});
  ExpectServes();
}

// A graph that cannot be used is an answer, not an error.
TEST_F(GraphRefusalsTest, RefusedGraphIsAReport) {
  const auto stub = v1::Graphs::NewStub(daemon_->Connect());
  grpc::ClientContext context;
  v1::ValidateGraphRequest request;
  request.mutable_graph()->add_nodes()->set_operator_("adt");
  v1::ValidateGraphResponse response;
  ASSERT_TRUE(stub->Validate(&context, request, &response).ok());
  EXPECT_FALSE(response.report().accepted());
  ASSERT_EQ(response.report().findings_size(), 2);
  EXPECT_EQ(response.report().findings(0).code(), "GRAPH_E102");
  EXPECT_EQ(response.report().findings(1).code(), "GRAPH_E104");
  ExpectServes();
}

}  // namespace
}  // namespace resident::testing
