// Reads from a call what every service needs: its caller, its client, its deadline and its limits.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_RPC_CALL_H_
#define RESIDENT_SERVER_RPC_CALL_H_

#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "absl/status/statusor.h"
#include "grpcpp/server_context.h"
#include "runtime/queue/batch.h"
#include "server/auth/role.h"
#include "server/core/core.h"
#include "server/rpc/message_bytes.h"

namespace resident {

// Value of the metadata "resident-session"; empty if there is none.
std::string ReadSessionId(const grpc::CallbackServerContext& context);

// The caller. UNAUTHENTICATED: the credential was withdrawn after the call was admitted.
absl::StatusOr<std::shared_ptr<Identity>> IdentifyCaller(const grpc::CallbackServerContext& context,
                                                         const Core& core);

// For LiveStreams::Add: whether the caller may still use `method`, which needs one of
// these roles. `context` is not needed afterwards.
LiveStreams::Recheck MakeRecheck(const grpc::CallbackServerContext& context, const Core& core,
                                 RoleSet any_of, const std::string& method);

// The client for which the call's work is queued. UNAVAILABLE: the daemon drains, and the session
// has ended. Other errors: see ClientTable::ForCall.
absl::StatusOr<std::shared_ptr<Client>> FindClient(const grpc::CallbackServerContext& context,
                                                   Core& core);

// The same for calls that need a session. UNAUTHENTICATED: the call has none.
absl::StatusOr<std::shared_ptr<Client>> FindSessionClient(
    const grpc::CallbackServerContext& context, Core& core);

// The name of the caller that changes the operator, for the audit log; "anonymous" if callers have
// no identities. `any_of`: the roles that suffice. `change`: gets what has to hold when it is
// committed, too; null: any_of has no install_confined. PERMISSION_DENIED: the caller may not
// change it.
absl::StatusOr<std::string> AuthorizeChange(const grpc::CallbackServerContext& context,
                                            const Core& core, const std::string& operator_name,
                                            RoleSet any_of = Role::kInstall,
                                            ChangeContext* change = nullptr);
// PERMISSION_DENIED: the account has only the role install_confined, and a version of the operator
// was installed by another one, or from a source or an object.
absl::Status CheckOwnOperator(const Account& account, const Core& core,
                              const std::string& operator_name);
// For ChangeContext::authorize: CheckOwnOperator of the identity's account. Another installer may
// be faster between the check of a call and its change.
std::function<absl::Status()> CheckOwnOperatorAgain(std::shared_ptr<Identity> identity,
                                                    const Core& core,
                                                    const std::string& operator_name);

// The limits of a message of `method` ("/package.Service/Method"): the objects that the table of
// methods allows, and the memory of one client.
MessageLimits FindMessageLimits(const Core& core, std::string_view method);

// The call's deadline. `now`: the present time.
Clock::time_point ReadDeadline(const grpc::CallbackServerContext& context, Clock::time_point now);

}  // namespace resident

#endif  // RESIDENT_SERVER_RPC_CALL_H_
