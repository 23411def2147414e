// Connection: the channel to one daemon, the stubs, and the session.
//
// Shared by a Client, its Buffers and its Streams; the session ends with the last of
// them. Internal to the client library: programs use residentd_client.h and operators.h.
//
// The session is a stream that a dedicated thread reads to the end: first the id, then
// nothing until the stream ends. A session that ended is replaced by the next call that
// needs one.
//
// Thread safety: all members may be called from any thread.
//
//   grpc::ClientContext context;
//   if (absl::Status status = connection.Prepare(context); !status.ok()) return status;
//   return FromGrpc(connection.buffers->Free(&context, request, &response));
#ifndef RESIDENT_CLIENT_CONNECTION_H_
#define RESIDENT_CLIENT_CONNECTION_H_

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "client/residentd_client.h"
#include "grpc/health/v1/health.grpc.pb.h"
#include "resident/v1/admin.grpc.pb.h"
#include "resident/v1/buffers.grpc.pb.h"
#include "resident/v1/executor.grpc.pb.h"
#include "resident/v1/graphs.grpc.pb.h"
#include "resident/v1/lanes.grpc.pb.h"
#include "resident/v1/models.grpc.pb.h"
#include "resident/v1/operators.grpc.pb.h"
#include "runtime/base/status_macros.h"

namespace resident::client {

// Converts a call's status. IsUnreachable() is true of it if no server answered.
absl::Status FromGrpc(const grpc::Status& status);
// The status of a batch that a stream refused, with its ErrorInfo.
absl::Status FromRefusal(const v1::Refusal& refusal);

// UNAVAILABLE with the reason NODE_LEFT. `why`: what happened, or what is gone.
absl::Status NodeLeft(const std::string& node, std::string_view why);
// Whether Client::Run may send a batch again after this error of the call. `repeatable`: whether
// the batch may run twice.
bool MaySendAgain(const absl::Status& status, Retry retry, bool repeatable);
bool MaySendAgain(const v1::BatchResult& result, Retry retry, bool repeatable);

class Connection : public std::enable_shared_from_this<Connection> {
 public:
  // A node of a client of several.
  struct Member {
    std::string authority;  // What TLS and proxies see in place of the address; empty: the address.
    std::string affinity;   // Sent as the header resident-affinity; empty: none.
  };
  Connection(std::string address, Options options, std::optional<Member> member = std::nullopt);
  ~Connection();
  Connection(const Connection&) = delete;

  absl::Status WaitForServer();

  // Sets the call's deadline (`timeout` zero: Options::call_timeout; infinite: none), and
  // its session unless `needs_session` is false.
  absl::Status Prepare(grpc::ClientContext& context, bool needs_session = true,
                       absl::Duration timeout = absl::ZeroDuration());

  // The connection for calls that need state of one daemon. With Options::balance it is that to the
  // node that was chosen before; if there is none, or it has left, another one is chosen, which
  // serves and has opened a session. Otherwise this connection.
  absl::StatusOr<std::shared_ptr<Connection>> Node() ABSL_LOCKS_EXCLUDED(choosing_);
  // With Options::balance: a new connection to a node that was chosen less often than the others.
  absl::StatusOr<std::shared_ptr<Connection>> ChooseNode() ABSL_LOCKS_EXCLUDED(uses_mutex_);

  // The error of a call over this connection: FromGrpc, and NODE_LEFT if the node has left.
  absl::Status FromCall(const grpc::Status& status) ABSL_LOCKS_EXCLUDED(mutex_);

  // Opens the session if there is none. NODE_LEFT if it was that of a node.
  absl::StatusOr<std::string> SessionId() ABSL_LOCKS_EXCLUDED(mutex_);
  bool HasSession() ABSL_LOCKS_EXCLUDED(mutex_);
  // Whether `id` is the currently open session.
  bool IsCurrentSession(const std::string& id) ABSL_LOCKS_EXCLUDED(mutex_);

  // Passes a descriptor of memory over the daemon's local socket, and returns the token for
  // ImportShared or ImportCuda. `magic`: see local_socket.h. FAILED_PRECONDITION if the daemon has
  // no such socket, or is on another machine. UNAVAILABLE if the socket does not answer. Otherwise
  // the daemon's error.
  absl::StatusOr<std::string> PassDescriptor(std::string_view magic, int fd)
      ABSL_LOCKS_EXCLUDED(mutex_);

  absl::Status Upload(uint64_t buffer, uint64_t offset, const char* data, uint64_t size);
  absl::Status Download(uint64_t buffer, uint64_t offset, uint64_t size,
                        const std::function<bool(std::string_view)>& sink);
  absl::Status Free(uint64_t buffer);
  absl::StatusOr<v1::GraphResult> RunGraph(
      const v1::RunGraphRequest& request,
      const std::function<void(const v1::GraphStep& step)>& on_step,
      const std::function<void(const v1::GraphTrace& trace)>& on_trace);

  const std::string& address() const { return address_; }
  const Options& options() const { return options_; }
  const std::shared_ptr<grpc::Channel>& channel() const { return channel_; }

  std::unique_ptr<v1::Executor::Stub> executor;
  std::unique_ptr<v1::Buffers::Stub> buffers;
  std::unique_ptr<v1::Operators::Stub> operators;
  std::unique_ptr<v1::Graphs::Stub> graphs;
  std::unique_ptr<v1::Lanes::Stub> lanes;
  std::unique_ptr<v1::Models::Stub> models;
  std::unique_ptr<v1::Admin::Stub> admin;
  std::unique_ptr<grpc::health::v1::Health::Stub> health;

 private:
  enum class SessionState { kNone, kOpening, kOpen, kEnded };

  // Connects to a daemon that serves, and opens the session.
  absl::Status Enter();
  // Makes a call and returns its error, because a failed channel does not report a reason.
  absl::Status ProbeUnreachable();
  void AddToken(grpc::ClientContext& context) const;
  void ReadSession() ABSL_LOCKS_EXCLUDED(mutex_);
  void EndSession() ABSL_LOCKS_EXCLUDED(mutex_);

  const std::string address_;
  const Options options_;
  const std::optional<Member> member_;
  std::shared_ptr<grpc::Channel> channel_;
  std::unique_ptr<v1::Sessions::Stub> sessions_;

  // Held while a session is being opened; taken before mutex_.
  absl::Mutex opening_;
  absl::Mutex mutex_;
  SessionState session_state_ ABSL_GUARDED_BY(mutex_) = SessionState::kNone;
  std::string session_id_ ABSL_GUARDED_BY(mutex_);
  std::string local_address_ ABSL_GUARDED_BY(mutex_);  // Returned by the daemon with the session.
  absl::Status session_status_ ABSL_GUARDED_BY(mutex_);
  // Replaced only while no session thread runs, under opening_.
  std::unique_ptr<grpc::ClientContext> session_context_;
  std::thread session_thread_;

  // Used by a client of several nodes. choosing_ is held while a node is chosen.
  absl::Mutex choosing_;
  std::shared_ptr<Connection> node_ ABSL_GUARDED_BY(choosing_);
  absl::Mutex uses_mutex_;
  std::map<std::string, int> uses_ ABSL_GUARDED_BY(uses_mutex_);  // Of each present address.
};

// Calls a method of the node that serves the client (Connection::Node), without a session.
template <typename Stub, typename Request, typename Response>
absl::StatusOr<Response> CallNode(const std::shared_ptr<Connection>& client,
                                  std::unique_ptr<Stub> Connection::*stub,
                                  grpc::Status (Stub::*method)(grpc::ClientContext*, const Request&,
                                                               Response*),
                                  const Request& request) {
  ASSIGN_OR_RETURN(const std::shared_ptr<Connection> connection, client->Node());
  grpc::ClientContext context;
  RETURN_IF_ERROR(connection->Prepare(context, /*needs_session=*/false));
  Response response;
  const grpc::Status status = (((*connection).*stub).get()->*method)(&context, request, &response);
  RETURN_IF_ERROR(connection->FromCall(status));
  return response;
}

// Whether an argument of the batch is in a buffer, which belongs to one daemon.
bool UsesBuffers(const v1::Batch& batch);

}  // namespace resident::client

#endif  // RESIDENT_CLIENT_CONNECTION_H_
