// Reads the credentials of a gRPC call, for Access.
//
// Thread safety: functions without state.
#ifndef RESIDENT_SERVER_AUTH_PRESENTED_H_
#define RESIDENT_SERVER_AUTH_PRESENTED_H_

#include <map>

#include "grpcpp/security/auth_context.h"
#include "grpcpp/support/string_ref.h"
#include "server/auth/access.h"

namespace resident {

using CallMetadata = std::multimap<grpc::string_ref, grpc::string_ref>;

// The result refers to both arguments.
Presented PresentedBy(const CallMetadata& metadata, const grpc::AuthContext& context);

}  // namespace resident

#endif  // RESIDENT_SERVER_AUTH_PRESENTED_H_
