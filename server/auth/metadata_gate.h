// MetadataGate: where every call of every service is let in or refused, before its
// message is read and before any service hears of it.
//
// gRPC calls it for all services alike, also for health, reflection and channelz, on
// every kind of credentials but the plain insecure ones (server_credentials.h).
//
// Thread safety: gRPC calls it from any thread. It does not block.
#ifndef RESIDENT_SERVER_AUTH_METADATA_GATE_H_
#define RESIDENT_SERVER_AUTH_METADATA_GATE_H_

#include "grpcpp/security/auth_metadata_processor.h"
#include "server/auth/access.h"

namespace resident {

class MetadataGate final : public grpc::AuthMetadataProcessor {
 public:
  // `access` must outlive the server.
  explicit MetadataGate(const Access* access) : access_(*access) {}

  bool IsBlocking() const override { return false; }
  grpc::Status Process(const InputMetadata& metadata, grpc::AuthContext* context,
                       OutputMetadata* consumed, OutputMetadata* response) override;

 private:
  const Access& access_;
};

}  // namespace resident

#endif  // RESIDENT_SERVER_AUTH_METADATA_GATE_H_
