#include "server/auth/presented.h"

#include <grpc/grpc_security_constants.h>

#include <string_view>
#include <vector>

namespace resident {
namespace {

std::string_view View(grpc::string_ref text) { return {text.data(), text.size()}; }

}  // namespace

Presented PresentedBy(const CallMetadata& metadata, const grpc::AuthContext& context) {
  Presented presented;
  const auto [first, last] = metadata.equal_range("authorization");
  for (auto it = first; it != last; ++it) {
    presented.authorization = View(it->second);
    ++presented.authorizations;
  }
  // gRPC sets a certificate's properties only if it has verified the certificate. (gRPC's
  // "authenticated" is also true for any connection within this machine.)
  if (context.FindPropertyValues(GRPC_X509_PEM_CERT_PROPERTY_NAME).empty()) return presented;
  presented.certificate = true;
  for (const char* property : {GRPC_PEER_URI_PROPERTY_NAME, GRPC_X509_CN_PROPERTY_NAME}) {
    const std::vector<grpc::string_ref> values = context.FindPropertyValues(property);
    if (values.empty()) continue;
    presented.certificate_name = View(values.front());
    presented.name_is_uri = std::string_view(property) == GRPC_PEER_URI_PROPERTY_NAME;
    break;
  }
  return presented;
}

}  // namespace resident
