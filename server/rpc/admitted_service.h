// AdmittedService: a service behind the access check.
//
// This is where every call of a method that exists enters the daemon; gRPC itself ends a call
// of another one UNIMPLEMENTED. A call is admitted or refused as soon as its headers are read:
// before its message is read, and before the service's handler is called. No service is
// registered with gRPC except through this class.
//
// How: gRPC reads the message of a unary or server-streaming call before it calls the
// method's handler. Each method is therefore registered as one that streams both ways, for
// which gRPC reads nothing by itself. The handler registered for it asks for admission, reads
// the one message where the method has one, and passes the call to the service's own handler.
// A message that cannot be parsed ends the call INVALID_ARGUMENT.
//
// The caller decides how long its message takes. So a call whose message was long on its way is
// asked about again before its handler is called: its credential may have been withdrawn
// meanwhile. A method that is open to all, whose messages are small, waits for kOpenMessage:
// otherwise a caller without a credential could make gRPC store messages that never end.
//
// gRPC 1.51 offers an authentication hook of its own (AuthMetadataProcessor). It is not used:
// it copies the call's headers, and copying `grpclb_client_stats` aborts the process.
//
// Thread safety: gRPC calls the handlers from any thread.
//
//   AdmittedService executor(executor_service, v1::Executor::service_full_name(), admit);
//   builder.RegisterService(&executor);
#ifndef RESIDENT_SERVER_RPC_ADMITTED_SERVICE_H_
#define RESIDENT_SERVER_RPC_ADMITTED_SERVICE_H_

#include <chrono>
#include <deque>
#include <functional>
#include <string>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "grpcpp/impl/service_type.h"
#include "grpcpp/server_context.h"

namespace resident {

class AdmittedService final : public grpc::Service {
 public:
  // For the message of a method that is open to all.
  static constexpr auto kOpenMessage = std::chrono::seconds(5);
  // A call whose message took longer is asked about again.
  static constexpr auto kAskAgainAfter = std::chrono::seconds(1);

  // Whether the call may go on. `method`: "/package.Service/Method". An error ends the call.
  using Admit = std::function<absl::Status(const std::string& method,
                                           const grpc::CallbackServerContext& context)>;

  // `service`: a callback service with the methods of `full_name`, whose descriptor is linked
  // into the program. It must outlive this object, and this object the server.
  AdmittedService(grpc::Service& service, absl::string_view full_name, const Admit& admit);

 private:
  std::deque<std::string> methods_;  // gRPC keeps pointers to the names.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_ADMITTED_SERVICE_H_
