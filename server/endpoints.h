// Endpoints: where calls come in, and which are let in: the sockets (--address, --local_address)
// and the policy, tokens and certificates.
//
//   Bind ──▶ bound, nobody is accepted ──Open──▶ open ──Close──▶ closed
//
// Thread safety: Bind, Open and Close belong to one thread; the rest may be called from any.
#ifndef RESIDENT_SERVER_ENDPOINTS_H_
#define RESIDENT_SERVER_ENDPOINTS_H_

#include <memory>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "grpcpp/server_builder.h"
#include "grpcpp/server_context.h"
#include "server/auth/access.h"
#include "server/auth/access_files.h"
#include "server/auth/server_credentials.h"
#include "server/connections/heap_trimmer.h"
#include "server/connections/listener.h"
#include "server/connections/local_socket.h"
#include "server/flags.h"
#include "server/rpc/core.h"

namespace resident {

class Endpoints {
 public:
  // Checks what the flags say of addresses and access, binds the sockets and reads the files.
  static absl::StatusOr<std::unique_ptr<Endpoints>> Bind(const ServeOptions& options);
  // REQUIRES: made by Bind.
  Endpoints(const ServeOptions& options, std::unique_ptr<Listener> listener);
  ~Endpoints() { Close(); }

  // With the port that was taken.
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

  // Whether a call may go on; tells the listener of it.
  absl::Status Admit(const std::string& method, const grpc::CallbackServerContext& context);

  // From now on connections go to `acceptor`, whose server has been started, and streams whose
  // callers lose their rights are ended. `core` must outlive the time until Close.
  absl::Status Open(Core& core,
                    std::unique_ptr<grpc::experimental::ExternalConnectionAcceptor> acceptor);
  // No more connections; those that are open stay. Files are no longer looked at. Idempotent.
  void Close();

 private:
  const ServeOptions options_;
  Access access_;
  ServerCredentials server_credentials_;
  AccessFiles files_;
  const std::unique_ptr<Listener> listener_;
  std::unique_ptr<LocalSocket> local_;    // Null: the flags ask for none.
  std::unique_ptr<HeapTrimmer> trimmer_;  // From Open on.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_ENDPOINTS_H_
