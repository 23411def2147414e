// AdmittedService: a service behind the access check.
//
// Every call of a method that exists enters the daemon here; gRPC itself ends calls of other
// methods with UNIMPLEMENTED. A call is admitted or refused as soon as its headers are read: before
// its message is read, and before the service's handler is called. No service is registered with
// gRPC except through this class. An admitted call takes a place (open_calls.h).
//
// Implementation: gRPC reads the message of a unary or server-streaming call before it calls the
// method's handler. Each method is therefore registered as one that streams in both directions, for
// which gRPC reads nothing by itself. The handler registered for it checks admission, reads the
// message if the method has exactly one, and passes the call to the service's own handler. The
// message is charged to its client (call_memory.h) and measured (message_bytes.h) before it is
// parsed. A message that cannot be parsed ends the call with INVALID_ARGUMENT.
//
// The caller decides how long its message takes. If it took long, admission is checked again before
// the handler is called, because the credential may have been withdrawn meanwhile. A method that is
// open to all, whose messages are small, waits for at most kOpenMessage: otherwise a caller without
// a credential could make gRPC store messages that never end.
//
// gRPC 1.51 has its own authentication hook (AuthMetadataProcessor). It is not used, because it
// copies the call's headers, and copying `grpclb_client_stats` aborts the process.
//
// Thread safety: gRPC calls the handlers from any thread.
//
//   AdmittedService executor(executor_service, v1::Executor::service_full_name(), admit, memory,
//                            calls);
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
#include "server/rpc/call_memory.h"
#include "server/rpc/open_calls.h"

namespace resident {

class AdmittedService final : public grpc::Service {
 public:
  // Time limit for the message of a method that is open to all.
  static constexpr auto kOpenMessage = std::chrono::seconds(5);
  // If the message took longer, admission is checked again.
  static constexpr auto kRecheckAfter = std::chrono::seconds(1);

  // Whether the call is admitted; an error ends the call. `method`: "/package.Service/Method".
  using Admit = std::function<absl::Status(const std::string& method, CallContext& context)>;

  // `service`: a callback service with the methods of `full_name`, whose descriptor is linked
  // into the program. It, `memory` and `calls` must outlive this object, and this object the
  // server.
  AdmittedService(grpc::Service& service, absl::string_view full_name, const Admit& admit,
                  CallMemory& memory, OpenCalls& calls);

 private:
  std::deque<std::string> methods_;  // gRPC keeps pointers to the names.
};

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_ADMITTED_SERVICE_H_
