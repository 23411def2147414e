// Endpoints: the sockets that the daemon listens on (--address, --local_address), and the policy,
// tokens and certificates that decide which calls are admitted.
//
//   Bind ──▶ bound, accepts no connections ──Open──▶ open ──Close──▶ closed
//
// Thread safety: Bind, Open and Close must be called from one thread, the other members from any.
#ifndef RESIDENT_SERVER_ENDPOINTS_H_
#define RESIDENT_SERVER_ENDPOINTS_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/server_builder.h"
#include "server/auth/access.h"
#include "server/auth/access_files.h"
#include "server/auth/server_credentials.h"
#include "server/buffers/buffers.h"
#include "server/connections/callback_threads.h"
#include "server/connections/heap_trimmer.h"
#include "server/connections/listener.h"
#include "server/connections/local_socket.h"
#include "server/flags.h"
#include "server/lanes/lane_table.h"
#include "server/rpc/call_memory.h"

namespace resident {

class Endpoints {
 public:
  // Checks the flags for addresses and access, binds the sockets and reads the files.
  static absl::StatusOr<std::unique_ptr<Endpoints>> Bind(const ServeOptions& options);
  // Called only by Bind.
  Endpoints(const ServeOptions& options, std::unique_ptr<Listener> listener);
  ~Endpoints() { Close(); }

  // Contains the actual port.
  std::string address() const;
  // Empty: there is no local socket.
  std::string local_address() const;
  // Whether calls have credentials.
  bool credentials() const { return options_.access.credentials(); }
  std::shared_ptr<grpc::ServerCredentials> MakeCredentials() const {
    return server_credentials_.Make(options_.access);
  }
  Access& access() { return access_; }
  AccessFiles& files() { return files_; }
  Listener& listener() { return *listener_; }

  // Whether a call is admitted. Reports the call to the listener, and gives it its connection's
  // meter.
  absl::Status Admit(const std::string& method, CallContext& context);

  // Starts to pass connections to `acceptor`, whose server has been started, and to end streams
  // whose callers lose their rights. `buffers` and `lanes` must be valid until Close.
  absl::Status Open(Buffers& buffers, LaneTable& lanes,
                    std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor);
  // Stops reloading files and accepting connections. Open connections of gRPC stay open; the local
  // socket is removed, and its connections end. Idempotent.
  void Close();
  // From Open until Close.
  bool open() const { return callback_threads_ != nullptr; }

 private:
  const ServeOptions options_;
  Access access_;
  ServerCredentials server_credentials_;
  AccessFiles files_;
  const std::unique_ptr<Listener> listener_;
  std::unique_ptr<LocalSocket> local_;  // Null: none.
  // From Open on.
  std::unique_ptr<HeapTrimmer> trimmer_;
  std::unique_ptr<CallbackThreads> callback_threads_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_ENDPOINTS_H_
