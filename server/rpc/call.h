// What every service asks of a call: whose it is, and until when it waits.
//
// Thread safety: functions without state of their own.
#ifndef RESIDENT_SERVER_RPC_CALL_H_
#define RESIDENT_SERVER_RPC_CALL_H_

#include <memory>
#include <string>

#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"
#include "runtime/queue/batch.h"
#include "server/rpc/core.h"

namespace resident {

// Value of the metadata "resident-session"; empty if there is none.
std::string ReadSessionId(const grpc::CallbackServerContext& context);

// Who calls. UNAUTHENTICATED: the credential was withdrawn since the call was let in.
absl::StatusOr<std::shared_ptr<Identity>> IdentifyCaller(const grpc::CallbackServerContext& context,
                                                         const Core& core);

// For LiveStreams::Add: whether the caller may still use `method`, which needs one of
// these roles. `context` is not needed afterwards.
LiveStreams::Recheck MakeRecheck(const grpc::CallbackServerContext& context, const Core& core,
                                 RoleSet any_of, const std::string& method);

// Whether the caller sees what others did: who installed a version, the hash of what, why it
// is quarantined (the reason may hold the arguments of somebody's task), and other identities'
// clients. Those with the role admin do, and everybody where there is no policy. The one rule
// for Operators.List, Describe and Watch and for Admin.Status.
bool SeesOthers(const Identity& caller);

// The client in whose name the call's work is queued. Errors: as ClientTable::ForCall.
absl::StatusOr<std::shared_ptr<Client>> FindClient(const grpc::CallbackServerContext& context,
                                                   Core& core);

// The same for calls that need a session. UNAUTHENTICATED: the call has none.
absl::StatusOr<std::shared_ptr<Client>> FindSessionClient(
    const grpc::CallbackServerContext& context, Core& core);

// Who changes the operator, for the audit log: "anonymous" where nobody has to say who
// they are. PERMISSION_DENIED: the caller may not.
absl::StatusOr<std::string> AuthorizeChange(const grpc::CallbackServerContext& context,
                                            const Core& core, const std::string& operator_name);

// The call's deadline, on the runtime's clock.
Clock::time_point ReadDeadline(const grpc::CallbackServerContext& context);

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_CALL_H_
