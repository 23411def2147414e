// What every service asks of a call: whose it is, and until when it waits.
//
// Thread safety: functions without state of their own.
#ifndef RESIDENT_SERVER_SERVICES_CALL_H_
#define RESIDENT_SERVER_SERVICES_CALL_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"
#include "runtime/executor/batch.h"
#include "server/core.h"

namespace resident {

// Value of the metadata "resident-session"; empty if there is none.
std::string SessionOf(const grpc::CallbackServerContext& context);

// Who calls. UNAUTHENTICATED: the credential was withdrawn since the call was let in.
//
//   const auto identity = IdentityOf(*context, core_);
//   if (!identity.ok()) return identity.status();
//   absl::Status may = (*identity)->account()->BeginInstall(name, absl::Now());
//   request.actor = (*identity)->name();
absl::StatusOr<std::shared_ptr<Identity>> IdentityOf(const grpc::CallbackServerContext& context,
                                                     const Core& core);

// The client in whose name the call's work is queued. Errors: as ClientTable::ForCall.
absl::StatusOr<std::shared_ptr<Client>> ClientOf(const grpc::CallbackServerContext& context,
                                                 Core& core);

// The same for calls that need a session. UNAUTHENTICATED: the call has none.
absl::StatusOr<std::shared_ptr<Client>> SessionClientOf(const grpc::CallbackServerContext& context,
                                                        Core& core);

// Who calls, for the audit log: "anonymous" where nobody has to say who they are.
std::string ActorOf(const grpc::CallbackServerContext& context);

// The call's deadline, on the runtime's clock.
Clock::time_point DeadlineOf(const grpc::CallbackServerContext& context);

}  // namespace resident

#endif  // RESIDENT_SERVER_SERVICES_CALL_H_
