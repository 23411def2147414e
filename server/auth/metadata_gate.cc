#include "server/auth/metadata_gate.h"

#include <string_view>

#include "server/auth/presented.h"
#include "server/status.h"

namespace resident {

grpc::Status MetadataGate::Process(const InputMetadata& metadata, grpc::AuthContext* context,
                                   OutputMetadata*, OutputMetadata*) {
  const auto path = metadata.find(":path");
  const std::string_view method = path == metadata.end()
                                      ? std::string_view()
                                      : std::string_view(path->second.data(), path->second.size());
  return ToGrpc(access_.Admit(method, PresentedBy(metadata, *context)));
}

}  // namespace resident
