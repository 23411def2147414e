// Loaded graphs, their runs, and graph sessions.
#include <utility>

#include "client/connection.h"
#include "client/residentd_client.h"
#include "runtime/base/status_macros.h"

namespace resident::client {

absl::StatusOr<v1::LoadGraphResponse> Client::LoadGraph(const v1::Graph& graph) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, connection_->Node());
  grpc::ClientContext context;
  // The session is opened first, as for ValidateGraph.
  RETURN_IF_ERROR(connection->Prepare(context));
  v1::LoadGraphRequest request;
  *request.mutable_graph() = graph;
  v1::LoadGraphResponse response;
  RETURN_IF_ERROR(connection->FromCall(connection->graphs->Load(&context, request, &response)));
  return response;
}

absl::StatusOr<std::vector<v1::LoadedGraph>> Client::ListGraphs() {
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection_->Prepare(context, /*needs_session=*/false));
  v1::ListGraphsResponse response;
  RETURN_IF_ERROR(connection_->FromCall(connection_->graphs->List(&context, {}, &response)));
  return std::vector<v1::LoadedGraph>(response.graphs().begin(), response.graphs().end());
}

absl::StatusOr<v1::DescribeGraphResponse> Client::DescribeGraph(const std::string& id) {
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection_->Prepare(context, /*needs_session=*/false));
  v1::DescribeGraphRequest request;
  request.set_graph_id(id);
  v1::DescribeGraphResponse response;
  RETURN_IF_ERROR(
      connection_->FromCall(connection_->graphs->Describe(&context, request, &response)));
  return response;
}

absl::StatusOr<bool> Client::UnloadGraph(const std::string& id, bool for_all) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, connection_->Node());
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection->Prepare(context, /*needs_session=*/false));
  v1::UnloadGraphRequest request;
  request.set_graph_id(id);
  request.set_for_all(for_all);
  v1::UnloadGraphResponse response;
  RETURN_IF_ERROR(connection->FromCall(connection->graphs->Unload(&context, request, &response)));
  return response.removed();
}

absl::StatusOr<GraphSession> Client::OpenGraphSession(const v1::OpenGraphSessionRequest& request) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, connection_->Node());
  ASSIGN_OR_RETURN(std::string session, connection->SessionId());
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection->Prepare(context));
  v1::OpenGraphSessionResponse response;
  RETURN_IF_ERROR(
      connection->FromCall(connection->graphs->OpenSession(&context, request, &response)));
  return GraphSession(connection, std::move(session), std::move(*response.mutable_session()));
}

absl::StatusOr<v1::GraphResult> Connection::RunGraph(
    const v1::RunGraphRequest& request,
    const std::function<void(const v1::GraphStep& step)>& on_step,
    const std::function<void(const v1::GraphTrace& trace)>& on_trace) {
  grpc::ClientContext context;
  RETURN_IF_ERROR(Prepare(context, /*needs_session=*/!options_.balance));
  const auto stream = graphs->Run(&context, request);
  v1::GraphResult result;
  v1::RunGraphResponse response;
  // Those that were sent last. They are moved from step to step.
  google::protobuf::RepeatedPtrField<v1::GraphVersion> versions;
  while (stream->Read(&response)) {
    if (response.has_result()) result = std::move(*response.mutable_result());
    if (response.has_step() && on_step) {
      v1::GraphStep& step = *response.mutable_step();
      if (step.versions().empty()) step.mutable_versions()->Swap(&versions);
      on_step(step);
      versions.Swap(step.mutable_versions());
    }
    if (response.has_trace() && on_trace) on_trace(response.trace());
  }
  RETURN_IF_ERROR(FromCall(stream->Finish()));
  return result;
}

GraphSession::GraphSession(GraphSession&& other) noexcept
    : connection_(std::move(other.connection_)),
      session_(std::move(other.session_)),
      info_(std::move(other.info_)) {}

GraphSession& GraphSession::operator=(GraphSession&& other) noexcept {
  if (this != &other) {
    Close().IgnoreError();
    connection_ = std::move(other.connection_);
    session_ = std::move(other.session_);
    info_ = std::move(other.info_);
  }
  return *this;
}

GraphSession::~GraphSession() { Close().IgnoreError(); }

absl::StatusOr<v1::GraphResult> GraphSession::Run(
    v1::RunGraphRequest request, const std::function<void(const v1::GraphStep& step)>& on_step,
    const std::function<void(const v1::GraphTrace& trace)>& on_trace) {
  if (connection_ == nullptr) return absl::FailedPreconditionError("the graph session was closed");
  request.set_graph_session(id());
  return connection_->RunGraph(request, on_step, on_trace);
}

absl::StatusOr<GraphSession> GraphSession::Fork() const {
  if (connection_ == nullptr) return absl::FailedPreconditionError("the graph session was closed");
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection_->Prepare(context));
  v1::ForkGraphSessionRequest request;
  request.set_session_id(id());
  v1::ForkGraphSessionResponse response;
  RETURN_IF_ERROR(
      connection_->FromCall(connection_->graphs->ForkSession(&context, request, &response)));
  return GraphSession(connection_, session_, std::move(*response.mutable_session()));
}

absl::StatusOr<v1::GraphSession> GraphSession::Describe() const {
  if (connection_ == nullptr) return absl::FailedPreconditionError("the graph session was closed");
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection_->Prepare(context));
  v1::DescribeGraphSessionRequest request;
  request.set_session_id(id());
  v1::DescribeGraphSessionResponse response;
  RETURN_IF_ERROR(
      connection_->FromCall(connection_->graphs->DescribeSession(&context, request, &response)));
  return std::move(*response.mutable_session());
}

absl::Status GraphSession::Close() {
  const std::shared_ptr<Connection> connection = std::exchange(connection_, nullptr);
  // The daemon closed it with the client's session.
  if (connection == nullptr || !connection->IsCurrentSession(session_)) return absl::OkStatus();
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection->Prepare(context));
  v1::CloseGraphSessionRequest request;
  request.set_session_id(id());
  v1::CloseGraphSessionResponse response;
  return connection->FromCall(connection->graphs->CloseSession(&context, request, &response));
}

}  // namespace resident::client
